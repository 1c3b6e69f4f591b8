"""Draw word vectors as a map of their first two principal components, with one labelled dot per word."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triform.errors import CheckpointError, ConfigError, require_package
from triform.vectors.word_vectors import WordVectors

FIGURE_FORMATS = ("png", "svg")
FIGURE_SIZE = (12.0, 9.0)  # inches
DPI = 120
# Distinct for colour-blind readers, and dark enough for text on white (after Okabe and Ito).
COLOURS = ("#0059a0", "#b3400a", "#007a58", "#8a3f70", "#7a5c00", "#1b1e25", "#4d4dff", "#7f2020")
FONT_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "svg.hashsalt": "triform",
    "text.usetex": False,
}
LABEL_GAP = 2.0  # points between a dot and its label
LEADER_MIN_DISTANCE = 10.0  # points; beyond this a line connects the dot and its label


class MapPoint(NamedTuple):
    """A word of the map, and the group that determines its colour."""

    word: str
    group: int


class BoundingBox(NamedTuple):
    """A rectangle on the picture, in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: BoundingBox) -> bool:
        """Return whether two rectangles share any area."""
        separate = self.right <= other.left or other.right <= self.left
        return not (separate or self.top <= other.bottom or other.top <= self.bottom)


def choose_words(vectors: WordVectors, query_words: Sequence[str], max_words: int) -> list[MapPoint]:
    """Choose the given words, each in a group with its nearest words; without any, the most frequent words.

    Args:
        vectors: The word vectors.
        query_words: The words to show.
        max_words: The number of words on the map.

    Returns:
        The words with the index of their group.

    Raises:
        ConfigError: `max_words` is below 2.
        DataError: One of the words has no vector.
    """
    if max_words < 2:
        raise ConfigError(f"--max-words {max_words}: a map needs at least 2 words")
    if not query_words:
        words = [word for word in vectors.words if word[0].isalpha()][:max_words]
        return [MapPoint(word, 0) for word in words]
    n_neighbours = max(1, max_words // len(query_words)) - 1
    groups: dict[str, int] = dict(zip(query_words, range(len(query_words)), strict=True))
    for group, word in enumerate(query_words):
        neighbours = vectors.nearest(word, n_neighbours) if n_neighbours else []
        groups |= {neighbour: group for neighbour, _ in neighbours if neighbour not in groups}
    return [MapPoint(word, group) for word, group in groups.items()]


def pca_2d(rows: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Project rows onto two principal components, (n, D) -> (n, 2); also return their shares of the variance.

    Args:
        rows: One vector per row.

    Returns:
        The coordinates, (n, 2), and the share of the variance of both components, (2,).
    """
    centred = rows.astype(np.float64) - rows.mean(axis=0)
    u, singular_values, vt = np.linalg.svd(centred, full_matrices=False)
    # Fixed signs, so that the picture is always the same.
    signs = np.sign(vt[np.arange(len(vt)), np.abs(vt).argmax(axis=1)])
    coordinates = np.zeros((len(rows), 2))
    n = min(2, len(singular_values))
    coordinates[:, :n] = (u * singular_values * signs)[:, :n]
    explained_variance = np.zeros(2)
    explained_variance[:n] = (singular_values**2 / max(float((singular_values**2).sum()), 1e-300))[:n]
    return coordinates, explained_variance


def draw_map(vectors: WordVectors, path: Path, query_words: Sequence[str] = (), max_words: int = 100) -> int:
    """Draw a map into a .png or .svg file and return the number of words with a label.

    Args:
        vectors: The word vectors.
        path: The picture; the suffix is .png or .svg.
        query_words: The words to show with their neighbours; none: the most frequent words.
        max_words: The number of words on the map.

    Returns:
        The number of words that have a label; the others have only a dot.

    Raises:
        ConfigError: The suffix is another one, or there are fewer than two words.
        DataError: One of the words has no vector.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FIGURE_FORMATS:
        raise ConfigError(f"{path}: a map is a picture; the file name must end in .png or .svg")
    require_package("matplotlib", extra="plot", purpose="a map")
    points = choose_words(vectors, query_words, max_words)
    if len(points) < 2:
        raise ConfigError("a map needs at least 2 words, and these vectors have fewer")
    coordinates, explained_variance = pca_2d(
        vectors.unit_vectors[[vectors.index_of(point.word) for point in points]]
    )
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with warnings.catch_warnings(), matplotlib.rc_context(FONT_SETTINGS):
        # Characters that the font lacks are drawn as boxes, without a warning.
        warnings.filterwarnings("ignore", message=r".*missing from font", category=UserWarning)
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support", category=UserWarning)
        figure = Figure(figsize=FIGURE_SIZE, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.margins(0.06)
        axes.scatter(
            coordinates[:, 0],
            coordinates[:, 1],
            s=9,
            c=[COLOURS[point.group % len(COLOURS)] for point in points],
            linewidths=0,
        )
        axes.set(
            xlabel=f"first principal component, {explained_variance[0]:.0%} of the variance",
            ylabel=f"second principal component, {explained_variance[1]:.0%}",
        )
        axes.set_title(f"{len(points)} of {len(vectors):,} words", loc="left", fontsize=11)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        n_labelled = _draw_labels(figure, axes, coordinates, points, set(query_words))
        metadata = {"Date": None} if kind == "svg" else None  # so that equal pictures are equal files
        try:
            figure.savefig(path, format=kind, facecolor="white", metadata=metadata)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written ({error.strerror or error})") from None
    return n_labelled


def _draw_labels(
    figure: Any, axes: Any, coordinates: NDArray[Any], points: Sequence[MapPoint], bold: set[str]
) -> int:
    """Write each word next to its dot if there is space, and return the number of labels."""
    figure.draw_without_rendering()  # determines the positions
    renderer, pixels_per_point = figure.canvas.get_renderer(), figure.dpi / 72
    pixels = axes.transData.transform(coordinates)
    axes_box = BoundingBox(*axes.get_window_extent().extents)
    occupied = [
        BoundingBox(
            x - 2 * pixels_per_point, y - 2 * pixels_per_point, x + 2 * pixels_per_point, y + 2 * pixels_per_point
        )
        for x, y in pixels
    ]
    n_labelled = 0
    for index, (point, (x, y)) in enumerate(zip(points, pixels, strict=True)):
        weight = "bold" if point.word in bold else "normal"
        colour = COLOURS[point.group % len(COLOURS)]
        text = axes.text(0, 0, point.word, fontsize=8, fontweight=weight, color=colour, parse_math=False)
        size = text.get_window_extent(renderer)
        for box in _label_positions(x, y, size.width, size.height, LABEL_GAP * pixels_per_point):
            others = occupied[:index] + occupied[index + 1 :]
            inside = box.left >= axes_box.left and box.right <= axes_box.right
            if (
                inside
                and axes_box.bottom <= box.bottom
                and box.top <= axes_box.top
                and not any(map(box.overlaps, others))
            ):
                text.set_position(axes.transData.inverted().transform((box.left, box.bottom)))
                text.set_verticalalignment("bottom")
                if _distance_to_box(box, x, y) > LEADER_MIN_DISTANCE * pixels_per_point:
                    _draw_leader(axes, (x, y), box, colour)
                occupied.append(box)
                n_labelled += 1
                break
        else:
            text.remove()
    return n_labelled


def _label_positions(x: float, y: float, width: float, height: float, gap: float) -> Iterator[BoundingBox]:
    """Yield candidate positions of a label: right, left, above, below, at the corners, then farther away."""
    for distance in (gap, 2.5 * gap, 4.5 * gap, 8 * gap, 13 * gap, 20 * gap, 30 * gap):
        left, below = -distance - width, -distance - height
        offsets = [
            (distance, -height / 2),
            (left, -height / 2),
            (-width / 2, distance),
            (-width / 2, below),
            (distance, distance),
            (left, distance),
            (distance, below),
            (left, below),
            (distance, distance / 2),
            (left, distance / 2),
            (distance, below / 2),
            (left, below / 2),
        ]
        for dx, dy in offsets:
            yield BoundingBox(x + dx, y + dy, x + dx + width, y + dy + height)


def _distance_to_box(box: BoundingBox, x: float, y: float) -> float:
    return max(box.left - x, x - box.right, box.bottom - y, y - box.top)


def _draw_leader(axes: Any, dot: tuple[float, float], box: BoundingBox, colour: str) -> None:
    """Draw a thin line from a dot to its distant label."""
    x, y = dot
    end = (min(max(x, box.left), box.right), min(max(y, box.bottom), box.top))
    ends = axes.transData.inverted().transform([dot, end])
    axes.plot(*ends.T, color=colour, linewidth=0.4, alpha=0.6, zorder=0)
