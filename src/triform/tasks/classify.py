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

from triform import baselines
from triform.config import Config, DecodeConfig, Sizes
from triform.data import sets
from triform.data.cache import TokenCache
from triform.data.loader import Indices, in_order_of_length
from triform.data.readers import Row, describe_rows, on_lines, read_rows
from triform.data.store import TokenStore
from triform.errors import DataError
from triform.metrics import Labels, Scores, accuracy, macro_f1
from triform.models.host_memory import require_memory
from triform.models.kinds import AnyClassifier, make_classifier
from triform.nn.rows import pack, pad
from triform.nn.vocabulary import agreeing_loss, check_finite, cross_entropy
from triform.progress import tracked
from triform.settings import Settings, build
from triform.tasks.defaults import settle, with_tokenizer
from triform.tasks.label_notices import label_notices
from triform.tasks.labelled import Examples, Labelled, encode, encode_once, encoded_rows
from triform.tasks.leaks import leak_notices
from triform.tasks.learned import layout, learned_tokenizer, ways
from triform.tasks.task import (
    ByLength,
    Look,
    Prediction,
    Prepared,
    Task,
    check_not_empty,
    cut_note,
    empty_note,
    held_out,
    saved_tokenizer,
    seen_part,
    summed,
    unknown_note,
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
        self.numbers = {label: number for number, label in enumerate(self.labels)}
        self.sizes = Sizes(vocab_size=tokenizer.vocab_size, max_len=config.data.max_len, n_labels=len(self.labels))
        require_memory(config, self.sizes)
        self.model = make_classifier(config.model, self.sizes)

    @classmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> Prepared:
        data = config.data
        train_name = sets.named(data.train, "classify")
        valid_name = data.valid or sets.validation_of(train_name)
        fraction = 0.0 if valid_name else data.valid_fraction
        config = build({"data.train": train_name, "data.valid": valid_name}, config)
        notices: list[str] = []
        cache = TokenCache([train_name], folder / "tokens", notices)
        what = [fraction, layout(data)]
        labels, n_characters = cache.recall(
            ["labels", what, data.labels], lambda: survey(train_name, config, fraction)
        )
        config = with_tokenizer(build({"data.labels": tuple(labels)}, config), n_characters)

        def kept() -> Iterator[Row]:
            return own_rows(config, held=False)

        if resume:
            tokenizer = saved_tokenizer(folder)
        else:
            texts = map(attrgetter("text"), kept())  # read when asked for
            tokenizer = learned_tokenizer(cache, config.tokenizer, what, texts, n_characters)
        splits = ways(tokenizer, config.tokenizer)
        train = encode_once(cache, "train", kept, config.data.labels, splits, [what, config.tokenizer.dropout])
        found: Settings = {
            "data.max_len": data.max_len or _usual_length(train[0]),
            "tokenizer.vocab_size": tokenizer.vocab_size,
        }
        config = settle(config, train[0].total // len(splits), found)
        task = cls(config, tokenizer)
        shown = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
        columns = describe_rows(train_name, config.data)
        notices += [f"{train_name}: {columns}"] if columns else []
        notices += [
            f"{train_name}: {len(train[1]) // len(splits):,} texts to train on, {len(labels)} labels: {shown}"
        ]
        examples = task._examples(train_name, *train, notices, versions=len(splits))
        valid = task.held_out(notices, folder)
        notices += label_notices(train_name, labels, train[1], None if valid is None else valid.labels)
        return Prepared(task=task, train=examples, valid=valid, notices=tuple(notices))

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        return cls(config, saved_tokenizer(folder))

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")

    def read(self, name: str, notices: list[str], lines: Container[int] | None = None) -> Examples:
        rows = on_lines(read_rows(name, self.config.data), lines)
        store, labels = encode(lambda: rows, name, self.numbers, [self.tokenizer])
        if not len(store):
            raise DataError("has no rows to evaluate on", path=name)
        return self._examples(name, store, labels, notices)

    def held_out(self, notices: list[str], folder: Path | None = None) -> Examples | None:
        data = self.config.data
        if data.valid:
            return self.read(data.valid, notices)
        if not data.valid_fraction:
            return None

        def rows() -> Iterator[Row]:
            return own_rows(self.config, held=True)

        if folder is None:
            encoded = encode(rows, data.train, self.numbers, [self.tokenizer])
        else:
            cache = TokenCache([data.train], folder / "tokens", notices)
            what = [data.valid_fraction, layout(data)]
            encoded = encode_once(cache, "valid", rows, self.labels, [self.tokenizer], what)
        return self._examples(data.train, *encoded, notices)

    def rows(self, name: str = "") -> Iterator[Row]:
        name = name or self.config.data.valid
        return read_rows(name, self.config.data) if name else own_rows(self.config, held=True)

    def baselines(self) -> baselines.Fitted:
        return baselines.fit("classify", own_rows(self.config, held=False))

    def shared_texts(self, folder: Path) -> list[str]:
        data = self.config.data
        cache = TokenCache([data.train], folder / "tokens", [])
        what = [0.0 if data.valid else data.valid_fraction, layout(data)]
        learned, judged = ((row.text for row in rows) for rows in (own_rows(self.config, held=False), self.rows()))
        return leak_notices(cache, data.valid, what, learned, judged)

    def _examples(
        self, name: str, store: TokenStore, labels: Labels, notices: list[str], *, versions: int = 1
    ) -> Examples:
        examples = Examples(store, labels, self.config.data.max_len, versions, self.tokenizer.special)
        if not len(examples):
            raise DataError(
                "no rows are left for validation; give --valid FILE, or raise data.valid_fraction", path=name
            )
        if cut := examples.too_long():
            notices.append(
                f"{name}: {cut} of {len(examples)} texts were cut at data.max_len={examples.max_len} tokens"
            )
        return examples

    def loss(self, batch: Labelled) -> Tensor:
        def scores() -> Tensor:  # (B, labels)
            return self.model(batch.tokens, batch.keep)

        how = self.config.train
        if how.consistency:
            return agreeing_loss(scores(), scores(), batch.labels, how.label_smoothing, how.consistency)
        return cross_entropy(scores(), batch.labels, how.label_smoothing)

    @torch.inference_mode()
    def evaluate(self, data: Examples, *, quick: bool = False, decode: DecodeConfig | None = None) -> Scores:
        tallies = (
            label_tally(scores, torch.from_numpy(data.labels[indices]).to(self.device))
            for indices, scores in self._scores(data)
        )
        return self.scores(summed(tallies).tolist(), data, quick=quick)

    def tally(self, batch: Labelled) -> Tensor:
        return label_tally(self.model(batch.tokens, batch.keep), batch.labels)

    def scores(
        self, sums: list[float], data: Examples, *, quick: bool, decode: DecodeConfig | None = None
    ) -> Scores:
        loss, *table = sums
        counts = np.array(table, dtype=np.int64).reshape(len(self.labels), len(self.labels))
        return {
            "loss": loss / len(data),
            "accuracy": accuracy(counts),
            "f1": macro_f1(counts),
            "rows": len(data),
        }

    @torch.inference_mode()
    def predict(
        self, texts: Sequence[str], *, decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[Prediction]:
        store = TokenStore.build_rows(encoded_rows(texts, self.tokenizer), vocab_size=self.tokenizer.vocab_size)
        unlabelled = np.zeros(len(store), dtype=np.int64)
        data = Examples(store, unlabelled, self.config.data.max_len, special=self.tokenizer.special)
        found: dict[int, list[float]] = {}
        for indices, scores in self._scores(data):
            check_finite(scores)
            found |= dict(zip(indices.tolist(), scores.float().softmax(-1).tolist(), strict=True))
        return [self._prediction(text, store[place], found[place]) for place, text in enumerate(texts)]

    def _scores(self, data: Examples) -> Iterator[tuple[Indices, Tensor]]:
        """Label scores of all texts, some at a time: end to end on a CPU, where padding would be computed too.

        Elsewhere side by side with their like: a kernel for each text would be started for little.
        """
        self.model.eval()
        lay = pack if self.device.type == "cpu" else partial(pad, fill=data.special.filling)
        batches = in_order_of_length(data.lengths, batch_tokens=ByLength.EVAL_TOKENS)
        for indices in tracked(batches, "validating", len(batches)):
            tokens, keep = lay([data.row(index) for index in indices.tolist()])
            keep = keep.to(self.device) if isinstance(keep, Tensor) else keep
            yield indices, self.model(tokens.to(self.device), keep)

    def _prediction(self, text: str, row: NDArray[Any], shares: list[float]) -> Prediction:
        """`row` is the text's tokens in their frame, before it was cut."""
        best = max(range(len(shares)), key=shares.__getitem__)
        before, after = self.tokenizer.special.before, self.tokenizer.special.after
        tokens = row[len(before) : len(row) - len(after)]
        cut = cut_note(len(tokens), self.config.data.max_len - len(before) - len(after))
        return Prediction(
            input=text,
            output=self.labels[best],
            probabilities=dict(zip(self.labels, shares, strict=True)),
            cut=bool(cut),
            notes=(*empty_note(text, tokens, self.tokenizer), *cut),
        )

    def look(self, text: str, target: str = "", n_new: int = 0) -> Look:
        """`target` is the label whose score is to be explained; without one, the label that is predicted."""
        check_not_empty(text)
        if target and target not in self.numbers:
            raise DataError(f"there is no label {target!r}; known are {', '.join(self.labels)}")
        special, max_len = self.tokenizer.special, self.config.data.max_len
        tokens, _ = seen_part(self.tokenizer.encode(text), max_len, "text", special)
        pieces = self.tokenizer.pieces(tokens)
        prediction = self.predict([text])[0]
        return Look(
            inputs=(torch.tensor([tokens], device=self.device),),
            pieces={"encoder": (pieces, pieces)},
            prediction=prediction,
            notes=(*prediction.notes, *unknown_note(text, self.tokenizer)),
        )

    def samples(self, data: Examples) -> list[dict[str, str]]:
        n = min(len(data), MAX_SAMPLED_ROWS)
        chosen = range(0, n, max(1, n // 8))[:8]
        rows = [row for place, row in enumerate(islice(self.rows(), chosen.stop)) if place in chosen]
        made = self.predict([row.text for row in rows])
        return [
            {"input": row.text, "output": each.output, "expected": row.label}
            for row, each in zip(rows, made, strict=True)
        ]


def label_tally(scores: Tensor, labels: Tensor) -> Tensor:  # (B, n), (B) -> (1 + n²)
    """The loss, and how often each label was taken for each."""
    loss, n = cross_entropy(scores, labels, 0.0), scores.shape[-1]
    places = labels * n + scores.argmax(-1)  # in the table of n rows and columns
    table = loss.new_zeros(n * n).scatter_add(0, places, torch.ones_like(places, dtype=loss.dtype))
    return torch.cat([loss[None], table])


def split_rows(name: str, config: Config, fraction: float) -> Iterator[tuple[Row, bool]]:
    """Each row with whether it is held out for validation."""
    return zip(read_rows(name, config.data), held_out(fraction), strict=False)


def own_rows(config: Config, *, held: bool) -> Iterator[Row]:
    """The rows to train on, or those held out of the same file."""
    fraction = 0.0 if config.data.valid else config.data.valid_fraction
    return (row for row, out in split_rows(config.data.train, config, fraction) if out == held)


def survey(name: str, config: Config, fraction: float) -> tuple[Sequence[str], int]:
    """The labels of a file, in order, and how many characters there are to train on."""
    seen: set[str] = set()
    n_characters = 0
    for row, held in split_rows(name, config, fraction):
        seen.add(row.label)  # a label so rare that all its rows are held out is still one
        n_characters += 0 if held else len(row.text)
    if len(seen) < 2 and not config.data.labels:
        only = f"only one label, {next(iter(seen))!r}" if seen else "no rows to train on"
        raise DataError(f"has {only}; a classifier needs at least two labels", path=name)
    return config.data.labels or tuple(sorted(seen, key=_by_value)), n_characters


def _by_value(label: str) -> tuple[float, str]:
    """Numbers by size, before everything else."""
    try:
        value = float(label)
    except ValueError:
        value = math.inf
    return (value if math.isfinite(value) else math.inf), label


def _usual_length(store: TokenStore) -> int:
    """Room for every text where all are short; for 95 % of them, and 512 tokens at most, where some are long."""
    longest = int(store.lengths.max())
    return max(16, longest) if longest <= 256 else min(512, int(np.ceil(np.quantile(store.lengths, 0.95))))
