"""Run folders: written as the torch side writes them, and read whoever wrote them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import triform
from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.scratch import weights
from triform.scratch.part import Weights
from triform.settings import build, load_toml, settings_of, to_toml
from triform.text import Tokenizer

FORMAT = 1
LAST = "decode.max_new_tokens"  # the last setting of every config.toml: with it and its line's end, one is whole
MODEL = "model.safetensors"
# What a run may leave in its folder, torch's too.
OWN = (
    *("config.toml", "tokenizer*.json", MODEL, "adapter.safetensors", "metrics.jsonl", "report.html"),
    *("checkpoints", "tokens"),
)


def write(
    folder: Path, config: Config, tokenizers: Mapping[str, Tokenizer], held: Weights, *, overwrite: bool
) -> None:
    """A run. Its config comes last: without one, a folder is no run."""
    with writing(folder):
        claim(folder, overwrite=overwrite)
        for name, tokenizer in tokenizers.items():
            tokenizer.save(folder / name)
        weights.write(folder / MODEL, held)
        marks = {"format": FORMAT, "triform": triform.__version__}
        (folder / "config.toml").write_text(to_toml(config, marks), encoding="utf-8")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror or error}") from None


def claim(folder: Path, *, overwrite: bool) -> None:
    """An empty folder: an older run goes only if that was asked for, and what is not a run's stays."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    own = [path for pattern in OWN for path in folder.glob(pattern)]
    others = [path for path in folder.iterdir() if path not in own and not path.name.startswith(".")]
    if others and folder / "config.toml" not in own:
        raise CheckpointError(f"{folder}: exists and is not a run folder; choose another one")
    if own and not overwrite:
        raise CheckpointError(f"{folder}: already holds a run; choose another folder, or give overwrite=True")
    for path in own:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_config(folder: Path) -> Config:
    file = folder / "config.toml"
    if not file.exists():
        raise CheckpointError(f"{folder}: is not a run folder: it has no config.toml")
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
