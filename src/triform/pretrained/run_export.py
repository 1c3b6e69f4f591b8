"""Export a run as a folder for other programs: Hugging Face's libraries, CTranslate2 or ONNX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal, get_args

from triform.config import Config
from triform.errors import CheckpointError, ConfigError, require_unicode
from triform.io.files import atomic_folder
from triform.models.ensemble import refuse_ensemble
from triform.nn.kernels.precision import is_reduced_precision
from triform.pretrained.card_metadata import CardInfo
from triform.pretrained.ctranslate2_export import write_ctranslate2
from triform.pretrained.hf_export import exported_family_name, write_hf
from triform.pretrained.model_card import build_model_card
from triform.pretrained.onnx_export import MODEL_FILE, write_onnx
from triform.tasks import Task
from triform.tasks.pretraining import refuse_pretraining
from triform.text import DEFAULT_SPECIAL_TOKENS, Tokenizer, write_tokenizer
from triform.text.spm import SentencePieceTokenizer

ExportFormat = Literal["hf", "ctranslate2", "onnx"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
TARGET_FOLDER = "target"  # folder of the target vocabulary, if there are two


def export(task: Task, to: str, out: Path, info: CardInfo | None = None) -> str:
    """Write a task's model, its tokenizer and a README to a new folder.

    Args:
        task: The task of a run, with fp32 weights.
        to: "hf" for transformers, "ctranslate2" for decoders and translators, or "onnx" for classifiers.
        out: The folder to write. It must be empty or not exist.
        info: What the model card states besides the settings.

    Returns:
        The name of the family that the model was written as, such as "gpt2"; otherwise the name of the format.

    Raises:
        CheckpointError: The folder is not empty, cannot be written, or a package is missing.
        ConfigError: The format cannot express the settings of the run.

    >>> import tempfile, triform
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("the cat sat on the mat. " * 40)
    >>> tiny = {"model": {"d_model": 8, "n_layers": 1, "n_heads": 2}, "train": {"max_steps": 1}}
    >>> options = {"out": folder / "run", "device": "cpu", "quiet": True}
    >>> run = triform.train("generate", data=folder / "text.txt", **tiny, **options)
    >>> export(run.task, "hf", folder / "exported")
    'gpt2'
    """
    if to not in EXPORT_FORMATS:
        raise ConfigError(f"unknown --to {to!r}; choose from {', '.join(EXPORT_FORMATS)}")
    refuse_pretraining(task.config, f"--to {to}")
    if task.config.model.is_recurrent:
        raise ConfigError(
            f"--to {to} supports only Transformers, so a run with model.kind={task.config.model.kind} "
            "cannot be exported"
        )
    if to != "onnx":  # ONNX holds any computation
        refuse_ensemble(task.model, f"--to {to}")
    if is_reduced_precision(task.model):
        raise ConfigError("the model was opened in bf16 or int8; use Run.export, which exports the stored weights")
    # `not out.name`: the current folder cannot be replaced.
    if out.exists() and (not out.name or not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} already exists; choose another --out")
    require_unicode(str(out))
    family = exported_family_name(task.model, task.config) if to == "hf" else to
    try:
        with atomic_folder(out) as temporary:
            _write_export(task, to, temporary, out, info)
            if out.is_dir():
                out.rmdir()
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written ({error.strerror or error})") from None
    return family


def export_with_card(task: Task, to: str, out: Path, metrics: Any, **statement: Any) -> str:
    """Export a task as `export` does. The card has the metrics of a run, and what the user states (`CardInfo`)."""
    return export(task, to, out, CardInfo(metrics=metrics, **statement))


def _write_export(task: Task, to: str, folder: Path, out: Path, info: CardInfo | None) -> None:
    model, config, tokenizers = task.model.eval(), task.config, export_tokenizers(task)
    files: dict[str, Any] = {}
    if to == "hf":
        files = write_hf(model, config, tokenizers, folder)
    elif to == "ctranslate2":
        write_ctranslate2(model, config, tokenizers, folder)
    else:
        write_onnx(model, config.data.max_len, folder / MODEL_FILE)
        files = {"config.json": {"id2label": dict(enumerate(config.data.labels)), "max_len": config.data.max_len}}
    if config.task == "generate":
        tokenizers = [_without_end_tokens(tokenizers[0])]
    _write_tokenizers(tokenizers, folder)
    if (folder / "tokenizer_config.json").exists():
        files["tokenizer_config.json"] = _build_tokenizer_config(folder, config, tokenizers[0])
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=2)
        (folder / name).write_text(text + "\n", encoding="utf-8", newline="\n")
    card = build_model_card(to, config, tokenizers, out, info)
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")


def export_tokenizers(task: Task) -> list[Tokenizer]:
    """Return the task's tokenizer, or the source and target tokenizers of a translator that has two."""
    return [task.tokenizer] if task.tokenizer is task.target_tokenizer else list(task.tokenizers)


def _without_end_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer for prompts of a generator, which do not get an end token."""
    if not tokenizer.special_tokens.after:
        return tokenizer
    prompt_tokenizer = copy(tokenizer)
    prompt_tokenizer.special_tokens = tokenizer.special_tokens._replace(after=())
    return prompt_tokenizer


def _write_tokenizers(tokenizers: Sequence[Tokenizer], folder: Path) -> None:
    """Write the source tokenizer next to the model, and the target tokenizer there or in a separate folder."""
    write_tokenizer(tokenizers[0], folder)
    if len(tokenizers) == 1 and isinstance(tokenizers[0], SentencePieceTokenizer) and tokenizers[0].ids:
        write_tokenizer(tokenizers[0], folder, side="target")  # MarianTokenizer requires one file for each language
    if len(tokenizers) == 2:
        all_marian = all(
            isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.ids for tokenizer in tokenizers
        )
        same_vocabulary = tokenizers[0].vocabulary == tokenizers[1].vocabulary
        write_tokenizer(
            tokenizers[1], folder if all_marian and same_vocabulary else folder / TARGET_FOLDER, side="target"
        )


def _build_tokenizer_config(folder: Path, config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of tokenizer_config.json with the maximum length and the input names added."""
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    overrides: dict[str, Any] = {
        "model_max_length": config.data.max_len,
        "padding_side": "left" if config.task == "generate" else "right",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return {
        **settings,
        **overrides,
        **({"split_special_tokens": True} if tokenizer.special_tokens == DEFAULT_SPECIAL_TOKENS else {}),
    }
