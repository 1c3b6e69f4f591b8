"""The data of a system, ready to be used: found and checked, cut short for a quick run, searched for leaks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from triform.config import DataConfig, TokenizerConfig
from triform.config.settings import Settings
from triform.data.audit import find_leaked
from triform.data.catalogue import dataset_folder, get_dataset, verify_dataset
from triform.data.files import iter_text_lines
from triform.data.readers import fingerprint, read_lines, read_rows
from triform.errors import CheckpointError, DataError
from triform.experiments.reproduce.system import ReferenceSystem, SystemVariant
from triform.formatting import print_message
from triform.text import train_tokenizer
from triform.vectors import Word2VecConfig, WordVectors, train_word2vec

SMOKE_ROWS = {True: 400, False: 16}  # lines of training files, and of others


@dataclass(frozen=True, kw_only=True)
class ExperimentData:
    """Files of a system by their names in the catalogue, and a folder for what is made of them."""

    system: ReferenceSystem
    files: Mapping[str, Path]
    folder: Path
    data_root: str = ""  # the folder of sets, where word vectors may lie too; empty: the user's cache
    smoke: bool = False

    @classmethod
    def prepare(cls, system: ReferenceSystem, data_root: str, folder: Path, *, smoke: bool) -> ExperimentData:
        """Every file, unaltered; for a quick run only the beginning of each."""
        files = verify_dataset(get_dataset(system.dataset), data_root)
        _create_folder(folder)
        if smoke:
            files = {name: _write_first_rows(path, folder / name) for name, path in files.items()}
        return cls(system=system, files=files, folder=folder, data_root=data_root, smoke=smoke)

    def resolve_path(self, names: str) -> str:
        """The file, or the two aligned files `source,target`, as `Run.evaluate` takes them."""
        return ",".join(str(self.files[name].absolute()) for name in names.split(",")) if names else ""

    def settings(self, variant: SystemVariant) -> Settings:
        """Where the data is, and the vocabulary where it is not learned from the training file."""
        settings: Settings = {setting: self.resolve_path(name) for setting, name in self.system.files.items()}
        if variant.vocabulary_files:
            settings["tokenizer.file"] = str(self.build_vocabulary(variant.vocabulary_files))
        if variant.use_word_vectors:
            settings["train.embeddings"] = str(self.ensure_word_vectors().absolute())
        if variant.init_from:
            settings["train.init_from"] = str(self.init_from_path(variant).absolute())
        return settings

    def init_from_path(self, variant: SystemVariant) -> Path:
        """Where the published model lies that a variant begins with; it is not ours to fetch."""
        return dataset_folder(get_dataset(self.system.dataset), self.data_root).parent / variant.init_from

    def ensure_word_vectors(self) -> Path:
        """Word vectors of the training file: those that lie beside the sets, or else learned here, once."""
        shared_path, own_path = (
            shared_vectors_path(self.system, self.data_root),
            self.folder / "vectors.safetensors",
        )
        recipe, train = (
            Word2VecConfig(**self.system.word_vector_settings),
            self.resolve_path(self.system.files["data.train"]),
        )
        expected = asdict(recipe) | {"texts": [fingerprint(train)]}
        if shared_path.exists():
            if not self.smoke and _training_record(shared_path) != expected:
                command = _train_vectors_command(recipe, train, shared_path)
                raise DataError(f"is not made as this study asks; make it again: {command}", path=shared_path)
            return shared_path
        if not own_path.exists() or _training_record(own_path) != expected:
            learned = train_word2vec([train], recipe, log=print_message)
            WordVectors(learned.words, learned.matrix, learned.metadata).save(own_path)
        return own_path

    def build_vocabulary(self, names: Sequence[str]) -> Path:
        """Every distinct word of these files."""
        path = self.folder / "vocabulary.json"
        texts = (text for name in names for text in iterate_texts(str(self.files[name])))
        train_tokenizer(TokenizerConfig(kind="word"), texts, name=", ".join(names)).save(path.absolute())
        return path.absolute()

    def eval_files(self) -> dict[str, str]:
        """What is scored in the end: a name, and the file or files."""
        paths = {name: self.resolve_path(files) for name, files in self.system.eval_files.items()}
        if self.system.split_leaked_rows:
            paths |= self._split_leaked_rows(paths["test"])
        return paths

    def _split_leaked_rows(self, test_file: str) -> dict[str, str]:
        """Two files more: the test rows that are in the training file, and those that are not."""
        leaked_rows = self.leaked_mask("test")
        rows = list(read_rows(test_file, DataConfig()))
        paths = {}
        for name, is_leaked in (("seen", True), ("unseen", False)):
            lines = [
                f"{row.label}\t{row.text}\n"
                for row, leaked in zip(rows, leaked_rows, strict=True)
                if leaked is is_leaked
            ]
            if lines:
                path = self.folder / f"{name}.tsv"
                path.write_text("".join(lines), encoding="utf-8")
                paths[f"test, {name}"] = str(path.absolute())
        return paths

    def leaked_mask(self, eval_set: str) -> list[bool]:
        """For each text of a test set, whether it is among the training texts."""
        train_file = self.system.files.get("data.train") or self.system.files["data.source"]
        names = self.system.eval_files[eval_set].split(",")
        return find_leaked(
            list(iterate_texts(str(self.files[train_file]))), list(iterate_texts(str(self.files[names[0]])))
        )

    def count_leaks(self) -> dict[str, dict[str, int]]:
        """How many texts of each set that judges are also in the training file."""
        train_files = {self.system.files.get(name) for name in ("data.train", "data.source")}
        counts = {}
        for eval_set, files in self.system.eval_files.items():
            if files and files.split(",")[0] not in train_files:
                mask = self.leaked_mask(eval_set)
                counts[eval_set] = {"rows": len(mask), "seen": sum(mask)}
        return counts


def shared_vectors_path(system: ReferenceSystem, data_root: str) -> Path:
    """Where vectors that were learned elsewhere are looked for: gensim need not be everywhere."""
    return dataset_folder(get_dataset(system.dataset), data_root).parent / "vectors" / f"{system.name}.safetensors"


def _training_record(path: Path) -> dict[str, Any]:
    """How vectors were learned, and the fingerprints of the texts, wherever these lay."""
    record = WordVectors.load(path).metadata
    return record | {"texts": list(record.get("texts", {}).values())}


def _train_vectors_command(recipe: Word2VecConfig, train: str, out: Path) -> str:
    """What makes these vectors."""
    defaults, options = Word2VecConfig(), ""
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if value != getattr(defaults, field.name):
            option = f" --{field.name.replace('_', '-')}"
            options += option if value is True else f"{option} {value}"
    return f"triform vectors train {shlex.quote(train)} --out {shlex.quote(str(out))}{options}"


def iterate_texts(path: str) -> Iterator[str]:
    """The texts of a table, the lines of anything else."""
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix in (".tsv", ".csv", ".jsonl"):
        return (row.text for row in read_rows(path, DataConfig(), labelled=False))
    return (text for _, text in read_lines(path))


def _write_first_rows(path: Path, target: Path) -> Path:
    n_rows = SMOKE_ROWS[path.name.startswith(("train", "input"))]
    with target.open("w", encoding="utf-8", newline="") as file:
        file.writelines(islice(iter_text_lines(str(path)), n_rows))
    return target


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be made: {error.strerror or error}; choose another --out"
        ) from None
