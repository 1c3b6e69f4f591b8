"""Build the vocabulary and the word vectors of a system from its training files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.leaks import iterate_texts
from triform.config import TokenizerConfig
from triform.data.catalogue import dataset_folder, get_dataset
from triform.data.readers import fingerprint
from triform.errors import DataError
from triform.formatting import print_message
from triform.text import train_tokenizer
from triform.vectors import Word2VecConfig, WordVectors, train_word2vec

if TYPE_CHECKING:
    from reproduce.data import ExperimentData


def build_vocabulary(data: ExperimentData, names: Sequence[str]) -> Path:
    """Build a tokenizer with every distinct word of these files."""
    path = (data.folder / "vocabulary.json").absolute()
    texts = (text for name in names for text in iterate_texts(str(data.files[name])))
    train_tokenizer(TokenizerConfig(kind="word"), texts, name=", ".join(names)).save(path)
    return path


def ensure_word_vectors(data: ExperimentData) -> Path:
    """Return the word vectors of the training file, from the folder of datasets or trained once.

    Raises:
        DataError: The vectors in the folder of datasets were trained with other settings or on other text.
    """
    system = data.system
    shared_path = (
        dataset_folder(get_dataset(system.dataset), data.data_root).parent
        / "vectors"
        / f"{system.name}.safetensors"
    )
    own_path = data.folder / "vectors.safetensors"
    config = Word2VecConfig(**system.word_vector_settings)
    train = data.resolve_path(system.files["data.train"])
    expected = asdict(config) | {"texts": [fingerprint(train)]}
    if shared_path.exists():
        if not data.smoke and _training_record(shared_path) != expected:
            command = _train_vectors_command(config, train, shared_path)
            raise DataError(
                f"trained with other settings or on other text; train the vectors again with: {command}",
                path=shared_path,
            )
        return shared_path
    if not own_path.exists() or _training_record(own_path) != expected:
        learned = train_word2vec([train], config, log=print_message)
        WordVectors(learned.words, learned.matrix, learned.metadata).save(own_path)
    return own_path


def _training_record(path: Path) -> dict[str, Any]:
    """Return the settings that vectors were trained with, and the fingerprints of the texts without locations."""
    record = WordVectors.load(path).metadata
    return record | {"texts": list(record.get("texts", {}).values())}


def _train_vectors_command(config: Word2VecConfig, train: str, out: Path) -> str:
    """Return the command that trains these vectors."""
    defaults, options = Word2VecConfig(), ""
    for field in fields(config):
        value = getattr(config, field.name)
        if value != getattr(defaults, field.name):
            option = f" --{field.name.replace('_', '-')}"
            options += option if value is True else f"{option} {value}"
    return f"triform vectors train {shlex.quote(train)} --out {shlex.quote(str(out))}{options}"
