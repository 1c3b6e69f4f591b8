"""Values that the shell offers when the user presses Tab: tasks, presets, settings, run folders and more.

Each function gets what the user has typed so far. Without an offer, the shell completes file names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

Complete = Callable[[str], list[str]]


def complete_from(values: Iterable[str]) -> Complete:
    """Return a function that offers those of `values` that start with what was typed."""
    names = tuple(values)

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


complete_task = complete_from(("classify", "generate", "translate"))
complete_device = complete_from(("auto", "cpu", "cuda", "mps"))
complete_precision = complete_from(("auto", "fp32", "bf16", "int8"))


def complete_run(incomplete: str) -> list[str]:
    """Offer the run folders under `runs/`."""
    config_files = (*Path("runs").glob("*/config.toml"), *Path("runs").glob("*/*/config.toml"))
    return complete_from(sorted(str(file.parent) for file in config_files))(incomplete)


def complete_preset(incomplete: str) -> list[str]:
    """Offer the presets."""
    from triform.config.presets import SIZE_PRESETS, SYSTEM_PRESETS

    return complete_from((*SIZE_PRESETS, *SYSTEM_PRESETS))(incomplete)


def complete_run_or_preset(incomplete: str) -> list[str]:
    """Offer the run folders and the presets."""
    return [*complete_run(incomplete), *complete_preset(incomplete)]


def complete_dataset(incomplete: str) -> list[str]:
    """Offer the datasets that can be downloaded."""
    from triform.data.catalogue import DATASETS

    return complete_from(DATASETS)(incomplete)


def complete_setting(ctx: Any, incomplete: str) -> list[str]:
    """Offer `NAME=` for each setting that the command can change. If only one matches, offer its choices too."""
    from triform.cli.shorthands import SETTABLE
    from triform.config.settings import SETTING_TYPES

    prefixes = SETTABLE.get(ctx.info_name, ("",))
    names = [name for name in SETTING_TYPES if name.startswith(prefixes)]
    matching = [name for name in names if f"{name}=".startswith(incomplete) or incomplete.startswith(f"{name}=")]
    choices = [f"{name}={choice}" for name in matching[:1] for choice in _choices(SETTING_TYPES[name])]
    offers = choices if choices and len(matching) == 1 else [f"{name}=" for name in matching]
    return complete_from(offers)(incomplete)


def complete_setting_name(incomplete: str) -> list[str]:
    """Offer the groups of settings, and the settings of the group that was typed."""
    from triform.config.settings import SETTING_TYPES

    groups = dict.fromkeys(name.partition(".")[0] for name in SETTING_TYPES)
    return complete_from(SETTING_TYPES if "." in incomplete else groups)(incomplete)


@contextmanager
def completion_in_bash() -> Iterator[None]:
    """Complete words that contain `=` in bash, which splits words there; do nothing elsewhere.

    Bash gives `model.norm=r` as the three words `model.norm`, `=` and `r`, and replaces only the last one. So the
    words are joined before typer completes them, and each offer loses the part before the last `=`.
    """
    if os.environ.get("_TRIFORM_COMPLETE") != "complete_bash":
        yield
        return
    typed = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
    words: list[str] = []
    for previous, word in zip(["", *typed], typed, strict=False):
        if words and "=" in (previous, word):
            words[-1] += word
        else:
            words.append(word)
    os.environ.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    is_split = len(words) < len(typed) and "=" in typed[-2:]
    kept_by_bash = words[-1][: words[-1].rindex("=") + 1] if is_split else ""
    offers = StringIO()
    try:
        with redirect_stdout(offers):
            yield
    finally:
        print(*(offer.removeprefix(kept_by_bash) for offer in offers.getvalue().splitlines()), sep="\n")


def _choices(setting_type: Any) -> tuple[str, ...]:
    if setting_type is bool:
        return ("true", "false")
    return get_args(setting_type) if get_origin(setting_type) is Literal else ()
