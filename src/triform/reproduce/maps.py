"""Where the models of a system look: attention of one text, kept in its outcome and drawn from there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from triform.run import Run

CELL, GAP, LETTER = 13, 16, 7  # pixels: a weight, between panels, a letter of a label
MOST_HEADS = 4  # where a layer has more, their mean is kept
STACKS = {"classify": "encoder", "generate": "decoder", "translate": "cross"}
STYLE = "text{font:11px system-ui,sans-serif;fill:#5b606b}.paper{fill:#fff}.cell{fill:#2348b0}.none{fill:#e6dfd3}"


def looked(run: Run, text: str) -> dict[str, Any]:
    """The map of a text that tells most of the task, rounded: (L, H, T, S)."""
    found = next(each for each in run.explain(text).maps if each.name == STACKS[run.config.task])
    weights = found.weights if found.n_heads <= MOST_HEADS else found.average()[:, None]
    return {
        "stack": found.name,
        "heads": "each" if found.n_heads <= MOST_HEADS else "mean",
        "queries": list(found.queries),
        "keys": list(found.keys),
        "weights": np.round(weights.astype(np.float64), 3).tolist(),
    }


def drawn(seen: Mapping[str, Any], title: str) -> str:
    """Layers down, heads across; the darker, the more is read; what no head ever reads has a tint of its own."""
    weights = np.array(seen["weights"])
    # weights are rounded: what one head does not read may be read a little, what none reads is out of reach
    shades = np.where((weights == 0).all(axis=(0, 1)), np.nan, weights)
    layers, heads, rows, columns = weights.shape
    left = 8 + LETTER * max(len(piece) for piece in seen["queries"])
    below = 8 + LETTER * max(len(piece) for piece in seen["keys"])
    wide, tall = columns * CELL + GAP, rows * CELL + GAP
    width, height = left + heads * wide, 20 + layers * tall + below
    parts = []
    for layer, head in np.ndindex(layers, heads):
        x, y = left + head * wide, 20 + layer * tall
        name = f"layer {layer + 1}" + (f", head {head + 1}" if seen["heads"] == "each" else "")
        parts.append(f'<text x="{x}" y="{y - 4}">{name}</text>')
        parts += [
            _cell(x + column * CELL, y + row * CELL, float(shades[layer, head, row, column]))
            for row, column in np.ndindex(rows, columns)
        ]
    for layer in range(layers):
        for row, piece in enumerate(seen["queries"]):
            y = 20 + layer * tall + row * CELL + CELL - 3
            parts.append(f'<text x="{left - 4}" y="{y}" text-anchor="end">{escape(piece)}</text>')
    bottom = 20 + layers * tall - GAP + 6
    for head in range(heads):
        for column, piece in enumerate(seen["keys"]):
            x = left + head * wide + column * CELL + 4
            parts.append(f'<text transform="translate({x} {bottom}) rotate(90)">{escape(piece)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{width}" height="{height}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _cell(x: int, y: int, weight: float) -> str:
    size = CELL - 1
    if math.isnan(weight):
        return f'<rect class="none" x="{x}" y="{y}" width="{size}" height="{size}"/>'
    shade = f'fill-opacity="{0.05 + 0.95 * weight:.2f}"'
    return f'<rect class="cell" x="{x}" y="{y}" width="{size}" height="{size}" {shade}/>'
