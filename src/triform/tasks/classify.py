"""Classify: an encoder reads a text and names its label."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.analysis.host_memory import require_memory
from triform.config import Config, DataSizes, DecodeConfig
from triform.config.settings import Settings, build_config
from triform.data import builtin_sets
from triform.data.readers import LabelledText, describe_columns, filter_lines, read_rows
from triform.data.samplers import Indices, batch_by_length
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import DataError
from triform.evaluation import baselines
from triform.evaluation.metrics import Labels, Metrics, accuracy, macro_f1
from triform.models.factory import AnyClassifier, build_classifier
from triform.nn.layouts import pack, pad
from triform.nn.loss import check_finite, cross_entropy, r_drop_loss
from triform.progress import track_progress
from triform.tasks.classification_data import (
    ClassificationBatch,
    ClassificationDataset,
    encode_rows,
    encode_rows_cached,
    encode_texts,
)
from triform.tasks.defaults import resolve_defaults, resolve_tokenizer_kind
from triform.tasks.label_warnings import label_warnings
from triform.tasks.leaks import leak_warnings
from triform.tasks.learned_tokenizers import reader_options, tokenizer_versions, train_or_load_tokenizer
from triform.tasks.task import (
    BucketedDataset,
    ExplanationInput,
    Prediction,
    PreparedTask,
    Task,
    add_metric_sums,
    empty_text_notes,
    load_saved_tokenizer,
    truncate_with_notes,
    truncation_notes,
    unknown_word_notes,
    validate_not_empty,
    validation_mask,
)
from triform.text import Tokenizer

MAX_SAMPLED_ROWS = 50_000  # rows that are read again to show some of them in the report


class Classify(Task):
    name = "classify"
    unit = "texts"
    metric = "accuracy"
    higher_is_better = True
    lower_loss_is_progress = True
    model: AnyClassifier

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config)
        self.tokenizer, self.labels = tokenizer, config.data.labels
        self.label_ids = {label: label_id for label_id, label in enumerate(self.labels)}
        self.sizes = DataSizes(
            vocab_size=tokenizer.vocab_size, max_len=config.data.max_len, n_labels=len(self.labels)
        )
        require_memory(config, self.sizes)
        self.model = build_classifier(config.model, self.sizes)

    @classmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> PreparedTask:
        data = config.data
        train_name = builtin_sets.resolve_path(data.train, "classify")
        valid_name = data.valid or builtin_sets.validation_path(train_name)
        fraction = 0.0 if valid_name else data.valid_fraction
        config = build_config({"data.train": train_name, "data.valid": valid_name}, config)
        notices: list[str] = []
        cache = TokenCache([train_name], folder / "tokens", notices)
        cache_key = [fraction, reader_options(data)]
        labels, n_characters = cache.get_or_compute(
            ["labels", cache_key, data.labels], lambda: scan_labels(train_name, config, fraction)
        )
        config = resolve_tokenizer_kind(build_config({"data.labels": tuple(labels)}, config), n_characters)

        def training_rows() -> Iterator[LabelledText]:
            return iter_split_rows(config, held_out=False)

        if resume:
            tokenizer = load_saved_tokenizer(folder)
        else:
            texts = map(attrgetter("text"), training_rows())  # read when asked for
            tokenizer = train_or_load_tokenizer(cache, config.tokenizer, cache_key, texts, n_characters)
        tokenizers = tokenizer_versions(tokenizer, config.tokenizer)
        encoded_train = encode_rows_cached(
            cache, "train", training_rows, config.data.labels, tokenizers, [cache_key, config.tokenizer.bpe_dropout]
        )
        data_settings: Settings = {
            "data.max_len": data.max_len or _default_max_len(encoded_train[0]),
            "tokenizer.vocab_size": tokenizer.vocab_size,
        }
        config = resolve_defaults(config, encoded_train[0].n_tokens // len(tokenizers), data_settings)
        task = cls(config, tokenizer)
        label_list = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
        columns = describe_columns(train_name, config.data)
        notices += [f"{train_name}: {columns}"] if columns else []
        n_texts = len(encoded_train[1]) // len(tokenizers)
        notices += [f"{train_name}: {n_texts:,} texts to train on, {len(labels)} labels: {label_list}"]
        train_dataset = task._build_dataset(train_name, *encoded_train, notices, versions=len(tokenizers))
        valid = task.load_validation_dataset(notices, folder)
        notices += label_warnings(train_name, labels, encoded_train[1], None if valid is None else valid.labels)
        return PreparedTask(task=task, train=train_dataset, valid=valid, notices=tuple(notices))

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        return cls(config, load_saved_tokenizer(folder))

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")

    def load_dataset(
        self, name: str, notices: list[str], lines: Container[int] | None = None
    ) -> ClassificationDataset:
        rows = filter_lines(read_rows(name, self.config.data), lines)
        store, labels = encode_rows(lambda: rows, name, self.label_ids, [self.tokenizer])
        if not len(store):
            raise DataError("has no rows to evaluate on", path=name)
        return self._build_dataset(name, store, labels, notices)

    def load_validation_dataset(
        self, notices: list[str], folder: Path | None = None
    ) -> ClassificationDataset | None:
        data = self.config.data
        if data.valid:
            return self.load_dataset(data.valid, notices)
        if not data.valid_fraction:
            return None

        def rows() -> Iterator[LabelledText]:
            return iter_split_rows(self.config, held_out=True)

        if folder is None:
            encoded = encode_rows(rows, data.train, self.label_ids, [self.tokenizer])
        else:
            cache = TokenCache([data.train], folder / "tokens", notices)
            cache_key = [data.valid_fraction, reader_options(data)]
            encoded = encode_rows_cached(cache, "valid", rows, self.labels, [self.tokenizer], cache_key)
        return self._build_dataset(data.train, *encoded, notices)

    def iter_examples(self, name: str = "") -> Iterator[LabelledText]:
        name = name or self.config.data.valid
        return read_rows(name, self.config.data) if name else iter_split_rows(self.config, held_out=True)

    def fit_baselines(self) -> baselines.FittedBaselines:
        return baselines.fit_baselines("classify", iter_split_rows(self.config, held_out=False))

    def find_leaks(self, folder: Path) -> list[str]:
        data = self.config.data
        cache = TokenCache([data.train], folder / "tokens", [])
        cache_key = [0.0 if data.valid else data.valid_fraction, reader_options(data)]
        train_texts, valid_texts = (
            (row.text for row in rows)
            for rows in (iter_split_rows(self.config, held_out=False), self.iter_examples())
        )
        return leak_warnings(cache, data.valid, cache_key, train_texts, valid_texts)

    def _build_dataset(
        self, name: str, store: TokenStore, labels: Labels, notices: list[str], *, versions: int = 1
    ) -> ClassificationDataset:
        dataset = ClassificationDataset(
            store, labels, self.config.data.max_len, versions, self.tokenizer.special_tokens
        )
        if not len(dataset):
            raise DataError(
                "no rows are left for validation; give --valid FILE, or raise data.valid_fraction", path=name
            )
        if n_truncated := dataset.count_truncated():
            notices.append(
                f"{name}: {n_truncated} of {len(dataset)} texts were cut at data.max_len={dataset.max_len} tokens"
            )
        return dataset

    def loss(self, batch: ClassificationBatch) -> Tensor:
        def compute_logits() -> Tensor:  # (B, labels)
            return self.model(batch.tokens, batch.keep)

        train = self.config.train
        if train.r_drop:
            return r_drop_loss(
                compute_logits(), compute_logits(), batch.labels, train.label_smoothing, train.r_drop
            )
        return cross_entropy(compute_logits(), batch.labels, train.label_smoothing)

    @torch.inference_mode()
    def evaluate(
        self, data: ClassificationDataset, *, quick: bool = False, decode: DecodeConfig | None = None
    ) -> Metrics:
        sums = (
            label_metric_sums(logits, torch.from_numpy(data.labels[indices]).to(self.device))
            for indices, logits in self._iter_logits(data)
        )
        return self.compute_metrics(add_metric_sums(sums).tolist(), data, quick=quick)

    def metric_sums(self, batch: ClassificationBatch) -> Tensor:
        return label_metric_sums(self.model(batch.tokens, batch.keep), batch.labels)

    def compute_metrics(
        self, sums: list[float], data: ClassificationDataset, *, quick: bool, decode: DecodeConfig | None = None
    ) -> Metrics:
        loss, *confusion = sums
        confusion_matrix = np.array(confusion, dtype=np.int64).reshape(len(self.labels), len(self.labels))
        return {
            "loss": loss / len(data),
            "accuracy": accuracy(confusion_matrix),
            "f1": macro_f1(confusion_matrix),
            "rows": len(data),
        }

    @torch.inference_mode()
    def predict(
        self, texts: Sequence[str], *, decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[Prediction]:
        store = TokenStore.build_from_batches(
            encode_texts(texts, self.tokenizer), vocab_size=self.tokenizer.vocab_size
        )
        dummy_labels = np.zeros(len(store), dtype=np.int64)
        data = ClassificationDataset(
            store, dummy_labels, self.config.data.max_len, special=self.tokenizer.special_tokens
        )
        probabilities: dict[int, list[float]] = {}
        for indices, logits in self._iter_logits(data):
            check_finite(logits)
            probabilities |= dict(zip(indices.tolist(), logits.float().softmax(-1).tolist(), strict=True))
        return [
            self._build_prediction(text, store[index], probabilities[index]) for index, text in enumerate(texts)
        ]

    def _iter_logits(self, data: ClassificationDataset) -> Iterator[tuple[Indices, Tensor]]:
        """Label scores of all texts, some at a time: end to end on a CPU, where padding would be computed too.

        Elsewhere side by side with their like: a kernel for each text would be started for little.
        """
        self.model.eval()
        collate = pack if self.device.type == "cpu" else partial(pad, fill=data.special.pad_or_zero)
        batches = batch_by_length(data.lengths, batch_tokens=BucketedDataset.EVAL_TOKENS)
        for indices in track_progress(batches, "validating", len(batches)):
            tokens, keep = collate([data.truncated_row(index) for index in indices.tolist()])
            keep = keep.to(self.device) if isinstance(keep, Tensor) else keep
            yield indices, self.model(tokens.to(self.device), keep)

    def _build_prediction(self, text: str, row: NDArray[Any], probabilities: list[float]) -> Prediction:
        """`row` is the text's tokens in their frame, before it was cut."""
        predicted = max(range(len(probabilities)), key=probabilities.__getitem__)
        before, after = self.tokenizer.special_tokens.before, self.tokenizer.special_tokens.after
        tokens = row[len(before) : len(row) - len(after)]
        notes = truncation_notes(len(tokens), self.config.data.max_len - len(before) - len(after))
        return Prediction(
            input=text,
            output=self.labels[predicted],
            probabilities=dict(zip(self.labels, probabilities, strict=True)),
            cut=bool(notes),
            notes=(*empty_text_notes(text, tokens, self.tokenizer), *notes),
        )

    def build_explanation_input(self, text: str, target: str = "", max_new_tokens: int = 0) -> ExplanationInput:
        """`target` is the label whose score is to be explained; without one, the label that is predicted."""
        validate_not_empty(text)
        if target and target not in self.label_ids:
            raise DataError(f"there is no label {target!r}; known are {', '.join(self.labels)}")
        special, max_len = self.tokenizer.special_tokens, self.config.data.max_len
        tokens, _ = truncate_with_notes(self.tokenizer.encode(text), max_len, "text", special)
        pieces = self.tokenizer.format_pieces(tokens)
        prediction = self.predict([text])[0]
        return ExplanationInput(
            inputs=(torch.tensor([tokens], device=self.device),),
            pieces={"encoder": (pieces, pieces)},
            prediction=prediction,
            notes=(*prediction.notes, *unknown_word_notes(text, self.tokenizer)),
        )

    def sample_predictions(self, data: ClassificationDataset) -> list[dict[str, str]]:
        n = min(len(data), MAX_SAMPLED_ROWS)
        indices = range(0, n, max(1, n // 8))[:8]
        rows = [row for index, row in enumerate(islice(self.iter_examples(), indices.stop)) if index in indices]
        predictions = self.predict([row.text for row in rows])
        return [
            {"input": row.text, "output": prediction.output, "expected": row.label}
            for row, prediction in zip(rows, predictions, strict=True)
        ]


def label_metric_sums(logits: Tensor, labels: Tensor) -> Tensor:  # (B, n), (B) -> (1 + n²)
    """The loss, and how often each label was taken for each."""
    loss, n_labels = cross_entropy(logits, labels, 0.0), logits.shape[-1]
    cell_indices = labels * n_labels + logits.argmax(-1)  # in the table of n rows and columns
    confusion = loss.new_zeros(n_labels * n_labels).scatter_add(
        0, cell_indices, torch.ones_like(cell_indices, dtype=loss.dtype)
    )
    return torch.cat([loss[None], confusion])


def iter_rows_with_split(name: str, config: Config, fraction: float) -> Iterator[tuple[LabelledText, bool]]:
    """Each row with whether it is held out for validation."""
    return zip(read_rows(name, config.data), validation_mask(fraction), strict=False)


def iter_split_rows(config: Config, *, held_out: bool) -> Iterator[LabelledText]:
    """The rows to train on, or those held out of the same file."""
    fraction = 0.0 if config.data.valid else config.data.valid_fraction
    return (
        row
        for row, is_held_out in iter_rows_with_split(config.data.train, config, fraction)
        if is_held_out == held_out
    )


def scan_labels(name: str, config: Config, fraction: float) -> tuple[Sequence[str], int]:
    """The labels of a file, in order, and how many characters there are to train on."""
    labels: set[str] = set()
    n_characters = 0
    for row, is_held_out in iter_rows_with_split(name, config, fraction):
        labels.add(row.label)  # a label so rare that all its rows are held out is still one
        n_characters += 0 if is_held_out else len(row.text)
    if len(labels) < 2 and not config.data.labels:
        problem = f"only one label, {next(iter(labels))!r}" if labels else "no rows to train on"
        raise DataError(f"has {problem}; a classifier needs at least two labels", path=name)
    return config.data.labels or tuple(sorted(labels, key=_label_sort_key)), n_characters


def _label_sort_key(label: str) -> tuple[float, str]:
    """Numbers by size, before everything else."""
    try:
        value = float(label)
    except ValueError:
        value = math.inf
    return (value if math.isfinite(value) else math.inf), label


def _default_max_len(store: TokenStore) -> int:
    """Room for every text where all are short; for 95 % of them, and 512 tokens at most, where some are long."""
    longest = int(store.lengths.max())
    return max(16, longest) if longest <= 256 else min(512, int(np.ceil(np.quantile(store.lengths, 0.95))))
