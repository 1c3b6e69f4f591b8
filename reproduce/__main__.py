"""`python -m reproduce`: train and evaluate the reference systems, from a checkout of Triform."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from triform.cli.help import DATA, OUTPUT, TRAINING, HelpCommand, argument, flag, option
from triform.cli.main import main
from triform.cli.options import DeviceOption, JsonOption, print_json
from triform.formatting import echo, print_table

RESULTS = Path("reproduce/results")
Job = tuple[
    str, Callable[[], dict[str, Any]], Callable[[dict[str, Any]], str]
]  # name, function that runs it, function that formats its result


NameArgument = Annotated[
    str,
    argument(
        "NAME",
        "System to run, or the start of several names. "
        "Write list to see the systems, or tables to write a page with all results.",
    ),
]
VariantOption = Annotated[
    str,
    option(
        TRAINING,
        "NAME",
        "Variants to run: as-reported, best, both or earlier, or the name of one variant.",
    ),
]
SeedsOption = Annotated[
    int | None, option(TRAINING, "N", "Number of seeds for each variant. The default is that of the system.")
]
SmokeOption = Annotated[
    bool, flag(TRAINING, "--smoke", "Train tiny models for a few steps, to check that everything runs.")
]


def reproduce(
    name: NameArgument,
    data: Annotated[str, option(DATA, "FOLDER", "Folder that holds the datasets; see triform data.")] = "",
    variant: VariantOption = "both",
    seeds: SeedsOption = None,
    smoke: SmokeOption = False,
    device: DeviceOption = "auto",
    out: Annotated[str, option(OUTPUT, "PATH", "Folder for the run folders; for tables, the page to write.")] = "",
    results: Annotated[Path, option(OUTPUT, "FOLDER", "Folder for the results, as NAME.json.")] = Path(
        "reproduce/results"
    ),
    json_: JsonOption = False,
) -> None:
    """Train and evaluate the documented reference systems.

    Each variant is trained with several seeds and evaluated once on the test data. An interrupted command continues
    where it stopped.

    Examples:
        python -m reproduce list
        python -m reproduce speeches-lm --smoke
    """
    if name == "list":
        _print_systems(as_json=json_)
        return
    if name == "tables":
        from reproduce.page import write_results_page

        echo(f"page: {write_results_page(results, Path(out or 'docs/results.md'))}")
        return
    from reproduce.options import ReproduceOptions
    from reproduce.runner import reproduce as run
    from reproduce.systems import WHY_TRANSFORMERS as WHY
    from reproduce.systems import match_systems
    from reproduce.tables import format_section
    from reproduce.why.runner import why_transformers
    from reproduce.why.tables import format_section as why_section
    from triform.errors import ConfigError

    systems = () if name == WHY else match_systems(name)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: each variant needs at least 1 seed")
    for system in systems:
        system.select_variants(variant)  # refuses an unknown name before anything is trained
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
    from reproduce.systems import WHY_TRANSFORMERS, load_systems
    from reproduce.why.comparison import STUDY_TITLE, load_comparison_tasks

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
    rows = [["system", "title", "data", "variants"]]
    for system in systems:
        names = [
            f"{variant.name} (earlier)" if variant.group == "earlier" else variant.name
            for variant in system.variants
        ]
        rows.append([system.name, system.title, system.dataset, ", ".join(names)])
    datasets = ", ".join(part.system.dataset for part in parts)
    models = ", ".join(variant.name for variant in parts[0].variants)
    print_table([*rows, [WHY_TRANSFORMERS, STUDY_TITLE, datasets, models]], align="llll")


app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=HelpCommand)(reproduce)

if __name__ == "__main__":
    main(app, "python -m reproduce")
