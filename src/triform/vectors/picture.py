"""Word vectors as a map: their two main directions, a dot a word, and labels that leave one another room."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triform.errors import CheckpointError, ConfigError
from triform.vectors.table import WordVectors

KINDS = ("png", "svg")
SIZE = (12.0, 9.0)  # inches
DPI = 120
# Told apart by every kind of colour blindness, and dark enough for text on white (after Okabe and Ito).
COLOURS = ("#0059a0", "#b3400a", "#007a58", "#8a3f70", "#7a5c00", "#1b1e25", "#4d4dff", "#7f2020")
FONT: Any = {"font.family": "DejaVu Sans", "svg.fonttype": "none", "svg.hashsalt": "triform", "text.usetex": False}
GAP = 2.0  # points between a dot and its label
FAR = 10.0  # points, beyond which a line leads from one to the other


class Chosen(NamedTuple):
    """A word of the map, and the group that gives its colour."""

    word: str
    group: int


class Box(NamedTuple):
    """Where something lies on the picture, in its dots."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.top <= other.bottom or other.top <= self.bottom)


def choose(vectors: WordVectors, around: Sequence[str], most: int) -> list[Chosen]:
    """The words given, each with its nearest, a group each; without any, the most frequent words."""
    if most < 2:
        raise ConfigError(f"--most {most}: a map needs at least 2 words")
    if not around:
        words = [word for word in vectors.words if word[0].isalpha()][:most]
        return [Chosen(word, 0) for word in words]
    each = max(1, most // len(around)) - 1
    found: dict[str, int] = dict(zip(around, range(len(around)), strict=True))
    for group, word in enumerate(around):
        near = vectors.nearest(word, each) if each else []
        found |= {other: group for other, _ in near if other not in found}
    return [Chosen(word, group) for word, group in found.items()]


def flatten(rows: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows in the plane of their two main directions, (n, D) -> (n, 2), and what share of their spread each has."""
    centred = rows.astype(np.float64) - rows.mean(axis=0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    flip = np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])  # the same picture every time
    places = np.zeros((len(rows), 2))
    n = min(2, len(sizes))
    places[:, :n] = (left * sizes * flip)[:, :n]
    shares = np.zeros(2)
    shares[:n] = (sizes**2 / max(float((sizes**2).sum()), 1e-300))[:n]
    return places, shares


def draw(vectors: WordVectors, path: Path, around: Sequence[str] = (), most: int = 100) -> int:
    """Draw a map into a .png or .svg file; how many of its words are labelled."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise ConfigError(f"{path}: a map is a picture; let its name end in .png or .svg")
    chosen = choose(vectors, around, most)
    if len(chosen) < 2:
        raise ConfigError("a map needs at least 2 words; these vectors have fewer")
    places, shares = flatten(vectors.unit[[vectors.place(each.word) for each in chosen]])
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with warnings.catch_warnings(), matplotlib.rc_context(FONT):
        # A script that the font lacks is drawn as boxes: a poorer picture, but no reason to fail or to complain.
        warnings.filterwarnings("ignore", message=r".*missing from font", category=UserWarning)
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support", category=UserWarning)
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.margins(0.06)
        axes.scatter(
            places[:, 0], places[:, 1], s=9, c=[COLOURS[each.group % len(COLOURS)] for each in chosen], linewidths=0
        )
        axes.set(xlabel=f"first direction, {shares[0]:.0%} of the spread", ylabel=f"second, {shares[1]:.0%}")
        axes.set_title(f"{len(chosen)} of {len(vectors):,} words", loc="left", fontsize=11)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        labelled = _label(figure, axes, places, chosen, set(around))
        metadata = {"Date": None} if kind == "svg" else None  # the same picture is the same file
        try:
            figure.savefig(path, format=kind, facecolor="white", metadata=metadata)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written ({error.strerror or error})") from None
    return labelled


def _label(figure: Any, axes: Any, places: NDArray[Any], chosen: Sequence[Chosen], bold: set[str]) -> int:
    """Write each word beside its dot where nothing is yet; what finds no room nearby stays a dot."""
    figure.draw_without_rendering()  # now it is known where on the picture things lie
    renderer, point = figure.canvas.get_renderer(), figure.dpi / 72
    dots = axes.transData.transform(places)
    frame = Box(*axes.get_window_extent().extents)
    taken = [Box(x - 2 * point, y - 2 * point, x + 2 * point, y + 2 * point) for x, y in dots]
    labelled = 0
    for own, (each, (x, y)) in enumerate(zip(chosen, dots, strict=True)):
        weight = "bold" if each.word in bold else "normal"
        colour = COLOURS[each.group % len(COLOURS)]
        text = axes.text(0, 0, each.word, fontsize=8, fontweight=weight, color=colour, parse_math=False)
        size = text.get_window_extent(renderer)
        for box in _around(x, y, size.width, size.height, GAP * point):
            others = taken[:own] + taken[own + 1 :]
            within = box.left >= frame.left and box.right <= frame.right
            if within and frame.bottom <= box.bottom and box.top <= frame.top and not any(map(box.meets, others)):
                text.set_position(axes.transData.inverted().transform((box.left, box.bottom)))
                text.set_verticalalignment("bottom")
                if _distance(box, x, y) > FAR * point:
                    _lead(axes, (x, y), box, colour)
                taken.append(box)
                labelled += 1
                break
        else:
            text.remove()
    return labelled


def _around(x: float, y: float, width: float, height: float, gap: float) -> Iterator[Box]:
    """Places for a label: right of the dot, left, above, below, at the corners; then farther and farther away."""
    for away in (gap, 2.5 * gap, 4.5 * gap, 8 * gap, 13 * gap, 20 * gap, 30 * gap):
        left, down = -away - width, -away - height
        offsets = [
            (away, -height / 2),
            (left, -height / 2),
            (-width / 2, away),
            (-width / 2, down),
            (away, away),
            (left, away),
            (away, down),
            (left, down),
            (away, away / 2),
            (left, away / 2),
            (away, down / 2),
            (left, down / 2),
        ]
        for dx, dy in offsets:
            yield Box(x + dx, y + dy, x + dx + width, y + dy + height)


def _distance(box: Box, x: float, y: float) -> float:
    return max(box.left - x, x - box.right, box.bottom - y, y - box.top)


def _lead(axes: Any, dot: tuple[float, float], box: Box, colour: str) -> None:
    """A thin line from a dot to its label, which stands far from it."""
    x, y = dot
    end = (min(max(x, box.left), box.right), min(max(y, box.bottom), box.top))
    ends = axes.transData.inverted().transform([dot, end])
    axes.plot(*ends.T, color=colour, linewidth=0.4, alpha=0.6, zorder=0)
