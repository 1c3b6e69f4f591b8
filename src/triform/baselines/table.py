"""All baselines of a task, fitted on the training data of a model and judged by the same scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, TypeVar

from triform.baselines.labels import Majority
from triform.baselines.ngram import NGramBaseline, Tokenize
from triform.baselines.tfidf import Tfidf
from triform.baselines.translation import Copy, Wordwise
from triform.baselines.unfit import UnfitError
from triform.config import TaskName, TokenizerConfig
from triform.data.readers import Pair, Piece
from triform.errors import TriformError
from triform.metrics import Scores
from triform.text import EOS, train_tokenizer

Result = TypeVar("Result")
MOST_CHARACTERS = 200_000_000  # all rows are held in memory


class Baseline(Protocol):
    """Something fitted that can be judged."""

    def score(self, test: Any) -> Scores: ...


class Table(dict[str, Scores]):
    """The scores of each baseline; one that could not be fitted or judged has none, and `reasons` says why."""

    def __init__(self, scores: dict[str, Scores], reasons: dict[str, str]) -> None:
        super().__init__({**dict.fromkeys(reasons, Scores()), **scores})
        self.reasons = reasons


@dataclass(frozen=True)
class Fitted:
    """The baselines of a task that could be fitted, and the reasons of those that could not."""

    ready: dict[str, Baseline]
    reasons: dict[str, str]

    def scores(self, test: Iterable[Any]) -> Table:
        rows = once(test)
        found, reasons = sorted_out({name: partial(judge, each, rows) for name, each in self.ready.items()})
        return Table(found, {**self.reasons, **reasons})


def fit(
    task: TaskName,
    train: Iterable[Any],
    *,
    tokenize: Tokenize | None = None,
    vocab_size: int = 0,
    lossless: bool = False,
    end: int | None = EOS,
) -> Fitted:
    """Fit every baseline of a task on its rows: Row for classify, Piece for generate, Pair for translate.

    `generate` counts over the tokens that `tokenize` gives, of a vocabulary of so many (`lossless`: no character is
    lost on the way, so bits per byte can be told; `end` closes a document); without it, over characters.
    """
    rows = once(train)

    def ngram() -> Baseline:
        if tokenize:
            return NGramBaseline.fit(rows(), tokenize, vocab_size, lossless=lossless, end=end)
        return characters(rows())

    fits: dict[TaskName, dict[str, Callable[[], Baseline]]] = {
        "classify": {"majority": lambda: Majority.fit(rows()), "tfidf": lambda: Tfidf.fit(rows())},
        "generate": {"ngram": ngram},
        "translate": {"copy": Copy, "wordwise": lambda: Wordwise.fit(rows())},
    }
    return Fitted(*sorted_out(fits[task]))


def scores(task: TaskName, train: Iterable[Any], test: Iterable[Any], **tokens: Any) -> Table:
    """The baselines of a task, fitted on training rows and judged by test rows; `tokens` are as `fit` has them."""
    return fit(task, train, **tokens).scores(test)


def judge(baseline: Baseline, test: Callable[[], list[Any]]) -> Scores:
    return baseline.score(test())


def characters(train: Sequence[Piece]) -> NGramBaseline:
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), (piece.text for piece in train))
    return NGramBaseline.fit(train, tokenizer.encode, tokenizer.vocab_size, lossless=True)


def once(rows: Iterable[Any]) -> Callable[[], list[Any]]:
    """Rows that are read when first asked for, so that a file that cannot be read is a reason, not an end."""

    @cache
    def read() -> list[Any] | TriformError:
        found, held = [], 0
        try:
            for row in rows:
                found.append(row)
                held += len(row.source) + len(row.target) if isinstance(row, Pair) else len(row.text)
                if held > MOST_CHARACTERS:
                    raise UnfitError(f"more than {MOST_CHARACTERS:,} characters are too much for it")
        except TriformError as error:
            return error
        return found

    def give() -> list[Any]:
        found = read()
        if isinstance(found, TriformError):
            raise found
        return found

    return give


def sorted_out(asked: dict[str, Callable[[], Result]]) -> tuple[dict[str, Result], dict[str, str]]:
    """What each gives, and the reasons of those that give nothing."""
    found: dict[str, Result] = {}
    reasons: dict[str, str] = {}
    for name, give in asked.items():
        try:
            found[name] = give()
        except TriformError as error:
            reasons[name] = str(error)
    return found, reasons
