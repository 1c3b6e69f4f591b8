"""`triform explain`: attention maps and attributions of one text, as a page or a picture."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import (
    AdapterOption,
    DeviceOption,
    JsonOption,
    NoVerifyOption,
    RunArgument,
    load_run,
    print_json,
)
from triform.errors import ConfigError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.explain.attention_maps import Explanation

DEFAULT_OUT = "maps.html"


def explain(
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to explain.")],
    target: Annotated[
        str,
        typer.Option(
            help="For translate the translation, for generate the continuation, for classify the label to explain."
        ),
    ] = "",
    max_new_tokens: Annotated[
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
    stack: Annotated[str, typer.Option(help="Show only this map: encoder, decoder or cross.")] = "",
    json_: JsonOption = False,
    device: DeviceOption = "auto",
    adapter: AdapterOption = "",
    no_verify: NoVerifyOption = False,
) -> None:
    """Show the attention maps of every layer and head, and attributions for a label."""
    from triform.explain.attention_maps import validate_suffix

    if out is None and not json_:
        out = DEFAULT_OUT
    if out is not None:
        validate_suffix(out)  # before the model is loaded
    loaded_run = load_run(run, device=device, precision="fp32", adapter=adapter, no_verify=no_verify)
    if max_new_tokens and loaded_run.config.task != "generate":
        raise ConfigError(f"--max-new-tokens is for generate; this run is for {loaded_run.config.task}")
    if max_new_tokens and target:
        raise ConfigError("--target and --max-new-tokens both say how the text goes on: give one of them")
    explanation = loaded_run.explain(text, target=target, max_new_tokens=max_new_tokens)
    for note in explanation.notes:
        echo(f"note: {note}", err=True)
    explanation = explanation.select_map(stack) if stack else explanation
    path = None if out is None else explanation.save(out)
    if json_:
        print_json({"run": str(run), "task": loaded_run.config.task, **explanation.as_dict()}, indent=None)
    else:
        _print_explanation(explanation)
        echo(f"written to {path}")


def _print_explanation(explanation: Explanation) -> None:
    """The answer, the size of each map, and the tokens that speak most for or against the label."""
    if explanation.output:
        text, output = (shorten(value, 80, placeholder=" …") for value in (explanation.text, explanation.output))
        echo(f"{text} → {output}")
    for attention_map in explanation.maps:
        layers, heads, queries, keys = attention_map.weights.shape
        sizes = f"{layers} layer{'s' * (layers != 1)} × {heads} head{'s' * (heads != 1)}"
        echo(f"{attention_map.name}: {sizes}, {queries} × {keys} tokens")
    for attribution in explanation.attributions[:1]:
        strongest = sorted(
            zip(attribution.pieces, attribution.values, strict=True), key=lambda pair: -abs(pair[1])
        )[:5]
        strongest_text = ", ".join(f"{piece.strip()} {value:+.2f}" for piece, value in strongest)
        echo(f"{attribution.label} ({attribution.method}): {strongest_text}")
