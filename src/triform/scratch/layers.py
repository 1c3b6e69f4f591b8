"""Linear layers, LayerNorm, embeddings, positions and dropout, each with its backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from triform.scratch.module import Array, Backward, Module, Parameter

OptionalRng = np.random.Generator | None  # random generator for dropout; None disables dropout


class Linear(Module):
    """A linear layer without bias: y = x Wᵀ.

    Args:
        n_in: The number of input features.
        n_out: The number of output features.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        self.weight = Parameter(n_out, n_in)

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        n_out = self.weight.shape[0]
        rows = x.reshape(-1, x.shape[-1])  # (N, in): one large product instead of many small ones
        y = rows @ self.weight.value.T  # (N, out)

        def backward(dy: Array) -> Array:
            # y_nj = Σ_i x_ni W_ji: a change of W_ji moves every y_nj by x_ni, and one of x_ni every y_nj by W_ji.
            # So dW_ji = Σ_n dy_nj x_ni and dx_ni = Σ_j dy_nj W_ji, or dW = dyᵀ x and dx = dy W.
            dy = dy.reshape(-1, n_out)
            self.weight.grad += dy.T @ rows
            return (dy @ self.weight.value).reshape(x.shape)

        return y.reshape(*x.shape[:-1], n_out), backward


class LinearWithBias(Linear):
    """A linear layer with bias: y = x Wᵀ + b.

    Args:
        n_in: The number of input features.
        n_out: The number of output features.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self.bias = Parameter(n_out)

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        y, linear_backward = super().__call__(x)
        y += self.bias.value

        def backward(dy: Array) -> Array:
            # b_j is added to every row, so db_j = Σ_n dy_nj.
            self.bias.grad += sum_over_rows(dy)
            return linear_backward(dy)

        return y, backward


def build_linear(n_in: int, n_out: int, *, bias: bool) -> Linear:
    """Return a linear layer with or without bias."""
    return LinearWithBias(n_in, n_out) if bias else Linear(n_in, n_out)


class LayerNorm(Module):
    """Layer norm: y = w · n with n = (x - mean) / √(variance + ε), with mean and variance over the features.

    Args:
        width: The number of features.
    """

    EPSILON = 1e-5

    def __init__(self, width: int) -> None:
        self.weight = Parameter(width)

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        normed = x - mean_over_features(x)
        inv_std = 1 / np.sqrt(mean_over_features(normed, normed) + self.EPSILON)  # (…, 1)
        normed *= inv_std
        y = normed * self.weight.value

        def backward(dy: Array) -> Array:
            # Let g = dL/dn = w · dy. Moving one x_i also moves the mean, and with it all n, and the spread:
            #   dn_j/dx_i = spread (δ_ij - 1/D - n_i n_j / D),
            # so dx = spread (g - mean(g) - n mean(g · n)): g without its components along the constant vector and
            # along n, to which the norm is invariant.
            self.weight.grad += sum_over_rows(dy, normed)
            g = dy * self.weight.value
            projection = mean_over_features(g, normed)
            g -= mean_over_features(g)
            g -= np.multiply(normed, projection, out=normed)
            g *= inv_std
            return g

        return y, backward


class LayerNormWithBias(LayerNorm):
    """LayerNorm with a bias that is added to the output.

    Args:
        width: The number of features.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias = Parameter(width)

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        y, norm_backward = super().__call__(x)
        y += self.bias.value

        def backward(dy: Array) -> Array:
            self.bias.grad += sum_over_rows(dy)
            return norm_backward(dy)

        return y, backward


class Identity(Module):
    """The identity, y = x, used instead of a norm."""

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        return x, identity_backward


def build_layer_norm(width: int, *, bias: bool) -> LayerNorm:
    """Return a layer norm with or without bias."""
    return LayerNormWithBias(width) if bias else LayerNorm(width)


def identity_backward(dy: Array) -> Array:
    """Return the gradient unchanged."""
    return dy


def mean_over_features(x: Array, other: Array | None = None) -> Array:  # (…, D) -> (…, 1)
    """Return the mean of x, or of x · other, over the last axis. A product with a vector of ones is fastest."""
    if other is None:
        sums = x.reshape(-1, x.shape[-1]) @ np.ones(x.shape[-1], x.dtype)
    else:
        sums = np.einsum("...d,...d->...", x, other)
    return (sums / x.dtype.type(x.shape[-1])).reshape(*x.shape[:-1], 1)


def sum_over_rows(x: Array, other: Array | None = None) -> Array:  # (…, D) -> (D)
    """Return the sum of x, or of x · other, over all axes but the last."""
    rows = x.reshape(-1, x.shape[-1])
    if other is None:
        return np.ones(len(rows), x.dtype) @ rows
    return np.einsum("nd,nd->d", rows, other.reshape(rows.shape))


class Embedding(Module):
    """Look up the rows of W with the given indices.

    Args:
        n_rows: The number of indices.
        width: The number of features.
    """

    def __init__(self, n_rows: int, width: int) -> None:
        self.weight = Parameter(n_rows, width)

    def __call__(self, indices: Array) -> tuple[Array, Backward]:  # (…) -> (…, D)
        def backward(dy: Array) -> Array:
            # The gradient of a row is the sum over all positions that use it. After sorting by index, the positions
            # of a row are adjacent and are summed in one operation.
            rows = indices.ravel()
            order = np.argsort(rows, kind="stable")
            used_rows, starts = np.unique(rows[order], return_index=True)
            self.weight.grad[used_rows] += np.add.reduceat(dy.reshape(-1, dy.shape[-1])[order], starts)
            return dy  # indices have no gradient

        return self.weight.value[indices], backward


class NoPositionEmbedding(Module):
    """No position embedding: y = x."""

    def __init__(self, max_len: int, width: int) -> None:
        pass

    def __call__(self, x: Array) -> tuple[Array, Backward]:  # (B, T, D) -> (B, T, D)
        return x, identity_backward


class LearnedPositions(Module):
    """Learned positions: x_t + P_t with one trained vector per position.

    Args:
        max_len: The number of positions.
        width: The number of features.
    """

    def __init__(self, max_len: int, width: int) -> None:
        self.table = Embedding(max_len, width)

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        length = x.shape[1]

        def backward(dy: Array) -> Array:
            # P_t is added in every row of the batch, so dP_t is the sum over them; x gets dy as it is.
            self.table.weight.grad[:length] += dy.sum(axis=0)
            return dy

        return x + self.table.weight.value[:length], backward


class SinusoidalPositions(Module):
    """Sinusoidal positions: x_t + P_t with P_tk = sin(t · 10000^(-k/D)) for even k, and cos after each sine.

    Args:
        max_len: The number of positions.
        width: The number of features.
    """

    def __init__(self, max_len: int, width: int) -> None:
        self.table = sinusoidal_table(max_len, width)

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        return x + self.table[: x.shape[1]].astype(x.dtype), identity_backward


def sinusoidal_table(max_len: int, width: int) -> Array:
    """Return the position vectors of `SinusoidalPositions`, (T, D).

    Args:
        max_len: The number of positions.
        width: The number of features; an even number.

    Returns:
        One row per position.

    >>> sinusoidal_table(2, 4).round(2).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.84, 0.54, 0.01, 1.0]]
    """
    angle = np.arange(max_len)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)  # (T, D/2)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(max_len, width)


POSITIONS: dict[str, Any] = {
    "none": NoPositionEmbedding,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
}


def dropout(x: Array, rate: float, rng: OptionalRng) -> tuple[Array, Backward]:
    """Return y = m · x / (1 - rate), where m is 0 with probability `rate` and 1 otherwise.

    Args:
        x: Any array.
        rate: The probability that an element becomes 0.
        rng: The random generator; None disables dropout.

    Returns:
        The result and the backward function.
    """
    if rng is None or not rate:
        return x, identity_backward
    threshold = round(rate * (1 << 16))  # 16 random bits per element are enough and fast to sample
    keep_mask = rng.integers(0, 1 << 16, x.shape, dtype=np.uint16) >= threshold
    scale = x.dtype.type(1 / (1 - threshold / (1 << 16)))

    def apply_mask(x: Array) -> Array:  # the derivative is m / (1 - rate), so backward equals forward
        y = x * keep_mask
        y *= scale
        return y

    return apply_mask(x), apply_mask


class Sequential(Module):
    """Layers that are applied one after another. Their names are their indices."""

    def __init__(self, *layers: Any) -> None:
        self.layers = layers

    def named_children(self) -> Iterator[tuple[str, Any]]:
        return ((str(index), layer) for index, layer in enumerate(self.layers))

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        backward_fns: list[Backward] = []
        for layer in self.layers:
            x, backward = layer(x)
            backward_fns.append(backward)
        return x, chain_backward(backward_fns)


def chain_backward(backward_fns: list[Backward]) -> Backward:
    """Return the backward function of layers in sequence. By the chain rule, that of the last layer runs first.

    Args:
        backward_fns: The backward functions in the order of the layers.

    Returns:
        A function from the gradient of the last output to that of the first input.
    """

    def backward(dy: Array) -> Array:
        for backward_fn in reversed(backward_fns):
            dy = backward_fn(dy)
        return dy

    return backward
