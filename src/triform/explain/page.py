"""Attention as one page: an HTML file that holds everything, loads nothing, and answers to mouse, touch and keys.

The weights travel as compressed blobs, one a layer. How exactly they are kept depends on how much there is: as they
are while that fits, rounded to 16 bits when it does not, and at last only the strongest of each row.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triform import __version__
from triform.explain.picture import HEADINGS

if TYPE_CHECKING:
    from triform.explain.maps import AttentionMap, Attribution, Explanation, Weights

MOST_BYTES = 4_400_000  # of a page; 512 tokens in 12 layers of 12 heads stay below it
LEAST_ROOM = 500_000  # for weights, however long the text beside them is
LONGEST_TEXT = 20_000  # characters of the text and of the output that the page repeats
STRONGEST = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128)  # of a row: tried
STEPS = 65535  # a rounded weight is a whole number of these

Bytes = NDArray[np.uint8]
Pack = Callable[["Weights"], Bytes]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How weights are kept: "float32", "uint16", or "strongest", where `kept` of each row are."""

    kind: str
    kept: int = 0

    def pack(self, views: Weights) -> Bytes:
        """The views of one layer as bytes that compress well."""
        if self.kind == "float32":
            return _planes(views)
        if self.kind == "uint16":
            return _planes(_rounded(views))
        return _strongest(views, self.kept)


def render(explanation: Explanation) -> str:
    """The page as text."""
    data = _data(explanation)
    room = max(MOST_BYTES - len(json.dumps(data)) - len(_fill({}, data)), LEAST_ROOM)
    packing, blobs = pack(explanation.maps, room)
    data["packing"] = {"kind": packing.kind, "kept": packing.kept}
    return _fill(blobs, data)


def pack(maps: Sequence[AttentionMap], room: int) -> tuple[Packing, dict[str, str]]:
    """The most faithful packing that fits into `room` characters, with its blobs by name."""
    stacks = [views(each) for each in maps]
    for packing in (Packing(kind="float32"), Packing(kind="uint16")):
        if (blobs := _pack_within(stacks, packing, room)) is not None:
            return packing, blobs
    best, low, high = None, 0, len(STRONGEST)  # what lies below `low` fits, from `high` on it does not
    while low < high:
        middle = (low + high) // 2
        packing = Packing(kind="strongest", kept=STRONGEST[middle])
        if (blobs := _pack_within(stacks, packing, room if middle else math.inf)) is None:
            high = middle
        else:  # the strongest one alone is kept even where it is too much: with less there is nothing to show
            best, low = (packing, blobs), middle + 1
    assert best is not None
    return best


def views(shown: AttentionMap) -> list[Weights]:
    """What can be chosen in each layer: its heads, their average and, for self-attention, the rollout."""
    means = [shown.average(), shown.rollout()] if shown.rolls else [shown.average()]
    return [
        np.concatenate([heads, *(mean[layer, None] for mean in means)])  # (H + 1 or 2, T, S)
        for layer, heads in enumerate(shown.weights)
    ]


def _pack_within(stacks: Sequence[list[Weights]], packing: Packing, room: float) -> dict[str, str] | None:
    blobs: dict[str, str] = {}
    for number, stack in enumerate(stacks):
        for layer, weights in enumerate(stack):
            blob = base64.b64encode(zlib.compress(packing.pack(weights).tobytes(), 6)).decode("ascii")
            blobs[f"blob-{number}-{layer}"] = blob
            room -= len(blob) + 80  # and the tag around it
            if room < 0:  # found early: what is far too large is not compressed to its end
                return None
    return blobs


def _planes(values: NDArray[Any]) -> Bytes:
    """First all lowest bytes, then all second ones, …: bytes of one rank are alike and compress better."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little.reshape(-1, 1).view(np.uint8).T).reshape(-1)


def _rounded(weights: Weights) -> NDArray[np.uint16]:
    """Whole steps, at least one for a weight above zero: what is zero on the page was zero in the model."""
    steps = np.minimum(np.rint(weights.astype(np.float64) * STEPS), STEPS)
    return np.maximum(steps, weights > 0).astype(np.uint16)


def _strongest(weights: Weights, kept: int) -> Bytes:
    """Of each row the keys that weigh most, as steps from one key to the next, then their rounded weights.

    At last come the first and the last key with a weight above zero: what was left out between them was read.
    """
    kept = min(kept, weights.shape[-1])
    keys = np.sort(np.argpartition(weights, -kept, axis=-1)[..., -kept:], axis=-1)
    steps = np.diff(keys, axis=-1, prepend=0).astype(np.uint16)
    chosen = _rounded(np.take_along_axis(weights, keys, axis=-1))
    return np.concatenate([_planes(steps), _planes(chosen), _planes(_spans(weights))])


def _spans(weights: Weights) -> NDArray[np.uint16]:
    read = weights > 0  # (V, T, S)
    return np.stack([read.argmax(axis=-1), read.shape[-1] - 1 - read[..., ::-1].argmax(axis=-1)]).astype(np.uint16)


def _data(explanation: Explanation) -> dict[str, Any]:
    """Everything on the page but the weights."""
    chances = explanation.probabilities
    return {
        "title": explanation.title,
        "text": _shortened(explanation.text),
        "output": _shortened(explanation.output),
        "probabilities": sorted(chances.items(), key=lambda pair: -pair[1]) if chances else [],
        "notes": list(explanation.notes),
        "attributions": [_attribution(each) for each in explanation.attributions],
        "maps": [_map(each) for each in explanation.maps],
        "packing": {"kind": "float32", "kept": 0},
    }


def _map(shown: AttentionMap) -> dict[str, Any]:
    names = [f"head {head + 1}" for head in range(shown.n_heads)]
    names += ["average of heads", "rollout"] if shown.rolls else ["average of heads"]
    return {
        "name": shown.name,
        "heading": HEADINGS.get(shown.name, shown.name).partition(":")[0],
        "queries": list(shown.queries),
        "keys": list(shown.keys),
        "layers": shown.n_layers,
        "heads": shown.n_heads,
        "views": names,
        "entropy": np.round(shown.entropy(), 6).tolist(),
        "most_bits": round(_most_bits(shown), 6),
    }


def _most_bits(shown: AttentionMap) -> float:
    """The highest entropy a head can have: every query reads alike all keys that anything lets it read."""
    read = np.zeros(shown.weights.shape[2:], dtype=bool)
    for weights in shown.weights:  # layer by layer: a long text has many weights
        read |= (weights > 0).any(axis=0)
    return float(np.log2(read.sum(axis=-1)).mean())


def _attribution(given: Attribution) -> dict[str, Any]:
    return {
        "method": given.method,
        "label": given.label,
        "pieces": list(given.pieces),
        "values": [value if math.isfinite(value) else 0.0 for value in given.values],
        "total": given.total if math.isfinite(given.total) else None,
    }


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"


def _fill(blobs: dict[str, str], data: dict[str, Any]) -> str:
    """The template with its parts put in, in one pass: what a text holds is never taken for a placeholder."""
    assets = files("triform.explain")
    template, style, *scripts = (
        assets.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "heatmap.js", "page.js")
    )
    script = "".join(scripts)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": escape(data["title"].encode("utf-8", "replace").decode("utf-8")),
        "style": style,
        "script": script,
        "data": _inert(data),
        "blobs": "\n".join(_tags(blobs)),
        "version": escape(__version__),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _tags(blobs: dict[str, str]) -> Iterator[str]:
    return (f'<script type="text/plain" id="{name}">{blob}</script>' for name, blob in blobs.items())


def _inert(data: dict[str, Any]) -> str:
    """JSON that no HTML parser takes for a tag, in ASCII: lone surrogates and line separators travel as escapes."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
