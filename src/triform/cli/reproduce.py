"""`triform reproduce`: train and evaluate the reference systems."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from triform.cli.options import DeviceOption, JsonOption, print_json
from triform.formatting import echo

Job = tuple[str, Callable[[], dict[str, Any]], Callable[[dict[str, Any]], str]]  # its name, the work, what to say


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A system or a prefix of several; or list, or tables.")
    ],
    data: Annotated[str, typer.Option(metavar="DIR", help="The folder of datasets; see `triform data`.")] = "",
    variant: Annotated[str, typer.Option(help="The variant to run: as-reported, best or both.")] = "both",
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Seeds per variant; the default is that of the system.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="The run folders; for tables, the page to write.")] = "",
    results: Annotated[Path, typer.Option(metavar="DIR", help="The folder for NAME.json.")] = Path("results"),
    device: DeviceOption = "auto",
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Train tiny models for a few steps, to check that everything runs.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Run a reference system: train its variants, score them once, write results/NAME.json.

    An interrupted run continues where it stopped. `tables` writes a page from the files in --results.
    """
    if name == "list":
        _print_systems(as_json=json_)
        return
    if name == "tables":
        from triform.experiments.reproduce.page import write_results_page

        echo(f"page: {write_results_page(results, Path(out or 'docs/results.md'))}")
        return
    from triform.errors import ConfigError
    from triform.experiments.reproduce.options import ReproduceOptions
    from triform.experiments.reproduce.runner import reproduce as run
    from triform.experiments.reproduce.systems import WHY_TRANSFORMERS as WHY
    from triform.experiments.reproduce.systems import match_systems
    from triform.experiments.reproduce.tables import format_section
    from triform.experiments.reproduce.why.runner import why_transformers
    from triform.experiments.reproduce.why.tables import format_section as why_section

    systems = () if name == WHY else match_systems(name)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: give how many seeds to train, 1 or more")
    out_folder = Path(out or "runs/reproduce")
    options = ReproduceOptions(
        data=data, variant=variant, seeds=seeds or 0, out=out_folder, results=results, device=device, smoke=smoke
    )
    jobs: list[Job] = [
        (system.name, partial(run, system, options), partial(format_section, system)) for system in systems
    ]
    outcomes = []
    for result_name, run_job, format_result in jobs or [(WHY, partial(why_transformers, options), why_section)]:
        outcomes.append(run_job())
        if not json_:
            echo(format_result(outcomes[-1]))
            echo(f"results: {options.results_folder / f'{result_name}.json'}")
    if json_:
        print_json(outcomes if len(outcomes) > 1 else outcomes[0])


def _print_systems(*, as_json: bool) -> None:
    from triform.experiments.reproduce.systems import WHY_TRANSFORMERS, load_systems
    from triform.experiments.reproduce.why.comparison import STUDY_TITLE, load_comparison_tasks

    systems, parts = load_systems().values(), load_comparison_tasks()
    if as_json:
        part_entries = {part.name: {"task": part.system.task, "seeds": part.seeds} for part in parts}
        print_json(
            {
                system.name: {
                    "title": system.title,
                    "task": system.task,
                    "set": system.dataset,
                    "variants": {
                        system_variant.name: {"setting": system_variant.group, "seeds": system_variant.seeds}
                        for system_variant in system.variants
                    },
                }
                for system in systems
            }
            | {WHY_TRANSFORMERS: {"title": STUDY_TITLE, "parts": part_entries}}
        )
        return
    width = max(len(system.name) for system in systems)
    for system in systems:
        variants = ", ".join(variant.name for variant in system.variants)
        echo(f"{system.name:<{width}} {system.title} ({system.dataset}): {variants}")
    datasets = ", ".join(part.system.dataset for part in parts)
    models = ", ".join(variant.name for variant in parts[0].variants)
    echo(f"{WHY_TRANSFORMERS:<{width}} {STUDY_TITLE} ({datasets}): {models}")
