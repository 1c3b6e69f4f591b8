"""Attention as a picture: whole, bounded, and calm whatever the pieces hold."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from triform.explain.maps import AttentionMap, Explanation
from triform.explain.picture import LARGEST, lay_out, readable

ODD = (
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


def uniform(name: str, layers: int, heads: int, queries: tuple[str, ...], keys: tuple[str, ...]) -> AttentionMap:
    weights = np.full((layers, heads, len(queries), len(keys)), 1 / len(keys), dtype=np.float32)
    return AttentionMap(name=name, queries=queries, keys=keys, weights=weights)


def explained(*maps: AttentionMap) -> Explanation:
    return Explanation(title="A $title$", text=" ".join(ODD), output="out", maps=maps)


def test_a_png_has_its_signature_and_room_for_all(tmp_path: Path) -> None:
    pieces = tuple("abcde")
    path = explained(uniform("encoder", 2, 3, pieces, pieces)).save(tmp_path / "map.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert width > 600
    assert height > 400


def test_an_svg_is_valid_xml_and_its_words_stay_words(tmp_path: Path) -> None:
    pieces = ("The", "cat", "日本")
    path = explained(uniform("encoder", 1, 2, pieces, pieces)).save(tmp_path / "map.svg")
    root = ElementTree.parse(path).getroot()
    words = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert root.tag.endswith("svg")
    assert {"layer 1", "head 1", "head 2", "cat", "日本"} <= words


def test_the_same_explanation_gives_the_same_file(tmp_path: Path) -> None:
    explanation = explained(uniform("encoder", 1, 2, ("a", "b"), ("a", "b")))
    for suffix in ("png", "svg"):
        first, second = (explanation.save(tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert first == second


def test_every_head_of_every_layer_of_every_map_has_a_panel() -> None:
    source, target = ("a", "b", "c"), ("x", "y")
    maps = (
        uniform("encoder", 2, 3, source, source),
        uniform("decoder", 1, 4, target, target),
        uniform("cross", 1, 4, target, source),
    )
    figure = lay_out(explained(*maps))
    panels = [axes for axes in figure.axes if axes.get_images()]
    assert len(panels) == 2 * 3 + 4 + 4
    assert len(figure.axes) == len(panels) + 1  # one bar for all
    assert {axes.get_images()[0].get_clim() for axes in panels} == {(0, 1)}
    assert [axes.get_title() for axes in panels[:3]] == ["head 1", "head 2", "head 3"]


def test_rows_are_queries_and_columns_are_keys() -> None:
    weights = np.array([[[[1, 0, 0], [0, 0.25, 0.75]]]], dtype=np.float32)
    shown = AttentionMap(name="cross", queries=("x", "y"), keys=("a", "b", "c"), weights=weights)
    panel = lay_out(explained(shown)).axes[0]
    np.testing.assert_array_equal(panel.get_images()[0].get_array(), weights[0, 0])
    assert [label.get_text() for label in panel.get_yticklabels()] == ["x", "y"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["a", "b", "c"]


def test_many_tokens_go_without_labels_and_many_heads_stay_within_bounds() -> None:
    pieces = tuple(f"w{i}" for i in range(200))
    figure = lay_out(explained(uniform("encoder", 24, 16, pieces, pieces)))
    width, height = figure.get_size_inches()
    assert width <= LARGEST[0]
    assert height <= LARGEST[1] + 1
    assert not any(axes.get_xticklabels() for axes in figure.axes if axes.get_images())


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_no_piece_whatever_it_holds_raises_or_warns(tmp_path: Path, suffix: str) -> None:
    path = explained(uniform("encoder", 1, 1, ODD, ODD)).save(tmp_path / f"odd.{suffix}")
    if suffix == "svg":
        ElementTree.parse(path)


def test_without_maps_the_picture_says_so(tmp_path: Path) -> None:
    assert not lay_out(explained()).axes
    assert explained().save(tmp_path / "none.png").exists()


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
    assert readable(piece) == label
