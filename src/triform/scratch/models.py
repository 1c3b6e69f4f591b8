"""The three forms: encoder with a label head, decoder, encoder-decoder.

Parameters are named as in the torch models. A call gives scores and the way back. `loss` is what training needs:
the summed loss, and a way back that takes the share which each prediction has in the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from triform.config import ModelConfig, Sizes
from triform.errors import ConfigError, DataError
from triform.scratch.activations import ReLU
from triform.scratch.attention import Masks, causal, padding
from triform.scratch.blocks import Block, CrossBlock
from triform.scratch.layers import (
    POSITIONS,
    Chain,
    Chance,
    Table,
    Untouched,
    backwards,
    dropout,
    layer_norm,
    linear,
)
from triform.scratch.loss import IGNORE, cross_entropy
from triform.scratch.part import Array, Back, Part, Source
from triform.scratch.supported import check_model

Loss = tuple[float, Callable[[float], object]]


class Embedding(Part):
    """Tokens and their positions as vectors."""

    def __init__(self, config: ModelConfig, vocab_size: int, max_len: int) -> None:
        self.tokens = Table(vocab_size, config.d_model)
        self.positions: Any = POSITIONS[config.positions](max_len, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.rate, self.vocab_size, self.max_len = config.dropout, vocab_size, max_len

    def __call__(self, tokens: Array, chance: Chance) -> tuple[Array, Back]:  # (B, T) -> (B, T, D)
        tokens = self.checked(tokens)
        x, back_table = self.tokens(tokens)
        x *= x.dtype.type(self.scale)
        x, back_positions = self.positions(x)
        x, back_dropout = dropout(x, self.rate, chance)

        def back(dy: Array) -> Array:
            return back_table(back_positions(back_dropout(dy)) * dy.dtype.type(self.scale))

        return x, back

    def checked(self, tokens: Array) -> Array:
        if not hasattr(self.tokens.weight, "value"):
            raise DataError("this model has no weights yet: make them with Weights(model)")
        tokens = as_array(tokens, "tokens")
        if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or not tokens.size:
            raise DataError(
                f"tokens must be whole numbers in an array (rows, length), none of them 0 long; these are "
                f"{tokens.dtype} of shape {tokens.shape}"
            )
        if tokens.shape[1] > self.max_len:
            raise DataError(f"tokens of shape {tokens.shape} are longer than data.max_len={self.max_len}")
        if tokens.min() < 0 or tokens.max() >= self.vocab_size:
            odd = tokens.min() if tokens.min() < 0 else tokens.max()
            raise DataError(f"token {odd} is not in the vocabulary, which has 0 to {self.vocab_size - 1}")
        return tokens


def as_array(given: Any, name: str) -> Array:
    """Lists will do as well."""
    try:
        return np.asarray(given)
    except ValueError:
        raise DataError(f"{name} must be an array: rows of one length") from None


def real(keep: Array | None, tokens: Array) -> Array | None:  # (B, T) -> (B, T)
    """Which tokens are no padding, as True and False; None: all of them."""
    if keep is None:
        return None
    keep = as_array(keep, "keep")
    if keep.shape != tokens.shape:
        raise DataError(f"keep has the shape {keep.shape}, and its tokens {tokens.shape}: they must be alike")
    return keep.astype(bool)


def padding_of(keep: Array | None, dtype: Any) -> Masks:
    """What hides padding; nothing where there is none."""
    return () if keep is None else (padding(keep, dtype),)


def final_norm(config: ModelConfig) -> Any:
    return layer_norm(config.d_model, bias=config.bias) if config.final_norm else Untouched()


class Encoder(Part):
    """Every token reads every token."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        self.causal = config.reach == "causal"
        self.embedding = Embedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = [Block(config) for _ in range(config.n_layers)]
        self.norm = final_norm(config)

    def __call__(self, tokens: Array, keep: Array | None, chance: Chance) -> tuple[Array, Back]:  # -> (B, T, D)
        x, back = self.embedding(tokens, chance)
        masks = [*padding_of(keep, x.dtype), *([causal(x.shape[1], x.dtype)] if self.causal else [])]
        backs = [back]
        for block in self.blocks:
            x, back = block(x, masks, chance)
            backs.append(back)
        x, back = self.norm(x)
        return x, backwards([*backs, back])


def label_head(config: ModelConfig, n_labels: int) -> Any:
    if not config.head_hidden:
        return linear(config.d_model, n_labels, bias=config.head_bias)
    hidden = linear(config.d_model, config.head_hidden, bias=True)
    return Chain(hidden, ReLU(), linear(config.head_hidden, n_labels, bias=config.head_bias))


def mean(x: Array, keep: Array | None) -> tuple[Array, Back]:  # (B, T, D) -> (B, D)
    """The mean over the real tokens of each row."""
    share = np.ones(x.shape[:2], x.dtype) if keep is None else keep.astype(x.dtype)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1)  # (B, T): one over the length, 0 for padding

    def back(dy: Array) -> Array:
        # y = Σ_t share_t x_t, so each state gets its share of dy.
        return share[:, :, None] * dy[:, None, :]

    return (share[:, None, :] @ x)[:, 0], back


class Classifier(Part):
    """Encoder, mean over real tokens, label scores."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        check_model(config)
        check_sizes(sizes)
        if sizes.n_labels < 2:
            raise ConfigError(f"n_labels={sizes.n_labels}: a classifier needs at least two labels")
        self.encoder = Encoder(config, sizes)
        self.rate = config.dropout
        self.head = label_head(config, sizes.n_labels)

    def __call__(
        self, tokens: Array, keep: Array | None = None, chance: Chance = None
    ) -> tuple[Array, Back]:  # (B, T) -> (B, labels)
        pooled, back_pooled = self.pooled(tokens, keep, chance)
        scores, back_head = self.head(pooled)
        return scores, backwards([back_pooled, back_head])

    def pooled(
        self, tokens: Array, keep: Array | None = None, chance: Chance = None
    ) -> tuple[Array, Back]:  # (B, T) -> (B, D)
        """What the head reads: a state for each text."""
        tokens = as_array(tokens, "tokens")
        keep = real(keep, tokens)
        states, back_encoder = self.encoder(tokens, keep, chance)
        pooled, back_mean = mean(states, keep)
        pooled, back_dropout = dropout(pooled, self.rate, chance)
        return pooled, backwards([back_encoder, back_mean, back_dropout])

    def loss(
        self, tokens: Array, labels: Array, keep: Array | None = None, smoothing: float = 0.0, chance: Chance = None
    ) -> Loss:
        pooled, back_pooled = self.pooled(tokens, keep, chance)
        return prediction_loss(pooled, back_pooled, self.head, labels, smoothing)


class Decoder(Part):
    """Every token reads itself and what came before, and predicts what comes next."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        check_model(config)
        check_sizes(sizes)
        self.embedding = Embedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = [Block(config) for _ in range(config.n_layers)]
        self.norm = final_norm(config)
        self.head = vocabulary_head(config, self.embedding)

    def __call__(self, tokens: Array, chance: Chance = None) -> tuple[Array, Back]:  # (B, T) -> (B, T, V)
        states, back_states = self.states(tokens, chance)
        scores, back_head = self.head(states)
        return scores, backwards([back_states, back_head])

    def states(self, tokens: Array, chance: Chance = None) -> tuple[Array, Back]:  # (B, T) -> (B, T, D)
        """What the head reads. Padding after a text is its future: nothing need hide it."""
        x, back = self.embedding(tokens, chance)
        masks, backs = [causal(x.shape[1], x.dtype)], [back]
        for block in self.blocks:
            x, back = block(x, masks, chance)
            backs.append(back)
        x, back = self.norm(x)
        return x, backwards([*backs, back])

    def loss(self, tokens: Array, expected: Array, smoothing: float = 0.0, chance: Chance = None) -> Loss:
        states, back_states = self.states(tokens, chance)
        return prediction_loss(states, back_states, self.head, expected, smoothing)


class Seq2Seq(Part):
    """One side reads the source, the other writes the target while looking at it."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        check_model(config)
        check_sizes(sizes)
        self.encoder = Encoder(config, sizes)
        self.embedding = Embedding(config, sizes.target_vocab_size or sizes.vocab_size, sizes.max_len)
        if config.tie_embeddings and not sizes.target_vocab_size:  # one vocabulary: one table for both sides
            self.embedding.tokens = self.encoder.embedding.tokens
        self.blocks = [CrossBlock(config) for _ in range(config.n_layers)]
        self.norm = final_norm(config)
        self.head = vocabulary_head(config, self.embedding)

    def __call__(
        self, source: Array, target: Array, source_keep: Array | None = None, chance: Chance = None
    ) -> tuple[Array, Back]:  # (B, S), (B, T) -> (B, T, V)
        states, back_states = self.states(source, target, source_keep, chance)
        scores, back_head = self.head(states)
        return scores, backwards([back_states, back_head])

    def states(
        self, source: Array, target: Array, source_keep: Array | None = None, chance: Chance = None
    ) -> tuple[Array, Back]:  # -> (B, T, D)
        source, target = as_array(source, "tokens"), as_array(target, "tokens")
        if source.shape[:1] != target.shape[:1]:
            raise DataError(f"sources {source.shape} and targets {target.shape} must be as many")
        keep = real(source_keep, source)
        read, back_encoder = self.encoder(source, keep, chance)
        seen = Source(read)
        x, back_decoder = self.decoded(target, seen, padding_of(keep, read.dtype), chance)

        def back(d: Array) -> Array:
            back_decoder(d)
            return back_encoder(seen.grad)

        return x, back

    def decoded(
        self, target: Array, source: Source, source_masks: Masks, chance: Chance = None
    ) -> tuple[Array, Back]:  # (B, T) -> (B, T, D)
        x, back = self.embedding(target, chance)
        masks, backs = [causal(x.shape[1], x.dtype)], [back]
        for block in self.blocks:
            x, back = block(x, masks, source, source_masks, chance)
            backs.append(back)
        x, back = self.norm(x)
        return x, backwards([*backs, back])

    def loss(
        self, source: Array, target: Array, expected: Array, source_keep: Array | None = None,
        smoothing: float = 0.0, chance: Chance = None,
    ) -> Loss:  # fmt: skip
        states, back_states = self.states(source, target, source_keep, chance)
        return prediction_loss(states, back_states, self.head, expected, smoothing)


def vocabulary_head(config: ModelConfig, embedding: Embedding) -> Any:
    """Token scores from states; tied, it is the embedding read the other way."""
    head = linear(config.d_model, embedding.vocab_size, bias=config.head_bias)
    if config.tie_embeddings:
        head.weight = embedding.tokens.weight
    return head


def prediction_loss(states: Array, back_states: Back, head: Any, expected: Array, smoothing: float) -> Loss:
    """Of the states that predict something: the others are never scored."""
    expected = check_targets(expected, states.shape[:-1])
    counted = (expected != IGNORE).ravel()
    scores, back_head = head(states.reshape(-1, states.shape[-1])[counted])  # (N, V)
    loss, d_scores = cross_entropy(scores, expected.ravel()[counted], smoothing)

    def back(share: float) -> None:
        d_states = np.zeros_like(states)
        d_states.reshape(-1, states.shape[-1])[counted] = back_head(d_scores * d_scores.dtype.type(share))
        back_states(d_states)

    return loss, back


def check_sizes(sizes: Sizes) -> None:
    if sizes.vocab_size < 1:
        raise ConfigError("the vocabulary is empty: vocab_size must be at least 1")
    if sizes.max_len < 1:
        raise ConfigError(f"max_len={sizes.max_len} leaves nothing to read: it must be at least 1")
    if sizes.target_vocab_size < 0:
        raise ConfigError(
            f"target_vocab_size={sizes.target_vocab_size} must be at least 1, or 0 for one vocabulary"
        )


def check_targets(targets: Array, shape: tuple[int, ...]) -> Array:
    targets = as_array(targets, "targets")
    if targets.shape != shape:
        raise DataError(
            f"targets have the shape {targets.shape}, and what predicts them {shape}: they must be alike"
        )
    if targets.dtype.kind not in "iu":
        raise DataError(f"targets must be whole numbers; these are {targets.dtype}")
    return targets
