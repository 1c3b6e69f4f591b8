"""`triform explain`: write attention maps and attributions of one text to a page or a picture."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

from triform.cli.completion import complete_from
from triform.cli.help import OUTPUT, argument, option
from triform.cli.options import (
    AdapterOption,
    DeviceOption,
    JsonOption,
    KeepOption,
    NoVerifyOption,
    RunArgument,
    load_run,
    parse_keep,
    print_json,
)
from triform.errors import ConfigError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.explain.attention_maps import Explanation

DEFAULT_OUT = "maps.html"
EXPLANATION = "Explanation"


TargetOption = Annotated[
    str,
    option(EXPLANATION, "TEXT", "Explain this translation, continuation or label instead of the predicted one."),
]
MaxNewTokensOption = Annotated[
    int,
    option(
        EXPLANATION,
        "N",
        "For generate: first continue TEXT with the N most likely tokens.",
        minimum=0,
        show_default=False,
    ),
]
StackOption = Annotated[
    str,
    option(
        EXPLANATION,
        "NAME",
        "Show only this attention map: encoder, decoder or cross.",
        complete=complete_from(("encoder", "decoder", "cross")),
    ),
]
PadToOption = Annotated[
    int,
    option(
        EXPLANATION,
        "N",
        "Pad the text to N tokens and show the padding, to check that no token reads it.",
        minimum=0,
        show_default=False,
    ),
]
OutOption = Annotated[
    str | None,
    option(
        OUTPUT,
        "FILE",
        f"Page (.html) or picture (.png, .svg) to write. The default is {DEFAULT_OUT}, or no file with --json.",
    ),
]


def explain(
    run: RunArgument,
    text: Annotated[str, argument("TEXT", "Text to explain.")],
    target: TargetOption = "",
    max_new_tokens: MaxNewTokensOption = 0,
    stack: StackOption = "",
    pad_to: PadToOption = 0,
    keep: KeepOption = "",
    adapter: AdapterOption = "",
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    out: OutOption = None,
    json_: JsonOption = False,
) -> None:
    """Show attention maps and token attributions for one text.

    The page shows the attention weights of every layer and head. For a classifier, it also shows how much each
    token contributes to the label.

    Examples:
        triform explain runs/reviews "A wonderful film." --out film.html
        triform explain runs/story "Once upon a time" --max-new-tokens 20
    """
    from triform.explain.attention_maps import validate_suffix

    if out is None and not json_:
        out = DEFAULT_OUT
    if out is not None:
        validate_suffix(out)  # before the model is loaded
    part = parse_keep(keep)
    loaded_run = load_run(run, device=device, precision="fp32", adapter=adapter, no_verify=no_verify)
    if max_new_tokens and loaded_run.config.task != "generate":
        raise ConfigError(f"--max-new-tokens is for generate; this run is for {loaded_run.config.task}")
    if max_new_tokens and target:
        raise ConfigError("--target and --max-new-tokens cannot be used together; both set the continuation")
    explanation = loaded_run.explain(text, target=target, max_new_tokens=max_new_tokens, keep=part, pad_to=pad_to)
    for note in explanation.notes:
        echo(f"note: {note}", err=True)
    explanation = explanation.select_map(stack) if stack else explanation
    path = None if out is None else explanation.save(out)
    if json_:
        print_json({"run": str(run), "task": loaded_run.config.task, **explanation.as_dict()}, indent=None)
    else:
        _print_explanation(explanation)
        echo(f"attention maps: {path}")


def _print_explanation(explanation: Explanation) -> None:
    """Print the prediction, the size of each map, and the tokens with the largest attributions."""
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
