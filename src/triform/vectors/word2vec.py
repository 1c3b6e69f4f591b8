"""word2vec: vectors of words from the words around them, learned by gensim from text that is read as needed."""

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
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triform.config import DataConfig
from triform.data import sets
from triform.data.files import BLOCK, BUILTIN, KINDS, decoded_blocks
from triform.data.readers import fingerprint, read_rows
from triform.errors import ConfigError, DataError, TriformError, install_command
from triform.text import split_words

Kind = Literal["skipgram", "cbow"]
LONGEST = 10_000  # words that gensim reads at once; what is longer is cut
LONGEST_WAIT = 1.0  # seconds for a thread to end, or to wait for others
BETWEEN = 5.0  # seconds at least between two words of how far it is
MARK = "_"  # between the words of a phrase
JOINT = "\x01"  # the same while gensim looks for them: it must be in no word, nor in a phrase of an earlier pass
MOST_PAIRS = 10_000_000  # counted at once when phrases are looked for: rare ones are dropped beyond that
Say = Callable[[str], None]
# From, to. gensim reads some of them as C's int, and a number that cannot be meant would take for ever.
RANGES: dict[str, tuple[float, float]] = {
    "size": (1, 10_000),
    "window": (1, LONGEST),
    "min_count": (1, math.inf),
    "negative": (1, 10_000),
    "epochs": (1, math.inf),
    "phrases": (0, 10),
    "seed": (0, 2**32 - 1),
    "workers": (1, 1_000),
}


def silent(line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How vectors are learned."""

    kind: Kind = "skipgram"  # a word predicts its neighbours; or cbow, they predict it
    size: int = 100  # numbers a vector
    window: int = 5  # neighbours on either side
    min_count: int = 5  # rarer words have no vector
    negative: int = 5  # words drawn at random that must be told from a true neighbour
    sample: float = 1e-3  # very frequent words are skipped, the more the lower this is; 0: none
    epochs: int = 5
    lr: float = 0.025
    phrases: int = 0  # passes that join words which belong together: new_york
    lowercase: bool = False
    seed: int = 0
    workers: int = 1  # more are faster, but only one gives the same vectors again

    def __post_init__(self) -> None:
        if self.kind not in ("skipgram", "cbow"):
            raise ConfigError(f"--kind {self.kind} is not known; choose from skipgram, cbow")
        for name, (low, high) in RANGES.items():
            value, option = getattr(self, name), name.replace("_", "-")
            if value < low:
                raise ConfigError(f"--{option} {value} is too small: it must be at least {low}")
            if value > high:
                raise ConfigError(f"--{option} {value} is too large: it must be at most {high}")
        if not 0 <= self.sample < 1:
            raise ConfigError(f"--sample {self.sample} must be a share: from 0, below 1")
        if not 0 < self.lr <= 1:
            raise ConfigError(f"--lr {self.lr} must be above 0 and at most 1")


class Learned(NamedTuple):
    """Words, most frequent first, their vectors, and what learning them took."""

    words: list[str]
    matrix: NDArray[np.float32]
    n_tokens: int  # of the text, once through
    seconds: float
    about: dict[str, Any]

    @property
    def speed(self) -> float:
        """Words a second, over all epochs."""
        return self.n_tokens * int(self.about["epochs"]) / self.seconds

    def __str__(self) -> str:
        return (
            f"{len(self.words):,} words have a vector of {self.matrix.shape[1]} numbers; {self.n_tokens:,} words "
            f"of text, {self.about['epochs']} times, in {self.seconds:.1f} s: {self.speed:,.0f} words/s"
        )


class Texts:
    """The words of files, a text at a time: a line of plain text, a row of a table. They are read anew each time.

    gensim waits for ever when one of its threads fails, so reading just ends, and `check` tells why.
    """

    def __init__(self, files: Sequence[str], layout: DataConfig, *, lowercase: bool) -> None:
        self.files, self.layout, self.lowercase = files, layout, lowercase
        self.problem: Exception | None = None
        self.join: Callable[[list[str]], list[str]] = list  # makes phrases, once they are known

    def __iter__(self) -> Iterator[list[str]]:
        try:
            for text in (text for file in self.files for text in texts_of(file, self.layout)):
                if self.problem:
                    return
                words = self.join(split_words(text, lowercase=self.lowercase))
                yield from (words[at : at + LONGEST] for at in range(0, len(words), LONGEST))
        except Exception as problem:
            self.problem = problem

    def check(self) -> None:
        if isinstance(self.problem, TriformError):
            raise self.problem
        if self.problem:
            raise TriformError(f"learning failed: {self.problem!r}") from self.problem


def texts_of(path: str, layout: DataConfig) -> Iterator[str]:
    """The rows of a table, the lines of anything else, whatever its ending."""
    blocks: Iterable[str] | None
    if path.startswith(BUILTIN):
        blocks = [sets.text(path)] if sets.is_text(path) else None
    else:
        ending = Path(path.lower().removesuffix(".gz")).suffix
        blocks = decoded_blocks(path) if KINDS.get(ending, "txt") == "txt" else None
    return _rows(path, layout) if blocks is None else _lines(blocks)


def _rows(path: str, layout: DataConfig) -> Iterator[str]:
    """The texts of a table; where its column is not found, the option is named as it is called here."""
    try:
        yield from (row.text for row in read_rows(path, layout, labelled=False))
    except DataError as problem:
        problem.args = (str(problem).replace("data.text_column", "--text-column"),)
        raise


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Lines of any length; one that is longer than a block comes in parts, cut between words."""
    pending = ""
    for block in blocks:
        *lines, pending = (pending + block).split("\n")
        yield from lines
        if len(pending) >= BLOCK and (cut := pending.rfind(" ")) > 0:
            yield pending[:cut]
            pending = pending[cut:]
    yield pending


def learn(files: Sequence[str], recipe: Recipe, *, text_column: str = "", say: Say = silent) -> Learned:
    """Vectors of the words of these files; `say` hears how far it is."""
    if not files:
        raise ConfigError("give at least one file of text")
    texts = Texts(files, DataConfig(text_column=text_column), lowercase=recipe.lowercase)
    start = time.perf_counter()
    with quiet():
        model = _model(recipe, texts)
        for _ in range(recipe.phrases):
            texts.join = phrase_joiner(texts, recipe.min_count)
            texts.check()
        counts: Counter[str] = Counter()
        n_texts = 0
        for words in texts:
            counts.update(words)
            n_texts += 1
        texts.check()
        _check_counts(counts, recipe, files)
        say(f"{counts.total():,} words in {n_texts:,} texts, {len(counts):,} of them distinct")
        try:
            model.build_vocab_from_freq(counts, corpus_count=n_texts)
        except MemoryError:
            raise ConfigError(
                f"--size {recipe.size}: vectors of so many words do not fit memory; give less, or more --min-count"
            ) from None
        with _leaving_none_at_work():
            model.train(
                texts, total_examples=n_texts, total_words=counts.total(), epochs=recipe.epochs,
                callbacks=[_teller(texts, say, recipe.epochs, start)],
            )  # fmt: skip
    about = asdict(recipe) | {"texts": {name: fingerprint(name) for name in files}}
    seconds = time.perf_counter() - start
    return Learned(list(model.wv.index_to_key), model.wv.vectors, counts.total(), seconds, about)


def _check_counts(counts: Counter[str], recipe: Recipe, files: Sequence[str]) -> None:
    if not counts:
        raise DataError("there is no word in it", path=", ".join(files))
    word, most = counts.most_common(1)[0]
    if most < recipe.min_count:
        raise ConfigError(
            f"--min-count {recipe.min_count} leaves no word: the most frequent, {word!r}, is seen {most} times; "
            f"give {most} or less"
        )


def phrase_joiner(texts: Texts, min_count: int) -> Callable[[list[str]], list[str]]:
    """What joins pairs of words that stand together more often than chance has it; never across a mark."""
    from gensim.models.phrases import Phrases

    before = texts.join
    runs = (run for words in texts for is_word, run in _runs(words) if is_word)
    pairs = Phrases(runs, min_count=min_count, delimiter=JOINT, max_vocab_size=MOST_PAIRS).freeze()

    def join(words: list[str]) -> list[str]:
        joined: list[str] = []
        for is_word, run in _runs(before(words)):
            joined += [word.replace(JOINT, MARK) for word in pairs[run]] if is_word else run
        return joined

    return join


def _runs(words: Iterable[str]) -> Iterator[tuple[bool, list[str]]]:
    """Words that follow one another, and the marks between them."""
    return ((is_word, list(run)) for is_word, run in groupby(words, lambda word: word[0].isalnum()))


def _model(recipe: Recipe, texts: Texts) -> Any:
    """gensim's model, before it has seen a word."""
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        needed = f"learning word vectors needs gensim ({error})"
        raise ConfigError(f"{needed}; install it with {install_command('vectors')}") from None

    class Watched(Word2Vec):
        """Reading ends when a worker fails; else all would wait for it."""

        def _worker_loop(self, jobs: Any, progress: Any) -> None:
            try:
                super()._worker_loop(jobs, progress)
            except Exception as problem:
                texts.problem = problem
                while jobs.get() is not None:  # None: there are no more
                    pass
                progress.put(None)

    return Watched(
        vector_size=recipe.size, window=recipe.window, min_count=recipe.min_count, negative=recipe.negative,
        sample=recipe.sample, sg=int(recipe.kind == "skipgram"), alpha=recipe.lr, seed=recipe.seed,
        workers=recipe.workers, epochs=recipe.epochs,
    )  # fmt: skip


def _teller(texts: Texts, say: Say, epochs: int, start: float) -> Any:
    """What gensim calls after every epoch."""
    from gensim.models.callbacks import CallbackAny2Vec

    class Teller(CallbackAny2Vec):
        done, told = 0, start

        def on_epoch_end(self, model: Any) -> None:
            texts.check()
            self.done += 1
            now = time.perf_counter()
            if now - self.told > BETWEEN:
                self.told = now
                say(f"epoch {self.done} of {epochs}, {now - start:.0f} s")

    return Teller()


@contextmanager
def _leaving_none_at_work() -> Iterator[None]:
    """After Ctrl-C gensim's threads go on until their queues are full, and crash a Python that ends before."""
    before = set(threading.enumerate())
    try:
        yield
    except BaseException:
        for thread in set(threading.enumerate()) - before:
            thread.join(LONGEST_WAIT)
        raise


@contextmanager
def quiet() -> Iterator[None]:
    """gensim warns of little text and of much; what matters is checked here."""
    log = logging.getLogger("gensim")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
