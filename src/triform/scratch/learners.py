"""The three forms with text around them: `fit`, `predict`, `generate`, `translate`, `save`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from triform.config import Config, DataConfig, DecodeConfig, Sizes, TaskName
from triform.errors import ConfigError, DataError
from triform.scratch import decode, folder, weights
from triform.scratch.attention import padding, softmax
from triform.scratch.batches import by_length, pad
from triform.scratch.given import check_pairs, check_texts, label_names, seeds_of
from triform.scratch.learning import Batch, Lesson, learn, rows_again_and_again, windows
from triform.scratch.loss import IGNORE
from triform.scratch.models import Classifier, Decoder, Seq2Seq
from triform.scratch.part import Array, Source, Weights
from triform.scratch.supported import check_model, check_tokenizer, check_training, settled
from triform.settings import build
from triform.text import BOS, EOS, Tokenizer, load_tokenizer, train_tokenizer

AT_ONCE = 8_192  # tokens read together when nothing is learned


class Learner:
    """A model with its text handling. Abstract: one class a task."""

    task: ClassVar[TaskName]
    form: ClassVar[Any]
    model: Any
    weights: Weights

    def __init__(self, config: Config | None = None) -> None:
        config = replace(config or Config(), task=self.task)
        self.asked = self.config = settled(build({"seed": config.seed}, config))  # a seed is a whole number
        check_model(self.config.model)
        self.tokenizers: dict[str, Tokenizer] = {}  # by the names of their files
        self.losses: list[float] = []  # of each step

    def sizes(self) -> Sizes:
        """What the model must know of vocabularies and labels."""
        return Sizes(vocab_size=self.tokenizer.vocab_size, max_len=self.config.data.max_len)

    @property
    def tokenizer(self) -> Tokenizer:
        return next(iter(self.tokenizers.values()))

    def check_fitted(self) -> None:
        if "weights" not in vars(self):
            raise DataError("this model has learned nothing yet: call fit first, or open a run with scratch.load")

    def build(self) -> None:
        """The model for these settings and vocabularies, with random weights."""
        self.model = self.form(self.config.model, self.sizes())
        self.weights = Weights(self.model)
        weights.initialise(self.model, self.config.model.n_layers, np.random.default_rng(self.config.seed))

    def begin(self) -> None:
        """Forget what earlier data decided, here or in the run that was opened."""
        check_training(self.asked)
        self.config = self.asked

    def learn_from(self, *data: Any) -> Self:
        """A copy learns, and only one that ends well is taken over: what fails leaves this one as it was."""
        fresh = copy(self)
        vars(self).update(vars(fresh.learn(fresh.lesson(*data))))
        return self

    def lesson(self, *data: Any) -> Lesson:
        """What these data teach. Settings, vocabularies and a model are made for them."""
        raise NotImplementedError

    def learn(self, lesson: Lesson) -> Self:
        self.losses = learn(self.model, self.weights, lesson, self.config)
        return self

    def with_length(self, longest: int, most: int) -> None:
        """Room for every text, up to a limit, unless the settings say how much."""
        max_len = self.config.data.max_len or max(2, min(most, longest))
        self.config = replace(self.config, data=replace(self.config.data, max_len=max_len))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """A run folder, which `triform.load` and the commands open as well."""
        self.check_fitted()
        vocab_size = self.tokenizer.vocab_size if len(self.tokenizers) == 1 else 0
        config = replace(
            self.config,
            tokenizer=replace(self.config.tokenizer, vocab_size=vocab_size),
            data=replace(self.config.data, valid_fraction=0.0),  # nothing was held out
        )
        folder.write(Path(path), config, self.tokenizers, self.weights, overwrite=overwrite)


class TextClassifier(Learner):
    task = "classify"
    form = Classifier

    def sizes(self) -> Sizes:
        return replace(super().sizes(), n_labels=len(self.labels))

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.data.labels

    def fit(self, texts: Iterable[str], labels: Iterable[str]) -> Self:
        """Learn which label belongs to which text."""
        return self.learn_from(texts, labels)

    def lesson(self, texts: Iterable[str], labels: Iterable[str]) -> Lesson:
        self.begin()
        texts, labels = check_pairs(texts, labels, "texts", "labels")
        labels = [label.strip() for label in labels]  # as torch reads them
        names = label_names(labels, self.asked.data.labels)
        self.config = replace(self.config, data=replace(self.config.data, labels=names))
        self.tokenizers = {"tokenizer.json": train_tokenizer(self.config.tokenizer, texts)}
        numbers = np.array([names.index(label) for label in labels])
        rows = self.rows(texts)
        self.with_length(max(map(len, rows)), 512)
        rows = [row[: self.config.data.max_len] for row in rows]
        self.build()

        def batch(drawn: Array) -> Batch:
            tokens, keep = pad([rows[row] for row in drawn.tolist()])
            return Batch({"tokens": tokens, "labels": numbers[drawn], "keep": keep}, len(drawn))

        return Lesson(*rows_again_and_again(np.array([len(row) for row in rows]), self.config), batch)

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        return [row or [EOS] for row in self.tokenizer.encode_batch(texts)]

    def predict_proba(self, texts: Iterable[str]) -> Array:  # -> (texts, labels)
        """How likely each label is, in the order of `labels`."""
        self.check_fitted()
        rows = [row[: self.config.data.max_len] for row in self.rows(check_texts(texts))]
        found = np.zeros((len(rows), len(self.labels)))
        for batch in by_length([len(row) for row in rows], AT_ONCE):
            scores, _ = self.model(*pad([rows[row] for row in batch.tolist()]))
            found[batch] = softmax(scores)
        return found

    def predict(self, texts: Iterable[str]) -> list[str]:
        """A label for each text."""
        return [self.labels[best] for best in self.predict_proba(texts).argmax(axis=-1).tolist()]


class LanguageModel(Learner):
    task = "generate"
    form = Decoder

    def fit(self, texts: str | Iterable[str]) -> Self:
        """Learn to go on with a text, or with any of several documents."""
        return self.learn_from(texts)

    def lesson(self, texts: str | Iterable[str]) -> Lesson:
        self.begin()
        documents = [texts] if isinstance(texts, str) else check_texts(texts)
        self.tokenizers = {"tokenizer.json": train_tokenizer(self.config.tokenizer, documents)}
        encoded = self.tokenizer.encode_batch(documents)
        ends = [] if isinstance(texts, str) else [EOS]
        stream = np.array([token for row in encoded for token in chain(row, ends)], np.int64)
        self.with_length(len(stream) // 4, 128)
        width = self.config.data.max_len
        if len(stream) <= width:
            raise DataError(f"only {len(stream)} tokens to learn from; data.max_len={width} needs more")
        self.config = with_rows(self.config, width)
        self.build()

        def batch(starts: Array) -> Batch:
            table = stream[starts[:, None] + np.arange(width + 1)]  # (B, T + 1)
            return Batch({"tokens": table[:, :-1], "expected": table[:, 1:]}, len(starts) * width)

        return Lesson(*windows(len(stream) - width, width, self.config), batch)

    def generate(
        self, prompts: Iterable[str], how: DecodeConfig | None = None, seed: int | None = None
    ) -> list[str]:
        """What follows each prompt."""
        self.check_fitted()
        how, tokenizer, max_len = how or self.config.decode, self.tokenizer, self.config.data.max_len
        begun = [self.prompt(text) for text in check_texts(prompts)]

        def scores(rows: Array, texts: list[list[int]]) -> Array:
            seen = [readable(text, max_len) for text in texts]
            states, _ = self.model.states(pad(seen)[0])
            return self.model.head(states[np.arange(len(seen)), [len(text) - 1 for text in seen]])[0]

        limits = [how.max_new_tokens or 200] * len(begun)
        work = decode.Search(
            scores, [text[-max_len:] for text in begun], limits, seeds_of(self.config, seed, len(begun))
        )
        written = decode.search(work, how, default="sample")
        return [continuation(tokenizer, *pair) for pair in zip(begun, written, strict=True)]

    predict = generate

    def prompt(self, text: str) -> list[int]:
        """A prompt as tokens; an empty one starts a new line or, failing that, a new document."""
        if unknown := self.tokenizer.unknown(text):
            shown = ", ".join(map(repr, unknown[:5]))
            raise DataError(f"the prompt has what the model never saw in training: {shown}; leave it out")
        tokens = self.tokenizer.encode(text)
        return tokens or ([EOS] if self.tokenizer.unknown("\n") else self.tokenizer.encode("\n")) or [EOS]


class Translator(Learner):
    task = "translate"
    form = Seq2Seq

    def sizes(self) -> Sizes:
        return replace(super().sizes(), target_vocab_size=self.target.vocab_size if len(self.tokenizers) > 1 else 0)

    @property
    def target(self) -> Tokenizer:
        return list(self.tokenizers.values())[-1]

    def fit(self, sources: Iterable[str], targets: Iterable[str]) -> Self:
        """Learn to write the target of each source."""
        return self.learn_from(sources, targets)

    def lesson(self, sources: Iterable[str], targets: Iterable[str]) -> Lesson:
        self.begin()
        sources, targets = check_pairs(sources, targets, "sources", "targets")
        if self.config.tokenizer.shared:
            self.tokenizers = {"tokenizer.json": train_tokenizer(self.config.tokenizer, [*sources, *targets])}
        else:
            sides = {"source": sources, "target": targets}
            self.tokenizers = {
                f"tokenizer.{side}.json": train_tokenizer(self.config.tokenizer, texts)
                for side, texts in sides.items()
            }
        read = [row or [EOS] for row in self.tokenizer.encode_batch(sources)]
        wrote = [[BOS, *row, EOS] for row in self.target.encode_batch(targets)]
        longest = max(len(row) for row in chain(read, wrote))
        self.with_length(longest + 7, 256)
        max_len = self.config.data.max_len
        read, wrote = [row[:max_len] for row in read], [row[: max_len + 1] for row in wrote]
        self.build()

        def batch(drawn: Array) -> Batch:
            source, keep = pad([read[row] for row in drawn.tolist()])
            target, _ = pad([wrote[row][:-1] for row in drawn.tolist()])
            expected, _ = pad([wrote[row][1:] for row in drawn.tolist()], fill=IGNORE)
            inputs = {"source": source, "target": target, "expected": expected, "source_keep": keep}
            return Batch(inputs, int((expected != IGNORE).sum()))

        lengths = np.array([max(len(one), len(other) - 1) for one, other in zip(read, wrote, strict=True)])
        return Lesson(*rows_again_and_again(lengths, self.config), batch)

    def translate(
        self, texts: Iterable[str], how: DecodeConfig | None = None, seed: int | None = None
    ) -> list[str]:
        """A translation of each text."""
        self.check_fitted()
        how, max_len = how or self.config.decode, self.config.data.max_len
        rows = [row[:max_len] or [EOS] for row in self.tokenizer.encode_batch(check_texts(texts))]
        seeds = seeds_of(self.config, seed, len(rows))
        found = [""] * len(rows)
        for batch in by_length([len(row) for row in rows], AT_ONCE // how.beam_size):
            some = batch.tolist()
            limits = [min(max_len - 1, how.max_new_tokens or 2 * len(rows[row]) + 16) for row in some]
            work = decode.Search(
                self.scores([rows[row] for row in some]), [[BOS]] * len(some), limits, [seeds[row] for row in some]
            )
            for row, tokens in zip(some, decode.search(work, how, default="beam"), strict=True):
                found[row] = self.target.decode(tokens)
        return found

    predict = translate

    def scores(self, sources: list[list[int]]) -> decode.Scores:
        """The sources are read once."""
        source, keep = pad(sources)
        read, _ = self.model.encoder(source, keep, None)

        def scores(rows: Array, texts: list[list[int]]) -> Array:
            masks = () if keep is None else (padding(keep[rows], read.dtype),)
            states, _ = self.model.decoded(np.array(texts), Source(read[rows]), masks)
            return self.model.head(states[:, -1])[0]

        return scores


LEARNERS: dict[str, type[Learner]] = {each.task: each for each in (TextClassifier, LanguageModel, Translator)}


def load(path: str | Path, *, verify: bool = True) -> TextClassifier | LanguageModel | Translator:
    """The model of a run folder, in NumPy. With `verify`, its files are compared with their digests."""
    place = Path(path)
    config = folder.read_config(place, verify=verify)
    try:
        learner = LEARNERS[config.task](config)
        two = config.task == "translate" and not config.tokenizer.shared
        names = ["tokenizer.source.json", "tokenizer.target.json"] if two else ["tokenizer.json"]
        learner.tokenizers = {name: load_tokenizer(place / name) for name in names}
        for tokenizer in learner.tokenizers.values():
            check_tokenizer(tokenizer)
        learner.build()
        learner.asked = undecided(config)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    file = place / folder.MODEL
    weights.put(learner.weights, weights.read(file), str(file))
    assert isinstance(learner, TextClassifier | LanguageModel | Translator)
    return learner


def undecided(config: Config) -> Config:
    """A run's settings without what came from its data: for others, that is decided anew."""
    return settled(replace(config, data=DataConfig(), tokenizer=replace(config.tokenizer, vocab_size=0)))


def readable(text: list[int], max_len: int) -> list[int]:
    """What is read of a text: one that grew beyond the model's length goes on from its newer half, and so on."""
    half = max_len // 2
    beyond = len(text) - max_len - 1
    return text if beyond < 0 else text[-(half + 1 + beyond % (max_len - half)) :]


def continuation(tokenizer: Tokenizer, prompt: list[int], tokens: list[int]) -> str:
    """What decoding adds to the prompt, so that spaces between words are right."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + tokens)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(tokens)


def with_rows(config: Config, width: int) -> Config:
    """Windows are all of one width: a budget of tokens is so many rows."""
    train = config.train
    rows = train.batch_size or max(1, train.batch_tokens // width)
    return replace(config, train=replace(train, batch_size=rows, batch_tokens=0))
