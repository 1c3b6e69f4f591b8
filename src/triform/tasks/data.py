"""The data of a task: reading, splitting and encoding files. Nothing here needs a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from triform.config import TRAIN_SET, Config
from triform.config.merging import split_aligned_name
from triform.config.settings import Settings, build_config
from triform.data import builtin_sets
from triform.data.readers import filter_lines
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import DataError
from triform.evaluation.baselines import FittedBaselines, fit_baselines
from triform.io.files import open_regular
from triform.io.run_layout import TOKENS_FOLDER
from triform.tasks.batch import Dataset
from triform.tasks.leaks import leak_warnings
from triform.tasks.learned_tokenizers import reader_options, train_or_load_tokenizer
from triform.tasks.splits import validation_mask
from triform.text import Tokenizer
from triform.world import current_world

TokenizerVersions = Sequence[Sequence[Tokenizer]]  # the versions of each tokenizer; see `tokenizer_versions`


class EncodedExamples(NamedTuple):
    """Encoded examples of a split."""

    stores: tuple[TokenStore, ...]  # the texts, or the sources and the targets
    values: NDArray[np.int64]  # the labels (classify) or the number of bytes (generate)

    @property
    def n_tokens(self) -> int:
        return sum(store.n_tokens for store in self.stores)


@dataclass(frozen=True)
class TaskData(ABC):
    """Abstract base class of the data of the three tasks."""

    config: Config
    tokenizers: tuple[Tokenizer, ...] = ()  # empty until they have been trained
    store_names: ClassVar[tuple[str, ...]] = ("",)  # suffixes of the files that store an encoded split

    # -- files and splits

    def with_resolved_names(self) -> Self:
        """Return the data with the built-in set as the default file."""
        train = builtin_sets.resolve_path(self.config.data.train, self.config.task)
        valid = self.config.data.valid or builtin_sets.validation_path(train)
        return replace(self, config=build_config({"data.train": train, "data.valid": valid}, self.config))

    @property
    def training_files(self) -> list[str]:
        """The files to train on."""
        return [self.config.data.train]

    @property
    def extra_files(self) -> list[str]:
        """The further files to train on, none of whose examples is held out."""
        return [file for name in self.config.data.extra for file in split_aligned_name(name)]

    @property
    def training_name(self) -> str:
        """The name of the training files in messages."""
        return ",".join(self.training_files)

    @property
    def validation_name(self) -> str:
        """The validation file; empty if validation data is a part of the training file."""
        return self.config.data.valid

    @property
    def split_key(self) -> object:
        """The value that determines which examples of the training file are used for validation."""
        return 0.0 if self.validation_name else self.config.data.valid_fraction

    @property
    def cache_key(self) -> list[object]:
        """The values that, with the content of the files, determine the examples of a split."""
        kind: list[object] = []
        if self.config.train.objective != "auto" or self.config.data.extra:
            # The same files can be texts to pretrain on, further training files, or the two sides of pairs.
            kind = [self.config.train.objective, len(self.training_files)]
        return [self.split_key, reader_options(self.config.data), *kind]

    def open_cache(self, folder: Path, notices: list[str]) -> TokenCache:
        """Return the token cache of the training files."""
        is_writer = current_world().is_main
        files = [*self.training_files, *self.extra_files]
        return TokenCache(files, folder / TOKENS_FOLDER, notices, is_writer=is_writer)

    @abstractmethod
    def read_examples(self, name: str) -> Iterator[Any]:
        """Yield the examples of a file."""

    def split_examples(self, *, held_out: bool) -> Iterator[Any]:
        """Yield the training examples, or those of the same file that are held out for validation."""
        mask = validation_mask(0.0 if self.validation_name else self.config.data.valid_fraction)
        pairs = zip(self.read_examples(self.training_name), mask, strict=False)
        examples = (example for example, is_held_out in pairs if is_held_out == held_out)
        return examples if held_out else chain(examples, self.extra_examples())

    def extra_examples(self) -> Iterator[Any]:
        """Yield the examples of `data.extra`."""
        return chain.from_iterable(map(self.read_examples, self.config.data.extra))

    def training_examples(self) -> Iterator[Any]:
        """Yield the training examples."""
        return self.split_examples(held_out=False)

    def iter_examples(self, name: str = "", lines: Container[int] | None = None) -> Iterator[Any]:
        """Yield the examples of a file as text, or the validation examples if there is no name.

        Args:
            name: The file, or two aligned files as `source,target`.
            lines: Use only the examples of the file that start on one of these lines.
        """
        if name:
            return filter_lines(self.read_examples(name), lines)
        return (
            self.read_examples(self.validation_name) if self.validation_name else self.split_examples(held_out=True)
        )

    def source_text(self, example: Any) -> str:
        """Return the input text of an example."""
        return str(example.text)

    # -- what the training file determines before a model exists

    @abstractmethod
    def scan(self, cache: TokenCache) -> tuple[Self, list[int]]:
        """Read the training examples once.

        Returns:
            The data with the settings that the file determines, such as the labels, and the number of characters
            for each tokenizer.
        """

    def train_or_load_tokenizers(self, cache: TokenCache, n_characters: list[int]) -> tuple[Tokenizer, ...]:
        """Return the tokenizers: loaded from `tokenizer.file`, else trained on the training examples."""
        config, refits = self.config.tokenizer, self.config.train.refit_linear_part
        # These texts are read only if a tokenizer is trained.
        examples = self.read_examples(self.training_name) if refits else self.training_examples()
        texts = map(self.source_text, chain(examples, self.extra_examples()) if refits else examples)
        cache_key = [*self.cache_key, "all texts"] if refits else self.cache_key
        return (train_or_load_tokenizer(cache, config, cache_key, texts, sum(n_characters)),)

    @abstractmethod
    def settings_from(self, encoded: EncodedExamples, tokenizers: tuple[Tokenizer, ...]) -> Settings:
        """Return the settings that the encoded training examples determine: lengths and vocabulary sizes."""

    # -- encoding

    @abstractmethod
    def encode(
        self,
        name: str,
        examples: Callable[[], Iterator[Any]],
        versions: TokenizerVersions,
        path: Path | None = None,
    ) -> EncodedExamples:
        """Encode examples with every version of the tokenizers.

        Args:
            name: The file name in error messages.
            examples: A function that starts reading the examples. It may be called several times.
            versions: The versions of each tokenizer; see `tokenizer_versions`.
            path: Where the tokens are written while they are computed. With None they stay in memory.
        """

    def encode_split(
        self, split: str, versions: TokenizerVersions, cache: TokenCache | None = None
    ) -> EncodedExamples:
        """Encode the "train" or "valid" split, or read it from the cache."""

        def examples() -> Iterator[Any]:
            return self.training_examples() if split == "train" else self.split_examples(held_out=True)

        if cache is None:
            return self.encode(self.training_name, examples, versions)

        def write(folder: Path) -> None:
            encoded = self.encode(self.training_name, examples, versions, folder / split)
            with open_regular(folder / f"{split}.values.npy", "wb") as file:
                np.save(file, encoded.values)

        def read(folder: Path) -> EncodedExamples:
            stores = tuple(TokenStore.open(folder / f"{split}{name}") for name in self.store_names)
            values = np.load(folder / f"{split}.values.npy", allow_pickle=False)
            if values.dtype != np.int64 or values.shape != self.values_shape(stores):
                raise ValueError(f"{split}.values.npy does not match the texts")
            return EncodedExamples(stores, values)

        tokenizers = [first.to_json() for first, *_ in versions]
        dropout = self.config.tokenizer.bpe_dropout if len(versions[0]) > 1 else 0.0
        key = [self.config.task, split, self.cache_key, dropout, list(self.config.data.labels), tokenizers]
        return cache.open_entry(key, write, read)

    def values_shape(self, stores: Sequence[TokenStore]) -> tuple[int, ...]:
        """The shape of `EncodedExamples.values`."""
        return (0,)

    @abstractmethod
    def build_dataset(self, name: str, encoded: EncodedExamples, notices: list[str], *, versions: int = 1) -> Any:
        """Return encoded examples as a dataset. Messages about truncated examples are added to `notices`."""

    def build_training_dataset(self, encoded: EncodedExamples, notices: list[str], versions: int) -> Any:
        """Return encoded training examples as a dataset, without those longer than `data.train_max_len`."""
        name, high = self.training_name, self.config.data.train_max_len
        if not high:
            return self.build_dataset(name, encoded, notices, versions=versions)
        dataset = self.build_dataset(name, encoded, [], versions=versions)
        try:
            short = dataset.with_lengths(1, high)
        except DataError:
            raise DataError(
                f"no training example has at most data.train_max_len={high} tokens; raise data.train_max_len",
                path=name,
            ) from None
        if len(short) < len(dataset):
            notices.append(
                f"{name}: {len(dataset) - len(short)} of {len(dataset)} examples were left out, because they are "
                f"longer than {high} tokens (data.train_max_len)"
            )
        return short

    @abstractmethod
    def load_dataset(self, name: str, notices: list[str], lines: Container[int] | None = None) -> Any:
        """Read a dataset to evaluate on.

        Args:
            name: The file, or two aligned files as `source,target`.
            notices: Receives messages about truncated and skipped examples.
            lines: Use only the examples that start on one of these lines.
        """

    def load_validation_dataset(self, notices: list[str], folder: Path | None = None) -> Any:
        """Read the validation data; None if there is none.

        Args:
            notices: Receives messages about truncated and skipped examples.
            folder: The run folder, in which tokens are cached during training.
        """
        if self.validation_name:
            return self.load_dataset(self.validation_name, notices)
        if not self.config.data.valid_fraction:
            return None
        cache = self.open_cache(folder, notices) if folder else None
        encoded = self.encode_split("valid", [[tokenizer] for tokenizer in self.tokenizers], cache)
        return self.build_eval_dataset(self.training_name, encoded, notices)

    def load_monitors(self, notices: list[str], cache: TokenCache, n_train: int) -> dict[str, Dataset]:
        """Read the sets that are evaluated with each validation, by name; the training set is called train.

        Args:
            notices: Receives sentences about what was cut or skipped.
            cache: Where the tokens of the training set are.
            n_train: The number of training examples.
        """
        n_sampled = self.config.train.eval_train
        sample = {TRAIN_SET: self.load_training_sample(n_sampled, n_train, cache)} if n_sampled else {}
        return sample | {name: self.load_dataset(file, notices) for name, file in self.config.data.monitored_files}

    def load_training_sample(self, n: int, n_train: int, cache: TokenCache) -> Dataset:
        """Return evenly spaced training examples as a dataset to evaluate on; -1: all of them."""
        spacing = max(1, n_train // n) if n > 0 else 1
        if self.config.data.train_max_len:
            encoded = self.encode_split("train", [[tokenizer] for tokenizer in self.tokenizers], cache)
            dataset = self.build_training_dataset(encoded, [], 1)
            rows = np.arange(len(dataset))
            return dataset.select((rows % spacing == 0) & (rows < (spacing * n if n > 0 else len(dataset))))
        examples = list(islice(self.training_examples(), 0, spacing * n if n > 0 else None, spacing))
        return self.build_sample(examples)

    def build_sample(self, examples: list[Any]) -> Dataset:
        """Return training examples as a dataset to evaluate on."""
        encoded = self.encode(self.training_name, lambda: iter(examples), [[item] for item in self.tokenizers])
        return self.build_eval_dataset(self.training_name, encoded, [])

    def build_eval_dataset(self, name: str, encoded: EncodedExamples, notices: list[str]) -> Any:
        """Return encoded examples as a dataset to evaluate on."""
        return self.build_dataset(name, encoded, notices)

    # -- notices and baselines

    def describe(self, encoded: EncodedExamples, n_versions: int) -> list[str]:
        """Return notices about how the training file was read."""
        return []

    def find_problems(self, train: Dataset, valid: Dataset | None, folder: Path) -> list[str]:
        """Return warnings about the data, for example that validation examples are also in the training data."""
        return [] if valid is None else self.find_leaks(folder)

    def find_leaks(self, folder: Path) -> list[str]:
        cache = self.open_cache(folder, [])
        train_texts = map(self.source_text, self.split_examples(held_out=False))
        valid_texts = map(self.source_text, self.iter_examples())
        return leak_warnings(
            cache, self.training_name, self.validation_name, self.cache_key, train_texts, valid_texts
        )

    def fit_baselines(self) -> FittedBaselines:
        """Fit the baselines, which are models without a Transformer, on the training data."""
        return fit_baselines(self.config.task, self.training_examples())
