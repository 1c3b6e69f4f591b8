"""The baseline that a training run is compared with: the best simple method of its task on its validation data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from triform.config import Config
from triform.data.encoded_text import encode_chunks
from triform.data.readers import TextChunk, TextPair
from triform.errors import TriformError
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.ngram import IntArray, NGramModel
from triform.evaluation.baselines.result import BaselineResult
from triform.evaluation.baselines.tfidf import TfidfBaseline
from triform.evaluation.baselines.translation import CopyBaseline, WordByWordBaseline
from triform.evaluation.metrics import Metrics, perplexity
from triform.tasks.data import TaskData
from triform.tasks.learned_tokenizers import load_tokenizers
from triform.text import Tokenizer

MAX_CHARACTERS = 25_000_000  # of the rows that a baseline is fitted on, and of those that it is evaluated on
MAX_TEXT_TOKENS = 3_000_000  # that n-grams are counted in; eight orders of them take about 300 bytes for each token

RowT = TypeVar("RowT")


def load_task_data(config: Config, folder: Path, data_class: type[TaskData]) -> TaskData:
    """Return the data of a run from the settings and the tokenizers in its folder."""
    return data_class(config, load_tokenizers(config, folder))


def measure_baseline(data: TaskData, n_valid: int) -> BaselineResult:
    """Fit the baselines of a task on the training data of a run, and return the best one on its validation data.

    Args:
        data: The data of the run, with its tokenizers.
        n_valid: The number of validation examples, from the first; for generate, the number of predicted tokens.

    Raises:
        BaselineError: No baseline can be fitted and evaluated on this data.
        DataError: A file cannot be read.
    """
    task = data.config.task
    if task == "generate":
        return _measure_ngram(data, n_valid)
    train, stride = sample_rows(data.training_examples(), MAX_CHARACTERS)
    test, _ = sample_rows(islice(data.iter_examples(), n_valid), MAX_CHARACTERS)
    methods: dict[str, Callable[[], Any]]
    if task == "classify":
        methods = {
            "TF-IDF logistic regression on words": lambda: TfidfBaseline.fit(train, bigrams=False),
            "TF-IDF logistic regression on words and pairs": lambda: TfidfBaseline.fit(train),
        }
    else:
        methods = {
            "word-by-word translation": lambda: WordByWordBaseline.fit(train),
            "copying the source": CopyBaseline,
        }
    results: dict[str, Metrics] = {}
    reason = ""
    for name, fit in methods.items():
        try:
            results[name] = fit().evaluate(test)
        except TriformError as error:
            reason = reason or str(error)
    if not results:
        raise BaselineError(reason)
    best = max(results, key=lambda name: results[name]["accuracy" if task == "classify" else "bleu"])
    return BaselineResult(name=best, metrics=results[best], n_train=len(train), is_sample=stride > 1)


def _measure_ngram(data: TaskData, n_valid: int) -> BaselineResult:
    (tokenizer,) = data.tokenizers
    train, is_train_sample = encode_start(data.training_examples(), tokenizer, MAX_TEXT_TOKENS)
    test, _ = encode_start(data.iter_examples(), tokenizer, n_valid + 1)
    if len(test) < 2:
        raise BaselineError("the text to evaluate has fewer than two tokens")
    model = NGramModel.fit(train, tokenizer.vocab_size)
    probs, known_context = model.score(test)
    loss = float(-np.log(probs).mean())
    return BaselineResult(
        name=f"a {model.order}-gram model",
        metrics={"loss": loss, "perplexity": perplexity(loss), "tokens": len(probs)},
        n_train=len(train),
        is_sample=is_train_sample,
        token_probs=probs.tolist(),
        known_context=known_context.tolist(),
    )


def count_characters(row: Any) -> int:
    """Return the number of characters of a row."""
    return len(row.source) + len(row.target) if isinstance(row, TextPair) else len(row.text)


def sample_rows(rows: Iterable[RowT], max_characters: int) -> tuple[list[RowT], int]:
    """Return all rows, or evenly spaced ones of at most `max_characters`, and the distance between two of them.

    The rows are read once, and at most `max_characters` of them are in memory.
    """
    sample: list[RowT] = []
    n_characters, stride = 0, 1
    for index, row in enumerate(rows):
        if index % stride:
            continue
        sample.append(row)
        n_characters += count_characters(row)
        while n_characters > max_characters and len(sample) > 1:
            sample, stride = sample[::2], 2 * stride
            n_characters = sum(map(count_characters, sample))
    return sample, stride


def encode_start(chunks: Iterator[TextChunk], tokenizer: Tokenizer, max_tokens: int) -> tuple[IntArray, bool]:
    """Return the first tokens of a text, with an end token after each document, and whether the text has more."""
    parts, n_tokens = [np.zeros(0, np.int64)], 0
    for _, rows in encode_chunks(tokenizer, chunks, 1):
        parts.append(np.asarray(rows.tokens, np.int64))
        n_tokens += len(parts[-1])
        if n_tokens > max_tokens:
            return np.concatenate(parts)[:max_tokens], True
    return np.concatenate(parts), False
