"""`triform convert`: import published models, and export runs for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triform.cli.options import AdapterOption, NoVerifyOption, RunArgument, load_run
from triform.formatting import echo

convert = typer.Typer(help="Import published models and export runs.", rich_markup_mode=None)


@convert.callback()
def _callback() -> None:
    """Import published models and export runs."""


@convert.command("import")
def import_(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A Hugging Face folder, or hub:OWNER/NAME.")],
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder to write.")],
    labels: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Make a classifier with these labels and an untrained classification head."
        ),
    ] = "",
    max_len: Annotated[int, typer.Option(min=0, metavar="N", help="Limit the length of texts to N tokens.")] = 0,
) -> None:
    """Convert a published model to a run folder: GPT-2, Llama, BERT (also DistilBERT and Megatron),
    Marian, BlenderBot or nanoGPT."""
    from triform.errors import ConfigError
    from triform.pretrained.run_import import import_run

    label_names = tuple(label.strip() for label in labels.split(",")) if labels else ()
    if not all(label_names):
        raise ConfigError(f"--labels {labels}: a label is empty; give them as A,B")
    run, imported = import_run(folder, out, labels=label_names, max_len=max_len)
    for notice in imported.notices:
        echo(notice, err=True)
    parameters = sum(parameter.numel() for parameter in imported.model.parameters())
    echo(f"{imported.family}: {parameters:,} parameters, to {imported.config.task}: {run.path}")


@convert.command()
def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", metavar="ENGINE", help="The format: hf, ctranslate2 or onnx.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder to write.")],
    adapter: AdapterOption = "",
    no_verify: NoVerifyOption = False,
) -> None:
    """Export a run for transformers (hf), CTranslate2 (generate, translate) or ONNX Runtime (classify)."""
    loaded_run = load_run(run, device="cpu", precision="fp32", adapter=adapter, no_verify=no_verify)
    description = loaded_run.export(to, out)
    parameters = sum(parameter.numel() for parameter in loaded_run.task.model.parameters())
    echo(f"{description}: {parameters:,} parameters: {out}; its README.md shows how to load it")
