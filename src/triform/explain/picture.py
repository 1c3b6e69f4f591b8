"""Attention as a picture for a report: a grid of layers by heads for each map, in one PNG or SVG file.

Of a classifier that attends to nothing: how much each token speaks for the label.
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

    from triform.explain.maps import AttentionMap, Attribution, Explanation

# One hue from light to dark: its order survives grey printing and every kind of colour blindness.
RAMP = ("#f4f6fb", "#b7cff5", "#5a8dee", "#2348b0", "#0a1a5c")
ZERO = "#e6dfd3"  # what may not be read: warm, so that it is no step of the ramp
UP, DOWN = "#2f62d0", "#d9731f"  # what speaks for a label, and against it
INK, SOFT, LINE = "#1b1e25", "#5b606b", "#cfd3dc"
FONT: Any = {"font.family": "DejaVu Sans", "svg.fonttype": "none", "svg.hashsalt": "triform", "text.usetex": False}
HEADINGS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention: what is written (rows) reads the source (columns)",
}

# Inches, as matplotlib counts.
LARGEST = (22.0, 30.0)  # no picture is larger, however many layers and heads
PITCH = 0.165  # of one labelled token
TIGHTEST = 0.115  # below this pitch labels would touch
PANEL = (1.3, 4.6)  # longer side of a panel: from, to
GAP = 0.1
STRIP = (3.2, 1.3)  # least width, and height, of the bars of an attribution
LETTER = 0.066  # width of a letter in a tick label
LONGEST_PIECE = 14
LINE_HEIGHT = 0.22
MOST_LINES = 3  # of a long text


@dataclass(frozen=True, kw_only=True)
class Block:
    """Where one map's grid goes: panel size and room for labels, in inches."""

    map: AttentionMap
    width: float  # of one panel
    height: float

    @property
    def queries(self) -> dict[int, str]:
        """The labels of the rows, by place."""
        return _labels(self.map.queries, self.height)

    @property
    def keys(self) -> dict[int, str]:
        return _labels(self.map.keys, self.width)

    @property
    def left(self) -> float:
        return 0.55 + _room(self.queries.values())

    @property
    def below(self) -> float:
        return 0.2 + _room(self.keys.values())

    @property
    def above(self) -> float:
        return 0.72  # the heading and the names of the heads

    @property
    def grid(self) -> tuple[float, float]:
        layers, heads = self.map.n_layers, self.map.n_heads
        return heads * (self.width + GAP) - GAP, layers * (self.height + GAP) - GAP

    @property
    def size(self) -> tuple[float, float]:
        wide, tall = self.grid
        return self.left + wide, self.above + tall + self.below


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Where the bars of one attribution go, in inches."""

    attribution: Attribution
    left: float = 0.85
    above: float = 0.72  # the heading and what up and down mean

    @property
    def width(self) -> float:
        return min(max(STRIP[0], PITCH * len(self.attribution.pieces)), LARGEST[0] - 2)

    @property
    def keys(self) -> dict[int, str]:
        return _labels(self.attribution.pieces, self.width)

    @property
    def size(self) -> tuple[float, float]:
        return self.left + self.width, self.above + STRIP[1] + 0.2 + _room(self.keys.values())


def draw(explanation: Explanation, path: Path, *, kind: str = "png", dpi: int = 160) -> None:
    """Draw an explanation into one file of that kind ("png" or "svg")."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context(FONT):
        # A script that the font lacks is drawn as boxes: a poorer picture, but no reason to fail or to complain.
        warnings.filterwarnings("ignore", message=r".*missing from font", category=UserWarning)
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support", category=UserWarning)
        figure = lay_out(explanation)
        metadata = {"Date": None} if kind == "svg" else None  # the same picture is the same file
        figure.savefig(path, format=kind, dpi=dpi, facecolor="white", metadata=metadata)


def lay_out(explanation: Explanation) -> Figure:
    """The figure: title, then the maps from top to bottom, each a grid; one colour bar for all.

    Without any map there are the attributions instead.
    """
    from matplotlib.figure import Figure

    blocks = [_block(each, share=len(explanation.maps)) for each in explanation.maps]
    strips = [Strip(attribution=each) for each in explanation.attributions if each.pieces and not blocks]
    bar, edge = 0.95, 0.3
    width = max([4.2, *(block.size[0] + bar for block in blocks), *(strip.size[0] for strip in strips)]) + edge
    lines = _lines(explanation, room=int((width - 2 * edge) / 0.08))
    head = 0.58 + LINE_HEIGHT * len(lines)
    height = head + sum(block.size[1] for block in blocks) + sum(strip.size[1] for strip in strips) + edge
    figure = Figure(figsize=(width, height))
    for row, line in enumerate(lines):  # the title first
        how: Any = (
            {"fontsize": 13, "fontweight": "bold", "color": INK} if not row else {"fontsize": 9, "color": SOFT}
        )
        figure.text(edge / width, 1 - (0.4 + LINE_HEIGHT * row + 0.04 * bool(row)) / height, line, **how)
    top = height - head
    for block in blocks:
        _draw_block(figure, block, top)
        top -= block.size[1]
    for strip in strips:
        _draw_strip(figure, strip, top)
        top -= strip.size[1]
    if blocks:
        tall = min(2.4, blocks[0].grid[1])
        left, bottom = max(block.size[0] for block in blocks) + 0.2, height - head - blocks[0].above - tall
        _draw_bar(figure, (left, bottom, 0.13, tall))
        if any(bool((block.map.weights == 0).any()) for block in blocks):
            _draw_zero(figure, left, bottom - 0.28)
    elif not strips:
        figure.text(edge / width, edge / height, "no attention was recorded", color=SOFT, fontsize=9)
    return figure


def readable(piece: str, most: int = LONGEST_PIECE) -> str:
    """A piece as a label: one line, printable, not long, and plain to matplotlib, where `$` begins a formula."""
    text = piece.replace("\r\n", "⏎").replace("\n", "⏎").replace("\t", "⇥")
    text = " ".join(text.split()) or "·" * min(len(text), 3)
    drawn = (each for each in text if unicodedata.category(each) != "Cf")  # joiners and marks of direction
    text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in drawn) or "∅"
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text.replace("$", r"\$")


def _block(shown: AttentionMap, *, share: int) -> Block:
    """Panels large enough for their labels, as long as the picture stays within bounds."""
    t, s = len(shown.queries), len(shown.keys)
    longer = max(t, s)
    side = min(max(longer * PITCH, PANEL[0]), PANEL[1])
    most_wide = (LARGEST[0] - 3.2) / shown.n_heads - GAP
    most_tall = (LARGEST[1] / share - 3.0) / shown.n_layers - GAP
    wide, tall = (max(n / longer, 0.3) for n in (s, t))  # a map far from square is squeezed, not drawn as a thread
    side = min(side, most_wide / wide, most_tall / tall)
    return Block(map=shown, width=side * wide, height=side * tall)


def _labels(pieces: Sequence[str], length: float) -> dict[int, str]:
    """A label for every piece along an axis or, where they would touch, for every n-th, with its number."""
    every = max(math.ceil(TIGHTEST * len(pieces) / length - 1e-9), 1)
    chosen = ((i, readable(pieces[i])) for i in range(0, len(pieces), every))
    return {i: f"{i + 1} {label}" if every > 1 else label for i, label in chosen}


def _room(labels: Iterable[str]) -> float:
    return LETTER * max(len(label) for label in labels) + 0.05


def _lines(explanation: Explanation, room: int) -> list[str]:
    """What stands above the maps: title, text, output, notes; apart, for a text may run from right to left."""
    lines = [readable(explanation.title, int(room * 0.75)), *_wrapped(explanation.text, room)]
    lines += [f"→ {line}" if not row else line for row, line in enumerate(_wrapped(explanation.output, room - 2))]
    return lines + [line for note in explanation.notes for line in _wrapped(note, room)]


def _wrapped(text: str, room: int) -> list[str]:
    if text and not text.strip():
        text = "only white space: " + "".join({"\n": "⏎", "\t": "⇥"}.get(each, "·") for each in text)
    lines = textwrap.wrap(text, room, max_lines=MOST_LINES, placeholder=" …")
    return [readable(line, room) for line in lines]


def _draw_block(figure: Figure, block: Block, top: float) -> None:
    width, height = figure.get_size_inches()
    shown = block.map
    heading = HEADINGS.get(shown.name, readable(shown.name, 60))
    room = int((width - 0.6) / 0.082)
    heading = heading if len(heading) <= room else heading.partition(":")[0]
    figure.text(0.3 / width, (top - 0.3) / height, heading, fontsize=10, fontweight="bold", color=INK)
    for layer in range(shown.n_layers):
        bottom = top - block.above - layer * (block.height + GAP) - block.height
        middle = (bottom + block.height / 2) / height
        name: Any = {"va": "center", "ha": "center", "fontsize": 8, "color": SOFT}
        figure.text(0.4 / width, middle, f"layer {layer + 1}", rotation=90, **name)
        for head in range(shown.n_heads):
            left = block.left + head * (block.width + GAP)
            place = (left / width, bottom / height, block.width / width, block.height / height)
            _draw_panel(figure.add_axes(place), block, layer, head)


def _draw_panel(axes: Any, block: Block, layer: int, head: int) -> None:
    shown = block.map
    axes.imshow(np.ma.masked_equal(shown.weights[layer, head], 0), cmap=_colours(), norm=_scale(), aspect="auto")
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.6)
    axes.set(xticks=[], yticks=[])
    if layer == 0:
        axes.set_title(f"head {head + 1}", fontsize=8, color=SOFT, pad=4)
    labels = {"fontsize": 7, "color": INK, "family": FONT["font.family"]}
    if head == 0:
        axes.set_yticks(list(block.queries), list(block.queries.values()), **labels)
    if layer == shown.n_layers - 1:
        axes.set_xticks(list(block.keys), list(block.keys.values()), rotation=90, **labels)
    axes.tick_params(length=0, pad=3)


def _draw_strip(figure: Figure, strip: Strip, top: float) -> None:
    width, height = figure.get_size_inches()
    shown = strip.attribution
    heading = readable(f"{shown.method}, score of {shown.label}", int((width - 0.6) / 0.082))
    figure.text(0.3 / width, (top - 0.3) / height, heading, fontsize=10, fontweight="bold", color=INK)
    figure.text(0.3 / width, (top - 0.5) / height, "up: speaks for it; down: against it", fontsize=8, color=SOFT)
    bottom = top - strip.above - STRIP[1]
    axes: Any = figure.add_axes((strip.left / width, bottom / height, strip.width / width, STRIP[1] / height))
    axes.bar(range(len(shown.values)), shown.values, color=[UP if value > 0 else DOWN for value in shown.values])
    axes.axhline(0, color=INK, linewidth=0.6)
    most = max(1e-6, *map(abs, shown.values))  # what is less was rounded
    axes.set(xlim=(-0.5, len(shown.values) - 0.5), ylim=(-1.05 * most, 1.05 * most))
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set(color=LINE, linewidth=0.6)
    labels: Any = {"fontsize": 7, "color": INK, "family": FONT["font.family"]}
    axes.set_xticks(list(strip.keys), list(strip.keys.values()), rotation=90, **labels)
    axes.set_yticks([-most, 0, most], [f"{-most:.2g}", "0", f"{most:+.2g}"], **labels)
    axes.tick_params(length=0, pad=3)


def _draw_bar(figure: Figure, place: tuple[float, float, float, float]) -> None:
    from matplotlib.cm import ScalarMappable

    width, height = figure.get_size_inches()
    axes = figure.add_axes((place[0] / width, place[1] / height, place[2] / width, place[3] / height), label="bar")
    bar = figure.colorbar(ScalarMappable(norm=_scale(), cmap=_colours()), cax=axes)
    bar.set_ticks([0, 0.05, 0.25, 0.5, 1], labels=["0", "0.05", "0.25", "0.5", "1"])
    bar.ax.tick_params(labelsize=7, labelcolor=INK, length=2, color=LINE)
    bar.ax.set_title("weight", fontsize=8, color=SOFT, pad=6)
    bar.outline.set(edgecolor=LINE, linewidth=0.6)


def _draw_zero(figure: Figure, left: float, bottom: float) -> None:
    """What the colour of an exact zero means."""
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    box = Rectangle((left / width, bottom / height), 0.13 / width, 0.13 / height, transform=figure.transFigure)
    box.set(facecolor=ZERO, edgecolor=LINE, linewidth=0.6)
    figure.add_artist(box)
    place = ((left + 0.19) / width, (bottom + 0.065) / height)
    figure.text(*place, "0: not read", fontsize=7, color=INK, va="center")


def _colours() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("attention", RAMP).with_extremes(bad=ZERO)  # zeros are masked


def _scale() -> Any:
    """Zero to one for every panel, stretched at the low end, where the weights of a long text are."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0, vmax=1)
