"""Import a published model: convert its settings and weights to one of Triform's models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from torch import Tensor, nn

from triform.analysis.host_memory import require_memory
from triform.config import Config, DataSizes, TaskName
from triform.config.settings import Settings, build_config
from triform.errors import ConfigError
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint, read_checkpoint
from triform.pretrained.families import find_family
from triform.pretrained.family import SPECIAL_TOKEN_KEYS, Family, ImportSpec
from triform.pretrained.hub import resolve_model_path
from triform.pretrained.name_mapping import expand_patterns, load_published_tensors

MODEL_CLASSES: dict[TaskName, type[Classifier] | type[Decoder] | type[Seq2Seq]] = {
    "classify": Classifier,
    "generate": Decoder,
    "translate": Seq2Seq,
}


@dataclass(frozen=True)
class ImportedModel:
    """A published model as one of Triform's.

    Attributes:
        config: The settings of the model.
        sizes: The sizes of its vocabulary and output.
        model: The model, with its weights.
        family: The name of its family, such as "gpt2".
        special_tokens: Ids of special tokens, by their keys in config.json.
        notices: Messages about the import, for example about weights that were skipped.
    """

    config: Config
    sizes: DataSizes
    model: nn.Module
    family: str
    special_tokens: dict[str, int]
    notices: tuple[str, ...]


def load_pretrained(
    path: str | Path, task: TaskName, *, labels: Sequence[str] = (), max_len: int = 0
) -> ImportedModel:
    """Read a published model for a task.

    Args:
        path: A folder with config.json and weights, nanoGPT's ckpt.pt, or `hub:OWNER/NAME` to download a model.
        task: "classify", "generate" or "translate". It must match the architecture of the model.
        labels: Labels for a classifier. If they differ from the model's labels, a new head is created.
        max_len: Maximum number of tokens to read at once. 0 keeps the model's maximum.

    Returns:
        The model with its settings, special tokens and notices.

    Raises:
        CheckpointError: The folder is incomplete or damaged.
        ConfigError: The architecture, or a value of its config.json, is not supported.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from safetensors.torch import save_file
    >>> from triform.config import DataSizes
    >>> from triform.config.settings import build_config
    >>> from triform.models.decoder import Decoder
    >>> from triform.pretrained import to_hf
    >>> sizes = {"model.d_model": 8, "model.d_ff": 32, "model.n_layers": 1, "model.n_heads": 2, "data.max_len": 16}
    >>> config = build_config({"task": "generate", "model.head_bias": False, **sizes})
    >>> hf_config, tensors = to_hf(Decoder(config.model, DataSizes(vocab_size=20, max_len=16)), config)
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "config.json").write_text(json.dumps(hf_config))
    >>> save_file(tensors, folder / "model.safetensors")
    >>> imported = load_pretrained(folder, "generate")
    >>> imported.family, imported.config.model.d_model
    ('gpt2', 8)
    """
    return import_model(read_checkpoint(resolve_model_path(path)), task, labels=labels, max_len=max_len)


def import_model(
    raw_checkpoint: PretrainedCheckpoint, task: TaskName, *, labels: Sequence[str] = (), max_len: int = 0
) -> ImportedModel:
    """Build the model of a checkpoint that has been read; see `load_pretrained`."""
    family = find_family(raw_checkpoint, task)
    checkpoint = replace(raw_checkpoint, tensors=add_prefix_and_aliases(family, raw_checkpoint.tensors))
    if labels and task != "classify":
        raise ConfigError(f"{checkpoint.folder}: the task {task} has no labels; remove them or use classify")
    spec = family.read_spec(checkpoint, family.read_settings(checkpoint))
    spec = _limit_max_len(_with_labels(spec, labels), max_len, checkpoint.folder)
    config, sizes = _resolve_config(spec, task, checkpoint.config_path)
    try:
        require_memory(config, sizes)
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.config_path}: {error}") from None
    model = MODEL_CLASSES[task](config.model, sizes)
    patterns = [
        pattern
        for pattern in family.patterns
        if not (spec.new_head and pattern.published_names == (family.label_head,))
    ]
    ignored = [
        *family.ignored_tensors,
        *family.other_heads,
        *spec.unused_patterns,
        *([f"{family.label_head}.*"] if spec.new_head else []),
    ]
    tensors = _truncate_positions(family, checkpoint.tensors, sizes.max_len) if max_len else checkpoint.tensors
    tensors = _drop_padding_rows(spec, tensors)
    load_published_tensors(
        model,
        expand_patterns(patterns, config.model.n_layers),
        tensors,
        path=checkpoint.folder,
        ignored_patterns=ignored,
    )
    notices = (*spec.notices, *_import_notices(family, spec, checkpoint.tensors))
    return ImportedModel(config, sizes, model, family.name, _read_special_tokens(checkpoint), notices)


def add_prefix_and_aliases(family: Family, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names that they have in a model with an output head."""
    lacks_prefix = not any(name.startswith(family.prefix) for name in tensors)
    prefixed = {family.prefix * lacks_prefix + name: tensor for name, tensor in tensors.items()}
    renames = {
        name: alias for name, alias in family.tensor_aliases.items() if name in prefixed and alias not in prefixed
    }
    return {renames.get(name, name): tensor for name, tensor in prefixed.items()}


def _with_labels(spec: ImportSpec, labels: Sequence[str]) -> ImportSpec:
    """Replace the labels, if others are given, which requires a new head."""
    if not labels or tuple(labels) == spec.labels:
        return spec
    if len(set(labels)) < max(2, len(labels)):
        raise ConfigError(f"labels {', '.join(labels)}: at least two different labels are required")
    return replace(spec, labels=tuple(labels), new_head=True, notices=())  # notices concern the old head


def _limit_max_len(spec: ImportSpec, max_len: int, path: Path) -> ImportSpec:
    if max_len > spec.max_len:
        raise ConfigError(
            f"{path}: data.max_len={max_len} is too large; this model reads at most {spec.max_len} tokens at once"
        )
    return replace(spec, max_len=max_len or spec.max_len)


def _resolve_config(spec: ImportSpec, task: TaskName, path: Path) -> tuple[Config, DataSizes]:
    model_settings: Settings = {f"model.{name}": value for name, value in spec.model_settings.items()}
    try:
        config = build_config(
            {**model_settings, "task": task, "data.max_len": spec.max_len, "data.labels": spec.labels}
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return config, DataSizes(
        vocab_size=spec.vocab_size,
        max_len=spec.max_len,
        n_labels=(len(spec.labels) or 2) if task == "classify" else 0,
        target_vocab_size=spec.target_vocab_size,
    )


def _truncate_positions(family: Family, tensors: dict[str, Tensor], max_len: int) -> dict[str, Tensor]:
    """Drop learned positions beyond `max_len`."""
    tables = [
        pattern.published_names[0] + ".weight"
        for pattern in family.patterns
        if pattern.triform_names[0].endswith("position_embedding.table")
    ]
    return tensors | {name: tensors[name][:max_len] for name in tables if name in tensors and tensors[name].ndim}


def _drop_padding_rows(spec: ImportSpec, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {name: tensors[name][: spec.vocab_size] for name in spec.padded_tensors if name in tensors}


def _import_notices(family: Family, spec: ImportSpec, tensors: dict[str, Tensor]) -> Iterator[str]:
    patterns = (*family.other_heads, *spec.unused_patterns)
    unused = [name for name in tensors if any(fnmatch(name, pattern) for pattern in patterns)]
    if unused:
        yield f"these tensors are not used and were skipped: {', '.join(unused)}"
    if spec.new_head:
        yield "the classification head is new and untrained; train it before you use the model"


def _read_special_tokens(checkpoint: PretrainedCheckpoint) -> dict[str, int]:
    """Return the ids of special tokens: the first one if config.json lists several for a key."""
    values = {name: checkpoint.config.get(name) for name in (*SPECIAL_TOKEN_KEYS, "unk_token_id")}
    first_values = {
        name: value[0] if isinstance(value, list) and value else value for name, value in values.items()
    }
    return {name: value for name, value in first_values.items() if isinstance(value, int)}
