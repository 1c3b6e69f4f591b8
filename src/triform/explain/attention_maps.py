"""Data of an explanation: attention maps with their summaries, and attributions.

The classes hold NumPy arrays, so they work with maps from any model or file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triform.errors import ConfigError, require_package
from triform.io.files import atomic_file

AttentionWeights = NDArray[np.float32]

SUFFIXES = (".html", ".png", ".svg")
ROW_SUM_TOLERANCE = 0.02  # of the sum of a row of weights, so that weights rounded to bfloat16 are accepted


def validate_suffix(path: str | Path) -> str:
    """Return the suffix of an output file; raise a ConfigError if that kind of file cannot be written."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"cannot write {Path(path).name!r}: the file name must end in {', '.join(SUFFIXES)}")
    if suffix != ".html":
        require_package("matplotlib", extra="plot", purpose=f"a {suffix} picture")
    return suffix


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMap:
    """Attention weights of one stack of layers: for each layer, head and query, a weight for every key."""

    name: str  # "encoder", "decoder" or "cross"
    queries: tuple[str, ...]  # the text of each query token
    keys: tuple[str, ...]  # the text of each key token
    weights: AttentionWeights  # (L, H, T, S); rows sum to one
    n_padding: int = 0  # the last keys that are padding
    causal: bool = False  # whether the mask hides later tokens
    windows: tuple[int, ...] = ()  # the window of each layer; -1 means no window, and () that no layer has one

    def __post_init__(self) -> None:
        assert self.weights.ndim == 4, f"expected the shape (L, H, T, S), found {self.weights.shape}"
        assert self.weights.dtype == np.float32, self.weights.dtype
        assert 0 not in self.weights.shape, f"the attention map is empty: {self.weights.shape}"
        assert self.weights.shape[2:] == (len(self.queries), len(self.keys)), self.weights.shape
        assert self.weights.min() >= 0, "weights must not be negative or NaN"
        assert bool(np.all(np.abs(self.weights.sum(axis=-1) - 1) < ROW_SUM_TOLERANCE)), "rows must sum to one"

    def __repr__(self) -> str:
        n_layers, n_heads, n_queries, n_keys = self.weights.shape
        sizes = f"layers={n_layers}, heads={n_heads}, queries={n_queries}, keys={n_keys}"
        return f"AttentionMap(name={self.name!r}, {sizes})"

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return self.weights.shape[0]

    @property
    def n_heads(self) -> int:
        """The number of attention heads in each layer."""
        return self.weights.shape[1]

    @property
    def supports_rollout(self) -> bool:
        """Whether attention rollout is defined. It requires self-attention."""
        return self.name != "cross" and len(self.queries) == len(self.keys) - self.n_padding

    def average(self) -> AttentionWeights:
        """Return the mean weights over the heads of each layer."""
        return self._averages

    @cached_property
    def _averages(self) -> AttentionWeights:
        return self.weights.mean(axis=1, dtype=np.float64).astype(np.float32)  # (L, T, S)

    def rollout(self) -> AttentionWeights:
        """Return the attention rollout of each layer (Abnar and Zuidema, 2020).

        Row t of layer n estimates how much each input token contributes to position t after layers 1 to n. The
        estimate assumes that half of the output of a layer comes from its residual connection.
        """
        assert self.supports_rollout, "rollout requires self-attention"
        return self._rollouts

    @cached_property
    def _rollouts(self) -> AttentionWeights:
        n_tokens = len(self.queries)
        mixing = 0.5 * (self.weights[..., :n_tokens].mean(axis=1, dtype=np.float64) + np.eye(n_tokens))  # (L, T, T)
        mixing /= mixing.sum(axis=-1, keepdims=True)
        rollouts = [mixing[0]]
        for layer in mixing[1:]:
            rollouts.append(layer @ rollouts[-1])
        padding = ((0, 0), (0, 0), (0, self.n_padding))  # its weights are 0
        return np.pad(np.stack(rollouts), padding).astype(np.float32)  # (L, T, S)

    def entropy(self) -> NDArray[np.float64]:
        """Return the Shannon entropy of each head in bits, averaged over the queries.

        It is 0 if every query reads a single key, and log2(S) if every query gives all S keys the same weight.
        """
        bits = np.empty(self.weights.shape[:2])
        for layer, weights in enumerate(self.weights):  # layer by layer: a long text has many weights
            p = weights.astype(np.float64)
            bits[layer] = -(p * np.log2(np.where(p > 0, p, 1))).sum(axis=-1).mean(axis=-1)
        return np.maximum(bits, 0)  # (L, H); a row whose sum is slightly above 1 must not give a negative entropy

    def max_entropy(self) -> float:
        """Return the entropy of a head that gives equal weights to all keys that a query may read, in bits."""
        is_read = np.zeros(self.weights.shape[2:], dtype=bool)
        for weights in self.weights:  # layer by layer: a long text has many weights
            is_read |= (weights > 0).any(axis=0)
        return float(np.log2(is_read.sum(axis=-1)).mean())

    def mean_distance(self) -> NDArray[np.float64] | None:
        """Return the distance in tokens between a query and what each head reads, averaged over the queries.

        The distance to each key counts with its weight. It is None for cross-attention, where queries and keys
        are tokens of different texts.
        """
        if self.name == "cross":
            return None
        distances = abs(np.arange(len(self.keys)) - np.arange(len(self.queries))[:, None]).astype(np.float64)
        return np.einsum("lhts,ts->lh", self.weights, distances) / len(self.queries)  # (L, H)

    def thumbnails(self, layer: int, size: int) -> NDArray[np.uint8]:
        """Return small pictures of all heads of a layer, at most `size` pixels high and wide.

        A pixel is the largest weight of the queries and keys that it shows, on a square-root scale from 0 to the
        largest weight of the head, which is 255. It is 0 only if all of these weights are 0.
        """
        weights = self.weights[layer]  # (H, T, S)
        for axis in (1, 2):
            n_tokens = weights.shape[axis]
            starts = np.arange(min(size, n_tokens)) * n_tokens // min(size, n_tokens)
            weights = np.maximum.reduceat(weights, starts, axis=axis)
        scaled = np.sqrt(weights / weights.max(axis=(1, 2), keepdims=True))
        return np.ceil(255 * scaled).astype(np.uint8)

    def sums(self) -> list[dict[str, float | None]]:
        """Return sums of the weights of each layer that show whether its mask works.

        `row_sum_min` and `row_sum_max` are the smallest and the largest sum of a row over all heads. The others are
        the weight of a row on some keys, averaged over heads and queries: `padding`, `future` (later tokens of the
        text) and `outside_window` (tokens of the text that are as far away as the window is wide, or farther).
        A value is None where it has no meaning: cross-attention has no future, and a layer may have no window.
        """
        n_tokens = len(self.keys) - self.n_padding
        distances = np.arange(n_tokens) - np.arange(len(self.queries))[:, None]  # (T, S)
        result: list[dict[str, float | None]] = []
        for layer, layer_weights in enumerate(self.weights):  # layer by layer: a long text has many weights
            weights = layer_weights.astype(np.float64)  # (H, T, S)
            row_sums, text_weights = weights.sum(axis=-1), weights[..., :n_tokens]
            window = self.windows[layer] if self.windows else -1
            result.append(
                {
                    "row_sum_min": float(row_sums.min()),
                    "row_sum_max": float(row_sums.max()),
                    "padding": float(weights[..., n_tokens:].sum(axis=-1).mean()),
                    "future": None if self.name == "cross" else _mean_mass(text_weights, distances > 0),
                    "outside_window": _mean_mass(text_weights, abs(distances) >= window) if window > 0 else None,
                }
            )
        return result


def _mean_mass(weights: NDArray[np.float64], selected: NDArray[np.bool_]) -> float:
    """Return the weight of a row on the selected keys (T, S), averaged over heads and queries."""
    return float((weights * selected).sum(axis=-1).mean())


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """How much each token of a text raised or lowered the logit of one label."""

    method: str  # "gradient × input" or "integrated gradients"
    label: str  # the label whose logit is explained
    pieces: tuple[str, ...]
    values: tuple[float, ...]  # one signed value for each piece
    total: float = float("nan")  # the expected sum of the values; NaN if the method does not define one

    def __post_init__(self) -> None:
        assert len(self.pieces) == len(self.values), (len(self.pieces), len(self.values))


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The explanation of one prediction: the text, the output, attention maps and attributions."""

    title: str
    text: str
    output: str = ""  # a label, a continuation or a translation
    probabilities: Mapping[str, float] | None = None
    maps: tuple[AttentionMap, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [attention_map.name for attention_map in self.maps]
        assert len(set(names)) == len(names), f"duplicate map names: {names}"

    def __repr__(self) -> str:
        methods = [attribution.method for attribution in self.attributions]
        contents = f"maps={self.maps!r}, attributions={methods!r}"
        return f"Explanation(title={self.title!r}, output={self.output!r}, {contents})"

    def _repr_html_(self) -> str:
        from triform.explain.page import render_inline

        return render_inline(self)

    def save(self, path: str | Path, *, stack: str = "") -> Path:
        """Write an HTML page (.html) or a picture (.png, .svg).

        A picture shows attributions only if there is no attention map.

        Args:
            path: The file to write. Its suffix selects the format.
            stack: Show only the map of this stack: "encoder", "decoder" or "cross". By default all maps are shown.

        Returns:
            The path of the file.

        Raises:
            ConfigError: The suffix is not supported, there is no such map, or the file cannot be written.
        """
        path = Path(path)
        suffix = validate_suffix(path)
        explanation = self.select_map(stack) if stack else self
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as temporary_path:
                explanation._write(temporary_path, suffix)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror or error})") from error
        return path

    def select_map(self, name: str) -> Explanation:
        """Return this explanation with only one of its attention maps."""
        if selected := tuple(attention_map for attention_map in self.maps if attention_map.name == name):
            return replace(self, maps=selected)
        names = ", ".join(attention_map.name for attention_map in self.maps) or "none"
        raise ConfigError(f"there is no attention map {name!r}; available maps: {names}")

    def as_dict(self) -> dict[str, object]:
        """Return the explanation as JSON-compatible values. Weights are nested by layer, head, query and key."""
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
                    "n_padding": item.n_padding,
                    "sums": item.sums(),
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
