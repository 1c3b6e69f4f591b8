"""`triform search`: search for good settings by their validation scores, on any number of machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from triform.cli.help import OUTPUT, TRAINING, argument, option
from triform.cli.options import DeviceOption, JsonOption, QuietOption, print_json
from triform.cli.workers import WorkersOption, local_workers
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.experiments.search.results import SearchResult

SEARCH = "Search"
StorageOption = Annotated[
    str,
    option(
        SEARCH,
        "URL",
        "Storage that the workers share: journal:FILE, sqlite:///FILE or postgresql://USER@HOST/DATABASE. The "
        "default is a journal in FOLDER.",
    ),
]


def search(
    space: Annotated[
        Path, argument("SPACE.toml", "Search to run: a file with the data and the settings to search.")
    ],
    trials: Annotated[
        int | None, option(SEARCH, "N", "Number of settings to try. The default is that of the file, or 20.")
    ] = None,
    storage: StorageOption = "",
    seeds: Annotated[
        int | None,
        option(TRAINING, "N", "Number of seeds for each setting. The default is that of the file, or 1."),
    ] = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    out: Annotated[
        str, option(OUTPUT, "FOLDER", "Folder for the trials and the report. The default is runs/NAME.")
    ] = "",
    record: Annotated[
        Path | None,
        option(OUTPUT, "FILE", "Also write the space, all trials, seeds, times, data and device to a .json file."),
    ] = None,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Search for good settings by their validation scores.

    The best setting is compared with the default over several seeds. Several machines that share FOLDER share the
    work if each runs the same command. A search that was interrupted continues where it stopped.

    Examples:
        triform search space.toml
        triform search space.toml --trials 50 --workers 2 --out runs/search
    """
    from triform.errors import ConfigError
    from triform.experiments.search.results import print_search, search_to_dict
    from triform.experiments.search.runner import search as run_search
    from triform.experiments.search.runner import train_command
    from triform.experiments.search.space import MAX_TRIALS

    if trials is not None and not 1 <= trials <= MAX_TRIALS:
        raise ConfigError(f"--trials {trials} must be a number of settings from 1 to {MAX_TRIALS:,}")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: each setting needs at least 1 seed")
    numbers = {"--trials": trials, "--seeds": seeds}
    arguments = ["search", str(space), "--device", device, "--out", out, "--storage", storage]
    arguments += [part for name, value in numbers.items() if value for part in (name, str(value))]
    options = {"out": out, "storage": storage, "device": device, "quiet": quiet}
    with local_workers([*arguments, *(["--quiet"] if quiet else [])], workers) as start_workers:
        result = run_search(space, trials=trials or 0, seeds=seeds or 0, on_start=start_workers, **options)  # type: ignore[arg-type]
    if record:
        _write_record(record, result, space.name, device)
    if json_:
        print_json(search_to_dict(result))
        return
    print_search(result)
    echo(f"report: {result.path / 'search.md'} (and search.json)")
    if result.best:
        echo(f"train:  {train_command(result)}")


def _write_record(path: Path, result: SearchResult, space_name: str, device: str) -> None:
    from triform.device import resolve_device
    from triform.experiments.search.record import build_record, environment_info, write_record

    command = f"triform search {space_name} --trials {result.space.trials} --seeds {len(result.space.seeds)}"
    write_record(path, build_record(result, environment_info(resolve_device(device), command)))
