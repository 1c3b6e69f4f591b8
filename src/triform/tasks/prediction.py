"""Predictions, and the notes that tell users what the model could not read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from triform.config import DecodeConfig
from triform.text import SpecialTokens, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer to one text: a label with all probabilities, a continuation or a translation."""

    input: str
    output: str
    probabilities: dict[str, float] | None = None
    cut: bool = False  # whether the input was longer than what the model reads
    notes: tuple[str, ...] = ()  # sentences about this input, for example that no word of it is known


@dataclass(frozen=True)
class Predictor(ABC):
    """Abstract base: turns texts into predictions. Several threads may use one: a call changes nothing."""

    task: Any

    @abstractmethod
    def predict(
        self, texts: Sequence[str], *, decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[Prediction]:
        """Return one prediction for each text.

        Args:
            texts: The inputs.
            decode: How to decode, for tasks that write text; None: as the run's settings say.
            seed: The seed for sampling; None: the run's.
        """

    @abstractmethod
    def sample_predictions(self, data: Any) -> list[dict[str, str]]:
        """Return a few inputs with outputs (and the expected ones) from a dataset, for the report."""


def truncate_with_notes(
    tokens: list[int], max_len: int, subject: str, special: SpecialTokens | None = None, *, keep_last: bool = False
) -> tuple[list[int], list[str]]:
    """Return the tokens that the model reads, between special tokens if given, and a note if that is not all."""
    kept_tokens = special.wrap(tokens) if special else tokens
    if len(kept_tokens) > max_len:
        kept_tokens = (
            tokens[-max_len:] if keep_last else special.wrap(tokens, max_len) if special else tokens[:max_len]
        )
    frame_len = len(special.before) + len(special.after) if special else 0
    return kept_tokens, truncation_notes(len(tokens), max_len - frame_len, subject, keep_last=keep_last)


def truncation_notes(n_tokens: int, max_read: int, subject: str = "text", *, keep_last: bool = False) -> list[str]:
    """Return a note if a text has more tokens than the model reads."""
    end = "last" if keep_last else "first"
    message = f"only the {end} {max(0, max_read)} of {n_tokens} tokens of the {subject} were read"
    return [message] if n_tokens > max_read else []


def empty_text_notes(text: str, tokens: Sequence[int] | NDArray[Any], tokenizer: Tokenizer) -> list[str]:
    """Return a note if a text tells the model nothing. `tokens` are without special tokens around them."""
    if not text.strip():
        return ["the text is empty"]
    has_known_token = any(token != tokenizer.unk for token in tokens)
    return [] if has_known_token else ["no word of the text is known to the model"]


def unknown_word_notes(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return a note if a text has words that the vocabulary lacks."""
    words = tokenizer.find_unknown(text)
    if not words or tokenizer.unk is None:
        return []
    return [f"not in the vocabulary, so read as {tokenizer.vocabulary[tokenizer.unk]}: {format_word_list(words)}"]


def format_word_list(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
