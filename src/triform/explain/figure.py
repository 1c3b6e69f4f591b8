"""Draw an explanation as one PNG or SVG file: for each attention map a grid of layers × heads.

For a classifier without attention, the picture shows the attributions of the tokens instead.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from triform.explain.attention_maps import AttentionMap, Attribution, Explanation

# One hue from light to dark, which is readable in greyscale and with colour blindness.
COLORMAP_COLORS = ("#f4f6fb", "#b7cff5", "#5a8dee", "#2348b0", "#0a1a5c")
MASKED_COLOR = "#e6dfd3"  # masked keys; a warm colour, so that it is not mistaken for a weight
POSITIVE_COLOR, NEGATIVE_COLOR = "#2f62d0", "#d9731f"  # tokens that raise and lower the logit of a label
TEXT_COLOR, MUTED_COLOR, LINE_COLOR = "#1b1e25", "#5b606b", "#cfd3dc"
RC_PARAMS: Any = {
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "svg.hashsalt": "triform",
    "text.usetex": False,
}
HEADINGS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention: target (rows) reads source (columns)",
}

# Sizes are in inches, the unit of matplotlib.
MAX_FIGURE_SIZE = (22.0, 30.0)  # for any number of layers and heads
TOKEN_PITCH = 0.165  # space for one labelled token
MIN_TOKEN_PITCH = 0.115  # at a smaller pitch labels would overlap
PANEL_SIZE_RANGE = (1.3, 4.6)  # minimum and maximum of the longer side of a panel
PANEL_GAP = 0.1
MIN_BARS_SIZE = (3.2, 1.3)  # minimum width and the height of the bar chart of an attribution
CHARACTER_WIDTH = 0.066  # average width of a character in a tick label
MAX_LABEL_CHARS = 14
LINE_HEIGHT = 0.22
MAX_TEXT_LINES = 3  # shown of a long text


@dataclass(frozen=True, kw_only=True)
class MapLayout:
    """The layout of one map: size of its panels and margins for labels, in inches."""

    attention_map: AttentionMap
    panel_width: float  # of one panel
    panel_height: float

    @property
    def query_labels(self) -> dict[int, str]:
        """The labels of the rows, by index."""
        return _axis_labels(self.attention_map.queries, self.panel_height)

    @property
    def key_labels(self) -> dict[int, str]:
        """The labels of the columns, by index."""
        return _axis_labels(self.attention_map.keys, self.panel_width)

    @property
    def left_margin(self) -> float:
        """The space for the layer names and query labels."""
        return 0.55 + _label_space(self.query_labels.values())

    @property
    def bottom_margin(self) -> float:
        """The space for the key labels."""
        return 0.2 + _label_space(self.key_labels.values())

    @property
    def top_margin(self) -> float:
        """The space for the heading and the names of the heads."""
        return 0.72

    @property
    def grid_size(self) -> tuple[float, float]:
        """The width and height of all panels with the gaps between them."""
        n_layers, n_heads = self.attention_map.n_layers, self.attention_map.n_heads
        return n_heads * (self.panel_width + PANEL_GAP) - PANEL_GAP, n_layers * (
            self.panel_height + PANEL_GAP
        ) - PANEL_GAP

    @property
    def size(self) -> tuple[float, float]:
        """The width and height of the map with its margins."""
        grid_width, grid_height = self.grid_size
        return self.left_margin + grid_width, self.top_margin + grid_height + self.bottom_margin


@dataclass(frozen=True, kw_only=True)
class BarsLayout:
    """The layout of the bar chart of one attribution, in inches."""

    attribution: Attribution
    left_margin: float = 0.85
    top_margin: float = 0.72  # the heading and the explanation of the bars

    @property
    def width(self) -> float:
        """The width of the bar chart without margins."""
        return min(max(MIN_BARS_SIZE[0], TOKEN_PITCH * len(self.attribution.pieces)), MAX_FIGURE_SIZE[0] - 2)

    @property
    def piece_labels(self) -> dict[int, str]:
        """The labels of the bars, by index."""
        return _axis_labels(self.attribution.pieces, self.width)

    @property
    def size(self) -> tuple[float, float]:
        """The width and height of the chart with its margins."""
        return self.left_margin + self.width, self.top_margin + MIN_BARS_SIZE[1] + 0.2 + _label_space(
            self.piece_labels.values()
        )


def save_figure(explanation: Explanation, path: Path, *, file_format: str = "png", dpi: int = 160) -> None:
    """Draw an explanation and write it to a file of the format "png" or "svg"."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context(RC_PARAMS):
        # Characters that the font does not have are drawn as boxes. This does not need a warning.
        warnings.filterwarnings("ignore", message=r".*missing from font", category=UserWarning)
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support", category=UserWarning)
        figure = build_figure(explanation)
        metadata = (
            {"Date": None} if file_format == "svg" else None
        )  # without a date, equal pictures are equal files
        figure.savefig(path, format=file_format, dpi=dpi, facecolor="white", metadata=metadata)


def build_figure(explanation: Explanation) -> Figure:
    """Return the figure: the title, one grid for each map, and a common colour bar.

    Without maps, it shows the attributions instead.
    """
    from matplotlib.figure import Figure

    map_layouts = [_layout_map(item, n_maps=len(explanation.maps)) for item in explanation.maps]
    bar_layouts = [
        BarsLayout(attribution=item) for item in explanation.attributions if item.pieces and not map_layouts
    ]
    colorbar_width, margin = 0.95, 0.3
    width = (
        max(
            [
                4.2,
                *(layout.size[0] + colorbar_width for layout in map_layouts),
                *(bar_layout.size[0] for bar_layout in bar_layouts),
            ]
        )
        + margin
    )
    lines = _header_lines(explanation, max_chars=int((width - 2 * margin) / 0.08))
    header_height = 0.58 + LINE_HEIGHT * len(lines)
    height = (
        header_height
        + sum(layout.size[1] for layout in map_layouts)
        + sum(bar_layout.size[1] for bar_layout in bar_layouts)
        + margin
    )
    figure = Figure(figsize=(width, height))
    for row, line in enumerate(lines):  # starts with the title
        text_style: Any = (
            {"fontsize": 13, "fontweight": "bold", "color": TEXT_COLOR}
            if not row
            else {"fontsize": 9, "color": MUTED_COLOR}
        )
        figure.text(margin / width, 1 - (0.4 + LINE_HEIGHT * row + 0.04 * bool(row)) / height, line, **text_style)
    top = height - header_height
    for layout in map_layouts:
        _draw_map(figure, layout, top)
        top -= layout.size[1]
    for bar_layout in bar_layouts:
        _draw_bars(figure, bar_layout, top)
        top -= bar_layout.size[1]
    if map_layouts:
        colorbar_height = min(2.4, map_layouts[0].grid_size[1])
        left, bottom = (
            max(layout.size[0] for layout in map_layouts) + 0.2,
            height - header_height - map_layouts[0].top_margin - colorbar_height,
        )
        _draw_colorbar(figure, (left, bottom, 0.13, colorbar_height))
        if any(bool((layout.attention_map.weights == 0).any()) for layout in map_layouts):
            _draw_masked_legend(figure, left, bottom - 0.28)
    elif not bar_layouts:
        figure.text(margin / width, margin / height, "no attention was recorded", color=MUTED_COLOR, fontsize=9)
    return figure


def format_label(piece: str, max_chars: int = MAX_LABEL_CHARS) -> str:
    """Return a piece as a short, printable label of one line, with `$` escaped for matplotlib."""
    text = piece.replace("\r\n", "⏎").replace("\n", "⏎").replace("\t", "⇥")
    text = " ".join(text.split()) or "·" * min(len(text), 3)
    # Leave out joiners and direction marks.
    visible = (character for character in text if unicodedata.category(character) != "Cf")
    text = (
        "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in visible)
        or "∅"
    )
    text = text if len(text) <= max_chars else text[: max_chars - 1] + "…"
    return text.replace("$", r"\$")


def _layout_map(attention_map: AttentionMap, *, n_maps: int) -> MapLayout:
    """Choose a panel size that fits the labels, within the maximum size of the picture."""
    n_queries, n_keys = len(attention_map.queries), len(attention_map.keys)
    longest = max(n_queries, n_keys)
    side = min(max(longest * TOKEN_PITCH, PANEL_SIZE_RANGE[0]), PANEL_SIZE_RANGE[1])
    max_width = (MAX_FIGURE_SIZE[0] - 3.2) / attention_map.n_heads - PANEL_GAP
    max_height = (MAX_FIGURE_SIZE[1] / n_maps - 3.0) / attention_map.n_layers - PANEL_GAP
    # limit the aspect ratio of a very long or wide map
    width_ratio, height_ratio = (max(count / longest, 0.3) for count in (n_keys, n_queries))
    side = min(side, max_width / width_ratio, max_height / height_ratio)
    return MapLayout(attention_map=attention_map, panel_width=side * width_ratio, panel_height=side * height_ratio)


def _axis_labels(pieces: Sequence[str], length: float) -> dict[int, str]:
    """Return a label for every piece along an axis, or for every n-th with its number if labels would overlap."""
    stride = max(math.ceil(MIN_TOKEN_PITCH * len(pieces) / length - 1e-9), 1)
    labels = ((index, format_label(pieces[index])) for index in range(0, len(pieces), stride))
    return {index: f"{index + 1} {label}" if stride > 1 else label for index, label in labels}


def _label_space(labels: Iterable[str]) -> float:
    return CHARACTER_WIDTH * max(len(label) for label in labels) + 0.05


def _header_lines(explanation: Explanation, max_chars: int) -> list[str]:
    """Return the lines above the maps: title, text, output and notes. Each line may have its own text direction."""
    lines = [format_label(explanation.title, int(max_chars * 0.75)), *_wrap_text(explanation.text, max_chars)]
    lines += [
        f"→ {line}" if not row else line for row, line in enumerate(_wrap_text(explanation.output, max_chars - 2))
    ]
    return lines + [line for note in explanation.notes for line in _wrap_text(note, max_chars)]


def _wrap_text(text: str, max_chars: int) -> list[str]:
    if text and not text.strip():
        text = "only white space: " + "".join({"\n": "⏎", "\t": "⇥"}.get(character, "·") for character in text)
    lines = textwrap.wrap(text, max_chars, max_lines=MAX_TEXT_LINES, placeholder=" …")
    return [format_label(line, max_chars) for line in lines]


def _draw_map(figure: Figure, layout: MapLayout, top: float) -> None:
    width, height = figure.get_size_inches()
    attention_map = layout.attention_map
    heading = HEADINGS.get(attention_map.name, format_label(attention_map.name, 60))
    max_chars = int((width - 0.6) / 0.082)
    heading = heading if len(heading) <= max_chars else heading.partition(":")[0]
    figure.text(0.3 / width, (top - 0.3) / height, heading, fontsize=10, fontweight="bold", color=TEXT_COLOR)
    for layer in range(attention_map.n_layers):
        bottom = top - layout.top_margin - layer * (layout.panel_height + PANEL_GAP) - layout.panel_height
        middle = (bottom + layout.panel_height / 2) / height
        text_style: Any = {"va": "center", "ha": "center", "fontsize": 8, "color": MUTED_COLOR}
        figure.text(0.4 / width, middle, f"layer {layer + 1}", rotation=90, **text_style)
        for head in range(attention_map.n_heads):
            left = layout.left_margin + head * (layout.panel_width + PANEL_GAP)
            bounds = (left / width, bottom / height, layout.panel_width / width, layout.panel_height / height)
            _draw_panel(figure.add_axes(bounds), layout, layer, head)


def _draw_panel(axes: Any, layout: MapLayout, layer: int, head: int) -> None:
    attention_map = layout.attention_map
    axes.imshow(
        np.ma.masked_equal(attention_map.weights[layer, head], 0),
        cmap=_build_colormap(),
        norm=_build_norm(),
        aspect="auto",
    )
    for spine in axes.spines.values():
        spine.set(color=LINE_COLOR, linewidth=0.6)
    axes.set(xticks=[], yticks=[])
    if layer == 0:
        axes.set_title(f"head {head + 1}", fontsize=8, color=MUTED_COLOR, pad=4)
    label_style = {"fontsize": 7, "color": TEXT_COLOR, "family": RC_PARAMS["font.family"]}
    if head == 0:
        axes.set_yticks(list(layout.query_labels), list(layout.query_labels.values()), **label_style)
    if layer == attention_map.n_layers - 1:
        axes.set_xticks(list(layout.key_labels), list(layout.key_labels.values()), rotation=90, **label_style)
    axes.tick_params(length=0, pad=3)


def _draw_bars(figure: Figure, layout: BarsLayout, top: float) -> None:
    width, height = figure.get_size_inches()
    attribution = layout.attribution
    heading = format_label(f"{attribution.method}, logit of {attribution.label}", int((width - 0.6) / 0.082))
    figure.text(0.3 / width, (top - 0.3) / height, heading, fontsize=10, fontweight="bold", color=TEXT_COLOR)
    figure.text(
        0.3 / width, (top - 0.5) / height, "up: raises the logit; down: lowers it", fontsize=8, color=MUTED_COLOR
    )
    bottom = top - layout.top_margin - MIN_BARS_SIZE[1]
    axes: Any = figure.add_axes(
        (layout.left_margin / width, bottom / height, layout.width / width, MIN_BARS_SIZE[1] / height)
    )
    axes.bar(
        range(len(attribution.values)),
        attribution.values,
        color=[POSITIVE_COLOR if value > 0 else NEGATIVE_COLOR for value in attribution.values],
    )
    axes.axhline(0, color=TEXT_COLOR, linewidth=0.6)
    max_value = max(1e-6, *map(abs, attribution.values))  # smaller values are rounding errors
    axes.set(xlim=(-0.5, len(attribution.values) - 0.5), ylim=(-1.05 * max_value, 1.05 * max_value))
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set(color=LINE_COLOR, linewidth=0.6)
    label_style: Any = {"fontsize": 7, "color": TEXT_COLOR, "family": RC_PARAMS["font.family"]}
    axes.set_xticks(list(layout.piece_labels), list(layout.piece_labels.values()), rotation=90, **label_style)
    axes.set_yticks([-max_value, 0, max_value], [f"{-max_value:.2g}", "0", f"{max_value:+.2g}"], **label_style)
    axes.tick_params(length=0, pad=3)


def _draw_colorbar(figure: Figure, bounds: tuple[float, float, float, float]) -> None:
    from matplotlib.cm import ScalarMappable

    width, height = figure.get_size_inches()
    axes = figure.add_axes(
        (bounds[0] / width, bounds[1] / height, bounds[2] / width, bounds[3] / height), label="bar"
    )
    colorbar = figure.colorbar(ScalarMappable(norm=_build_norm(), cmap=_build_colormap()), cax=axes)
    colorbar.set_ticks([0, 0.05, 0.25, 0.5, 1], labels=["0", "0.05", "0.25", "0.5", "1"])
    colorbar.ax.tick_params(labelsize=7, labelcolor=TEXT_COLOR, length=2, color=LINE_COLOR)
    colorbar.ax.set_title("weight", fontsize=8, color=MUTED_COLOR, pad=6)
    colorbar.outline.set(edgecolor=LINE_COLOR, linewidth=0.6)


def _draw_masked_legend(figure: Figure, left: float, bottom: float) -> None:
    """Draw the legend for keys with a weight of exactly zero."""
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    box = Rectangle((left / width, bottom / height), 0.13 / width, 0.13 / height, transform=figure.transFigure)
    box.set(facecolor=MASKED_COLOR, edgecolor=LINE_COLOR, linewidth=0.6)
    figure.add_artist(box)
    text_position = ((left + 0.19) / width, (bottom + 0.065) / height)
    figure.text(*text_position, "0: not read", fontsize=7, color=TEXT_COLOR, va="center")


def _build_colormap() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    # Zeros are masked.
    return LinearSegmentedColormap.from_list("attention", COLORMAP_COLORS).with_extremes(bad=MASKED_COLOR)


def _build_norm() -> Any:
    """Return the colour scale of all panels: from 0 to 1, with more contrast for small weights."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0, vmax=1)
