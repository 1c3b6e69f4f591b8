"""Train word2vec vectors with gensim on text files of any size."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triform.config import DataConfig
from triform.data import builtin_sets
from triform.data.files import BLOCK_SIZE, BUILTIN_PREFIX, iter_text_blocks, kind_from_name
from triform.data.readers import fingerprint, read_rows
from triform.errors import ConfigError, DataError, TriformError, require_package
from triform.text import split_words

Word2VecKind = Literal["skipgram", "cbow"]
MAX_SENTENCE_WORDS = 10_000  # longer texts are split, because gensim reads no more at once
JOIN_TIMEOUT = 1.0  # seconds to wait for a thread to end
LOG_INTERVAL = 5.0  # minimum seconds between two progress messages
PHRASE_SEPARATOR = "_"  # between the words of a phrase
PHRASE_PLACEHOLDER = "\x01"  # the separator inside gensim, which must not occur in words or earlier phrases
MAX_PHRASE_PAIRS = 10_000_000  # pairs counted while phrases are searched; beyond that, rare pairs are dropped
LogFn = Callable[[str], None]
# Minimum and maximum. gensim stores some of them as a C int, and absurdly large values would never finish.
SETTING_RANGES: dict[str, tuple[float, float]] = {
    "size": (1, 10_000),
    "window": (1, MAX_SENTENCE_WORDS),
    "min_count": (1, math.inf),
    "negative": (1, 10_000),
    "epochs": (1, math.inf),
    "phrases": (0, 10),
    "seed": (0, 2**32 - 1),
    "workers": (1, 1_000),
}


def discard_message(message: str) -> None:
    """Ignore a progress message."""


@dataclass(frozen=True, kw_only=True)
class Word2VecConfig:
    """Training settings of word2vec. Values that are out of range raise a ConfigError.

    Args:
        kind: "skipgram" predicts the neighbours from a word, "cbow" a word from its neighbours.
        size: The number of dimensions of a vector.
        window: The number of neighbours on each side.
        min_count: Words that occur less often have no vector.
        negative: The number of negative samples for each true neighbour.
        sample: The threshold above which frequent words are skipped at random; 0 skips none.
        epochs: The number of passes over the text.
        lr: The learning rate at the start; it falls to almost zero.
        phrases: The number of passes that join words to phrases, such as new_york.
        lowercase: Whether the text is converted to lower case.
        seed: The random seed.
        workers: The number of threads. Results are reproducible only with 1.
    """

    kind: Word2VecKind = "skipgram"  # skipgram predicts neighbours from a word, cbow a word from its neighbours
    size: int = 100  # dimensions of a vector
    window: int = 5  # neighbours on each side
    min_count: int = 5  # rarer words have no vector
    negative: int = 5  # negative samples for each true neighbour
    sample: float = 1e-3  # threshold for skipping very frequent words; 0 skips none
    epochs: int = 5
    lr: float = 0.025
    phrases: int = 0  # passes that join words to phrases, such as new_york
    lowercase: bool = False
    seed: int = 0
    workers: int = 1  # threads; results are reproducible only with 1

    def __post_init__(self) -> None:
        if self.kind not in ("skipgram", "cbow"):
            raise ConfigError(f"unknown --kind {self.kind}; choose from skipgram, cbow")
        for name, (low, high) in SETTING_RANGES.items():
            value, option = getattr(self, name), name.replace("_", "-")
            if value < low:
                raise ConfigError(f"--{option} {value} is too small: it must be at least {low}")
            if value > high:
                raise ConfigError(f"--{option} {value} is too large: it must be at most {high}")
        if not 0 <= self.sample < 1:
            raise ConfigError(f"--sample {self.sample} must be at least 0 and below 1")
        if not 0 < self.lr <= 1:
            raise ConfigError(f"--lr {self.lr} must be above 0 and at most 1")


class Word2VecResult(NamedTuple):
    """The words, most frequent first, with their vectors, and facts about the training.

    Attributes:
        words: The words, most frequent first.
        matrix: Their vectors, (words, size).
        n_tokens: The number of words in the text, with repetitions.
        seconds: The duration of training.
        metadata: The settings, and a fingerprint of each file.
    """

    words: list[str]
    matrix: NDArray[np.float32]
    n_tokens: int  # words of the text, in one epoch
    seconds: float
    metadata: dict[str, Any]

    @property
    def words_per_second(self) -> float:
        """Words per second over all epochs."""
        return self.n_tokens * int(self.metadata["epochs"]) / self.seconds

    def __str__(self) -> str:
        n_epochs = int(self.metadata["epochs"])
        return (
            f"trained {len(self.words):,} vectors of width {self.matrix.shape[1]} on {self.n_tokens:,} words of "
            f"text for {n_epochs} epoch{'s' * (n_epochs != 1)} in {self.seconds:.1f} s "
            f"({self.words_per_second:,.0f} words/s)"
        )


class Corpus:
    """The words of files, one text at a time. A text is a line of plain text or a row of a table.

    Each iteration reads the files again. gensim waits for ever if one of its threads fails, so iteration ends at an
    error, and `raise_problem` raises it later.

    Args:
        files: Text files, tables or built-in sets.
        data_config: Which column of a table is the text.
        lowercase: Whether words are converted to lower case.
    """

    def __init__(self, files: Sequence[str], data_config: DataConfig, *, lowercase: bool) -> None:
        self.files, self.data_config, self.lowercase = files, data_config, lowercase
        self.problem: Exception | None = None
        self.join_phrases: Callable[[list[str]], list[str]] = list  # joins words into phrases when these are known

    def __iter__(self) -> Iterator[list[str]]:
        try:
            for text in (text for file in self.files for text in read_texts(file, self.data_config)):
                if self.problem:
                    return
                words = self.join_phrases(split_words(text, lowercase=self.lowercase))
                yield from (
                    words[start : start + MAX_SENTENCE_WORDS] for start in range(0, len(words), MAX_SENTENCE_WORDS)
                )
        except Exception as problem:
            self.problem = problem

    def raise_problem(self) -> None:
        """Raise the error that ended the last iteration, if there was one."""
        if isinstance(self.problem, TriformError):
            raise self.problem
        if self.problem:
            raise TriformError(f"training failed: {self.problem!r}") from self.problem


def read_texts(path: str, data_config: DataConfig) -> Iterator[str]:
    """Yield the rows of a table, or the lines of any other file.

    Args:
        path: A file or a built-in set.
        data_config: Which column of a table is the text.

    Yields:
        The texts, one at a time.
    """
    blocks: Iterable[str] | None
    if path.startswith(BUILTIN_PREFIX):
        blocks = [builtin_sets.load_text(path)] if builtin_sets.is_running_text(path) else None
    else:
        blocks = iter_text_blocks(path) if kind_from_name(path) in (None, "txt") else None
    return _read_table_texts(path, data_config) if blocks is None else _split_lines(blocks)


def _read_table_texts(path: str, data_config: DataConfig) -> Iterator[str]:
    """Yield the texts of a table. Error messages name the option of this command."""
    try:
        yield from (row.text for row in read_rows(path, data_config, labelled=False))
    except DataError as problem:
        problem.args = (str(problem).replace("data.text_column", "--text-column"),)
        raise


def _split_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Split blocks into lines. A line that is longer than a block is split between words."""
    pending = ""
    for block in blocks:
        *lines, pending = (pending + block).split("\n")
        yield from lines
        if len(pending) >= BLOCK_SIZE and (split_at := pending.rfind(" ")) > 0:
            yield pending[:split_at]
            pending = pending[split_at:]
    yield pending


def train_word2vec(
    files: Sequence[str], config: Word2VecConfig, *, text_column: str = "", log: LogFn = discard_message
) -> Word2VecResult:
    """Train vectors on text files.

    Args:
        files: Text files, tables, or built-in sets such as `builtin:stories`.
        config: The settings.
        text_column: The text column of tables. If it is empty, the column is found automatically.
        log: Called with progress messages.

    Returns:
        The words and their vectors.

    Raises:
        ConfigError: No file was named, or `min_count` leaves no words.
        DataError: A file cannot be read or contains no words.
    """
    if not files:
        raise ConfigError("name at least one text file")
    corpus = Corpus(files, DataConfig(text_column=text_column), lowercase=config.lowercase)
    start_time = time.perf_counter()
    with quiet_gensim():
        model = _build_model(config, corpus)
        for _ in range(config.phrases):
            corpus.join_phrases = build_phrase_joiner(corpus, config.min_count)
            corpus.raise_problem()
        counts: Counter[str] = Counter()
        n_texts = 0
        for words in corpus:
            counts.update(words)
            n_texts += 1
        corpus.raise_problem()
        _check_counts(counts, config, files)
        log(f"{counts.total():,} words in {n_texts:,} texts, {len(counts):,} of them distinct")
        try:
            model.build_vocab_from_freq(counts, corpus_count=n_texts)
        except MemoryError:
            raise ConfigError(
                f"--size {config.size}: the vectors do not fit into memory; lower --size or raise --min-count"
            ) from None
        with _join_threads_on_error():
            model.train(
                corpus, total_examples=n_texts, total_words=counts.total(), epochs=config.epochs,
                callbacks=[_build_progress_callback(corpus, log, config.epochs, start_time)],
            )  # fmt: skip
    metadata = asdict(config) | {"texts": {name: fingerprint(name) for name in files}}
    seconds = time.perf_counter() - start_time
    return Word2VecResult(list(model.wv.index_to_key), model.wv.vectors, counts.total(), seconds, metadata)


def _check_counts(counts: Counter[str], config: Word2VecConfig, files: Sequence[str]) -> None:
    if not counts:
        raise DataError("the text contains no words", path=", ".join(files))
    word, max_count = counts.most_common(1)[0]
    if max_count < config.min_count:
        raise ConfigError(
            f"--min-count {config.min_count} leaves no words: the most frequent word, {word!r}, occurs "
            f"{max_count} times; use {max_count} or less"
        )


def build_phrase_joiner(corpus: Corpus, min_count: int) -> Callable[[list[str]], list[str]]:
    """Return a function that joins pairs of words that occur together more often than by chance.

    Punctuation is never part of a phrase.

    Args:
        corpus: The text, with the phrases that are known already.
        min_count: How often a pair must occur.

    Returns:
        A function from the words of a text to words and phrases.
    """
    from gensim.models.phrases import Phrases

    previous_join = corpus.join_phrases
    runs = (run for words in corpus for is_word, run in _group_runs(words) if is_word)
    pairs = Phrases(
        runs, min_count=min_count, delimiter=PHRASE_PLACEHOLDER, max_vocab_size=MAX_PHRASE_PAIRS
    ).freeze()

    def join_phrases(words: list[str]) -> list[str]:
        joined: list[str] = []
        for is_word, run in _group_runs(previous_join(words)):
            joined += (
                [word.replace(PHRASE_PLACEHOLDER, PHRASE_SEPARATOR) for word in pairs[run]] if is_word else run
            )
        return joined

    return join_phrases


def _group_runs(words: Iterable[str]) -> Iterator[tuple[bool, list[str]]]:
    """Group consecutive words, and the punctuation between them."""
    return ((is_word, list(run)) for is_word, run in groupby(words, lambda word: word[0].isalnum()))


def _build_model(config: Word2VecConfig, corpus: Corpus) -> Any:
    """Build the untrained model of gensim."""
    require_package("gensim", extra="vectors", purpose="training word vectors")
    from gensim.models import Word2Vec

    class MonitoredWord2Vec(Word2Vec):
        """Word2Vec that ends the iteration over the corpus when a worker fails, instead of waiting for ever."""

        def _worker_loop(self, jobs: Any, progress: Any) -> None:
            try:
                super()._worker_loop(jobs, progress)
            except Exception as problem:
                corpus.problem = problem
                while jobs.get() is not None:  # None ends the queue
                    pass
                progress.put(None)

    return MonitoredWord2Vec(
        vector_size=config.size, window=config.window, min_count=config.min_count, negative=config.negative,
        sample=config.sample, sg=int(config.kind == "skipgram"), alpha=config.lr, seed=config.seed,
        workers=config.workers, epochs=config.epochs,
    )  # fmt: skip


def _build_progress_callback(corpus: Corpus, log: LogFn, epochs: int, start_time: float) -> Any:
    """Build the callback that gensim calls after every epoch."""
    from gensim.models.callbacks import CallbackAny2Vec

    class ProgressCallback(CallbackAny2Vec):
        epochs_done, last_logged = 0, start_time

        def on_epoch_end(self, model: Any) -> None:
            corpus.raise_problem()
            self.epochs_done += 1
            now = time.perf_counter()
            if now - self.last_logged > LOG_INTERVAL:
                self.last_logged = now
                log(f"epoch {self.epochs_done} of {epochs}, {now - start_time:.0f} s")

    return ProgressCallback()


@contextmanager
def _join_threads_on_error() -> Iterator[None]:
    """Wait for gensim's threads after an error or Ctrl-C, because Python would crash if it exited before them."""
    before = set(threading.enumerate())
    try:
        yield
    except BaseException:
        for thread in set(threading.enumerate()) - before:
            thread.join(JOIN_TIMEOUT)
        raise


@contextmanager
def quiet_gensim() -> Iterator[None]:
    """Silence gensim's warnings about short and long texts."""
    logger = logging.getLogger("gensim")
    previous_level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(previous_level)
