"""Write an explanation as one interactive HTML page that needs no network.

The weights of each layer are stored as a compressed blob: as float32 if the page stays small enough, otherwise
rounded to 16 bits, and otherwise only the largest weights of each row.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triform import __version__
from triform.explain.figure import HEADINGS
from triform.html.notebook import render_frame
from triform.html.style_sheets import read_style_sheet, selectable_themes

if TYPE_CHECKING:
    from triform.explain.attention_maps import AttentionMap, AttentionWeights, Attribution, Explanation

MAX_PAGE_BYTES = 4_400_000  # limit for a page; enough for 512 tokens in 12 layers of 12 heads
MIN_WEIGHT_BYTES = 500_000  # space for weights, regardless of the length of the text
MAX_TEXT_CHARS = 20_000  # of the text and of the output
# Candidates for the number of weights to store for each row; the largest one that fits is used.
TOP_K_LEVELS = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128,
)  # fmt: skip
STYLE_SHEETS = ("components.css", "page.css")  # after the colours of all pages
SCRIPTS = ("components.js", "heatmap.js", "attention_view.js", "page.js")
UINT16_MAX = 65535  # a rounded weight is a multiple of 1 / UINT16_MAX

ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class WeightEncoding:
    """How weights are stored: "float32", "uint16", or "strongest", which stores the `top_k` of each row."""

    kind: str
    top_k: int = 0

    def encode(self, views: AttentionWeights) -> ByteArray:
        """Return the views of one layer as bytes that compress well."""
        if self.kind == "float32":
            return _byte_planes(views)
        if self.kind == "uint16":
            return _byte_planes(_quantize(views))
        return _encode_top_k(views, self.top_k)


def render_page(explanation: Explanation, *, inline: bool = False) -> str:
    """Return the HTML of the page. With `inline`, it has no title and follows the theme of a notebook around it."""
    data = _page_data(explanation)
    max_bytes = max(MAX_PAGE_BYTES - len(json.dumps(data)) - len(_fill_template({}, data)), MIN_WEIGHT_BYTES)
    encoding, blobs = encode_weights(explanation.maps, max_bytes)
    data["packing"] = {"kind": encoding.kind, "kept": encoding.top_k}
    return _fill_template(blobs, data, inline=inline)


def render_inline(explanation: Explanation) -> str:
    """Return the page in a frame, as the output of a cell of a notebook."""
    return render_frame(render_page(explanation, inline=True), f"Explanation of {explanation.title}")


def encode_weights(maps: Sequence[AttentionMap], max_bytes: int) -> tuple[WeightEncoding, dict[str, str]]:
    """Return the most accurate encoding that fits into `max_bytes`, and its blobs by name."""
    stacks = [layer_views(attention_map) for attention_map in maps]
    for encoding in (WeightEncoding(kind="float32"), WeightEncoding(kind="uint16")):
        if (blobs := _encode_within(stacks, encoding, max_bytes)) is not None:
            return encoding, blobs
    best, low, high = None, 0, len(TOP_K_LEVELS)  # levels below `low` fit, levels from `high` on do not
    while low < high:
        middle = (low + high) // 2
        encoding = WeightEncoding(kind="strongest", top_k=TOP_K_LEVELS[middle])
        if (blobs := _encode_within(stacks, encoding, max_bytes if middle else math.inf)) is None:
            high = middle
        else:  # the lowest level is used even if it is too large, because a page needs weights
            best, low = (encoding, blobs), middle + 1
    assert best is not None
    return best


def layer_views(attention_map: AttentionMap) -> list[AttentionWeights]:
    """Return the views of each layer: its heads, their average and, for self-attention, the rollout."""
    means = (
        [attention_map.average(), attention_map.rollout()]
        if attention_map.supports_rollout
        else [attention_map.average()]
    )
    return [
        np.concatenate([heads, *(mean[layer, None] for mean in means)])  # (H + 1 or 2, T, S)
        for layer, heads in enumerate(attention_map.weights)
    ]


def _encode_within(
    stacks: Sequence[list[AttentionWeights]], encoding: WeightEncoding, max_bytes: float
) -> dict[str, str] | None:
    blobs: dict[str, str] = {}
    for map_index, stack in enumerate(stacks):
        for layer, weights in enumerate(stack):
            blob = base64.b64encode(zlib.compress(encoding.encode(weights).tobytes(), 6)).decode("ascii")
            blobs[f"blob-{map_index}-{layer}"] = blob
            max_bytes -= len(blob) + 80  # the HTML tag around a blob
            if max_bytes < 0:  # stop early if the page becomes too large
                return None
    return blobs


def _byte_planes(values: NDArray[Any]) -> ByteArray:
    """Return the lowest bytes of all values, then the second bytes, and so on, because this compresses better."""
    little_endian = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little_endian.reshape(-1, 1).view(np.uint8).T).reshape(-1)


def _quantize(weights: AttentionWeights) -> NDArray[np.uint16]:
    """Round weights to 16 bits. Positive weights stay positive, so 0 on the page means 0 in the model."""
    levels = np.minimum(np.rint(weights.astype(np.float64) * UINT16_MAX), UINT16_MAX)
    return np.maximum(levels, weights > 0).astype(np.uint16)


def _encode_top_k(weights: AttentionWeights, top_k: int) -> ByteArray:
    """Encode the largest weights of each row: the distances between their keys, then the rounded weights.

    The first and the last key with a positive weight follow. Weights outside this range are known to be zero.
    """
    top_k = min(top_k, weights.shape[-1])
    keys = np.sort(np.argpartition(weights, -top_k, axis=-1)[..., -top_k:], axis=-1)
    key_steps = np.diff(keys, axis=-1, prepend=0).astype(np.uint16)
    quantized = _quantize(np.take_along_axis(weights, keys, axis=-1))
    return np.concatenate([_byte_planes(key_steps), _byte_planes(quantized), _byte_planes(_nonzero_spans(weights))])


def _nonzero_spans(weights: AttentionWeights) -> NDArray[np.uint16]:
    is_nonzero = weights > 0  # (V, T, S)
    return np.stack(
        [is_nonzero.argmax(axis=-1), is_nonzero.shape[-1] - 1 - is_nonzero[..., ::-1].argmax(axis=-1)]
    ).astype(np.uint16)


def _page_data(explanation: Explanation) -> dict[str, Any]:
    """Return the data of the page except the weights."""
    probabilities = explanation.probabilities
    return {
        "title": explanation.title,
        "text": _truncate_text(explanation.text),
        "output": _truncate_text(explanation.output),
        "probabilities": sorted(probabilities.items(), key=lambda pair: -pair[1]) if probabilities else [],
        "notes": list(explanation.notes),
        "attributions": [_attribution_data(item) for item in explanation.attributions],
        "maps": [_map_data(item) for item in explanation.maps],
        "packing": {"kind": "float32", "kept": 0},
    }


def _map_data(attention_map: AttentionMap) -> dict[str, Any]:
    names = [f"head {head + 1}" for head in range(attention_map.n_heads)]
    names += ["average of heads", "rollout"] if attention_map.supports_rollout else ["average of heads"]
    return {
        "name": attention_map.name,
        "heading": HEADINGS.get(attention_map.name, attention_map.name).partition(":")[0],
        "queries": list(attention_map.queries),
        "keys": list(attention_map.keys),
        "layers": attention_map.n_layers,
        "heads": attention_map.n_heads,
        "views": names,
        "summary": _summary_data(attention_map),
        "sums": attention_map.sums(),
        "causal": attention_map.causal,
        "padding": attention_map.n_padding,
    }


def _summary_data(attention_map: AttentionMap) -> dict[str, Any]:
    distance = attention_map.mean_distance()
    return {
        "entropy": np.round(attention_map.entropy(), 6).tolist(),
        "most_bits": round(attention_map.max_entropy(), 6),
        "distance": None if distance is None else np.round(distance, 6).tolist(),
    }


def _attribution_data(attribution: Attribution) -> dict[str, Any]:
    return {
        "method": attribution.method,
        "label": attribution.label,
        "pieces": list(attribution.pieces),
        "values": [value if math.isfinite(value) else 0.0 for value in attribution.values],
        "total": attribution.total if math.isfinite(attribution.total) else None,
    }


def _truncate_text(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"


def _fill_template(blobs: dict[str, str], data: dict[str, Any], *, inline: bool = False) -> str:
    """Fill in the template in one pass, so that no text is mistaken for a placeholder."""
    assets = files("triform.explain")
    template, *sheets = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", *STYLE_SHEETS))
    style = read_style_sheet("theme.css") + "".join(sheets)
    if inline:
        style += selectable_themes(style)
    script = bundle_scripts([assets.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS])
    policy = (
        f"default-src 'none'; script-src '{_csp_hash(script)}'; style-src '{_csp_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "class": "inline" if inline else "",
        "policy": policy,
        "title": escape(data["title"].encode("utf-8", "replace").decode("utf-8")),
        "style": style,
        "script": script,
        "data": _escape_json(data),
        "blobs": "\n".join(_blob_tags(blobs)),
        "version": escape(__version__),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def bundle_scripts(modules: Sequence[str]) -> str:
    """Join modules that import from the ones before them into one classic script, without imports and exports."""
    joined = "".join(modules)
    return "'use strict';\n" + re.sub(r"^(import .*\n|export )", "", joined, flags=re.MULTILINE)


def _blob_tags(blobs: dict[str, str]) -> Iterator[str]:
    return (f'<script type="text/plain" id="{name}">{blob}</script>' for name, blob in blobs.items())


def _escape_json(data: dict[str, Any]) -> str:
    """Return ASCII JSON that is safe inside a script tag. Other characters are escaped."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
