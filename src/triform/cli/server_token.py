"""The token of `triform serve` and `triform studio`: from an option, a file, the environment, or a random one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from triform.errors import ConfigError
from triform.formatting import echo

TOKEN_VARIABLE = "TRIFORM_TOKEN"
MAX_TOKEN_CHARS = 4_096


def choose_token(host: str, token: str | None, file: Path | None) -> tuple[str, str]:
    """Return the token of a server, or "" if none is needed, and the token that the command may print.

    An option goes before the environment variable TRIFORM_TOKEN, which is removed from the environment, so that no
    process that the server starts has it. Without any of them, other machines need a random token.

    Args:
        host: The address that the server is bound to.
        token: The option `--token`.
        file: The option `--token-file`.

    Raises:
        ConfigError: Both options are given, the file cannot be read, or the token is empty.
    """
    from triform.serving.security import generate_token, is_loopback

    variable_token = os.environ.pop(TOKEN_VARIABLE, None)
    if token is not None and file is not None:
        raise ConfigError("give either --token or --token-file, not both")
    if token is not None:
        source, chosen = "--token", token
    elif file is not None:
        source, chosen = f"--token-file {file}", read_token_file(file)
    elif variable_token is not None:
        source, chosen = TOKEN_VARIABLE, variable_token
    else:
        chosen = "" if is_loopback(host) else generate_token()
        return chosen, chosen
    if not chosen:
        raise ConfigError(f"{source}: the token is empty; give one, or leave this out")
    return chosen, chosen if source == "--token" else ""


def read_token_file(path: Path) -> str:
    """Return the token in a file, without white space around it. Warn if other users may read the file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text, mode = file.read(MAX_TOKEN_CHARS + 1), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise ConfigError(f"--token-file {path} cannot be read: {error.strerror or error}") from None
    if len(text) > MAX_TOKEN_CHARS:
        raise ConfigError(f"--token-file {path}: the file has more than {MAX_TOKEN_CHARS:,} characters")
    if os.name == "posix" and stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        echo(f"warning: other users may read {path}; make it private with chmod 600", err=True)
    return text.strip()
