"""The data of a system, ready to be used: found and checked, cut short for a quick run, searched for leaks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from triform.config import DataConfig, TokenizerConfig
from triform.data.audit import seen
from triform.data.catalogue import checked, folder_of, known_set
from triform.data.files import decoded_lines
from triform.data.readers import fingerprint, read_lines, read_rows
from triform.errors import CheckpointError, DataError
from triform.formatting import print_message
from triform.reproduce.system import System, Variant
from triform.settings import Settings
from triform.text import train_tokenizer
from triform.vectors import Recipe, WordVectors, learn

QUICK_ROWS = {True: 400, False: 16}  # lines of training files, and of others


@dataclass(frozen=True, kw_only=True)
class Material:
    """Files of a system by their names in the catalogue, and a folder for what is made of them."""

    system: System
    files: Mapping[str, Path]
    folder: Path
    given: str = ""  # the folder of sets, where word vectors may lie too; empty: the user's cache
    quick: bool = False

    @classmethod
    def gather(cls, system: System, data: str, folder: Path, *, quick: bool) -> Material:
        """Every file, unaltered; for a quick run only the beginning of each."""
        files = checked(known_set(system.known), data)
        _make(folder)
        if quick:
            files = {name: _beginning(path, folder / name) for name, path in files.items()}
        return cls(system=system, files=files, folder=folder, given=data, quick=quick)

    def path(self, names: str) -> str:
        """The file, or the two aligned files `source,target`, as `Run.evaluate` takes them."""
        return ",".join(str(self.files[name].absolute()) for name in names.split(",")) if names else ""

    def settings(self, variant: Variant) -> Settings:
        """Where the data is, and the vocabulary where it is not learned from the training file."""
        found: Settings = {setting: self.path(name) for setting, name in self.system.files.items()}
        if variant.vocabulary:
            found["tokenizer.file"] = str(self.vocabulary(variant.vocabulary))
        if variant.vectors:
            found["train.embeddings"] = str(self.vectors().absolute())
        if variant.base:
            found["train.base"] = str(self.base(variant).absolute())
        return found

    def base(self, variant: Variant) -> Path:
        """Where the published model lies that a variant begins with; it is not ours to fetch."""
        return folder_of(known_set(self.system.known), self.given).parent / variant.base

    def vectors(self) -> Path:
        """Word vectors of the training file: those that lie beside the sets, or else learned here, once."""
        beside, own = beside_sets(self.system, self.given), self.folder / "vectors.safetensors"
        recipe, train = Recipe(**self.system.vectors), self.path(self.system.files["data.train"])
        wanted = asdict(recipe) | {"texts": [fingerprint(train)]}
        if beside.exists():
            if not self.quick and _made_of(beside) != wanted:
                raise DataError(f"is not made as this study asks; make it again: {_command(recipe, train, beside)}",
                                path=beside)  # fmt: skip
            return beside
        if not own.exists() or _made_of(own) != wanted:
            made = learn([train], recipe, say=print_message)
            WordVectors(made.words, made.matrix, made.about).save(own)
        return own

    def vocabulary(self, names: Sequence[str]) -> Path:
        """Every distinct word of these files."""
        path = self.folder / "vocabulary.json"
        texts = (text for name in names for text in texts_of(str(self.files[name])))
        train_tokenizer(TokenizerConfig(kind="word"), texts, name=", ".join(names)).save(path.absolute())
        return path.absolute()

    def tests(self) -> dict[str, str]:
        """What is scored in the end: a name, and the file or files."""
        found = {name: self.path(files) for name, files in self.system.tests.items()}
        if self.system.apart:
            found |= self._apart(found["test"])
        return found

    def _apart(self, test: str) -> dict[str, str]:
        """Two files more: the test rows that are in the training file, and those that are not."""
        leaked = self.leaked("test")
        rows = list(read_rows(test, DataConfig()))
        found = {}
        for name, wanted in (("seen", True), ("unseen", False)):
            lines = [f"{row.label}\t{row.text}\n" for row, seen in zip(rows, leaked, strict=True) if seen is wanted]
            if lines:
                path = self.folder / f"{name}.tsv"
                path.write_text("".join(lines), encoding="utf-8")
                found[f"test, {name}"] = str(path.absolute())
        return found

    def leaked(self, test: str) -> list[bool]:
        """For each text of a test set, whether it is among the training texts."""
        train = self.system.files.get("data.train") or self.system.files["data.source"]
        names = self.system.tests[test].split(",")
        return seen(list(texts_of(str(self.files[train]))), list(texts_of(str(self.files[names[0]]))))

    def leaks(self) -> dict[str, dict[str, int]]:
        """How many texts of each set that judges are also in the training file."""
        train = {self.system.files.get(name) for name in ("data.train", "data.source")}
        found = {}
        for test, files in self.system.tests.items():
            if files and files.split(",")[0] not in train:
                among = self.leaked(test)
                found[test] = {"rows": len(among), "seen": sum(among)}
        return found


def beside_sets(system: System, folder: str) -> Path:
    """Where vectors that were learned elsewhere are looked for: gensim need not be everywhere."""
    return folder_of(known_set(system.known), folder).parent / "vectors" / f"{system.name}.safetensors"


def _made_of(path: Path) -> dict[str, Any]:
    """How vectors were learned, and the fingerprints of the texts, wherever these lay."""
    about = WordVectors.load(path).about
    return about | {"texts": list(about.get("texts", {}).values())}


def _command(recipe: Recipe, train: str, out: Path) -> str:
    """What makes these vectors."""
    plain, options = Recipe(), ""
    for each in fields(recipe):
        value = getattr(recipe, each.name)
        if value != getattr(plain, each.name):
            name = f" --{each.name.replace('_', '-')}"
            options += name if value is True else f"{name} {value}"
    return f"triform vectors train {shlex.quote(train)} --out {shlex.quote(str(out))}{options}"


def texts_of(path: str) -> Iterator[str]:
    """The texts of a table, the lines of anything else."""
    kind = Path(path.removesuffix(".gz")).suffix
    if kind in (".tsv", ".csv", ".jsonl"):
        return (row.text for row in read_rows(path, DataConfig(), labelled=False))
    return (text for _, text in read_lines(path))


def _beginning(path: Path, target: Path) -> Path:
    rows = QUICK_ROWS[path.name.startswith(("train", "input"))]
    with target.open("w", encoding="utf-8", newline="") as file:
        file.writelines(islice(decoded_lines(str(path)), rows))
    return target


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be made: {error.strerror or error}; choose another --out"
        ) from None
