"""Import a published model as a run folder, which works like the folder of any trained run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import triform
from triform.config import TaskName
from triform.config.settings import Settings, build_config
from triform.errors import CheckpointError, ConfigError
from triform.io.cache import cache_folder
from triform.io.locks import LOCK_FILE, folder_lock
from triform.io.run_layout import CONFIG_FILE
from triform.pretrained.checkpoint_reader import read_checkpoint
from triform.pretrained.families import FAMILY_BY_MODEL_TYPE
from triform.pretrained.hub import HUB_PREFIX, resolve_model_path
from triform.pretrained.model_import import ImportedModel, import_model
from triform.tasks import TASKS
from triform.text import Tokenizer, read_tokenizer
from triform.text.exporting import Side
from triform.training.run_folder import RunFolder
from triform.training.tensors import load_weights, named_weights

DEFAULT_LABELS = ("0", "1")  # for an encoder that was published without labels


def import_run(
    path: str | Path, out: Path, *, labels: Sequence[str] = (), max_len: int = 0
) -> tuple[RunFolder, ImportedModel]:
    """Write a published model and its tokenizer as a run folder.

    Args:
        path: A folder, nanoGPT's ckpt.pt or `hub:OWNER/NAME`; see `load_pretrained`.
        out: The run folder to create. It must be empty or not exist.
        labels: Labels for a classifier; see `load_pretrained`.
        max_len: Maximum number of tokens to read at once. 0 keeps the model's maximum.

    Returns:
        The run folder, and the imported model.

    Raises:
        CheckpointError: The folder `out` is not empty.
    """
    if RunFolder(out).config_file.exists():
        raise CheckpointError(f"{out} already contains a run; choose another --out")
    with RunFolder(out).lock("importing a published model"):
        if any(entry.name != LOCK_FILE for entry in out.iterdir()):
            raise CheckpointError(f"{out} exists and is not a run folder; choose another --out")
        return _write_run(path, RunFolder(out), labels=labels, max_len=max_len)


def _write_run(
    path: str | Path, folder: RunFolder, *, labels: Sequence[str] = (), max_len: int = 0
) -> tuple[RunFolder, ImportedModel]:
    checkpoint = read_checkpoint(resolve_model_path(path))
    # The fallback is never used: `import_model` refuses an unknown architecture.
    task: TaskName = (
        FAMILY_BY_MODEL_TYPE[checkpoint.model_type].task
        if checkpoint.model_type in FAMILY_BY_MODEL_TYPE
        else "generate"
    )
    imported = import_model(checkpoint, task, labels=labels, max_len=max_len)
    if task == "classify" and not imported.config.data.labels:
        imported = import_model(checkpoint, task, labels=DEFAULT_LABELS, max_len=max_len)
    tokenizers = _read_tokenizers(checkpoint.folder, imported)
    joint_vocab = task != "translate" or not imported.sizes.target_vocab_size
    vocab_size = imported.sizes.vocab_size if joint_vocab else 0
    tokenizer_settings: Settings = {
        "tokenizer.kind": tokenizers[0].kind,
        "tokenizer.vocab_size": vocab_size,
        "tokenizer.joint_vocab": joint_vocab,
    }
    config = build_config(tokenizer_settings, imported.config)
    task_object = TASKS[task](config, *tokenizers)
    load_weights(task_object.model, named_weights(imported.model), Path(str(path)))
    folder.clear()
    task_object.save(folder.path)
    folder.write_weights(named_weights(task_object.model))
    folder.write_config(config)
    return folder, imported


def ensure_run_folder(path: str) -> str:
    """Return a run folder to initialise a model from: `path` itself, or an import of a published model.

    Imports are cached under the names, sizes and modification times of the model's files.
    """
    run_configs = [*Path(path).glob(CONFIG_FILE), *Path(path).glob(f"seed-*/{CONFIG_FILE}")]
    if not path.startswith(HUB_PREFIX) and (run_configs or not Path(path).exists()):
        return path
    model_path = resolve_model_path(path)
    files = sorted(
        file for file in (model_path if model_path.is_dir() else model_path.parent).iterdir() if file.is_file()
    )
    file_stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    identity = repr((triform.__version__, str(model_path.resolve()), file_stats))
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:16]
    model_name = path.rpartition("/")[2] if path.startswith(HUB_PREFIX) else model_path.resolve().name
    out = cache_folder() / "imported" / f"{model_name}-{fingerprint}"
    if not (out / CONFIG_FILE).exists():
        with folder_lock(
            out, "importing a published model", wait=True
        ):  # another process may be importing the same model
            if not (out / CONFIG_FILE).exists():
                _write_run(path, RunFolder(out))  # replaces an interrupted import
    return str(out)


def _read_tokenizers(path: Path, imported: ImportedModel) -> list[Tokenizer]:
    """Return one tokenizer, or one for each language, after checking that it fits the embedding."""
    sides: list[Side] = ["source", "target"] if imported.config.task == "translate" else ["source"]
    sizes = {
        "source": imported.sizes.vocab_size,
        "target": imported.sizes.target_vocab_size or imported.sizes.vocab_size,
    }
    tokenizers = [read_tokenizer(path, side=side) for side in sides]
    for side, tokenizer in zip(sides, tokenizers, strict=True):
        if tokenizer.vocab_size != sizes[side]:
            raise ConfigError(
                f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, but the embedding "
                f"has {sizes[side]} rows; use the tokenizer that was published with this model"
            )
    return tokenizers
