"""Predictions, with notes about input that the model could not read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from triform.config import DecodeConfig
from triform.errors import ConfigError, DataError
from triform.tasks.prediction_html import render_prediction, render_predictions
from triform.text import SpecialTokens, Tokenizer
from triform.world import World, gather_values

MAX_LISTED_WORDS = 5  # in a message
MAX_SEARCHED_CHARS = 10_000  # of a text without known words, in which words to list are found
Keep = Literal["first", "last"]  # the part to read of a text that is longer than the context


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One of the most probable labels or next tokens, or one of the best translations."""

    text: str
    probability: float | None = None  # of a label or of a next token
    score: float | None = None  # of a translation: its log probability divided by the length penalty


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one text: a label with all probabilities, a continuation or a translation."""

    input: str
    output: str
    probabilities: dict[str, float] | None = None
    alternatives: tuple[Alternative, ...] = ()  # the best first, if `top` of them were asked for
    cut: bool = False  # whether the input was longer than the model reads
    notes: tuple[str, ...] = ()  # messages about this input, for example that it has no known word

    def _repr_html_(self) -> str:
        return render_prediction(self)


class PredictionList(list[Prediction]):
    """A list of predictions, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return render_predictions(self)


@dataclass(frozen=True)
class Predictor(ABC):
    """Abstract base class of predictors. Several threads may use one, because a call changes nothing."""

    task: Any

    @abstractmethod
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
        """Return one prediction for each text.

        Args:
            texts: The inputs.
            decode: Decoding settings, for tasks that generate text. The default is the run's settings.
            seed: The random seed for sampling. The default is the seed of the run.
            top: The number of alternatives to return with each prediction.
            keep: The part to read of a text that is longer than the model's context. The default is "last" for a
                language model, which continues the end of a prompt, and "first" for the other tasks.
            rows: The number of each text, from which sampling derives its random numbers. The default is 0, 1, 2, …
        """

    def predict_in_parallel(
        self, texts: Sequence[str], world: World, *, rows: Sequence[int] | None = None, **settings: Any
    ) -> list[Prediction]:
        """Return the predictions of `predict`, computed by several processes.

        Each of the processes calls this method with the same arguments, predicts texts of all lengths, and returns
        all predictions in the order of the texts. Another process has other texts in its batches, so probabilities
        may differ from those of a single process by rounding.
        """
        rows = range(len(texts)) if rows is None else rows
        if len(rows) != len(texts):
            raise ConfigError(f"rows must have a number for each of the {len(texts)} texts, found {len(rows)}")
        if world.size == 1:
            return self.predict(texts, rows=rows, **settings)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        shares = [order[rank :: world.size] for rank in range(world.size)]
        if own := shares[world.rank]:
            own_rows = [rows[index] for index in own]
            predictions = self.predict([texts[index] for index in own], rows=own_rows, **settings)
        else:
            predictions = []
        answers = gather_values([asdict(prediction) for prediction in predictions])
        fields_by_index: dict[int, dict[str, Any]] = {}
        for share, fields in zip(shares, answers, strict=True):
            fields_by_index |= zip(share, fields, strict=True)
        return [prediction_from_dict(fields_by_index[index]) for index in range(len(texts))]

    @abstractmethod
    def sample_predictions(self, data: Any) -> list[dict[str, str]]:
        """Return a few inputs of a dataset with their outputs and the expected outputs, for the report."""


def validate_request(texts: Sequence[object], top: object, keep: object) -> None:
    """Refuse texts that are not strings, and values of `Predictor.predict` that are not valid."""
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"expected texts (str), found {text!r} ({type(text).__name__})")
    if not isinstance(top, int) or isinstance(top, bool) or top < 0:
        raise ConfigError(f"top must be an integer of 0 or more, found {top!r}")
    validate_keep(keep)


def validate_keep(keep: object) -> None:
    """Refuse a value that is not "first", "last" or None."""
    if keep not in (None, *get_args(Keep)):
        raise ConfigError(f"keep must be {' or '.join(get_args(Keep))}, found {keep!r}")


def prediction_from_dict(fields: Mapping[str, Any]) -> Prediction:
    """Return the prediction whose fields `dataclasses.asdict` has returned, also after they were JSON."""
    alternatives = tuple(Alternative(**alternative) for alternative in fields["alternatives"])
    return Prediction(**{**fields, "alternatives": alternatives, "notes": tuple(fields["notes"])})


def truncate_with_notes(
    tokens: list[int], max_len: int, subject: str, special: SpecialTokens | None = None, *, keep_last: bool = False
) -> tuple[list[int], list[str]]:
    """Truncate tokens to what the model reads, add special tokens if given, and return notes about truncation."""
    frame_len = len(special.before) + len(special.after) if special else 0
    max_read = max(0, max_len - frame_len)
    kept_tokens = tokens[max(0, len(tokens) - max_read) :] if keep_last else tokens[:max_read]
    notes = truncation_notes(len(tokens), max_read, subject, keep_last=keep_last)
    return special.wrap(kept_tokens) if special else kept_tokens, notes


def truncation_notes(n_tokens: int, max_read: int, subject: str = "text", *, keep_last: bool = False) -> list[str]:
    """Return a note if a text has more tokens than the model reads, else an empty list."""
    end = "last" if keep_last else "first"
    message = f"only the {end} {max_read} of {n_tokens} tokens of the {subject} were read"
    return [message] if n_tokens > max_read else []


def empty_text_notes(text: str, tokens: Sequence[int] | NDArray[Any], tokenizer: Tokenizer) -> list[str]:
    """Return a note if a text is empty or has no known word. `tokens` are without special tokens."""
    if not text.strip():
        return ["the text is empty"]
    if any(token != tokenizer.unk for token in tokens):
        return []
    unknown = tokenizer.find_unknown(text[:MAX_SEARCHED_CHARS])
    return ["no word of the text is in the vocabulary" + format_nearest(unknown, tokenizer)]


def unknown_word_notes(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return a note if a text has words that are not in the vocabulary."""
    words = tokenizer.find_unknown(text)
    if not words or tokenizer.unk is None:
        return []
    unknown = tokenizer.vocabulary[tokenizer.unk]
    nearest = format_nearest(words, tokenizer)
    return [f"not in the vocabulary, so read as {unknown}: {format_word_list(words)}{nearest}"]


def format_nearest(words: Sequence[str], tokenizer: Tokenizer) -> str:
    """Return a clause for a message with the known words nearest to the first unknown ones, or an empty string."""
    nearest_words = [(word, tokenizer.nearest_known(word)) for word in words[:MAX_LISTED_WORDS]]
    parts = [f"{' or '.join(map(repr, nearest))} for {word!r}" for word, nearest in nearest_words if nearest]
    return f"; nearest known: {', '.join(parts)}" if parts else ""


def format_word_list(words: Sequence[str]) -> str:
    """Return the first words of a list, quoted, for a message."""
    return ", ".join(map(repr, words[:MAX_LISTED_WORDS])) + (", ..." if len(words) > MAX_LISTED_WORDS else "")
