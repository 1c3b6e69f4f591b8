"""`triform convert`: import published models, and export runs for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from triform.cli.completion import complete_from
from triform.cli.help import OUTPUT, RUN_FOLDER, SETTINGS, HelpCommand, argument, flag, new_group, option
from triform.cli.options import AdapterOption, EnsembleArgument, NoVerifyOption, load_run
from triform.formatting import echo

CARD = "Model card"

convert = new_group(
    "convert",
    """
    Import published models and export runs for other libraries.

    Examples:
        triform convert import hub:openai-community/gpt2 --out runs/gpt2
        triform convert export runs/reviews --to onnx --out exported
        triform convert push exported OWNER/reviews
    """,
)


@convert.command("import", cls=HelpCommand)
def import_(
    folder: Annotated[str, argument("FOLDER", "Hugging Face folder, nanoGPT's ckpt.pt, or hub:OWNER/NAME.")],
    out: Annotated[Path, option(RUN_FOLDER, "RUN", "Run folder to write.", name="--out")],
    labels: Annotated[
        str, option(SETTINGS, "A,B", "Add a classification head with these labels. Fine-tune it before use.")
    ] = "",
    max_len: Annotated[
        int,
        option(
            SETTINGS,
            "N",
            "Maximum length of a text in tokens. The default is that of the model.",
            minimum=0,
            show_default=False,
        ),
    ] = 0,
) -> None:
    """Convert a published model to a run folder.

    Supported models are GPT-2, Llama, BERT, DistilBERT, Megatron-BERT, Marian, BlenderBot and nanoGPT.

    Examples:
        triform convert import hub:openai-community/gpt2 --out runs/gpt2
        triform convert import bert-base --labels positive,negative --out runs/bert
    """
    from triform.errors import ConfigError
    from triform.pretrained.run_import import import_run

    label_names = tuple(label.strip() for label in labels.split(",")) if labels else ()
    if not all(label_names):
        raise ConfigError(f"--labels {labels}: a label is empty; write them as A,B")
    run, imported = import_run(folder, out, labels=label_names, max_len=max_len)
    for notice in imported.notices:
        echo(notice, err=True)
    parameters = sum(parameter.numel() for parameter in imported.model.parameters())
    echo(f"imported {imported.family} ({parameters:,} parameters, {imported.config.task}) to {run.path}")


@convert.command(cls=HelpCommand)
def export(
    run: EnsembleArgument,
    to: Annotated[
        str,
        option(
            OUTPUT,
            "FORMAT",
            "Format: hf (transformers), ctranslate2 (generate and translate) or onnx (classify, also ensembles).",
            name="--to",
            complete=complete_from(("hf", "ctranslate2", "onnx")),
        ),
    ],
    out: Annotated[Path, option(OUTPUT, "FOLDER", "Folder to write.", name="--out")],
    license_: Annotated[str, option(CARD, "ID", "Licence, such as apache-2.0.", name="--license")] = "",
    language: Annotated[
        list[str] | None, option(CARD, "CODE", "Language of the texts, such as en. Repeatable.", name="--language")
    ] = None,
    dataset: Annotated[str, option(CARD, "NAME", "Name of the training data on the Hub.", name="--dataset")] = "",
    base_model: Annotated[
        str, option(CARD, "NAME", "Name on the Hub of the model that was fine-tuned.", name="--base-model")
    ] = "",
    adapter: AdapterOption = "",
    no_verify: NoVerifyOption = False,
) -> None:
    """Export a run for transformers, CTranslate2 or ONNX Runtime.

    The folder contains a model card, README.md, with the metrics of the run and Python code that loads the model.

    Examples:
        triform convert export runs/reviews --to hf --out exported --license mit
        triform convert export runs/translator --to ctranslate2 --out exported
    """
    loaded_run = load_run(run, device="cpu", precision="fp32", adapter=adapter, no_verify=no_verify)
    statement = {"license": license_, "dataset": dataset, "base_model": base_model}
    description = loaded_run.export(to, out, languages=language or (), **statement)
    parameters = sum(parameter.numel() for parameter in loaded_run.task.model.parameters())
    echo(f"exported {description} ({parameters:,} parameters) to {out}; see its README.md for how to load it")


@convert.command(cls=HelpCommand)
def push(
    folder: Annotated[Path, argument("FOLDER", "Folder that triform convert export has written.")],
    repository: Annotated[str, argument("REPO", "Repository on the Hugging Face Hub: OWNER/NAME.")],
    private: Annotated[bool, flag(OUTPUT, "--private", "Make a new repository private.")] = False,
) -> None:
    """Upload an exported model to the Hugging Face Hub.

    The files of FOLDER are uploaded and nothing else: no checkpoints, no optimizer state, no data. It needs the
    extra hf and a token (hf auth login, or the environment variable HF_TOKEN).

    Examples:
        triform convert push exported OWNER/reviews
        triform convert push exported OWNER/reviews --private
    """
    from triform.pretrained.hub_upload import push_folder

    url = push_folder(folder, repository, private=private)
    echo(f"uploaded {folder} to {url}")
