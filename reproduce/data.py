"""Locate and verify the data of a reference system, and shorten it for a smoke run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reproduce.embeddings import build_vocabulary, ensure_word_vectors
from reproduce.leaks import split_leaked_rows
from reproduce.smoke import write_first_rows
from reproduce.system import ReferenceSystem, SystemVariant
from triform.config.settings import Settings
from triform.data.catalogue import dataset_folder, get_dataset, verify_dataset
from triform.data.files import content_sha256
from triform.errors import CheckpointError


def base_model_path(system: ReferenceSystem, variant: SystemVariant, data_root: str) -> Path:
    """Return the folder of the published model that a variant starts from. Triform does not download it."""
    return dataset_folder(get_dataset(system.dataset), data_root).parent / variant.init_from


@dataclass(frozen=True, kw_only=True)
class ExperimentData:
    """The files of a system by their names in the catalogue, and a folder for derived files."""

    system: ReferenceSystem
    files: Mapping[str, Path]
    folder: Path
    data_root: str = ""  # folder of datasets, also searched for word vectors; "" for the user's cache
    smoke: bool = False

    @classmethod
    def prepare(cls, system: ReferenceSystem, data_root: str, folder: Path, *, smoke: bool) -> ExperimentData:
        """Find and verify every file. A smoke run gets only the first rows of each."""
        files = verify_dataset(get_dataset(system.dataset), data_root)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{folder}: the folder cannot be created ({error.strerror or error}); choose another --out"
            ) from None
        if smoke:
            files = {name: write_first_rows(path, folder / name) for name, path in files.items()}
        return cls(system=system, files=files, folder=folder, data_root=data_root, smoke=smoke)

    def resolve_path(self, names: str) -> str:
        """Return the path of a file, or of two aligned files `source,target`, in the form of `Run.evaluate`."""
        return ",".join(str(self.files[name].absolute()) for name in names.split(",")) if names else ""

    def checksums(self) -> dict[str, str]:
        """Return the checksums of all files."""
        return {name: content_sha256(str(path)) for name, path in self.files.items()}

    def settings(self, variant: SystemVariant) -> Settings:
        """Return the settings that name files: data, and the vocabulary, vectors and base model of the variant."""
        settings: Settings = {setting: self.resolve_path(name) for setting, name in self.system.files.items()}
        if self.system.monitor:
            eval_files = self.system.eval_files
            settings["data.monitor"] = tuple(
                f"{name}={self.resolve_path(eval_files[name])}" for name in self.system.monitor
            )
        if variant.vocabulary_files:
            settings["tokenizer.file"] = str(build_vocabulary(self, variant.vocabulary_files))
        if variant.use_word_vectors:
            settings["train.embeddings"] = str(ensure_word_vectors(self).absolute())
        if variant.init_from:
            settings["train.init_from"] = str(base_model_path(self.system, variant, self.data_root).absolute())
        return settings

    def eval_files(self) -> dict[str, str]:
        """Return the files that every run is evaluated on, by the name of the set."""
        paths = {name: self.resolve_path(files) for name, files in self.system.eval_files.items()}
        return paths | split_leaked_rows(self) if self.system.split_leaked_rows else paths
