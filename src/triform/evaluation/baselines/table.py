"""Fit the baselines of a task on the training data of a model, and evaluate them with the same metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from typing import Any, Protocol, TypeVar

from triform.config import TaskName, TokenizerConfig
from triform.data.readers import TextChunk, TextPair
from triform.errors import TriformError
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.labels import MajorityBaseline
from triform.evaluation.baselines.ngram import NGramBaseline, Tokenize
from triform.evaluation.baselines.tfidf import TfidfBaseline
from triform.evaluation.baselines.translation import CopyBaseline, WordByWordBaseline
from triform.evaluation.metrics import Metrics
from triform.formatting import format_metric, metric_title
from triform.html.elements import render_notices, render_table
from triform.html.notebook import render_output
from triform.text import EOS, train_tokenizer

Result = TypeVar("Result")
MAX_CHARACTERS = 200_000_000  # of all rows together, because they are held in memory


class Baseline(Protocol):
    """A fitted baseline."""

    def evaluate(self, test: Any) -> Metrics:
        """Return the metrics of the task on test rows."""


class BaselineMetrics(dict[str, Metrics]):
    """The metrics of each baseline by name, and for a baseline without metrics the reason."""

    def __init__(self, metrics: dict[str, Metrics], reasons: dict[str, str]) -> None:
        super().__init__({**dict.fromkeys(reasons, Metrics()), **metrics})
        self.reasons = reasons

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for metrics in self.values() for name in metrics))
        rows = []
        for baseline, metrics in self.items():
            cells = (format_metric(name, metrics[name]) if name in metrics else "–" for name in names)
            numbers = "".join(f'<td class="num">{cell}</td>' for cell in cells)
            rows.append(f'<tr><th scope="row">{escape(baseline)}</th>{numbers}</tr>')
        table = render_table(["Baseline", *map(metric_title, names)], rows, numeric=range(1, len(names) + 1))
        reasons = (f"{baseline}: {reason}" for baseline, reason in self.reasons.items())
        return render_output(table + render_notices("Without metrics", reasons))


@dataclass(frozen=True)
class FittedBaselines:
    """The fitted baselines of a task, and the reasons why others could not be fitted."""

    fitted: dict[str, Baseline]
    reasons: dict[str, str]

    def evaluate(self, test: Iterable[Any]) -> BaselineMetrics:
        """Evaluate all fitted baselines on test rows."""
        read_rows = read_lazily(test)
        metrics, reasons = call_all(
            {name: partial(evaluate_baseline, baseline, read_rows) for name, baseline in self.fitted.items()}
        )
        return BaselineMetrics(metrics, {**self.reasons, **reasons})


def fit_baselines(
    task: TaskName,
    train: Iterable[Any],
    *,
    tokenize: Tokenize | None = None,
    vocab_size: int = 0,
    lossless: bool = False,
    eos_id: int | None = EOS,
) -> FittedBaselines:
    """Fit every baseline of a task.

    Args:
        task: The name of the task.
        train: Training rows: `LabelledText` for classify, `TextChunk` for generate, `TextPair` for translate.
        tokenize: For generate: turns a text into token ids. Without it, n-grams of characters are counted.
        vocab_size: The size of the vocabulary of `tokenize`.
        lossless: Whether `tokenize` loses no character, so that bits per byte can be computed.
        eos_id: The token after each document, or None.
    """
    read_rows = read_lazily(train)

    def fit_ngram() -> Baseline:
        if tokenize:
            return NGramBaseline.fit(read_rows(), tokenize, vocab_size, lossless=lossless, eos_id=eos_id)
        return fit_character_ngram(read_rows())

    fitters: dict[TaskName, dict[str, Callable[[], Baseline]]] = {
        "classify": {
            "majority": lambda: MajorityBaseline.fit(read_rows()),
            "tfidf": lambda: TfidfBaseline.fit(read_rows()),
        },
        "generate": {"ngram": fit_ngram},
        "translate": {"copy": CopyBaseline, "wordwise": lambda: WordByWordBaseline.fit(read_rows())},
    }
    return FittedBaselines(*call_all(fitters[task]))


def evaluate_baselines(
    task: TaskName, train: Iterable[Any], test: Iterable[Any], **tokenizer_options: Any
) -> BaselineMetrics:
    """Fit the baselines of a task and evaluate them; `tokenizer_options` are passed to `fit_baselines`."""
    return fit_baselines(task, train, **tokenizer_options).evaluate(test)


def evaluate_baseline(baseline: Baseline, read_rows: Callable[[], list[Any]]) -> Metrics:
    """Read the test rows and evaluate a baseline on them."""
    return baseline.evaluate(read_rows())


def fit_character_ngram(train: Sequence[TextChunk]) -> NGramBaseline:
    """Fit an n-gram model over characters."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), (piece.text for piece in train))
    return NGramBaseline.fit(train, tokenizer.encode, tokenizer.vocab_size, lossless=True)


def read_lazily(rows: Iterable[Any]) -> Callable[[], list[Any]]:
    """Defer reading until the first call, so that every baseline reports an unreadable file as its reason."""

    @cache
    def read_or_error() -> list[Any] | TriformError:
        loaded, n_characters = [], 0
        try:
            for row in rows:
                loaded.append(row)
                n_characters += len(row.source) + len(row.target) if isinstance(row, TextPair) else len(row.text)
                if n_characters > MAX_CHARACTERS:
                    raise BaselineError(
                        f"the data has more than {MAX_CHARACTERS:,} characters, which is too much for this baseline"
                    )
        except TriformError as error:
            return error
        return loaded

    def read_rows() -> list[Any]:
        loaded = read_or_error()
        if isinstance(loaded, TriformError):
            raise loaded
        return loaded

    return read_rows


def call_all(calls: dict[str, Callable[[], Result]]) -> tuple[dict[str, Result], dict[str, str]]:
    """Call each function; return the results by name, and the messages of the errors that were raised."""
    results: dict[str, Result] = {}
    reasons: dict[str, str] = {}
    for name, call in calls.items():
        try:
            results[name] = call()
        except TriformError as error:
            reasons[name] = str(error)
    return results, reasons
