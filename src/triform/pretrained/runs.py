"""A published model as a run folder: from there on it is a run like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import triform
from triform.config import TaskName
from triform.data.cache import cache_folder
from triform.errors import CheckpointError, ConfigError
from triform.io.locks import LOCK_FILE, locked
from triform.pretrained.families import BY_KIND
from triform.pretrained.hub import HUB, on_disk
from triform.pretrained.importing import Imported, imported
from triform.pretrained.read import read_folder
from triform.settings import Settings, build
from triform.tasks import TASKS
from triform.text import Tokenizer, read_tokenizer
from triform.text.written import Side
from triform.training.folder import RunFolder, load_weights, weights_of

NO_LABELS = ("0", "1")  # of an encoder that was published without any


def import_run(
    path: str | Path, out: Path, *, labels: Sequence[str] = (), max_len: int = 0
) -> tuple[RunFolder, Imported]:
    """Write the model and its tokenizer as a run folder, where nothing is yet: not over the published files."""
    if RunFolder(out).config_file.exists():
        raise CheckpointError(f"{out}: holds a run already; choose another --out")
    with RunFolder(out).locked("importing a published model"):
        if any(entry.name != LOCK_FILE for entry in out.iterdir()):
            raise CheckpointError(f"{out}: exists and is not a run folder; choose another --out")
        return _write_run(path, RunFolder(out), labels=labels, max_len=max_len)


def _write_run(
    path: str | Path, folder: RunFolder, *, labels: Sequence[str] = (), max_len: int = 0
) -> tuple[RunFolder, Imported]:
    foreign = read_folder(on_disk(path))
    # an architecture that is not known is told of where it is read
    task: TaskName = BY_KIND[foreign.kind].task if foreign.kind in BY_KIND else "generate"
    found = imported(foreign, task, labels=labels, max_len=max_len)
    if task == "classify" and not found.config.data.labels:
        found = imported(foreign, task, labels=NO_LABELS, max_len=max_len)
    tokenizers = _tokenizers(foreign.place, found)
    shared = task != "translate" or not found.sizes.target_vocab_size
    size = found.sizes.vocab_size if shared else 0
    told: Settings = {
        "tokenizer.kind": tokenizers[0].kind,
        "tokenizer.vocab_size": size,
        "tokenizer.shared": shared,
    }
    config = build(told, found.config)
    made = TASKS[task](config, *tokenizers)
    load_weights(made.model, weights_of(found.model), Path(str(path)))
    folder.clear()
    made.save(folder.path)
    folder.write_weights(weights_of(made.model))
    folder.write_config(config)
    return folder, found


def as_base(path: str) -> str:
    """A run folder to begin with: the one that is named, or one made of the published model that is.

    It is for what its family does; which tasks can begin with that is asked of it as of any run.
    """
    own = [*Path(path).glob("config.toml"), *Path(path).glob("seed-*/config.toml")]
    if not path.startswith(HUB) and (own or not Path(path).exists()):
        return path
    place = on_disk(path)
    files = sorted(file for file in (place if place.is_dir() else place.parent).iterdir() if file.is_file())
    marks = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    told = repr((triform.__version__, str(place.resolve()), marks))
    mark = hashlib.sha256(told.encode()).hexdigest()[:16]
    called = path.rpartition("/")[2] if path.startswith(HUB) else place.resolve().name
    out = cache_folder() / "imported" / f"{called}-{mark}"
    if not (out / "config.toml").exists():
        with locked(out, "importing a published model", wait=True):  # another process may be doing the same
            if not (out / "config.toml").exists():
                _write_run(path, RunFolder(out))  # also over what was stopped half-way
    return str(out)


def _tokenizers(place: Path, found: Imported) -> list[Tokenizer]:
    """One, or one a language, each as large as the table that it is for."""
    sides: list[Side] = ["source", "target"] if found.config.task == "translate" else ["source"]
    sizes = {"source": found.sizes.vocab_size, "target": found.sizes.target_vocab_size or found.sizes.vocab_size}
    tokenizers = [read_tokenizer(place, side=side) for side in sides]
    for side, tokenizer in zip(sides, tokenizers, strict=True):
        if tokenizer.vocab_size != sizes[side]:
            raise ConfigError(
                f"{place}: its tokenizer has {tokenizer.vocab_size} tokens and its embedding {sizes[side]} rows: "
                "they do not belong together"
            )
    return tokenizers
