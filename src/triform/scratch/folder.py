"""Run folders: written as the torch side writes them, and read whoever wrote them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import triform
from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.io import digests
from triform.io.digests import DIGESTS_FILE, replace_files
from triform.io.files import part_path, refuse_special_files
from triform.io.locks import locked
from triform.scratch import weights
from triform.scratch.part import Weights
from triform.settings import build, load_toml, settings_of, to_toml
from triform.text import Tokenizer

FORMAT = 1
LAST = "decode.max_new_tokens"  # the last setting of every config.toml: with it and its line's end, one is whole
MODEL = "model.safetensors"
# What a run may leave in its folder, torch's too.
OWN = (
    *("config.toml", "tokenizer*.json", MODEL, DIGESTS_FILE, "adapter.safetensors", "metrics.jsonl", "report.html"),
    *("checkpoints", "tokens"),
)


def write(
    folder: Path, config: Config, tokenizers: Mapping[str, Tokenizer], held: Weights, *, overwrite: bool
) -> None:
    """A run. Its config comes last: without one, a folder is no run."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file; choose another folder")
    with locked(folder, "saving a run"), writing(folder):
        claim(folder, overwrite=overwrite)
        for name, tokenizer in tokenizers.items():
            tokenizer.save(folder / name)
        model, file = folder / MODEL, folder / "config.toml"
        weights.write(part_path(model), held)
        part_path(file).write_bytes(to_toml(config, {"format": FORMAT, "triform": triform.__version__}).encode())
        replace_files({part_path(model): model, part_path(file): file})


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror or error}") from None


def claim(folder: Path, *, overwrite: bool) -> None:
    """An empty folder: an older run goes only if that was asked for, and what is not a run's stays."""
    own = [path for pattern in OWN for path in folder.glob(pattern)]
    others = [path for path in folder.iterdir() if path not in own and not path.name.startswith(".")]
    if others and folder / "config.toml" not in own:
        raise CheckpointError(f"{folder}: exists and is not a run folder; choose another one")
    if own and not overwrite:
        raise CheckpointError(f"{folder}: already holds a run; choose another folder, or give overwrite=True")
    for path in own:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_config(folder: Path, *, verify: bool = True) -> Config:
    file = folder / "config.toml"
    if not file.exists():
        raise CheckpointError(f"{folder}: is not a run folder: it has no config.toml")
    refuse_special_files(folder)
    if verify:
        digests.verify(folder)
    try:
        tree = load_toml(file)
        if int(tree.get("format", 0)) > FORMAT:
            raise CheckpointError(f"{folder}: was made by a newer Triform: upgrade to open it")
        settings = settings_of(tree, file)
        if LAST not in settings or not file.read_bytes().endswith(b"\n"):
            raise CheckpointError(f"{folder}: is damaged (config.toml lacks its end)")
        return build(settings)
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: is damaged ({error})") from None
