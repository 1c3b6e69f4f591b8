"""`triform reproduce`: the reference systems, from data to table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from triform.cli.options import Device, Json, print_json
from triform.formatting import echo

Job = tuple[str, Callable[[], dict[str, Any]], Callable[[dict[str, Any]], str]]  # its name, the work, what to say


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A system, or how several begin; or list, or tables.")
    ],
    data: Annotated[str, typer.Option(metavar="DIR", help="Folder of sets, see `triform data`.")] = "",
    setting: Annotated[str, typer.Option(help="as-reported, best or both.")] = "both",
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Seeds a variant; default: its own number.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Run folders; for tables: the page to write.")] = "",
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where NAME.json goes.")] = Path("results"),
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="A few steps of tiny models: does it all run?")] = False,
    json_: Json = False,
) -> None:
    """Run a reference system: train its variants, score them once, write results/NAME.json.

    An interrupted run goes on where it stopped. `tables` makes a page of what results holds.
    """
    if name == "list":
        _list(as_json=json_)
        return
    if name == "tables":
        from triform.reproduce.page import write_page

        echo(f"page: {write_page(results, Path(out or 'docs/results.md'))}")
        return
    from triform.errors import ConfigError
    from triform.reproduce.runner import Asked
    from triform.reproduce.runner import reproduce as run
    from triform.reproduce.systems import systems_of
    from triform.reproduce.tables import section
    from triform.reproduce.why.parts import NAME as WHY
    from triform.reproduce.why.runner import why_transformers
    from triform.reproduce.why.tables import section as why_section

    systems = () if name == WHY else systems_of(name)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: give how many seeds to train, 1 or more")
    place = Path(out or "runs/reproduce")
    asked = Asked(
        data=data, setting=setting, seeds=seeds or 0, out=place, results=results, device=device, quick=quick
    )
    jobs: list[Job] = [(system.name, partial(run, system, asked), partial(section, system)) for system in systems]
    outcomes = []
    for which, work, told in jobs or [(WHY, partial(why_transformers, asked), why_section)]:
        outcomes.append(work())
        if not json_:
            echo(told(outcomes[-1]))
            echo(f"results: {asked.kept / f'{which}.json'}")
    if json_:
        print_json(outcomes if len(outcomes) > 1 else outcomes[0])


def _list(*, as_json: bool) -> None:
    from triform.reproduce.systems import SYSTEMS
    from triform.reproduce.why.parts import KINDS, NAME, PARTS, TITLE

    if as_json:
        parts = {part.name: {"task": part.system.task, "seeds": part.seeds} for part in PARTS}
        print_json(
            {
                system.name: {
                    "title": system.title,
                    "report": system.report,
                    "task": system.task,
                    "set": system.known,
                    "variants": {
                        each.name: {"setting": each.setting, "seeds": each.seeds} for each in system.variants
                    },
                }
                for system in SYSTEMS.values()
            }
            | {NAME: {"title": TITLE, "parts": parts}}
        )
        return
    wide = max(len(name) for name in SYSTEMS)
    for system in SYSTEMS.values():
        variants = ", ".join(variant.name for variant in system.variants)
        echo(f"{system.name:<{wide}} {system.report:<9} {system.title} ({system.known}): {variants}")
    echo(f"{NAME:<{wide}} {'':<9} {TITLE} ({', '.join(part.system.known for part in PARTS)}): {', '.join(KINDS)}")
