"""Draw the attention maps of a result of `triform reproduce` as a standalone SVG file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

CELL_SIZE, PANEL_GAP, LETTER_WIDTH = 13, 16, 7  # pixels
STYLE = "text{font:11px system-ui,sans-serif;fill:#5b606b}.paper{fill:#fff}.cell{fill:#2348b0}.none{fill:#e6dfd3}"


def render_attention_maps(attention: Mapping[str, Any], title: str) -> str:
    """Draw attention weights: one row of panels per layer, one panel per head, darker cells for larger weights.

    Positions that no head attends to are masked and have a separate colour.

    Args:
        attention: Tokens (`queries`, `keys`), `weights` of shape (L, H, T, S), and `heads`, which is "each" for
            maps of single heads and "mean" for their mean.
        title: The title that screen readers announce.
    """
    weights = np.array(attention["weights"])
    # Weights are rounded: a zero in one head may be a small weight, but a zero in every head is a masked position.
    visible_weights = np.where((weights == 0).all(axis=(0, 1)), np.nan, weights)
    layers, heads, rows, columns = weights.shape
    label_width = 8 + LETTER_WIDTH * max(len(token) for token in attention["queries"])
    label_height = 8 + LETTER_WIDTH * max(len(token) for token in attention["keys"])
    panel_width, panel_height = columns * CELL_SIZE + PANEL_GAP, rows * CELL_SIZE + PANEL_GAP
    width, height = label_width + heads * panel_width, 20 + layers * panel_height + label_height
    elements = []
    for layer, head in np.ndindex(layers, heads):
        x, y = label_width + head * panel_width, 20 + layer * panel_height
        name = f"layer {layer + 1}" + (f", head {head + 1}" if attention["heads"] == "each" else "")
        elements.append(f'<text x="{x}" y="{y - 4}">{name}</text>')
        elements += [
            _render_cell(
                x + column * CELL_SIZE, y + row * CELL_SIZE, float(visible_weights[layer, head, row, column])
            )
            for row, column in np.ndindex(rows, columns)
        ]
    for layer in range(layers):
        for row, token in enumerate(attention["queries"]):
            y = 20 + layer * panel_height + row * CELL_SIZE + CELL_SIZE - 3
            elements.append(f'<text x="{label_width - 4}" y="{y}" text-anchor="end">{escape(token)}</text>')
    labels_top = 20 + layers * panel_height - PANEL_GAP + 6
    for head in range(heads):
        for column, token in enumerate(attention["keys"]):
            x = label_width + head * panel_width + column * CELL_SIZE + 4
            elements.append(f'<text transform="translate({x} {labels_top}) rotate(90)">{escape(token)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{width}" height="{height}"/>\n' + "\n".join(elements) + "\n</svg>\n"
    )


def _render_cell(x: int, y: int, weight: float) -> str:
    size = CELL_SIZE - 1
    if math.isnan(weight):
        return f'<rect class="none" x="{x}" y="{y}" width="{size}" height="{size}"/>'
    opacity = f'fill-opacity="{0.05 + 0.95 * weight:.2f}"'
    return f'<rect class="cell" x="{x}" y="{y}" width="{size}" height="{size}" {opacity}/>'
