"""Activation functions: ReLU and GELU, each with its derivative."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from triform.scratch.module import Array, Backward, Module

BLOCK_SIZE = 1 << 14  # elements computed at a time, so that intermediate results stay in the processor cache


class ReLU(Module):
    """ReLU: max(x, 0)."""

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        def backward(dy: Array) -> Array:
            # The derivative is 1 where x > 0, else 0.
            return dy * (y > 0)

        y = np.maximum(x, 0)
        return y, backward


class GELU(Module):
    """GELU: x Φ(x), where Φ(x) = (1 + erf(x / √2)) / 2 is the normal cumulative distribution function."""

    def __call__(self, x: Array) -> tuple[Array, Backward]:
        y, slope = apply_blockwise(x, self.evaluate)

        def backward(dy: Array) -> Array:
            return np.multiply(dy, slope, out=slope)

        return y, backward

    @staticmethod
    def evaluate(x: Array, y: Array, slope: Array) -> None:
        # With a = |x| and the upper tail q = Φ(-a), both signs are one line: x Φ(x) = x/2 + a (1/2 - q).
        # Its slope is Φ + x φ, because Φ' is the density φ: that is 1/2 ± (1/2 - q + a φ), with the sign of x.
        a = np.abs(x)
        q, density = normal_upper_tail(a)
        np.subtract(0.5, q, out=q)
        np.multiply(a, q, out=y)
        y += 0.5 * x
        density *= a
        density += q
        np.copysign(density, x, out=slope)
        slope += 0.5


class TanhGELU(GELU):
    """Tanh approximation of GELU: x (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³)."""

    @staticmethod
    def evaluate(x: Array, y: Array, slope: Array) -> None:
        # With h = (1 + tanh u) / 2:  (x h)' = h + x h', and h' = (1 - tanh² u) u' / 2 = 2 h (1 - h) u'.
        square = x * x
        u = (square * 0.044715 + 1) * x
        u *= math.sqrt(2 / math.pi)
        gate = np.tanh(u, out=u)
        gate += 1
        gate *= 0.5
        np.multiply(x, gate, out=y)
        np.multiply(1 - gate, y, out=slope)
        square *= 3 * 0.044715
        square += 1
        square *= 2 * math.sqrt(2 / math.pi)
        slope *= square
        slope += gate


ACTIVATIONS: dict[str, type[Module]] = {"relu": ReLU, "gelu": GELU, "gelu_tanh": TanhGELU}


def apply_blockwise(x: Array, evaluate: Any) -> tuple[Array, Array]:
    """Return a function and its derivative at every x, computed block by block.

    Args:
        x: Any array.
        evaluate: A function that writes values and derivatives of a block of x to two arrays.

    Returns:
        The values and the derivatives.
    """
    y, slope = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    flat = x.reshape(-1), y.reshape(-1), slope.reshape(-1)
    for start in range(0, x.size, BLOCK_SIZE):
        evaluate(*(array[start : start + BLOCK_SIZE] for array in flat))
    return y, slope


def normal_upper_tail(a: Array) -> tuple[Array, Array]:
    """Return Φ(-a) and φ(a) for a ≥ 0.

    NumPy has no erf. But Φ(-a) = erfc(z) / 2 with z = a / √2, and erfc(z) exp(z²) is a smooth function of
    t = 1 / (1 + 0.4 z), which a polynomial approximates closely; exp(-z²) is needed for φ anyway.
    """
    z = np.clip(a, 0, ERFC_CUTOFF)
    z *= math.sqrt(0.5)
    gaussian = z * z
    np.negative(gaussian, out=gaussian)
    np.exp(gaussian, out=gaussian)
    z *= ERFC_SCALE
    z += 1
    t = np.reciprocal(z, out=z)
    leading, *middle, constant = erfc_coefficients(a.dtype)
    q = t * leading
    for coefficient in middle:  # Horner's scheme
        q += coefficient
        q *= t
    q += constant
    q *= gaussian
    gaussian *= 1 / math.sqrt(2 * math.pi)
    return q, gaussian


ERFC_SCALE, ERFC_CUTOFF = 0.4, 8.5  # beyond this many deviations Φ is 1 to sixteen digits


@cache
def erfc_coefficients(dtype: np.dtype[Any]) -> tuple[float, ...]:
    """Return the polynomial for erfc(z) exp(z²) / 2 in t, highest power first.

    It interpolates `math.erfc` at Chebyshev points, with as many terms as the data type has digits.
    """
    degree = 6 if dtype == np.float32 else 18

    def scaled_erfc(t: Array) -> Array:
        z = [(1 / value - 1) / ERFC_SCALE for value in t.tolist()]
        return np.array([math.erfc(value) * math.exp(value * value) / 2 for value in z])

    t_min = 1 / (1 + ERFC_SCALE * ERFC_CUTOFF * math.sqrt(0.5))
    fitted = np.polynomial.Chebyshev.interpolate(scaled_erfc, degree, domain=[t_min, 1.0])
    powers = fitted.convert(kind=np.polynomial.Polynomial, domain=[-1, 1], window=[-1, 1])
    return tuple(powers.coef[::-1].tolist())
