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

from triform.analysis.host_memory import require_memory
from triform.config import Config, DataSizes, DecodeConfig
from triform.config.settings import Settings, build_config
from triform.data import builtin_sets
from triform.data.readers import TextPair, filter_lines, read_pairs_or_aligned
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import ConfigError, DataError
from triform.evaluation import baselines
from triform.evaluation.metrics import Metrics, compute_translation_metrics
from triform.generation.beam import StoppingCriteria
from triform.generation.recurrent import build_seq2seq_adapter
from triform.generation.sampling import row_seeds
from triform.generation.search import generate
from triform.models.factory import AnySeq2Seq, build_seq2seq
from triform.nn.loss import lm_training_loss
from triform.tasks.defaults import resolve_defaults, resolve_tokenizer_kind
from triform.tasks.leaks import leak_warnings
from triform.tasks.learned_tokenizers import (
    has_two_tokenizers,
    reader_options,
    tokenizer_versions,
    train_or_load_tokenizer,
)
from triform.tasks.task import (
    ExplanationInput,
    Prediction,
    PreparedTask,
    Task,
    empty_text_notes,
    token_metric_sums,
    truncate_with_notes,
    unknown_word_notes,
    validate_not_empty,
    validation_mask,
)
from triform.tasks.translation_data import TranslationBatch, TranslationDataset, encode_pairs, encode_pairs_cached
from triform.text import Tokenizer, load_tokenizer
from triform.text.exporting import Side

QUICK_PAIRS = 400  # translated at each validation during training
MIN_BLEU = 1.0  # below this a difference in BLEU is chance: a few n-grams that happen to agree


class Translate(Task):
    name = "translate"
    unit = "pairs"
    metric = "bleu"
    higher_is_better = True
    model: AnySeq2Seq

    def __init__(self, config: Config, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> None:
        super().__init__(config)
        if target_tokenizer.special_tokens.eos_or_bos is None:
            raise ConfigError("translate needs a token that ends a text; this vocabulary has none")
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.sizes = DataSizes(
            vocab_size=source_tokenizer.vocab_size,
            max_len=config.data.max_len,
            target_vocab_size=0 if config.tokenizer.joint_vocab else target_tokenizer.vocab_size,
        )
        require_memory(config, self.sizes)
        self.model = build_seq2seq(config.model, self.sizes)

    @classmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> PreparedTask:
        config = _with_builtin_data(config)
        data = config.data
        train_name = _training_name(config)

        def training_pairs() -> Iterator[TextPair]:
            """Nothing is learned from a pair with an empty side."""
            return filter(_has_both_sides, iter_split_pairs(config, held_out=False))

        notices: list[str] = []
        files = [data.source, data.target] if data.source else [train_name]
        cache = TokenCache(files, folder / "tokens", notices)
        cache_key = [0.0 if _validation_name(config) else data.valid_fraction, reader_options(data)]
        *character_counts, skipped = cache.get_or_compute(
            ["pairs", cache_key], lambda: count_pair_characters(config)
        )
        config = resolve_tokenizer_kind(config, sum(character_counts))
        source_tokenizer, target_tokenizer = (
            _load_saved_tokenizers(config, folder)
            if resume
            else _train_or_load_tokenizers(config, training_pairs, cache, cache_key, character_counts)
        )
        tokenizers = (
            tokenizer_versions(source_tokenizer, config.tokenizer),
            tokenizer_versions(target_tokenizer, config.tokenizer),
        )
        stores = encode_pairs_cached(cache, training_pairs, *tokenizers, [cache_key, config.tokenizer.bpe_dropout])
        if not len(stores[0]):
            raise DataError("no pairs to train on: each has an empty side", path=train_name)
        longest = int(max(stores[0].lengths.max(), stores[1].lengths.max() + 1))
        data_settings: Settings = {"data.max_len": data.max_len or min(256, longest + 8)}
        if config.tokenizer.joint_vocab:  # two vocabularies have two sizes: each is found from the data again
            data_settings["tokenizer.vocab_size"] = source_tokenizer.vocab_size
        task = cls(
            resolve_defaults(
                config, (stores[0].n_tokens + stores[1].n_tokens) // len(tokenizers[0]), data_settings
            ),
            source_tokenizer,
            target_tokenizer,
        )
        if skipped:
            notices.append(f"{train_name}: {skipped} pairs with an empty side were left out of training")
        train = task._build_dataset(train_name, *stores, (), notices, versions=len(tokenizers[0]))
        valid = task.load_validation_dataset(notices)
        return PreparedTask(task=task, train=train, valid=valid, notices=tuple(notices))

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        return cls(config, *_load_saved_tokenizers(config, folder))

    def save(self, folder: Path) -> None:
        if self.source_tokenizer is self.target_tokenizer:
            self.source_tokenizer.save(folder / "tokenizer.json")
        else:
            self.source_tokenizer.save(folder / "tokenizer.source.json")
            self.target_tokenizer.save(folder / "tokenizer.target.json")

    def tokenizer_for(self, module_name: str) -> Tokenizer:
        return self.source_tokenizer if module_name.startswith("encoder.") else self.target_tokenizer

    def load_dataset(
        self, name: str, notices: list[str], lines: Container[int] | None = None
    ) -> TranslationDataset:
        pairs = list(filter_lines(read_pairs_or_aligned(name, self.config.data), lines))
        if not any(map(_has_both_sides, pairs)):
            raise DataError("has no pair with both sides filled to evaluate on", path=name)
        return self._encode_dataset(name, pairs, notices)

    def load_validation_dataset(self, notices: list[str], folder: Path | None = None) -> TranslationDataset | None:
        if name := _validation_name(self.config):
            return self.load_dataset(name, notices)
        if not self.config.data.valid_fraction:
            return None
        return self._encode_dataset(
            _training_name(self.config), list(iter_split_pairs(self.config, held_out=True)), notices
        )

    def iter_examples(self, name: str = "") -> Iterator[TextPair]:
        name = name or _validation_name(self.config)
        return (
            read_pairs_or_aligned(name, self.config.data) if name else iter_split_pairs(self.config, held_out=True)
        )

    def fit_baselines(self) -> baselines.FittedBaselines:
        return baselines.fit_baselines(
            "translate", filter(_has_both_sides, iter_split_pairs(self.config, held_out=False))
        )

    def find_leaks(self, folder: Path) -> list[str]:
        """Of sources alone: who has learned a sentence's translation need not translate it."""
        data, valid = self.config.data, _validation_name(self.config)
        files = [data.source, data.target] if data.source else [data.train]
        cache = TokenCache(files, folder / "tokens", [])
        cache_key = [0.0 if valid else data.valid_fraction, reader_options(data)]
        train_texts, valid_texts = (
            (pair.source for pair in pairs)
            for pairs in (iter_split_pairs(self.config, held_out=False), self.iter_examples())
        )
        return leak_warnings(cache, valid, cache_key, train_texts, valid_texts)

    def _encode_dataset(self, name: str, pairs: list[TextPair], notices: list[str]) -> TranslationDataset:
        if not any(map(_has_both_sides, pairs)):
            pairs = []  # a set whose every pair lacks a side judges nothing
        return self._build_dataset(
            name, *encode_pairs(lambda: pairs, [self.source_tokenizer], [self.target_tokenizer]), pairs, notices
        )

    def _build_dataset(
        self,
        name: str,
        source_store: TokenStore,
        target_store: TokenStore,
        raw_pairs: Sequence[TextPair],
        notices: list[str],
        *,
        versions: int = 1,
    ) -> TranslationDataset:
        special = self.source_tokenizer.special_tokens, self.target_tokenizer.special_tokens
        dataset = TranslationDataset(
            source_store, target_store, self.config.data.max_len, raw_pairs, versions, special
        )
        if not len(dataset):
            raise DataError(
                "no pairs are left for validation; give a validation set, or raise data.valid_fraction",
                path=name,
            )
        if n_truncated := dataset.count_truncated():
            notices.append(
                f"{name}: {n_truncated} of {len(dataset)} pairs were cut at data.max_len={dataset.max_len} tokens"
            )
        return dataset

    def _decoder_states(self, batch: TranslationBatch) -> Tensor:  # (B, T, D)
        encoder_states = self.model.encoder(batch.source, batch.source_keep)  # (B, S, D)
        return self.model.decoder_states(batch.decoder_input, encoder_states, batch.source_keep)

    def loss(self, batch: TranslationBatch) -> Tensor:
        return lm_training_loss(
            lambda: self._decoder_states(batch), self.model.lm_head, batch.targets, self.config.train
        )

    def metric_sums(self, batch: TranslationBatch) -> Tensor:
        return token_metric_sums(
            self._decoder_states(batch), self.model.lm_head, batch.targets, self.target_tokenizer.vocab_size
        )

    def compute_metrics(
        self, sums: list[float], data: TranslationDataset, *, quick: bool, decode: DecodeConfig | None = None
    ) -> Metrics:
        total_loss, n_correct, n_predictions = sums
        metrics: Metrics = {"loss": total_loss / n_predictions, "token_accuracy": n_correct / n_predictions}
        if not math.isfinite(total_loss):  # nothing can be decoded with such a model; the caller says so
            return metrics
        references = data.raw_pairs[: QUICK_PAIRS if quick else None]
        decode = decode or self.config.decode
        decode = replace(decode, strategy="greedy") if quick else decode
        translations = [
            prediction.output for prediction in self.predict([pair.source for pair in references], decode=decode)
        ]
        translation_metrics = compute_translation_metrics(translations, [pair.target for pair in references])
        return {**metrics, **translation_metrics, "pairs": len(data)}

    def is_better(self, metrics: Metrics, best: Metrics | None) -> bool:
        """By BLEU, once there is some; of two that are near zero the one with the lower loss is better."""
        if best is not None and max(metrics["bleu"], best["bleu"]) < MIN_BLEU:
            return metrics["loss"] < best["loss"]
        return super().is_better(metrics, best)

    def predict(
        self, texts: Sequence[str], *, decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[Prediction]:
        self.model.eval()
        encoded = self.source_tokenizer.encode_batch(texts)
        truncated = [
            truncate_with_notes(tokens, self.config.data.max_len, "text", self.source_tokenizer.special_tokens)
            for tokens in encoded
        ]
        generated = self._generate([source for source, _ in truncated], decode, seed)
        return [
            Prediction(
                input=text,
                output=self.target_tokenizer.decode(target),
                cut=bool(notes),
                notes=(*empty_text_notes(text, tokens, self.source_tokenizer), *notes),
            )
            for text, tokens, (_, notes), target in zip(texts, encoded, truncated, generated, strict=True)
        ]

    def _generate(
        self, sources: list[list[int]], decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[list[int]]:
        decode, max_target_len = decode or self.config.decode, self.config.data.max_len - 1
        limits = tuple(min(max_target_len, decode.max_new_tokens or 2 * len(source) + 16) for source in sources)
        special = self.target_tokenizer.special_tokens
        stopping = StoppingCriteria(
            eos=special.end_token, limits=limits, banned=self.target_tokenizer.banned_tokens
        )
        adapter = build_seq2seq_adapter(self.model, self.config.data.max_len, special.start_token)
        seeds = row_seeds(self.config.seed if seed is None else seed, range(len(sources)))
        return generate(adapter, sources, decode, stopping, default_strategy="beam", seeds=seeds)

    def build_explanation_input(self, text: str, target: str = "", max_new_tokens: int = 0) -> ExplanationInput:
        """The text beside `target`, or beside the model's own translation."""
        validate_not_empty(text)
        max_len = self.config.data.max_len
        tokens = self.source_tokenizer.encode(text)
        source, notes = truncate_with_notes(tokens, max_len, "text", self.source_tokenizer.special_tokens)
        notes = [*empty_text_notes(text, tokens, self.source_tokenizer), *notes]
        target_tokens = self.target_tokenizer.encode(target) if target else self._generate([source])[0]
        output = target or self.target_tokenizer.decode(target_tokens)
        start = self.target_tokenizer.special_tokens.start_token
        source_pieces, target_pieces = (
            self.source_tokenizer.format_pieces(source),
            self.target_tokenizer.format_pieces(
                [start, *target_tokens, self.target_tokenizer.special_tokens.end_token]
            ),
        )
        # one place is taken by the begin token
        target_tokens, target_notes = truncate_with_notes(target_tokens, max_len - 1, "target")
        n_target = len(target_tokens) + 1
        inputs = ([source], [[start, *target_tokens]])
        return ExplanationInput(
            inputs=tuple(torch.tensor(tokens, device=self.device) for tokens in inputs),
            pieces={
                "encoder": (source_pieces, source_pieces),
                "decoder": (target_pieces[:n_target], target_pieces[:n_target]),
                "cross": (target_pieces[1 : n_target + 1], source_pieces),
            },
            prediction=Prediction(input=text, output=output),
            notes=(
                *notes,
                *target_notes,
                *unknown_word_notes(text, self.source_tokenizer),
                *unknown_word_notes(target, self.target_tokenizer),
                "rows of cross-attention are named after the token that is being written",
            ),
        )

    def sample_predictions(self, data: TranslationDataset) -> list[dict[str, str]]:
        pairs = data.raw_pairs[:: max(1, len(data.raw_pairs) // 8)][:8]
        predictions = self.predict([pair.source for pair in pairs])
        return [
            {"input": pair.source, "output": prediction.output, "expected": pair.target}
            for pair, prediction in zip(pairs, predictions, strict=True)
        ]


def _with_builtin_data(config: Config) -> Config:
    """With no data named, the built-in set and its own validation part."""
    if config.data.source:
        return config
    train = builtin_sets.resolve_path(config.data.train, "translate")
    config = build_config({"data.train": train}, config)
    has_validation = config.data.valid or config.data.valid_source
    return config if has_validation else build_config({"data.valid": builtin_sets.validation_path(train)}, config)


def _training_name(config: Config) -> str:
    return config.data.train or f"{config.data.source},{config.data.target}"


def _validation_name(config: Config) -> str:
    data = config.data
    return data.valid or (f"{data.valid_source},{data.valid_target}" if data.valid_source else "")


def iter_split_pairs(config: Config, *, held_out: bool) -> Iterator[TextPair]:
    """The pairs to train on, or those held out of the same file."""
    fraction = 0.0 if _validation_name(config) else config.data.valid_fraction
    pairs_with_split = zip(
        read_pairs_or_aligned(_training_name(config), config.data), validation_mask(fraction), strict=False
    )
    yield from (pair for pair, is_held_out in pairs_with_split if is_held_out == held_out)


def _load_saved_tokenizers(config: Config, folder: Path) -> tuple[Tokenizer, Tokenizer]:
    if config.tokenizer.joint_vocab and not (folder / "tokenizer.source.json").exists():
        tokenizer = load_tokenizer(folder / "tokenizer.json")
        return tokenizer, tokenizer
    # two, though one vocabulary may be all they have: each language can have pieces of its own in it
    return load_tokenizer(folder / "tokenizer.source.json"), load_tokenizer(folder / "tokenizer.target.json")


def _has_both_sides(pair: TextPair) -> bool:
    return bool(pair.source.strip() and pair.target.strip())


def count_pair_characters(config: Config) -> list[int]:
    """Characters to train on, of sources and of targets, and how many pairs lack a side."""
    n_source = n_target = n_skipped = 0
    for pair in iter_split_pairs(config, held_out=False):
        if _has_both_sides(pair):
            n_source += len(pair.source)
            n_target += len(pair.target)
        else:
            n_skipped += 1
    return [n_source, n_target, n_skipped]


def _train_or_load_tokenizers(
    config: Config,
    pairs: Callable[[], Iterator[TextPair]],
    cache: TokenCache,
    cache_key: object,
    character_counts: Sequence[int],
) -> tuple[Tokenizer, Tokenizer]:
    def train(name: str, texts: Iterator[str], n_characters: int, side: Side = "source") -> Tokenizer:
        return train_or_load_tokenizer(cache, config.tokenizer, [name, cache_key], texts, n_characters, side)

    sources = (pair.source for pair in pairs())  # read when asked for
    targets = (pair.target for pair in pairs())
    if config.tokenizer.joint_vocab:
        tokenizer = train("shared", chain(sources, targets), sum(character_counts))
        if not has_two_tokenizers(config.tokenizer.file):
            return tokenizer, tokenizer
        target_tokenizer = train("target", targets, character_counts[1], "target")
        if tokenizer.vocabulary != target_tokenizer.vocabulary:
            raise ConfigError(
                f"tokenizer.file={config.tokenizer.file} holds two vocabularies: set tokenizer.joint_vocab=false"
            )
        return tokenizer, target_tokenizer
    return train("source", sources, character_counts[0]), train("target", targets, character_counts[1], "target")
