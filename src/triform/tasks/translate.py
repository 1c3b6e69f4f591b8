"""Translate: an encoder-decoder turns a sentence into another language."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from triform import baselines
from triform.config import Config, DecodeConfig, Sizes
from triform.data import sets
from triform.data.cache import TokenCache
from triform.data.readers import Pair, on_lines, read_either
from triform.data.store import TokenStore
from triform.decode.beam import Ending
from triform.decode.carried import seq2seq_form
from triform.decode.choose import row_seeds
from triform.decode.search import run_search
from triform.errors import ConfigError, DataError
from triform.metrics import Scores, translation_scores
from triform.models.host_memory import require_memory
from triform.models.kinds import AnySeq2Seq, make_seq2seq
from triform.nn.vocabulary import learning_loss
from triform.settings import Settings, build
from triform.tasks.defaults import settle, with_tokenizer
from triform.tasks.leaks import leak_notices
from triform.tasks.learned import by_side, layout, learned_tokenizer, ways
from triform.tasks.pairs import Paired, Pairs, encode, encode_once
from triform.tasks.task import (
    Look,
    Prediction,
    Prepared,
    Task,
    check_not_empty,
    empty_note,
    held_out,
    seen_part,
    token_tally,
    unknown_note,
)
from triform.text import Tokenizer, load_tokenizer
from triform.text.written import Side

QUICK_PAIRS = 400  # translated at each validation during training
MIN_BLEU = 1.0  # below this a difference in BLEU is chance: a few n-grams that happen to agree


class Translate(Task):
    name = "translate"
    unit = "pairs"
    metric = "bleu"
    higher_is_better = True
    model: AnySeq2Seq

    def __init__(self, config: Config, source: Tokenizer, target: Tokenizer) -> None:
        super().__init__(config)
        if target.special.end is None:
            raise ConfigError("translate needs a token that ends a text; this vocabulary has none")
        self.source, self.target = source, target
        self.sizes = Sizes(
            vocab_size=source.vocab_size,
            max_len=config.data.max_len,
            target_vocab_size=0 if config.tokenizer.shared else target.vocab_size,
        )
        require_memory(config, self.sizes)
        self.model = make_seq2seq(config.model, self.sizes)

    @classmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> Prepared:
        config = _named(config)
        data = config.data
        train_name = _training_name(config)

        def kept() -> Iterator[Pair]:
            """Nothing is learned from a pair with an empty side."""
            return filter(_whole, split_pairs(config, held=False))

        notices: list[str] = []
        files = [data.source, data.target] if data.source else [train_name]
        cache = TokenCache(files, folder / "tokens", notices)
        what = [0.0 if _validation_name(config) else data.valid_fraction, layout(data)]
        *sizes, skipped = cache.recall(["pairs", what], lambda: survey(config))
        config = with_tokenizer(config, sum(sizes))
        source, target = _saved(config, folder) if resume else _trained(config, kept, cache, what, sizes)
        splits = ways(source, config.tokenizer), ways(target, config.tokenizer)
        stores = encode_once(cache, kept, *splits, [what, config.tokenizer.dropout])
        if not len(stores[0]):
            raise DataError("no pairs to train on: each has an empty side", path=train_name)
        longest = int(max(stores[0].lengths.max(), stores[1].lengths.max() + 1))
        found: Settings = {"data.max_len": data.max_len or min(256, longest + 8)}
        if config.tokenizer.shared:  # two vocabularies have two sizes: each is found from the data again
            found["tokenizer.vocab_size"] = source.vocab_size
        task = cls(settle(config, (stores[0].total + stores[1].total) // len(splits[0]), found), source, target)
        if skipped:
            notices.append(f"{train_name}: {skipped} pairs with an empty side were left out of training")
        train = task._pairs(train_name, *stores, (), notices, versions=len(splits[0]))
        valid = task.held_out(notices)
        return Prepared(task=task, train=train, valid=valid, notices=tuple(notices))

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        return cls(config, *_saved(config, folder))

    def save(self, folder: Path) -> None:
        if self.source is self.target:
            self.source.save(folder / "tokenizer.json")
        else:
            self.source.save(folder / "tokenizer.source.json")
            self.target.save(folder / "tokenizer.target.json")

    def tokenizer_of(self, part: str) -> Tokenizer:
        return self.source if part.startswith("encoder.") else self.target

    def read(self, name: str, notices: list[str], lines: Container[int] | None = None) -> Pairs:
        pairs = list(on_lines(read_either(name, self.config.data), lines))
        if not any(map(_whole, pairs)):
            raise DataError("has no pair with both sides filled to evaluate on", path=name)
        return self._encoded(name, pairs, notices)

    def held_out(self, notices: list[str], folder: Path | None = None) -> Pairs | None:
        if name := _validation_name(self.config):
            return self.read(name, notices)
        if not self.config.data.valid_fraction:
            return None
        return self._encoded(_training_name(self.config), list(split_pairs(self.config, held=True)), notices)

    def rows(self, name: str = "") -> Iterator[Pair]:
        name = name or _validation_name(self.config)
        return read_either(name, self.config.data) if name else split_pairs(self.config, held=True)

    def baselines(self) -> baselines.Fitted:
        return baselines.fit("translate", filter(_whole, split_pairs(self.config, held=False)))

    def shared_texts(self, folder: Path) -> list[str]:
        """Of sources alone: who has learned a sentence's translation need not translate it."""
        data, valid = self.config.data, _validation_name(self.config)
        files = [data.source, data.target] if data.source else [data.train]
        cache = TokenCache(files, folder / "tokens", [])
        what = [0.0 if valid else data.valid_fraction, layout(data)]
        learned, judged = (
            (pair.source for pair in pairs) for pairs in (split_pairs(self.config, held=False), self.rows())
        )
        return leak_notices(cache, valid, what, learned, judged)

    def _encoded(self, name: str, pairs: list[Pair], notices: list[str]) -> Pairs:
        if not any(map(_whole, pairs)):
            pairs = []  # a set whose every pair lacks a side judges nothing
        return self._pairs(name, *encode(lambda: pairs, [self.source], [self.target]), pairs, notices)

    def _pairs(
        self, name: str, source: TokenStore, target: TokenStore, texts: Sequence[Pair], notices: list[str],
        *, versions: int = 1,
    ) -> Pairs:  # fmt: skip
        special = self.source.special, self.target.special
        pairs = Pairs(source, target, self.config.data.max_len, texts, versions, special)
        if not len(pairs):
            raise DataError(
                "no pairs are left for validation; give a validation set, or raise data.valid_fraction",
                path=name,
            )
        if cut := pairs.too_long():
            notices.append(f"{name}: {cut} of {len(pairs)} pairs were cut at data.max_len={pairs.max_len} tokens")
        return pairs

    def _states(self, batch: Paired) -> Tensor:  # (B, T, D)
        read = self.model.encoder(batch.source, batch.source_keep)  # (B, S, D)
        return self.model.decoded(batch.target, read, batch.source_keep)

    def loss(self, batch: Paired) -> Tensor:
        return learning_loss(lambda: self._states(batch), self.model.head, batch.expected, self.config.train)

    def tally(self, batch: Paired) -> Tensor:
        return token_tally(self._states(batch), self.model.head, batch.expected, self.target.vocab_size)

    def scores(self, sums: list[float], data: Pairs, *, quick: bool, decode: DecodeConfig | None = None) -> Scores:
        nats, hits, weight = sums
        found: Scores = {"loss": nats / weight, "token_accuracy": hits / weight}
        if not math.isfinite(nats):  # nothing can be decoded with such a model; the caller says so
            return found
        judged = data.texts[: QUICK_PAIRS if quick else None]
        decode = decode or self.config.decode
        decode = replace(decode, strategy="greedy") if quick else decode
        written = [made.output for made in self.predict([pair.source for pair in judged], decode=decode)]
        judgement = translation_scores(written, [pair.target for pair in judged])
        return {**found, **judgement, "pairs": len(data)}

    def better(self, scores: Scores, best: Scores | None) -> bool:
        """By BLEU, once there is some; of two that are near zero the one with the lower loss is better."""
        if best is not None and max(scores["bleu"], best["bleu"]) < MIN_BLEU:
            return scores["loss"] < best["loss"]
        return super().better(scores, best)

    def predict(
        self, texts: Sequence[str], *, decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[Prediction]:
        self.model.eval()
        encoded = self.source.encode_batch(texts)
        read = [seen_part(tokens, self.config.data.max_len, "text", self.source.special) for tokens in encoded]
        written = self._decode([source for source, _ in read], decode, seed)
        return [
            Prediction(
                input=text,
                output=self.target.decode(target),
                cut=bool(cut),
                notes=(*empty_note(text, tokens, self.source), *cut),
            )
            for text, tokens, (_, cut), target in zip(texts, encoded, read, written, strict=True)
        ]

    def _decode(
        self, sources: list[list[int]], decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[list[int]]:
        decode, room = decode or self.config.decode, self.config.data.max_len - 1
        limits = tuple(min(room, decode.max_new_tokens or 2 * len(source) + 16) for source in sources)
        special = self.target.special
        ending = Ending(eos=special.blank, limits=limits, banned=self.target.never_written)
        form = seq2seq_form(self.model, self.config.data.max_len, special.start)
        seeds = row_seeds(self.config.seed if seed is None else seed, range(len(sources)))
        return run_search(form, sources, decode, ending, default="beam", seeds=seeds)

    def look(self, text: str, target: str = "", n_new: int = 0) -> Look:
        """The text beside `target`, or beside the model's own translation."""
        check_not_empty(text)
        max_len = self.config.data.max_len
        tokens = self.source.encode(text)
        source, notes = seen_part(tokens, max_len, "text", self.source.special)
        notes = [*empty_note(text, tokens, self.source), *notes]
        written = self.target.encode(target) if target else self._decode([source])[0]
        output = target or self.target.decode(written)
        start = self.target.special.start
        read, wrote = self.source.pieces(source), self.target.pieces([start, *written, self.target.special.blank])
        # one place is taken by the begin token
        written, more = seen_part(written, max_len - 1, "target")
        n = len(written) + 1
        inputs = ([source], [[start, *written]])
        return Look(
            inputs=tuple(torch.tensor(tokens, device=self.device) for tokens in inputs),
            pieces={"encoder": (read, read), "decoder": (wrote[:n], wrote[:n]), "cross": (wrote[1 : n + 1], read)},
            prediction=Prediction(input=text, output=output),
            notes=(
                *notes,
                *more,
                *unknown_note(text, self.source),
                *unknown_note(target, self.target),
                "rows of cross-attention are named after the token that is being written",
            ),
        )

    def samples(self, data: Pairs) -> list[dict[str, str]]:
        picked = data.texts[:: max(1, len(data.texts) // 8)][:8]
        made = self.predict([pair.source for pair in picked])
        return [
            {"input": pair.source, "output": each.output, "expected": pair.target}
            for pair, each in zip(picked, made, strict=True)
        ]


def _named(config: Config) -> Config:
    """With no data named, the built-in set and its own validation part."""
    if config.data.source:
        return config
    train = sets.named(config.data.train, "translate")
    config = build({"data.train": train}, config)
    given = config.data.valid or config.data.valid_source
    return config if given else build({"data.valid": sets.validation_of(train)}, config)


def _training_name(config: Config) -> str:
    return config.data.train or f"{config.data.source},{config.data.target}"


def _validation_name(config: Config) -> str:
    data = config.data
    return data.valid or (f"{data.valid_source},{data.valid_target}" if data.valid_source else "")


def split_pairs(config: Config, *, held: bool) -> Iterator[Pair]:
    """The pairs to train on, or those held out of the same file."""
    fraction = 0.0 if _validation_name(config) else config.data.valid_fraction
    rows = zip(read_either(_training_name(config), config.data), held_out(fraction), strict=False)
    yield from (pair for pair, out in rows if out == held)


def _saved(config: Config, folder: Path) -> tuple[Tokenizer, Tokenizer]:
    if config.tokenizer.shared and not (folder / "tokenizer.source.json").exists():
        tokenizer = load_tokenizer(folder / "tokenizer.json")
        return tokenizer, tokenizer
    # two, though one vocabulary may be all they have: each language can have pieces of its own in it
    return load_tokenizer(folder / "tokenizer.source.json"), load_tokenizer(folder / "tokenizer.target.json")


def _whole(pair: Pair) -> bool:
    return bool(pair.source.strip() and pair.target.strip())


def survey(config: Config) -> list[int]:
    """Characters to train on, of sources and of targets, and how many pairs lack a side."""
    sources = targets = skipped = 0
    for pair in split_pairs(config, held=False):
        if _whole(pair):
            sources += len(pair.source)
            targets += len(pair.target)
        else:
            skipped += 1
    return [sources, targets, skipped]


def _trained(
    config: Config, pairs: Callable[[], Iterator[Pair]], cache: TokenCache, what: object, sizes: Sequence[int]
) -> tuple[Tokenizer, Tokenizer]:
    def learn(name: str, texts: Iterator[str], size: int, side: Side = "source") -> Tokenizer:
        return learned_tokenizer(cache, config.tokenizer, [name, what], texts, size, side)

    sources = (pair.source for pair in pairs())  # read when asked for
    targets = (pair.target for pair in pairs())
    if config.tokenizer.shared:
        tokenizer = learn("shared", chain(sources, targets), sum(sizes))
        if not by_side(config.tokenizer.file):
            return tokenizer, tokenizer
        other = learn("target", targets, sizes[1], "target")
        if tokenizer.vocabulary != other.vocabulary:
            raise ConfigError(
                f"tokenizer.file={config.tokenizer.file} holds two vocabularies: set tokenizer.shared=false"
            )
        return tokenizer, other
    return learn("source", sources, sizes[0]), learn("target", targets, sizes[1], "target")
