"""Attention maps and their summaries, against numbers worked by hand and formulas written another way."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy as scipy_entropy

from triform.errors import ConfigError, install_command
from triform.explain.attention_maps import AttentionMap, Attribution, Explanation


def random_map(
    name: str = "encoder", *, n_layers: int = 3, n_heads: int = 2, n_queries: int = 5, n_keys: int = 5
) -> AttentionMap:
    weights = (
        np.random.default_rng(7).dirichlet(np.ones(n_keys), size=(n_layers, n_heads, n_queries)).astype(np.float32)
    )
    queries, keys = tuple(f"q{index}" for index in range(n_queries)), tuple(f"k{index}" for index in range(n_keys))
    return AttentionMap(name=name, queries=queries, keys=keys, weights=weights)


def hand_made_map() -> AttentionMap:
    first = [[[1, 0], [0.5, 0.5]], [[1, 0], [0, 1]]]  # two heads
    second = [[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]
    weights = np.array([first, second], dtype=np.float32)
    return AttentionMap(name="encoder", queries=("a", "b"), keys=("a", "b"), weights=weights)


def test_the_average_is_taken_over_the_heads() -> None:
    assert hand_made_map().average().tolist() == [[[1, 0], [0.25, 0.75]], [[0.5, 0.5], [0.5, 0.5]]]
    attention_map = random_map()
    assert attention_map.average().shape == (3, 5, 5)
    np.testing.assert_allclose(
        attention_map.average(), (attention_map.weights[:, 0] + attention_map.weights[:, 1]) / 2, rtol=1e-6
    )


def test_the_rollout_of_two_layers_is_what_paper_and_pencil_give() -> None:
    # With half a residual: [[1, 0], [1/8, 7/8]] and [[3/4, 1/4], [1/4, 3/4]]; the second times the first:
    expected = [[[1, 0], [0.125, 0.875]], [[0.78125, 0.21875], [0.34375, 0.65625]]]
    assert hand_made_map().rollout().tolist() == expected


def test_the_rollout_sums_over_all_paths_through_the_layers() -> None:
    attention_map = random_map(n_layers=2, n_queries=4, n_keys=4)
    steps = 0.5 * attention_map.weights.astype(float).mean(axis=1) + 0.5 * np.eye(4)
    paths = [[sum(steps[1, q, m] * steps[0, m, k] for m in range(4)) for k in range(4)] for q in range(4)]
    np.testing.assert_allclose(attention_map.rollout()[1], paths, rtol=1e-5)
    np.testing.assert_allclose(attention_map.rollout().sum(axis=-1), 1, rtol=1e-5)


def test_a_rollout_of_a_causal_map_sees_no_future() -> None:
    weights = np.tril(np.random.default_rng(1).random((3, 2, 6, 6)) + 0.1).astype(np.float32)
    weights /= weights.sum(axis=-1, keepdims=True)
    pieces = tuple("abcdef")
    rolled = AttentionMap(name="decoder", queries=pieces, keys=pieces, weights=weights).rollout()
    assert np.all(np.triu(rolled, 1) == 0)


@pytest.mark.parametrize(
    "attention_map", [random_map("cross"), random_map("decoder", n_queries=2)], ids=["cross", "not square"]
)
def test_there_is_no_rollout_where_queries_are_not_keys(attention_map: AttentionMap) -> None:
    assert not attention_map.supports_rollout
    with pytest.raises(AssertionError, match="self-attention"):
        attention_map.rollout()


def test_entropy_is_in_bits_and_a_zero_adds_nothing() -> None:
    assert hand_made_map().entropy().tolist() == [[0.5, 0], [1, 1]]
    attention_map = random_map(n_queries=3, n_keys=7)
    expected = scipy_entropy(attention_map.weights.astype(float), base=2, axis=-1).mean(axis=-1)
    assert attention_map.entropy().shape == (3, 2)
    np.testing.assert_allclose(attention_map.entropy(), expected, rtol=1e-5)


def test_the_maximum_entropy_is_that_of_equal_weights_for_all_keys_that_are_read() -> None:
    weights = np.tril(np.random.default_rng(1).random((2, 2, 4, 4)) + 0.1).astype(np.float32)
    weights /= weights.sum(axis=-1, keepdims=True)
    attention_map = AttentionMap(name="decoder", queries=tuple("abcd"), keys=tuple("abcd"), weights=weights)
    assert attention_map.max_entropy() == pytest.approx(np.log2([1, 2, 3, 4]).mean())


def test_the_distance_of_a_head_is_weighted_and_averaged_over_queries() -> None:
    assert hand_made_map().mean_distance().tolist() == [[0.25, 0], [0.5, 0.5]]  # type: ignore[union-attr]
    attention_map = random_map()
    by_hand = sum(
        float(attention_map.weights[2, 1, query, key]) * abs(query - key) / 5
        for query in range(5)
        for key in range(5)
    )
    distances = attention_map.mean_distance()
    assert distances is not None
    assert distances[2, 1] == pytest.approx(by_hand, rel=1e-6)
    assert random_map("cross").mean_distance() is None


def test_a_thumbnail_shows_the_largest_weight_of_each_pixel_and_where_all_are_zero() -> None:
    weights = np.zeros((1, 1, 4, 6), dtype=np.float32)
    weights[0, 0] = [[1, 0, 0, 0, 0, 0], [0.75, 0.25, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0.9999, 0, 0.0001]]
    attention_map = AttentionMap(name="cross", queries=tuple("abcd"), keys=tuple("uvwxyz"), weights=weights)
    # A pixel is the largest of several weights; a small weight above zero is not shown as zero.
    assert attention_map.thumbnails(0, 3).shape == (1, 3, 3)
    rows = attention_map.thumbnails(0, 2)[0]
    assert rows.tolist() == [[255, 0], [255, 255]]
    assert attention_map.thumbnails(0, 64)[0].shape == (4, 6)
    assert attention_map.thumbnails(0, 64)[0, 1].tolist() == [math.ceil(255 * math.sqrt(0.75)), 128, 0, 0, 0, 0]
    assert attention_map.thumbnails(0, 64)[0, 3].tolist() == [0, 0, 0, 255, 0, 3]


def test_sums_are_those_of_the_weights_added_by_hand() -> None:
    first_head = [[0.5, 0.25, 0.125, 0.125], [0.25, 0.5, 0.25, 0.0]]  # two tokens, one more token, one padding
    second_head = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    weights = np.array([[first_head, second_head]] * 2, dtype=np.float32)
    attention_map = AttentionMap(
        name="encoder",
        queries=("a", "b"),
        keys=("a", "b", "c", "<pad>"),
        weights=weights,
        n_padding=1,
        windows=(2, -1),
    )
    expected = {
        "row_sum_min": 1.0,
        "row_sum_max": 1.0,
        "padding": (0.125 + 0.0 + 0.0 + 0.5) / 4,
        "future": ((0.25 + 0.125) + 0.25 + 0.0 + 0.5) / 4,
        "outside_window": (0.125 + 0.0 + 0.0 + 0.0) / 4,  # only `c` is two tokens away, and only from `a`
    }
    assert attention_map.sums() == [expected, {**expected, "outside_window": None}]
    cross = AttentionMap(name="cross", queries=("a", "b"), keys=("a", "b", "c", "d"), weights=weights * 0.99)
    assert [(sums["padding"], sums["future"], sums["outside_window"]) for sums in cross.sums()] == [
        (0, None, None)
    ] * 2
    assert cross.sums()[0]["row_sum_min"] == pytest.approx(0.99)
    assert Explanation(title="t", text="t", maps=(attention_map,)).as_dict()["maps"][0]["sums"][0] == expected  # type: ignore[index]


def test_padding_has_no_part_in_a_rollout() -> None:
    attention_map = random_map()
    weights = np.pad(attention_map.weights, ((0, 0), (0, 0), (0, 0), (0, 2)))
    keys = (*attention_map.keys, "<pad>", "<pad>")
    padded = AttentionMap(name="encoder", queries=attention_map.queries, keys=keys, weights=weights, n_padding=2)
    np.testing.assert_array_equal(padded.rollout()[..., :5], attention_map.rollout())
    assert padded.rollout().shape == (3, 5, 7)
    assert not padded.rollout()[..., 5:].any()


def test_shapes_that_do_not_fit_are_our_own_mistake() -> None:
    good = random_map()
    bad = {
        "sum to one": good.weights * 2,
        "expected": good.weights[0],
        "float64": good.weights.astype(np.float64),
        "empty": good.weights[:0],
        r"\(3, 2, 4, 5\)": good.weights[:, :, :4],
        "must not be negative": np.where(np.eye(5), -0.1, 0.275).astype(np.float32)[None, None],
        "negative or NaN": np.full((1, 1, 5, 5), np.nan, dtype=np.float32),
    }
    for message, weights in bad.items():
        with pytest.raises(AssertionError, match=message):
            AttentionMap(name="encoder", queries=good.queries, keys=good.keys, weights=weights)
    with pytest.raises(AssertionError):
        Attribution(method="gradient × input", label="x", pieces=("a",), values=(1.0, 2.0))
    with pytest.raises(AssertionError, match="duplicate map names"):
        Explanation(title="t", text="", maps=(good, good))


def test_an_attribution_makes_no_promise_of_its_own() -> None:
    assert math.isnan(Attribution(method="gradient × input", label="x", pieces=("a",), values=(1.0,)).total)


@pytest.mark.parametrize("name", ["page.html", "deep/er/picture.PNG", "picture.svg"])
def test_an_explanation_is_saved_by_its_suffix_and_nothing_is_left_beside_it(tmp_path: Path, name: str) -> None:
    path = Explanation(title="t", text="a", maps=(random_map(),)).save(str(tmp_path / name))
    assert path == tmp_path / name
    assert path.stat().st_size > 1000
    assert [child_path.name for child_path in path.parent.iterdir()] == [path.name]


def test_without_matplotlib_a_page_is_written_and_a_picture_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    explanation = Explanation(title="t", text="a", maps=(random_map(),))
    assert explanation.save(tmp_path / "maps.html").exists()
    with pytest.raises(
        ConfigError, match=r"a \.png picture needs matplotlib .*" + re.escape(install_command("plot"))
    ):
        explanation.save(tmp_path / "maps.png")
    assert [path.name for path in tmp_path.iterdir()] == ["maps.html"]


def test_an_unknown_suffix_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'attention\.pdf'.*\.html, \.png, \.svg"):
        Explanation(title="t", text="a").save(tmp_path / "new" / "attention.pdf")
    assert not list(tmp_path.iterdir())


def test_one_map_can_be_saved_alone_and_a_wrong_name_is_told(tmp_path: Path) -> None:
    explanation = Explanation(title="t", text="a", maps=(random_map("encoder"), random_map("cross")))
    page = explanation.save(tmp_path / "one.html", stack="cross").read_text(encoding="utf-8")
    assert '"name":"cross"' in page
    assert '"name":"encoder"' not in page
    with pytest.raises(ConfigError, match="no attention map 'crocs'; available maps: encoder, cross"):
        explanation.save(tmp_path / "two.html", stack="crocs")


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Explanation(title="old", text="").save(tmp_path / "page.html")
    monkeypatch.setattr("triform.explain.page.render_page", lambda explanation: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Explanation(title="new", text="").save(path)
    assert "old" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]
