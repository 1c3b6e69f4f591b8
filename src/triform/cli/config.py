"""`triform config`: show the settings of a run, a preset or a file, and where each of them comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from triform.cli.completion import complete_run, complete_run_or_preset
from triform.cli.help import SETTINGS, HelpCommand, argument, new_group, option
from triform.cli.model_argument import ConfigOption, PresetOption, TaskOption
from triform.cli.options import JsonOption, NoVerifyOption, SetOption, parse_decode_settings, print_json
from triform.cli.shorthands import with_shorthands
from triform.errors import ConfigError
from triform.formatting import print_table

if TYPE_CHECKING:
    from triform.config import Config
    from triform.config.settings import Settings

config = new_group(
    "config",
    """
    Show the settings of runs, presets and files.

    Examples:
        triform config show runs/reviews
        triform config show speeches-lm
    """,
)


@config.command(cls=HelpCommand)
@with_shorthands("--epochs", "--max-steps", "--lr", "--batch-size", "--text-column", "--label-column")
def show(
    target: Annotated[
        str,
        argument("RUN|PRESET|FILE", "Run folder, name of a preset, or TOML file.", complete=complete_run_or_preset),
    ] = "",
    preset: PresetOption = "",
    config: ConfigOption = None,
    task: TaskOption = "",
    set_: SetOption = None,
    from_: Annotated[
        str, option(SETTINGS, "RUN", "Start from the settings of this run.", name="--from", complete=complete_run)
    ] = "",
    no_verify: NoVerifyOption = False,
    json_: JsonOption = False,
) -> None:
    """Show every setting with its value and its source.

    For a preset or a file, these are the settings that triform train would use with the same options. For a run,
    they are the settings that it was trained with.

    Examples:
        triform config show runs/reviews
        triform config show small --task classify --set model.dropout=0.2
    """
    is_run, preset, config = _find_target(target, preset, config)
    if is_run:
        if preset or config or task or from_:
            raise ConfigError(f"{target} is a run, whose settings are final; leave out the other options")
        resolved, sources = _read_run(Path(target), set_, verify=not no_verify)
    else:
        resolved, sources = _resolve_request(task, preset, config, set_, from_)
    values = _format_values(resolved, resolved=is_run)
    if json_:
        print_json({name: {"value": value, "source": sources[name]} for name, (value, _) in values.items()})
        return
    rows = [[name, text, sources[name]] for name, (_, text) in values.items()]
    print_table([["setting", "value", "source"], *rows], align="lll")


def _find_target(target: str, preset: str, config: Path | None) -> tuple[bool, str, Path | None]:
    """Return whether the argument is a run, and the preset and the file with the argument in its position."""
    from triform.config.presets import SIZE_PRESETS, SYSTEM_PRESETS
    from triform.config.settings import suggest_name

    presets = [*SYSTEM_PRESETS, *SIZE_PRESETS]
    path = Path(target)
    if not target:
        return False, preset, config
    if target in presets:
        if preset:
            raise ConfigError(f"{target} and --preset {preset}: give only one preset")
        return False, target, config
    if path.is_dir():
        return True, preset, config
    if path.exists() or path.suffix == ".toml":
        if config:
            raise ConfigError(f"{target} and --config {config}: give only one file")
        return False, preset, path
    hint = "" if len(path.parts) > 1 else f", and no preset has this name; {suggest_name(target, presets)}"
    raise ConfigError(f"{target}: no such run folder or file{hint}")


def _read_run(path: Path, assignments: list[str] | None, *, verify: bool) -> tuple[Config, dict[str, str]]:
    """Return the settings of a run, changed by decoding settings, and their sources."""
    from triform.config.merging import OPTION_SOURCE, describe_sources
    from triform.config.settings import build_config, parse_assignments
    from triform.io.run_config import read_run_config, read_setting_sources

    run_config = read_run_config(path, verify=verify)
    sources = describe_sources(run_config, read_setting_sources(path), resolved=True)
    parse_decode_settings(assignments)
    overrides = parse_assignments(assignments or [])
    return build_config(overrides, run_config), sources | dict.fromkeys(overrides, OPTION_SOURCE)


def _resolve_request(
    task: str, preset: str, config: Path | None, assignments: list[str] | None, base: str
) -> tuple[Config, dict[str, str]]:
    """Return the settings that training would start with, and their sources."""
    from triform.config.merging import (
        OPTION_SOURCE,
        absolute_path,
        describe_sources,
        merge_request,
        request_sources,
    )
    from triform.config.settings import build_config, parse_assignments

    settings = parse_assignments(assignments or [])
    if base:
        settings["train.init_from"] = base
    found_task, task_source = _find_task(task or str(settings.get("task", "")), preset, config)
    requested = merge_request(found_task, preset, config, settings)
    sources = request_sources(found_task, preset, config, settings) | {"task": task_source or OPTION_SOURCE}
    if requested.get("train.init_from") or requested.get("train.embeddings"):
        from triform.training.init_from import apply_base

        if requested.get("train.init_from"):
            requested["train.init_from"] = absolute_path(str(requested["train.init_from"]))
        requested = apply_base(requested)
    resolved = build_config(requested)
    return resolved, describe_sources(resolved, sources, resolved=False)


def _find_task(task: str, preset: str, config: Path | None) -> tuple[Any, str]:
    """Return the task and its source; "" where it is an option."""
    from triform.config.presets import SYSTEM_PRESETS
    from triform.config.presets import preset as load_preset
    from triform.config.settings import DEFAULTS, read_settings

    if task:
        return task, ""
    if config and (file_task := read_settings(config).get("task")):
        return file_task, f"file {config}"
    if preset in SYSTEM_PRESETS:
        return load_preset(preset).task, f"preset {preset}"
    return DEFAULTS["task"], "default"


def _format_values(config: Config, *, resolved: bool) -> dict[str, tuple[object, str]]:
    """Return the value of each setting, for JSON and as text. A value that is chosen later is None and `auto`."""
    from triform.config.merging import is_automatic
    from triform.config.reference import find_settings
    from triform.config.settings import AUTO_SETTINGS, DEFAULTS, flatten_config, format_setting

    settings: Settings = flatten_config(config)
    values: dict[str, tuple[object, str]] = {}
    for name, value in settings.items():
        chosen_later = is_automatic(name, settings) and not resolved
        chosen_in_use = name not in AUTO_SETTINGS and bool(find_settings(name)[0].doc.auto)
        if value == DEFAULTS[name] and (chosen_later or chosen_in_use):
            values[name] = None, "auto"
        else:
            values[name] = value, format_setting(value) or "none"
    return values
