"""`triform explain`: where a trained model looks, as a page or a picture."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import Adapter, Device, Json, NoVerify, RunPath, open_run, print_json
from triform.errors import ConfigError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.explain.maps import Explanation

DEFAULT_OUT = "maps.html"


def explain(
    run: RunPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to explain.")],
    target: Annotated[
        str,
        typer.Option(
            help="For translate the translation, for generate the continuation, for classify the label to explain."
        ),
    ] = "",
    new: Annotated[
        int, typer.Option(metavar="N", min=0, help="For generate: continue with the N likeliest tokens.")
    ] = 0,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="F",
            help="Write a page (.html) or a picture (.png, .svg) to this file. "
            f"The default is {DEFAULT_OUT}, or no file with --json.",
        ),
    ] = None,
    map_: Annotated[str, typer.Option("--map", help="Show only this map: encoder, decoder or cross.")] = "",
    json_: Json = False,
    device: Device = "auto",
    adapter: Adapter = "",
    no_verify: NoVerify = False,
) -> None:
    """Show where a model looks: attention maps of every layer and head, and what speaks for a label."""
    from triform.explain.maps import check_suffix

    if out is None and not json_:
        out = DEFAULT_OUT
    if out is not None:
        check_suffix(out)  # before the model is loaded
    opened = open_run(run, device=device, precision="fp32", adapter=adapter, no_verify=no_verify)
    if new and opened.config.task != "generate":
        raise ConfigError(f"--new is for generate; this run is for {opened.config.task}")
    if new and target:
        raise ConfigError("--target and --new both say how the text goes on: give one of them")
    seen = opened.explain(text, target=target, n_new=new)
    for note in seen.notes:
        echo(f"note: {note}", err=True)
    seen = seen.only(map_) if map_ else seen
    path = None if out is None else seen.save(out)
    if json_:
        print_json({"run": str(run), "task": opened.config.task, **seen.as_dict()}, indent=None)
    else:
        _show(seen)
        echo(f"written to {path}")


def _show(seen: Explanation) -> None:
    """The answer, the size of each map, and the tokens that speak most for or against the label."""
    if seen.output:
        echo(f"{shorten(seen.text, 80, placeholder=' …')} → {shorten(seen.output, 80, placeholder=' …')}")
    for each in seen.maps:
        layers, heads, queries, keys = each.weights.shape
        sizes = f"{layers} layer{'s' * (layers != 1)} × {heads} head{'s' * (heads != 1)}"
        echo(f"{each.name}: {sizes}, {queries} × {keys} tokens")
    for attribution in seen.attributions[:1]:
        most = sorted(zip(attribution.pieces, attribution.values, strict=True), key=lambda pair: -abs(pair[1]))[:5]
        shown = ", ".join(f"{piece.strip()} {value:+.2f}" for piece, value in most)
        echo(f"{attribution.label} ({attribution.method}): {shown}")
