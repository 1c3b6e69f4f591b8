"""Text classification: an encoder reads a text and predicts its label."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.config import DataSizes, DecodeConfig
from triform.data.readers import LabelledText
from triform.data.samplers import Indices, batch_by_length
from triform.data.token_store import TokenStore
from triform.errors import DataError
from triform.evaluation.details import DetailedMetrics
from triform.evaluation.label_details import (
    Mistake,
    MistakeCollector,
    ScoredMistake,
    build_label_details,
    select_mistakes,
)
from triform.evaluation.metrics import Labels, Metrics, accuracy, macro_f1
from triform.generation.backend import check_finite
from triform.models.ensemble import refuse_ensemble
from triform.models.factory import AnyClassifier, build_classifier
from triform.nn.kernels.dispatch import use_fast_kernels
from triform.nn.kernels.packing import pack
from triform.nn.layouts import as_layout, pad
from triform.nn.loss import cross_entropy
from triform.progress import track_progress
from triform.tasks.batch import BucketedDataset
from triform.tasks.classification_data import (
    ClassificationBatch,
    ClassificationData,
    ClassificationDataset,
    encode_texts,
)
from triform.tasks.evaluation import Evaluator, gather_metric_sums, share_items
from triform.tasks.losses import consistency_loss, distillation_loss, token_cutoff
from triform.tasks.prediction import (
    Alternative,
    Keep,
    Prediction,
    Predictor,
    empty_text_notes,
    truncation_notes,
)
from triform.tasks.task import Task
from triform.world import SINGLE_PROCESS, World, gather_values

MAX_SAMPLED_ROWS = 50_000  # validation rows from which the samples of the report are chosen


@dataclass(frozen=True)
class ClassificationPredictor(Predictor):
    """Predictor of labels with their probabilities, and of pooled encoder states."""

    task: Classify

    @torch.inference_mode()
    def predict(
        self,
        texts: Sequence[str],
        *,
        decode: DecodeConfig | None = None,
        seed: int | None = None,
        top: int = 0,
        keep: Keep | None = None,
        rows: Sequence[int] | None = None,
    ) -> list[Prediction]:
        data = self._encode(texts, keep)
        probabilities: dict[int, list[float]] = {}
        for indices, tokens, layout in iter_inputs(self.task, data):
            logits = self.task.model(tokens, layout)
            check_finite(logits)
            probabilities |= dict(zip(indices.tolist(), logits.float().softmax(-1).tolist(), strict=True))
        return [
            self._build_prediction(text, data.store[index], probabilities[index], top, keep)
            for index, text in enumerate(texts)
        ]

    @torch.inference_mode()
    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the output of the model before the softmax: a row for each text, with a number for each label."""
        rows: NDArray[np.float32] = np.empty((len(texts), len(self.task.config.data.labels)), dtype=np.float32)
        for indices, tokens, layout in iter_inputs(self.task, self._encode(texts)):
            rows[indices] = self.task.model(tokens, layout).float().cpu().numpy()
        return rows

    @torch.inference_mode()
    def pooled_states(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the input of the classification head: one row of `d_model` numbers for each text."""
        vectors: NDArray[np.float32] = np.empty((len(texts), self.task.config.model.d_model), dtype=np.float32)
        model = self.task.model
        refuse_ensemble(model, "a vector of a text")
        for indices, tokens, keep in iter_inputs(self.task, self._encode(texts)):
            layout = as_layout(keep)
            vectors[indices] = model.pool(layout, model.encoder(tokens, layout)).float().cpu().numpy()
        return vectors

    def _encode(self, texts: Sequence[str], keep: Keep | None = None) -> ClassificationDataset:
        tokenizer, max_len = self.task.tokenizer, self.task.config.data.max_len
        store = TokenStore.build_from_batches(encode_texts(texts, tokenizer), vocab_size=tokenizer.vocab_size)
        no_labels = np.zeros(len(store), dtype=np.int64)
        special, keep_last = tokenizer.special_tokens, keep == "last"
        return ClassificationDataset(store, no_labels, max_len, special=special, keep_last=keep_last)

    def _build_prediction(
        self, text: str, row: NDArray[Any], probabilities: list[float], top: int, keep: Keep | None
    ) -> Prediction:
        """Return the prediction for a text. `row` has its tokens with special tokens, before truncation."""
        labels, tokenizer = self.task.config.data.labels, self.task.tokenizer
        ranking = sorted(range(len(probabilities)), key=lambda label: -probabilities[label])
        before, after = tokenizer.special_tokens.before, tokenizer.special_tokens.after
        tokens = row[len(before) : len(row) - len(after)]
        max_read = max(0, self.task.config.data.max_len - len(before) - len(after))
        notes = truncation_notes(len(tokens), max_read, keep_last=keep == "last")
        return Prediction(
            input=text,
            output=labels[ranking[0]],
            probabilities=dict(zip(labels, probabilities, strict=True)),
            alternatives=tuple(
                Alternative(text=labels[label], probability=probabilities[label]) for label in ranking[:top]
            ),
            cut=bool(notes),
            notes=(*empty_text_notes(text, tokens, tokenizer), *notes),
        )

    def sample_predictions(self, data: ClassificationDataset) -> list[dict[str, str]]:
        n = min(len(data), MAX_SAMPLED_ROWS)
        indices = range(0, n, max(1, n // 8))[:8]
        examples = islice(self.task.data.iter_examples(), indices.stop)
        rows = [row for index, row in enumerate(examples) if index in indices]
        predictions = self.predict([row.text for row in rows])
        return [
            {"input": row.text, "output": prediction.output, "expected": row.label}
            for row, prediction in zip(rows, predictions, strict=True)
        ]


@dataclass(frozen=True)
class ClassificationEvaluator(Evaluator):
    """Evaluator of classifiers: loss, accuracy and F1."""

    task: Classify
    report_size = 2_000

    @torch.inference_mode()
    def sum_metrics(
        self, data: ClassificationDataset, *, quick: bool = False, world: World = SINGLE_PROCESS
    ) -> list[float]:
        task = self.task
        sums = (
            label_metric_sums(task.model(tokens, layout), torch.from_numpy(data.labels[indices]).to(task.device))
            for indices, tokens, layout in iter_inputs(task, data, world)
        )
        return gather_metric_sums(sums, world)

    def metric_sums(self, batch: ClassificationBatch) -> Tensor:
        return label_metric_sums(self.task.model(batch.tokens, batch.keep), batch.labels)

    def compute_metrics(
        self,
        sums: list[float],
        data: ClassificationDataset,
        *,
        quick: bool,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> Metrics:
        confusion_matrix = self._confusion_matrix(sums)
        return {
            "loss": sums[0] / len(data),
            "accuracy": accuracy(confusion_matrix),
            "f1": macro_f1(confusion_matrix),
            "rows": len(data),
        }

    def _confusion_matrix(self, sums: list[float]) -> Labels:
        n_labels = len(self.task.config.data.labels)
        return np.array(sums[1:], dtype=np.int64).reshape(n_labels, n_labels)

    @torch.inference_mode()
    def evaluate_with_details(
        self,
        data: ClassificationDataset,
        *,
        read_examples: Callable[[], Iterable[LabelledText]],
        n_examples: int,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> DetailedMetrics:
        task, collector = self.task, MistakeCollector(n_examples)

        def batch_sums() -> Iterator[Tensor]:
            for indices, tokens, layout in iter_inputs(task, data, world):
                logits, labels = task.model(tokens, layout), data.labels[indices]
                predicted, probs = logits.argmax(-1).cpu().numpy(), logits.float().softmax(-1).cpu().numpy()
                collector.add(data.rows[indices], labels, predicted, probs)
                yield label_metric_sums(logits, torch.from_numpy(labels).to(task.device))

        sums = gather_metric_sums(batch_sums(), world)
        gathered = gather_values(collector.mistakes) if world.size > 1 else [collector.mistakes]
        scored = select_mistakes((ScoredMistake(*item) for part in gathered for item in part), n_examples)
        rows = find_rows(read_examples(), {mistake.row for mistake in scored})
        labels = task.config.data.labels
        mistakes = [
            Mistake(
                line=rows[mistake.row].line,
                text=rows[mistake.row].text,
                expected=labels[mistake.expected],
                predicted=labels[mistake.predicted],
                probability=mistake.probability,
                expected_probability=mistake.expected_probability,
            )
            for mistake in scored
        ]
        details = build_label_details(labels, self._confusion_matrix(sums), mistakes)
        return DetailedMetrics(self.compute_metrics(sums, data, quick=False), details)


class Classify(Task):
    """Text classification."""

    name = "classify"
    unit = "texts"
    metric = "accuracy"
    higher_is_better = True
    shown_metrics = ("accuracy",)
    lower_loss_is_progress = True
    data_class = ClassificationData
    model: AnyClassifier

    def _data_sizes(self) -> DataSizes:
        return replace(super()._data_sizes(), n_labels=len(self.config.data.labels))

    def build_model(self) -> AnyClassifier:
        return use_fast_kernels(build_classifier(self.config.model, self.sizes))

    @property
    def evaluator(self) -> ClassificationEvaluator:
        return ClassificationEvaluator(self)

    @property
    def predictor(self) -> ClassificationPredictor:
        return ClassificationPredictor(self)

    def loss(self, batch: ClassificationBatch) -> Tensor:
        if not self.config.train.token_cutoff:
            return self._loss(batch)
        with token_cutoff(self.model, self.config.train):
            return self._loss(batch)

    def _loss(self, batch: ClassificationBatch) -> Tensor:
        train = self.config.train
        if train.r_drop or train.simcut:
            compute_logits = partial(self.model, batch.tokens, batch.keep)
            return consistency_loss(compute_logits, self.model, batch.labels, train)
        logits = self.model(batch.tokens, batch.keep)  # (B, labels)
        if self.teacher is not None:
            return distillation_loss(logits, self.teacher_logits(batch.tokens, batch.keep), batch.labels, train)
        return cross_entropy(logits, batch.labels, train.label_smoothing)


def iter_inputs(
    task: Classify, data: ClassificationDataset, world: World = SINGLE_PROCESS
) -> Iterator[tuple[Indices, Tensor, Any]]:
    """Yield the texts of this process for inference in batches of indices, tokens and layout.

    On a CPU texts are packed, which saves the computation of padding. On other devices they are padded, because
    packed attention would start one kernel per text.
    """
    task.model.eval()
    device = task.device
    collate = pack if device.type == "cpu" else partial(pad, fill=data.pad_token)
    batches = batch_by_length(data.lengths, batch_tokens=BucketedDataset.EVAL_TOKENS)
    for indices in share_items(track_progress(batches, "validating", len(batches)), world):
        tokens, layout = collate([data.truncated_row(index) for index in indices.tolist()])
        yield indices, tokens.to(device), layout.to(device) if isinstance(layout, Tensor) else layout


def find_rows(examples: Iterable[LabelledText], rows: set[int]) -> dict[int, LabelledText]:
    """Return the examples with these numbers, which start at 0."""
    found_rows: dict[int, LabelledText] = {}
    for row, example in enumerate(examples):
        if row in rows:
            found_rows[row] = example
        if len(found_rows) == len(rows):
            return found_rows
    if len(found_rows) < len(rows):
        raise DataError("the data cannot be read a second time, or has changed during the evaluation")
    return found_rows


def label_metric_sums(logits: Tensor, labels: Tensor) -> Tensor:  # (B, n), (B) -> (1 + n²)
    """Return the summed loss and the confusion matrix as one vector."""
    loss, n_labels = cross_entropy(logits, labels, 0.0), logits.shape[-1]
    cell_indices = labels * n_labels + logits.argmax(-1)  # in the flattened (n, n) matrix
    confusion = loss.new_zeros(n_labels * n_labels).scatter_add(
        0, cell_indices, torch.ones_like(cell_indices, dtype=loss.dtype)
    )
    return torch.cat([loss[None], confusion])
