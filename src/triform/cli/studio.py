"""`triform studio`: watch, try and compare runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from triform.cli.help import OUTPUT, argument, flag
from triform.cli.options import DeviceOption, PrecisionOption
from triform.cli.serve import (
    AddressJsonOption,
    AllowHostOption,
    HostOption,
    MaxBatchOption,
    MaxQueueOption,
    PortOption,
    ReadOnlyOption,
    TokenFileOption,
    TokenOption,
    run_until_interrupted,
)
from triform.cli.server_token import choose_token
from triform.errors import ConfigError


def studio(
    folder: Annotated[Path, argument("RUNS_FOLDER", "Folder with runs. The default is runs.")] = Path("runs"),
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    allow_host: AllowHostOption = None,
    read_only: ReadOnlyOption = False,
    max_batch: MaxBatchOption = 32,
    max_queue: MaxQueueOption = 256,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    no_browser: Annotated[bool, flag(OUTPUT, "--no-browser", "Do not open the page in a browser.")] = False,
    json_: AddressJsonOption = False,
) -> None:
    """Watch, try, compare and train models in a browser.

    The page shows all runs below RUNS_FOLDER: their curves while they train, a playground for each model, attention
    maps and comparisons. It can also start new runs, which continue when the server stops. The page uses nothing
    from other machines. Programs can use the models as with triform serve.

    Examples:
        triform studio
        triform studio runs/demo --port 9000 --no-browser
    """
    from triform.serving import ServerOptions

    token, shown_token = choose_token(host, token, token_file)
    if not folder.is_dir():
        if folder.exists():
            raise ConfigError(f"{folder} is a file; name a folder with runs")
        if folder != Path("runs"):
            raise ConfigError(f"{folder}: no such folder; name a folder with runs")
        folder.mkdir()
    if (folder / "config.toml").exists():
        raise ConfigError(f"{folder} is a run; name the folder that contains it: triform studio {folder.parent}")
    options = ServerOptions(
        folder=folder,
        page=True,
        host=host,
        allowed_hosts=tuple(allow_host or ()),
        token=token,
        device=device,
        precision=precision,
        max_batch=max_batch,
        max_queue=max_queue,
        read_only=read_only,
    )
    run_until_interrupted(options, port, json_=json_, shown_token=shown_token, open_browser=not no_browser)
