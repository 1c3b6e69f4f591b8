"""A published model's folder as one of Triform's own forms, with the settings that build it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from torch import Tensor, nn

from triform.config import Config, Sizes, TaskName
from triform.errors import ConfigError
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.host_memory import require_memory
from triform.models.seq2seq import Seq2Seq
from triform.pretrained.families import family_of
from triform.pretrained.family import Family, Shape
from triform.pretrained.hub import on_disk
from triform.pretrained.names import fill, sames
from triform.pretrained.read import Foreign, read_folder
from triform.settings import Settings, build

FORMS: dict[TaskName, type[Classifier] | type[Decoder] | type[Seq2Seq]] = {
    "classify": Classifier,
    "generate": Decoder,
    "translate": Seq2Seq,
}
SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class Imported:
    """A model that was read, and what it takes to build it again."""

    config: Config
    sizes: Sizes
    model: nn.Module
    family: str
    special: dict[str, int]  # numbers of special tokens, as config.json has them
    notices: tuple[str, ...]


def open_folder(path: str | Path, task: TaskName, *, labels: Sequence[str] = (), max_len: int = 0) -> Imported:
    """Read a folder (or `hub:OWNER/NAME`) for a task.

    `labels` other than the folder's own get a fresh head; `max_len` reads less at once than the model could.
    """
    return imported(read_folder(on_disk(path)), task, labels=labels, max_len=max_len)


def imported(found: Foreign, task: TaskName, *, labels: Sequence[str] = (), max_len: int = 0) -> Imported:
    """The same of a folder that has been read."""
    family = family_of(found, task)
    foreign = replace(found, tensors=named(family, found.tensors))
    if labels and task != "classify":
        raise ConfigError(
            f"{foreign.place}: labels are for a classifier; {foreign.kind} is to {task}: leave them out"
        )
    shape = family.read(foreign, family.settings(foreign))
    shape = _shortened(_with_labels(shape, labels), max_len, foreign.place)
    config, sizes = _settled(shape, task, foreign.where)
    try:
        require_memory(config, sizes)
    except ConfigError as error:
        raise ConfigError(f"{foreign.where}: {error}") from None
    model = FORMS[task](config.model, sizes)
    pairs = [pair for pair in family.pairs if not (shape.fresh and pair.theirs == (family.scores,))]
    ignored = [*family.ignored, *family.others, *shape.unused, *([f"{family.scores}.*"] if shape.fresh else [])]
    tensors = _cut(family, foreign.tensors, sizes.max_len) if max_len else foreign.tensors
    tensors = _without_filling(shape, tensors)
    fill(model, sames(pairs, config.model.n_layers), tensors, place=foreign.place, ignored=ignored)
    notices = (*shape.notices, *_notices(family, shape, foreign.tensors))
    return Imported(config, sizes, model, family.name, _special(foreign), notices)


def named(family: Family, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names that they have in a model with a head."""
    bare = not any(name.startswith(family.prefix) for name in tensors)
    full = {family.prefix * bare + name: tensor for name, tensor in tensors.items()}
    other = {name: alias for name, alias in family.aliases.items() if name in full and alias not in full}
    return {other.get(name, name): tensor for name, tensor in full.items()}


def _with_labels(shape: Shape, labels: Sequence[str]) -> Shape:
    """The labels that are asked for; without any, the folder's own."""
    if not labels or tuple(labels) == shape.labels:
        return shape
    if len(set(labels)) < max(2, len(labels)):
        raise ConfigError(f"labels {', '.join(labels)}: two or more are expected, each another")
    return replace(shape, labels=tuple(labels), fresh=True, notices=())  # which were of the head that goes


def _shortened(shape: Shape, max_len: int, place: Path) -> Shape:
    if max_len > shape.max_len:
        raise ConfigError(f"{place}: reads {shape.max_len} tokens at once, not data.max_len={max_len}")
    return replace(shape, max_len=max_len or shape.max_len)


def _settled(shape: Shape, task: TaskName, where: Path) -> tuple[Config, Sizes]:
    model: Settings = {f"model.{name}": value for name, value in shape.model.items()}
    try:
        config = build({**model, "task": task, "data.max_len": shape.max_len, "data.labels": shape.labels})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return config, Sizes(
        vocab_size=shape.vocab_size,
        max_len=shape.max_len,
        n_labels=(len(shape.labels) or 2) if task == "classify" else 0,
        target_vocab_size=shape.target_vocab_size,
    )


def _cut(family: Family, tensors: dict[str, Tensor], max_len: int) -> dict[str, Tensor]:
    """Positions beyond those that are read are left out."""
    tables = [pair.theirs[0] + ".weight" for pair in family.pairs if pair.ours[0].endswith("positions.table")]
    return tensors | {name: tensors[name][:max_len] for name in tables if name in tensors and tensors[name].ndim}


def _without_filling(shape: Shape, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {name: tensors[name][: shape.vocab_size] for name in shape.padded if name in tensors}


def _notices(family: Family, shape: Shape, tensors: dict[str, Tensor]) -> Iterator[str]:
    patterns = (*family.others, *shape.unused)
    others = [name for name in tensors if any(fnmatch(name, pattern) for pattern in patterns)]
    if others:
        yield f"left out, for nothing here reads them: {', '.join(others)}"
    if shape.fresh:
        yield "the scores of labels are new: they know nothing before they are trained"


def _special(foreign: Foreign) -> dict[str, int]:
    """Numbers of special tokens; where there are several for one use, the first."""
    said = {name: foreign.config.get(name) for name in SPECIAL}
    firsts = {name: value[0] if isinstance(value, list) and value else value for name, value in said.items()}
    return {name: value for name, value in firsts.items() if isinstance(value, int)}
