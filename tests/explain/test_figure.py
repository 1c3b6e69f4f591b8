"""Attention as a picture: whole, bounded, and calm whatever the pieces hold."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from triform.explain.attention_maps import AttentionMap, Attribution, Explanation
from triform.explain.figure import (
    COLORMAP_COLORS,
    MASKED_COLOR,
    MAX_FIGURE_SIZE,
    MIN_TOKEN_PITCH,
    NEGATIVE_COLOR,
    POSITIVE_COLOR,
    build_figure,
    format_label,
)

ODD_PIECES = (
    "שלום",
    "日本",
    "👩‍🔬",
    "$x_1$",
    "$",
    "\n",
    "\t",
    " ",
    "",
    "\x00",
    "\u2028",
    "\ud800",
    "</svg>",
    "&",
    "\\",
    "a" * 99,
)


def uniform_map(
    name: str, n_layers: int, n_heads: int, queries: tuple[str, ...], keys: tuple[str, ...]
) -> AttentionMap:
    weights = np.full((n_layers, n_heads, len(queries), len(keys)), 1 / len(keys), dtype=np.float32)
    return AttentionMap(name=name, queries=queries, keys=keys, weights=weights)


def build_explanation(*maps: AttentionMap) -> Explanation:
    return Explanation(title="A $title$", text=" ".join(ODD_PIECES), output="out", maps=maps)


def test_a_png_has_its_signature_and_room_for_all(tmp_path: Path) -> None:
    pieces = tuple("abcde")
    path = build_explanation(uniform_map("encoder", 2, 3, pieces, pieces)).save(tmp_path / "map.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[offset : offset + 4], "big") for offset in (16, 20))
    assert width > 600
    assert height > 400


def test_an_svg_is_valid_xml_and_its_words_stay_words(tmp_path: Path) -> None:
    pieces = ("The", "cat", "日本")
    path = build_explanation(uniform_map("encoder", 1, 2, pieces, pieces)).save(tmp_path / "map.svg")
    root = ElementTree.parse(path).getroot()
    words = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert root.tag.endswith("svg")
    assert {"layer 1", "head 1", "head 2", "cat", "日本"} <= words


def test_the_same_explanation_gives_the_same_file(tmp_path: Path) -> None:
    explanation = build_explanation(uniform_map("encoder", 1, 2, ("a", "b"), ("a", "b")))
    for suffix in ("png", "svg"):
        first, second = (explanation.save(tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert first == second


def test_every_head_of_every_layer_of_every_map_has_a_panel() -> None:
    source, target = ("a", "b", "c"), ("x", "y")
    maps = (
        uniform_map("encoder", 2, 3, source, source),
        uniform_map("decoder", 1, 4, target, target),
        uniform_map("cross", 1, 4, target, source),
    )
    figure = build_figure(build_explanation(*maps))
    panels = [axes for axes in figure.axes if axes.get_images()]
    assert len(panels) == 2 * 3 + 4 + 4
    assert len(figure.axes) == len(panels) + 1  # one bar for all
    assert {axes.get_images()[0].get_clim() for axes in panels} == {(0, 1)}
    assert [axes.get_title() for axes in panels[:3]] == ["head 1", "head 2", "head 3"]


def test_rows_are_queries_and_columns_are_keys() -> None:
    weights = np.array([[[[1, 0, 0], [0, 0.25, 0.75]]]], dtype=np.float32)
    attention_map = AttentionMap(name="cross", queries=("x", "y"), keys=("a", "b", "c"), weights=weights)
    panel = build_figure(build_explanation(attention_map)).axes[0]
    image_data = panel.get_images()[0].get_array()
    assert image_data is not None
    np.testing.assert_array_equal(np.ma.filled(image_data, 0), weights[0, 0])
    assert [label.get_text() for label in panel.get_yticklabels()] == ["x", "y"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["a", "b", "c"]


def test_of_many_tokens_every_nth_has_a_label_with_its_number_and_many_heads_stay_within_bounds() -> None:
    pieces = tuple(f"w{i}" for i in range(200))
    figure = build_figure(build_explanation(uniform_map("encoder", 24, 16, pieces, pieces)))
    width, height = figure.get_size_inches()
    assert width <= MAX_FIGURE_SIZE[0]
    assert height <= MAX_FIGURE_SIZE[1] + 1
    panels = [axes for axes in figure.axes if axes.get_images()]
    for ticks, labels, inches in [
        (panels[0].get_yticks(), panels[0].get_yticklabels(), panels[0].get_position().height * height),
        (panels[-1].get_xticks(), panels[-1].get_xticklabels(), panels[-1].get_position().width * width),
    ]:
        assert len(labels) > 3
        assert [label.get_text() for label in labels] == [f"{i + 1} w{i}" for i in ticks]
        assert (ticks[1] - ticks[0]) * inches / len(pieces) >= MIN_TOKEN_PITCH


def test_a_weight_of_zero_has_a_shade_of_its_own_and_the_picture_says_what_it_means() -> None:
    weights = np.array([[[[1, 0], [1e-7, 1]]]], dtype=np.float32)
    attention_map = AttentionMap(name="decoder", queries=("a", "b"), keys=("a", "b"), weights=weights)
    figure = build_figure(build_explanation(attention_map))
    image = figure.axes[0].get_images()[0]
    colours = np.asarray(image.cmap(image.norm(np.ma.masked_equal(weights[0, 0], 0)), bytes=True))  # (T, S, 4)
    assert "#" + colours[0, 1, :3].tobytes().hex() == MASKED_COLOR
    assert "#" + colours[1, 0, :3].tobytes().hex() == COLORMAP_COLORS[0]
    assert "0: not read" in [text.get_text() for text in figure.texts]
    without = build_figure(build_explanation(uniform_map("encoder", 1, 1, ("a", "b"), ("a", "b"))))
    assert "0: not read" not in [text.get_text() for text in without.texts]


def test_a_text_of_white_space_alone_can_be_seen() -> None:
    figure = build_figure(Explanation(title="T", text="\n \n", output="\t"))
    texts = [text.get_text() for text in figure.texts]
    assert {"only white space: ⏎·⏎", "→ only white space: ⇥"} <= set(texts)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_no_piece_whatever_it_holds_raises_or_warns(tmp_path: Path, suffix: str) -> None:
    path = build_explanation(uniform_map("encoder", 1, 1, ODD_PIECES, ODD_PIECES)).save(tmp_path / f"odd.{suffix}")
    if suffix == "svg":
        ElementTree.parse(path)


def test_without_maps_the_tokens_that_speak_for_a_label_are_drawn(tmp_path: Path) -> None:
    pieces, values = tuple("abc"), (0.5, -1.0, 0.0)
    attribution = Attribution(method="gradient × input", label="$good$", pieces=pieces, values=values)
    figure = build_figure(replace(build_explanation(), attributions=(attribution,)))
    [panel] = figure.axes
    assert [bar.get_height() for bar in panel.patches] == list(values)  # type: ignore[attr-defined]
    assert [bar.get_facecolor() for bar in panel.patches[:2]] == [to_rgba(POSITIVE_COLOR), to_rgba(NEGATIVE_COLOR)]
    assert [label.get_text() for label in panel.get_xticklabels()] == list(pieces)
    assert r"gradient × input, logit of \$good\$" in [text.get_text() for text in figure.texts]
    maps = (uniform_map("encoder", 1, 1, pieces, pieces),)
    assert len(build_figure(replace(build_explanation(*maps), attributions=(attribution,))).axes) == 2, (
        "a map and its colour bar"
    )


def test_bars_of_many_or_odd_tokens_stay_within_bounds(tmp_path: Path) -> None:
    many = tuple(f"w{index}" for index in range(600))
    for pieces in (many, ODD_PIECES, ("one",)):
        attribution = Attribution(method="m", label="x" * 99, pieces=pieces, values=(0.0,) * len(pieces))
        explanation = replace(build_explanation(), attributions=(attribution, attribution))
        assert build_figure(explanation).get_size_inches()[0] <= MAX_FIGURE_SIZE[0]
        explanation.save(tmp_path / "bars.svg")
        ElementTree.parse(tmp_path / "bars.svg")


def test_without_maps_the_picture_says_so(tmp_path: Path) -> None:
    assert not build_figure(build_explanation()).axes
    assert build_explanation().save(tmp_path / "none.png").exists()


@pytest.mark.parametrize(
    ("piece", "label"),
    [
        (" the", "the"),
        ("\n", "⏎"),
        ("a\tb", "a⇥b"),
        ("  ", "··"),
        ("", "∅"),
        ("$5", r"\$5"),
        ("x" * 20, "x" * 13 + "…"),
    ],
)
def test_a_label_is_one_short_plain_line(piece: str, label: str) -> None:
    assert format_label(piece) == label
