"""What bends: ReLU and GELU, each with its slope."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from triform.scratch.part import Array, Back, Part

BLOCK = 1 << 14  # numbers bent at a time: what lies between two steps stays in the processor's cache


class ReLU(Part):
    """max(x, 0)."""

    def __call__(self, x: Array) -> tuple[Array, Back]:
        def back(dy: Array) -> Array:
            # The slope is 1 where x > 0, else 0.
            return dy * (y > 0)

        y = np.maximum(x, 0)
        return y, back


class GELU(Part):
    """x Φ(x), where Φ(x) = (1 + erf(x / √2)) / 2 is the share of a normal distribution below x."""

    def __call__(self, x: Array) -> tuple[Array, Back]:
        y, slope = bent(x, self.bend)

        def back(dy: Array) -> Array:
            return np.multiply(dy, slope, out=slope)

        return y, back

    @staticmethod
    def bend(x: Array, y: Array, slope: Array) -> None:
        # With a = |x| and the upper tail q = Φ(-a), both signs are one line: x Φ(x) = x/2 + a (1/2 - q).
        # Its slope is Φ + x φ, because Φ' is the density φ: that is 1/2 ± (1/2 - q + a φ), with the sign of x.
        a = np.abs(x)
        q, density = upper_tail(a)
        np.subtract(0.5, q, out=q)
        np.multiply(a, q, out=y)
        y += 0.5 * x
        density *= a
        density += q
        np.copysign(density, x, out=slope)
        slope += 0.5


class TanhGELU(GELU):
    """x (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³): GELU without erf."""

    @staticmethod
    def bend(x: Array, y: Array, slope: Array) -> None:
        # With h = (1 + tanh u) / 2:  (x h)' = h + x h', and h' = (1 - tanh² u) u' / 2 = 2 h (1 - h) u'.
        square = x * x
        u = (square * 0.044715 + 1) * x
        u *= math.sqrt(2 / math.pi)
        half = np.tanh(u, out=u)
        half += 1
        half *= 0.5
        np.multiply(x, half, out=y)
        np.multiply(1 - half, y, out=slope)
        square *= 3 * 0.044715
        square += 1
        square *= 2 * math.sqrt(2 / math.pi)
        slope *= square
        slope += half


ACTIVATIONS: dict[str, type[Part]] = {"relu": ReLU, "gelu": GELU, "gelu_tanh": TanhGELU}


def bent(x: Array, bend: Any) -> tuple[Array, Array]:
    """A curve and its slope at every x, some numbers at a time."""
    y, slope = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    flat = x.reshape(-1), y.reshape(-1), slope.reshape(-1)
    for start in range(0, x.size, BLOCK):
        bend(*(each[start : start + BLOCK] for each in flat))
    return y, slope


def upper_tail(a: Array) -> tuple[Array, Array]:
    """Φ(-a) and φ(a) for a ≥ 0.

    NumPy has no erf. But Φ(-a) = erfc(z) / 2 with z = a / √2, and erfc(z) exp(z²) is a tame function of
    t = 1 / (1 + 0.4 z), which a polynomial follows closely; exp(-z²) is needed for φ anyway.
    """
    z = np.clip(a, 0, FAR)
    z *= math.sqrt(0.5)
    bell = z * z
    np.negative(bell, out=bell)
    np.exp(bell, out=bell)
    z *= PACE
    z += 1
    t = np.reciprocal(z, out=z)
    first, *between, last = tail(a.dtype)
    q = t * first
    for coefficient in between:  # Horner's scheme
        q += coefficient
        q *= t
    q += last
    q *= bell
    bell *= 1 / math.sqrt(2 * math.pi)
    return q, bell


PACE, FAR = 0.4, 8.5  # beyond so many deviations Φ is 1 to sixteen digits


@cache
def tail(dtype: np.dtype[Any]) -> tuple[float, ...]:
    """The polynomial for erfc(z) exp(z²) / 2 in t, highest power first: as many terms as the numbers have digits.

    It meets the function, which Python's own `math` knows for single numbers, at Chebyshev's points.
    """
    degree = 6 if dtype == np.float32 else 18

    def wanted(t: Array) -> Array:
        z = [(1 / each - 1) / PACE for each in t.tolist()]
        return np.array([math.erfc(each) * math.exp(each * each) / 2 for each in z])

    nearest = 1 / (1 + PACE * FAR * math.sqrt(0.5))
    fitted = np.polynomial.Chebyshev.interpolate(wanted, degree, domain=[nearest, 1.0])
    powers = fitted.convert(kind=np.polynomial.Polynomial, domain=[-1, 1], window=[-1, 1])
    return tuple(powers.coef[::-1].tolist())
