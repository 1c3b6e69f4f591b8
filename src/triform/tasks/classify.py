"""Classify: an encoder reads a text and names its label."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from triform.config import Config, Sizes, TrainConfig
from triform.data import sets
from triform.data.cache import TokenCache
from triform.data.loader import Indices, in_order_of_length
from triform.data.readers import Row, describe_rows, read_rows
from triform.data.store import TokenStore
from triform.errors import DataError
from triform.metrics import Labels, Scores, accuracy, macro_f1
from triform.models.encoder import Classifier
from triform.nn.rows import pack, pad
from triform.nn.vocabulary import IGNORE, agreeing_loss, cross_entropy
from triform.settings import Settings, build
from triform.tasks.defaults import settle, with_tokenizer
from triform.tasks.learned import layout, learned_tokenizer, ways
from triform.tasks.resident import FILLING, Plan, Sequences, filled, fits, rung
from triform.tasks.task import (
    Batch,
    ByLength,
    Look,
    Prediction,
    Prepared,
    Task,
    check_not_empty,
    chunks,
    held_out,
    saved_tokenizer,
    seen_part,
    summed,
    unknown_note,
)
from triform.text import EOS, PAD, Rows, Tokenizer, encode_stream


@dataclass(frozen=True, kw_only=True)
class Labelled(Batch):
    tokens: Tensor  # (B, T)
    keep: Tensor | None  # (B, T), None where nothing is padded
    labels: Tensor  # (B)


class Examples(ByLength):
    """Encoded texts with label numbers; a text is cut at `max_len` when it is read, not before."""

    def __init__(self, store: TokenStore, labels: Labels, max_len: int, versions: int = 1) -> None:
        self.store, self.labels, self.max_len, self.versions = store, labels, max_len, versions
        self.lengths = np.minimum(store.lengths, max_len)

    def batch(self, indices: Indices) -> Labelled:
        tokens, keep = pad([self.store[index][: self.max_len] for index in indices.tolist()], fill=PAD)
        return Labelled(
            tokens=tokens,
            keep=keep,
            labels=torch.from_numpy(self.labels[indices]),
            weight=len(indices),
            n_tokens=int(self.lengths[indices].sum()),
            n_places=tokens.numel(),
        )

    def on(self, device: torch.device, train: TrainConfig) -> ResidentExamples | None:
        return ResidentExamples(self, device, train.batch_size) if fits(self.store) else None

    def too_long(self) -> int:
        return int((self.store.lengths[: len(self)] > self.max_len).sum())


class ResidentExamples:
    """The same on a device."""

    def __init__(self, examples: Examples, device: torch.device, batch_size: int) -> None:
        self.lengths, self.max_len, self.batch_size = examples.lengths, examples.max_len, batch_size
        self.texts = Sequences(examples.store, examples.max_len, device)
        self.labels = torch.from_numpy(examples.labels).to(device)

    def plan(self, indices: Indices) -> Plan:
        lengths = self.lengths[indices]
        n_rows = self.batch_size or rung(len(indices), len(self.lengths))
        width = rung(int(lengths.max()), self.max_len)
        return Plan((n_rows, width), filled(indices, n_rows), len(indices), int(lengths.sum()), n_rows * width)

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> Labelled:
        real, rows = rows != FILLING, rows.clamp(min=0)
        tokens, keep = self.texts.rows(rows, shape[1], PAD)
        return Labelled(tokens=tokens, keep=keep, labels=torch.where(real, self.labels[rows], IGNORE))


class Classify(Task):
    name = "classify"
    unit = "texts"
    metric = "accuracy"
    higher_is_better = True
    model: Classifier

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config)
        self.tokenizer, self.labels = tokenizer, config.data.labels
        self.numbers = {label: number for number, label in enumerate(self.labels)}
        self.sizes = Sizes(vocab_size=tokenizer.vocab_size, max_len=config.data.max_len, n_labels=len(self.labels))
        self.model = Classifier(config.model, self.sizes)

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
            return (row for row, held in split_rows(train_name, config, fraction) if not held)

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
            f"{train_name}: {len(train[1]) // len(splits)} texts to train on, {len(labels)} labels: {shown}"
        ]
        examples = task._examples(train_name, *train, notices, versions=len(splits))
        valid = task.held_out(notices, folder)
        return Prepared(task=task, train=examples, valid=valid, notices=tuple(notices))

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        return cls(config, saved_tokenizer(folder))

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")

    def read(self, name: str, notices: list[str]) -> Examples:
        rows = read_rows(name, self.config.data)
        return self._examples(name, *encode(lambda: rows, name, self.numbers, [self.tokenizer]), notices)

    def held_out(self, notices: list[str], folder: Path | None = None) -> Examples | None:
        data = self.config.data
        if data.valid:
            return self.read(data.valid, notices)
        if not data.valid_fraction:
            return None

        def rows() -> Iterator[Row]:
            return (row for row, held in split_rows(data.train, self.config, data.valid_fraction) if held)

        if folder is None:
            encoded = encode(rows, data.train, self.numbers, [self.tokenizer])
        else:
            cache = TokenCache([data.train], folder / "tokens", notices)
            what = [data.valid_fraction, layout(data)]
            encoded = encode_once(cache, "valid", rows, self.labels, [self.tokenizer], what)
        return self._examples(data.train, *encoded, notices)

    def _examples(
        self, name: str, store: TokenStore, labels: Labels, notices: list[str], *, versions: int = 1
    ) -> Examples:
        examples = Examples(store, labels, self.config.data.max_len, versions)
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
    def evaluate(self, data: Examples, *, quick: bool = False) -> Scores:
        tallies = (
            label_tally(scores, torch.from_numpy(data.labels[indices]).to(self.device))
            for indices, scores in self._scores(data)
        )
        return self.scores(summed(tallies).tolist(), data, quick=quick)

    def tally(self, batch: Labelled) -> Tensor:
        return label_tally(self.model(batch.tokens, batch.keep), batch.labels)

    def scores(self, sums: list[float], data: Examples, *, quick: bool) -> Scores:
        loss, *table = sums
        counts = np.array(table, dtype=np.int64).reshape(len(self.labels), len(self.labels))
        return {
            "loss": loss / len(data),
            "accuracy": accuracy(counts),
            "f1": macro_f1(counts),
            "rows": len(data),
        }

    @torch.inference_mode()
    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        store = TokenStore.build_rows(_rows(texts, self.tokenizer), vocab_size=self.tokenizer.vocab_size)
        data = Examples(store, np.zeros(len(store), dtype=np.int64), self.config.data.max_len)
        found: dict[int, list[float]] = {}
        for indices, scores in self._scores(data):
            found |= dict(zip(indices.tolist(), scores.float().softmax(-1).tolist(), strict=True))
        cut = store.lengths > self.config.data.max_len
        return [self._prediction(text, found[place], bool(cut[place])) for place, text in enumerate(texts)]

    def _scores(self, data: Examples) -> Iterator[tuple[Indices, Tensor]]:
        """Label scores of all texts, some at a time: end to end on a CPU, where padding would be computed too.

        Elsewhere side by side with their like: a kernel for each text would be started for little.
        """
        self.model.eval()
        lay = pack if self.device.type == "cpu" else partial(pad, fill=PAD)
        for indices in in_order_of_length(data.lengths, batch_tokens=ByLength.EVAL_TOKENS):
            tokens, keep = lay([data.store[index][: data.max_len] for index in indices.tolist()])
            keep = keep.to(self.device) if isinstance(keep, Tensor) else keep
            yield indices, self.model(tokens.to(self.device), keep)

    def _prediction(self, text: str, shares: list[float], cut: bool) -> Prediction:
        best = max(range(len(shares)), key=shares.__getitem__)
        probabilities = dict(zip(self.labels, shares, strict=True))
        return Prediction(input=text, output=self.labels[best], probabilities=probabilities, cut=cut)

    def look(self, text: str, target: str = "", n_new: int = 0) -> Look:
        """`target` is the label whose score is to be explained; without one, the label that is predicted."""
        check_not_empty(text)
        if target and target not in self.numbers:
            raise DataError(f"there is no label {target!r}; known are {', '.join(self.labels)}")
        tokens, notes = seen_part(self.tokenizer.encode(text), self.config.data.max_len, "text")
        pieces = self.tokenizer.pieces(tokens)
        return Look(
            inputs=(torch.tensor([tokens], device=self.device),),
            pieces={"encoder": (pieces, pieces)},
            prediction=self.predict([text])[0],
            notes=(*notes, *unknown_note(self.tokenizer.unknown(text))),
        )

    def samples(self, data: Examples) -> list[dict[str, str]]:
        rows = range(0, len(data), max(1, len(data) // 8))[:8]
        texts = [self.tokenizer.decode(data.store[row].tolist()) for row in rows]
        truth = [self.labels[data.labels[row]] for row in rows]
        guesses = self.predict(texts)
        return [
            {"input": guess.input, "output": guess.output, "expected": label}
            for guess, label in zip(guesses, truth, strict=True)
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


def encode(
    rows: Callable[[], Iterator[Row]],
    name: str,
    numbers: dict[str, int],
    tokenizers: Sequence[Tokenizer],
    *,
    path: Path | None = None,
) -> tuple[TokenStore, Labels]:
    """Rows as tokens and label numbers, once for each tokenizer; with a path the tokens go straight to disk."""
    labels: list[int] = []

    def texts() -> Iterator[str]:
        for row in rows():
            if row.label not in numbers:
                raise DataError(
                    f"label {row.label!r} was never seen in training; known are {', '.join(numbers)}",
                    path=name,
                    line=row.line,
                )
            labels.append(numbers[row.label])
            yield row.text

    encoded = chain.from_iterable(_rows(texts(), tokenizer) for tokenizer in tokenizers)
    store = TokenStore.build_rows(encoded, vocab_size=tokenizers[0].vocab_size, path=path)
    return store, np.array(labels, dtype=np.int64)


def encode_once(
    cache: TokenCache,
    name: str,
    rows: Callable[[], Iterator[Row]],
    labels: Sequence[str],
    tokenizers: Sequence[Tokenizer],
    what: object,
) -> tuple[TokenStore, Labels]:
    """The same on disk, and not again where it was done before; `what` tells the rows from others of the file."""
    numbers = {label: number for number, label in enumerate(labels)}

    def make(folder: Path) -> None:
        found = encode(rows, cache.files[0], numbers, tokenizers, path=folder / name)[1]
        np.save(folder / f"{name}.labels.npy", found)

    made = cache.folder(["classify", name, what, list(labels), tokenizers[0].to_json()], make)
    return TokenStore.open(made / name), np.load(made / f"{name}.labels.npy")


def _rows(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[Rows]:
    for rows in encode_stream(tokenizer, chunks(texts, characters=len)):
        yield rows.followed_by(EOS, rows.lengths == 0)  # an empty text still has to be read as something


def _usual_length(store: TokenStore) -> int:
    """Room for every text where all are short; for 95 % of them, and 512 tokens at most, where some are long."""
    longest = int(store.lengths.max())
    return max(16, longest) if longest <= 256 else min(512, int(np.ceil(np.quantile(store.lengths, 0.95))))
