"""What was seen inside a model: attention maps with their summaries, attributions, and the whole to be shown.

Plain NumPy, so that a map from any model, or from a file, can be summed up and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triform.errors import ConfigError, require_package
from triform.io.files import atomic_file

AttentionWeights = NDArray[np.float32]

SUFFIXES = (".html", ".png", ".svg")
ROW_SUM_TOLERANCE = 0.02  # how far from one a row may add up: weights rounded to bfloat16 are shown too


def validate_suffix(path: str | Path) -> str:
    """Return the suffix of an output file; raise a ConfigError if that kind of file cannot be written."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"cannot write {Path(path).name!r}: its name must end in {', '.join(SUFFIXES)}")
    if suffix != ".html":
        require_package("matplotlib", extra="plot", purpose=f"a {suffix} picture")
    return suffix


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMap:
    """One stack of attention layers: how much of each key every query reads, in each head of each layer."""

    name: str  # "encoder", "decoder" or "cross"
    queries: tuple[str, ...]  # readable pieces, one a query position
    keys: tuple[str, ...]
    weights: AttentionWeights  # (L, H, T, S), rows sum to one

    def __post_init__(self) -> None:
        assert self.weights.ndim == 4, f"(L, H, T, S) expected, not {self.weights.shape}"
        assert self.weights.dtype == np.float32, self.weights.dtype
        assert 0 not in self.weights.shape, f"an empty map: {self.weights.shape}"
        assert self.weights.shape[2:] == (len(self.queries), len(self.keys)), self.weights.shape
        assert self.weights.min() >= 0, "a weight below zero, or no number"
        assert bool(np.all(np.abs(self.weights.sum(axis=-1) - 1) < ROW_SUM_TOLERANCE)), "rows must sum to one"

    @property
    def n_layers(self) -> int:
        return self.weights.shape[0]

    @property
    def n_heads(self) -> int:
        return self.weights.shape[1]

    @property
    def supports_rollout(self) -> bool:
        """Whether a rollout has a meaning: the layers must read what they write."""
        return self.name != "cross" and len(self.queries) == len(self.keys)

    def average(self) -> AttentionWeights:
        """The mean over the heads."""
        return self.weights.mean(axis=1, dtype=np.float64).astype(np.float32)  # (L, T, S)

    def rollout(self) -> AttentionWeights:
        """How much of each input reaches each position after every layer (Abnar and Zuidema, 2020).

        Half of what a block passes on is taken to come through its residual.
        """
        assert self.supports_rollout, "rollout is for self-attention"
        mixing = 0.5 * (self.weights.mean(axis=1, dtype=np.float64) + np.eye(len(self.keys)))  # (L, T, S)
        mixing /= mixing.sum(axis=-1, keepdims=True)
        rollouts = [mixing[0]]
        for layer in mixing[1:]:
            rollouts.append(layer @ rollouts[-1])
        return np.stack(rollouts).astype(np.float32)  # (L, T, S)

    def entropy(self) -> NDArray[np.float64]:
        """Bits of Shannon entropy of a row, the mean over the queries; 0: one key is read, log2(S): all S alike."""
        bits = np.empty(self.weights.shape[:2])
        for layer, weights in enumerate(self.weights):  # layer by layer: a long text has many weights
            p = weights.astype(np.float64)
            bits[layer] = -(p * np.log2(np.where(p > 0, p, 1))).sum(axis=-1).mean(axis=-1)
        return np.maximum(bits, 0)  # (L, H); a row that adds up to a little over one must not end below zero


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """How much each piece of a text moved one score, up or down."""

    method: str  # "gradient × input" or "integrated gradients"
    label: str  # whose score is explained
    pieces: tuple[str, ...]
    values: tuple[float, ...]  # signed, one a piece
    total: float = float("nan")  # what the values should add up to; NaN where the method makes no such promise

    def __post_init__(self) -> None:
        assert len(self.pieces) == len(self.values), (len(self.pieces), len(self.values))


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One text, what a model made of it, and what was seen on the way."""

    title: str
    text: str
    output: str = ""  # a label, a continuation or a translation
    probabilities: Mapping[str, float] | None = None
    maps: tuple[AttentionMap, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [attention_map.name for attention_map in self.maps]
        assert len(set(names)) == len(names), f"two maps of one name: {names}"

    def save(self, path: str | Path, *, stack: str = "") -> Path:
        """Write a page (.html) or a picture (.png, .svg) of all maps, or of the one named; gives the path back.

        A picture has the attributions only where there is no map.
        """
        path = Path(path)
        suffix = validate_suffix(path)
        explanation = self.select_map(stack) if stack else self
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as temporary_path:
                explanation._write(temporary_path, suffix)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from error
        return path

    def select_map(self, name: str) -> Explanation:
        """The same with this attention map and no other."""
        if selected := tuple(attention_map for attention_map in self.maps if attention_map.name == name):
            return replace(self, maps=selected)
        names = ", ".join(attention_map.name for attention_map in self.maps) or "no map at all"
        raise ConfigError(f"there is no attention map {name!r} here; there is {names}")

    def as_dict(self) -> dict[str, object]:
        """Everything as lists, numbers and strings, for JSON; weights are nested by layer, head, query and key."""
        return {
            "text": self.text,
            "output": self.output,
            "probabilities": None if self.probabilities is None else dict(self.probabilities),
            "notes": list(self.notes),
            "maps": [
                {
                    "name": item.name,
                    "queries": list(item.queries),
                    "keys": list(item.keys),
                    "weights": item.weights.tolist(),
                }
                for item in self.maps
            ],
            "attributions": [asdict(item) for item in self.attributions],
        }

    def _write(self, path: Path, suffix: str) -> None:
        if suffix == ".html":
            from triform.explain.page import render_page

            path.write_text(render_page(self), encoding="utf-8", newline="\n")
        else:
            from triform.explain.figure import save_figure

            save_figure(self, path, file_format=suffix[1:])
