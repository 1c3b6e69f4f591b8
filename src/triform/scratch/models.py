"""The three models: classifier (encoder with a label head), decoder and encoder-decoder.

Parameters have the names of the torch models. Calling a model returns logits and their backward function. `loss`
returns the summed loss and a backward function that takes the factor by which the loss is scaled, usually one over
the number of predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from triform.config import DataSizes, ModelConfig
from triform.errors import ConfigError, DataError
from triform.scratch.activations import ReLU
from triform.scratch.attention import Masks, causal_mask, padding_mask
from triform.scratch.blocks import CrossAttentionBlock, TransformerBlock
from triform.scratch.layers import (
    POSITIONS,
    Embedding,
    Identity,
    OptionalRng,
    Sequential,
    build_layer_norm,
    build_linear,
    chain_backward,
    dropout,
)
from triform.scratch.loss import IGNORE_INDEX, cross_entropy
from triform.scratch.module import Array, Backward, Module, SharedInput
from triform.scratch.supported import check_model

Loss = tuple[float, Callable[[float], object]]


class TokenPositionEmbedding(Module):
    """The sum of token and position embeddings."""

    def __init__(self, config: ModelConfig, vocab_size: int, max_len: int) -> None:
        self.token_embedding = Embedding(vocab_size, config.d_model)
        self.position_embedding: Any = POSITIONS[config.positions](max_len, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.rate, self.vocab_size, self.max_len = config.dropout, vocab_size, max_len

    def __call__(self, tokens: Array, rng: OptionalRng) -> tuple[Array, Backward]:  # (B, T) -> (B, T, D)
        tokens = self.check_tokens(tokens)
        x, table_backward = self.token_embedding(tokens)
        x *= x.dtype.type(self.scale)
        x, positions_backward = self.position_embedding(x)
        x, dropout_backward = dropout(x, self.rate, rng)

        def backward(dy: Array) -> Array:
            return table_backward(positions_backward(dropout_backward(dy)) * dy.dtype.type(self.scale))

        return x, backward

    def check_tokens(self, tokens: Array) -> Array:
        if not hasattr(self.token_embedding.weight, "value"):
            raise DataError("this model has no weights yet; allocate them with FlatParameters(model)")
        tokens = as_array(tokens, "tokens")
        if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or not tokens.size:
            raise DataError(
                f"tokens must be a non-empty array of integers (rows, length), found {tokens.dtype} of shape "
                f"{tokens.shape}"
            )
        if tokens.shape[1] > self.max_len:
            raise DataError(f"tokens of shape {tokens.shape} are longer than data.max_len={self.max_len}")
        if tokens.min() < 0 or tokens.max() >= self.vocab_size:
            invalid = tokens.min() if tokens.min() < 0 else tokens.max()
            raise DataError(f"token {invalid} is not in the vocabulary, which has ids 0 to {self.vocab_size - 1}")
        return tokens


def as_array(values: Any, name: str) -> Array:
    """Return the values, such as nested lists, as an array."""
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError(f"{name} must be an array with rows of equal length") from None


def check_keep(keep: Array | None, tokens: Array) -> Array | None:  # (B, T) -> (B, T)
    """Return `keep` as a boolean array that is False for padding, or None if there is no padding."""
    if keep is None:
        return None
    keep = as_array(keep, "keep")
    if keep.shape != tokens.shape:
        raise DataError(
            f"keep has shape {keep.shape}, but the tokens have shape {tokens.shape}; they must be equal"
        )
    return keep.astype(bool)


def padding_masks(keep: Array | None, dtype: Any) -> Masks:
    """Return the masks that hide padding, if there is any."""
    return () if keep is None else (padding_mask(keep, dtype),)


def build_final_norm(config: ModelConfig) -> Any:
    """Return the norm after the last block, or the identity without `model.final_norm`."""
    return build_layer_norm(config.d_model, bias=config.bias) if config.final_norm else Identity()


class TransformerEncoder(Module):
    """A stack of blocks in which each token attends to all tokens or, if causal, only to earlier ones."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        self.causal = config.attention_direction == "causal"
        self.embedding = TokenPositionEmbedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = [TransformerBlock(config) for _ in range(config.n_layers)]
        self.final_norm = build_final_norm(config)

    def __call__(
        self, tokens: Array, keep: Array | None, rng: OptionalRng
    ) -> tuple[Array, Backward]:  # -> (B, T, D)
        x, backward = self.embedding(tokens, rng)
        masks = [*padding_masks(keep, x.dtype), *([causal_mask(x.shape[1], x.dtype)] if self.causal else [])]
        backward_fns = [backward]
        for block in self.blocks:
            x, backward = block(x, masks, rng)
            backward_fns.append(backward)
        x, backward = self.final_norm(x)
        return x, chain_backward([*backward_fns, backward])


def build_label_head(config: ModelConfig, n_labels: int) -> Any:
    """Return the layers that map a pooled state to label logits."""
    if not config.head_hidden:
        return build_linear(config.d_model, n_labels, bias=config.head_bias)
    hidden = build_linear(config.d_model, config.head_hidden, bias=True)
    return Sequential(hidden, ReLU(), build_linear(config.head_hidden, n_labels, bias=config.head_bias))


def mean_pool(x: Array, keep: Array | None) -> tuple[Array, Backward]:  # (B, T, D) -> (B, D)
    """Return the mean over the tokens of each row, without padding."""
    weights = np.ones(x.shape[:2], x.dtype) if keep is None else keep.astype(x.dtype)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1)  # (B, T): one over the length, 0 for padding

    def backward(dy: Array) -> Array:
        # y = Σ_t weight_t x_t, so each state gets its weight times dy.
        return weights[:, :, None] * dy[:, None, :]

    return (weights[:, None, :] @ x)[:, 0], backward


class EncoderClassifier(Module):
    """Classifier: an encoder, the mean over the tokens, and a head for label logits."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        check_model(config)
        check_sizes(sizes)
        if sizes.n_labels < 2:
            raise ConfigError(f"n_labels={sizes.n_labels} is too small: a classifier needs at least two labels")
        self.encoder = TransformerEncoder(config, sizes)
        self.rate = config.dropout
        self.classification_head = build_label_head(config, sizes.n_labels)

    def __call__(
        self, tokens: Array, keep: Array | None = None, rng: OptionalRng = None
    ) -> tuple[Array, Backward]:  # (B, T) -> (B, labels)
        pooled, pool_backward = self.pooled(tokens, keep, rng)
        logits, head_backward = self.classification_head(pooled)
        return logits, chain_backward([pool_backward, head_backward])

    def pooled(
        self, tokens: Array, keep: Array | None = None, rng: OptionalRng = None
    ) -> tuple[Array, Backward]:  # (B, T) -> (B, D)
        """Return the input of the head: one state per text."""
        tokens = as_array(tokens, "tokens")
        keep = check_keep(keep, tokens)
        states, encoder_backward = self.encoder(tokens, keep, rng)
        pooled, mean_backward = mean_pool(states, keep)
        pooled, dropout_backward = dropout(pooled, self.rate, rng)
        return pooled, chain_backward([encoder_backward, mean_backward, dropout_backward])

    def loss(
        self,
        tokens: Array,
        labels: Array,
        keep: Array | None = None,
        smoothing: float = 0.0,
        rng: OptionalRng = None,
    ) -> Loss:
        pooled, pool_backward = self.pooled(tokens, keep, rng)
        return prediction_loss(pooled, pool_backward, self.classification_head, labels, smoothing)


class TransformerDecoder(Module):
    """Language model: each token attends to itself and earlier tokens, and predicts the next one."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        check_model(config)
        check_sizes(sizes)
        self.embedding = TokenPositionEmbedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = [TransformerBlock(config) for _ in range(config.n_layers)]
        self.final_norm = build_final_norm(config)
        self.lm_head = build_vocabulary_head(config, self.embedding)

    def __call__(self, tokens: Array, rng: OptionalRng = None) -> tuple[Array, Backward]:  # (B, T) -> (B, T, V)
        states, states_backward = self.states(tokens, rng)
        logits, head_backward = self.lm_head(states)
        return logits, chain_backward([states_backward, head_backward])

    def states(self, tokens: Array, rng: OptionalRng = None) -> tuple[Array, Backward]:  # (B, T) -> (B, T, D)
        """Return the input of the head. Padding follows the text, so the causal mask hides it."""
        x, backward = self.embedding(tokens, rng)
        masks, backward_fns = [causal_mask(x.shape[1], x.dtype)], [backward]
        for block in self.blocks:
            x, backward = block(x, masks, rng)
            backward_fns.append(backward)
        x, backward = self.final_norm(x)
        return x, chain_backward([*backward_fns, backward])

    def loss(self, tokens: Array, expected: Array, smoothing: float = 0.0, rng: OptionalRng = None) -> Loss:
        states, states_backward = self.states(tokens, rng)
        return prediction_loss(states, states_backward, self.lm_head, expected, smoothing)


class EncoderDecoder(Module):
    """Encoder-decoder: the encoder reads the source, the decoder predicts the target and attends to both."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        check_model(config)
        check_sizes(sizes)
        self.encoder = TransformerEncoder(config, sizes)
        self.embedding = TokenPositionEmbedding(config, sizes.target_vocab_size or sizes.vocab_size, sizes.max_len)
        if config.tie_embeddings and not sizes.target_vocab_size:  # both sides share one vocabulary and one table
            self.embedding.token_embedding = self.encoder.embedding.token_embedding
        self.blocks = [CrossAttentionBlock(config) for _ in range(config.n_layers)]
        self.final_norm = build_final_norm(config)
        self.lm_head = build_vocabulary_head(config, self.embedding)

    def __call__(
        self, source: Array, target: Array, source_keep: Array | None = None, rng: OptionalRng = None
    ) -> tuple[Array, Backward]:  # (B, S), (B, T) -> (B, T, V)
        states, states_backward = self.states(source, target, source_keep, rng)
        logits, head_backward = self.lm_head(states)
        return logits, chain_backward([states_backward, head_backward])

    def states(
        self, source: Array, target: Array, source_keep: Array | None = None, rng: OptionalRng = None
    ) -> tuple[Array, Backward]:  # -> (B, T, D)
        source, target = as_array(source, "tokens"), as_array(target, "tokens")
        if source.shape[:1] != target.shape[:1]:
            raise DataError(f"there must be as many sources {source.shape} as targets {target.shape}")
        keep = check_keep(source_keep, source)
        encoded, encoder_backward = self.encoder(source, keep, rng)
        shared_source = SharedInput(encoded)
        x, decoder_backward = self.decode_states(target, shared_source, padding_masks(keep, encoded.dtype), rng)

        def backward(dy: Array) -> Array:
            decoder_backward(dy)
            return encoder_backward(shared_source.grad)

        return x, backward

    def decode_states(
        self, target: Array, source: SharedInput, source_masks: Masks, rng: OptionalRng = None
    ) -> tuple[Array, Backward]:  # (B, T) -> (B, T, D)
        x, backward = self.embedding(target, rng)
        masks, backward_fns = [causal_mask(x.shape[1], x.dtype)], [backward]
        for block in self.blocks:
            x, backward = block(x, masks, source, source_masks, rng)
            backward_fns.append(backward)
        x, backward = self.final_norm(x)
        return x, chain_backward([*backward_fns, backward])

    def loss(
        self, source: Array, target: Array, expected: Array, source_keep: Array | None = None,
        smoothing: float = 0.0, rng: OptionalRng = None,
    ) -> Loss:  # fmt: skip
        states, states_backward = self.states(source, target, source_keep, rng)
        return prediction_loss(states, states_backward, self.lm_head, expected, smoothing)


def build_vocabulary_head(config: ModelConfig, embedding: TokenPositionEmbedding) -> Any:
    """Return the output layer. With tied embeddings, its weight is the token embedding."""
    head = build_linear(config.d_model, embedding.vocab_size, bias=config.head_bias)
    if config.tie_embeddings:
        head.weight = embedding.token_embedding.weight
    return head


def prediction_loss(states: Array, states_backward: Backward, head: Any, expected: Array, smoothing: float) -> Loss:
    """Return the loss of all states with a target. Logits of the other states are not computed."""
    expected = check_targets(expected, states.shape[:-1])
    is_predicted = (expected != IGNORE_INDEX).ravel()
    logits, head_backward = head(states.reshape(-1, states.shape[-1])[is_predicted])  # (N, V)
    loss, d_logits = cross_entropy(logits, expected.ravel()[is_predicted], smoothing)

    def backward(scale: float) -> None:
        d_states = np.zeros_like(states)
        d_states.reshape(-1, states.shape[-1])[is_predicted] = head_backward(d_logits * d_logits.dtype.type(scale))
        states_backward(d_states)

    return loss, backward


def check_sizes(sizes: DataSizes) -> None:
    """Refuse sizes with which no model can be built."""
    if sizes.vocab_size < 1:
        raise ConfigError("the vocabulary is empty: vocab_size must be at least 1")
    if sizes.max_len < 1:
        raise ConfigError(f"max_len={sizes.max_len} is too small: it must be at least 1")
    if sizes.target_vocab_size < 0:
        raise ConfigError(
            f"target_vocab_size={sizes.target_vocab_size} must be at least 1, or 0 for a joint vocabulary"
        )


def check_targets(targets: Array, shape: tuple[int, ...]) -> Array:
    """Return targets as an array of integers with the given shape."""
    targets = as_array(targets, "targets")
    if targets.shape != shape:
        raise DataError(f"targets have shape {targets.shape}, expected {shape}")
    if targets.dtype.kind not in "iu":
        raise DataError(f"targets must be integers, found {targets.dtype}")
    return targets
