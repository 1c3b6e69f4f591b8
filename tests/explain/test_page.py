"""The attention page as a file: true numbers, bounded size, and no text that can break out of its place."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from triform.explain import page
from triform.explain.maps import AttentionMap, Attribution, Explanation
from triform.explain.page import render

NASTY = (
    "</script><script>alert(1)</script>",
    "<!--",
    "{{data}}",
    "\"'&amp;",
    "\u2028",
    "\ud800",
    "שלום",
    "👩‍🔬",
    "\n\t",
)


def softmax(layers: int, heads: int, t: int, s: int) -> np.ndarray:
    logits = np.random.default_rng(3).normal(size=(layers, heads, t, s))
    weights = np.exp(logits, out=logits)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def explained(name: str, t: int, s: int, *, layers: int = 2, heads: int = 3, **rest: Any) -> Explanation:
    queries, keys = tuple(f" q{i}" for i in range(t)), tuple(f" k{i}" for i in range(s))
    shown = AttentionMap(name=name, queries=queries, keys=keys, weights=softmax(layers, heads, t, s))
    return Explanation(**{"title": "Title", "text": "Text", "maps": (shown,), **rest})


class Scripts(HTMLParser):
    """The contents of a page's script elements, by id, as a browser would cut them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.tags: list[str] = []
        self.inside: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside = dict(attrs).get("id") or "code" if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside is not None:
            self.found[self.inside] = self.found.get(self.inside, "") + data


def unpacked(text: str, number: int, layer: int) -> tuple[dict[str, Any], np.ndarray]:
    """The data of a page, and one layer's weights (V, T, S) read back from its blob; NaN where none was kept."""
    scripts = Scripts(text).found
    data = json.loads(scripts["data"])
    raw = np.frombuffer(zlib.decompress(base64.b64decode(scripts[f"blob-{number}-{layer}"])), dtype=np.uint8)
    shown, packing = data["maps"][number], data["packing"]
    shape = (len(shown["views"]), len(shown["queries"]), len(shown["keys"]))
    if packing["kind"] == "float32":
        return data, np.ascontiguousarray(raw.reshape(4, -1).T).view("<f4").reshape(shape)
    if packing["kind"] == "uint16":
        return data, np.ascontiguousarray(raw.reshape(2, -1).T).view("<u2").reshape(shape) / 65535
    kept = min(packing["kept"], shape[2])
    entries = shape[0] * shape[1] * kept
    low, high, weight_low, weight_high = raw[: 4 * entries].astype(int).reshape(4, *shape[:2], kept)
    weights = np.full(shape, np.nan)
    np.put_along_axis(
        weights, (low + 256 * high).cumsum(axis=-1), (weight_low + 256 * weight_high) / 65535, axis=-1
    )
    return data, weights


def test_a_small_page_holds_the_weights_as_they_are_with_average_and_rollout() -> None:
    explanation = explained("encoder", 6, 6)
    shown = explanation.maps[0]
    for layer in range(2):
        data, weights = unpacked(render(explanation), 0, layer)
        np.testing.assert_array_equal(weights[:3], shown.weights[layer])
        np.testing.assert_array_equal(weights[3], shown.average()[layer])
        np.testing.assert_array_equal(weights[4], shown.rollout()[layer])
    assert data["maps"][0]["views"] == ["head 1", "head 2", "head 3", "average of heads", "rollout"]
    np.testing.assert_allclose(data["maps"][0]["entropy"], shown.entropy(), atol=1e-6)


def test_cross_attention_has_an_average_but_no_rollout() -> None:
    data, weights = unpacked(render(explained("cross", 4, 7)), 0, 0)
    assert weights.shape == (4, 4, 7)
    assert data["maps"][0]["views"][-1] == "average of heads"


def test_a_larger_page_rounds_before_it_leaves_anything_out(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = explained("encoder", 60, 60)
    monkeypatch.setattr(page, "LEAST_ROOM", 80_000)
    monkeypatch.setattr(page, "MOST_BYTES", 0)
    data, weights = unpacked(render(explanation), 0, 1)
    assert data["packing"]["kind"] == "uint16"
    np.testing.assert_allclose(weights[:3], explanation.maps[0].weights[1], atol=0.51 / 65535)


def test_the_strongest_keys_are_kept_when_not_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = explained("encoder", 60, 60)
    monkeypatch.setattr(page, "LEAST_ROOM", 16_000)
    monkeypatch.setattr(page, "MOST_BYTES", 0)
    data, weights = unpacked(render(explanation), 0, 1)
    kept, true = data["packing"]["kept"], explanation.maps[0].weights[1]
    assert data["packing"]["kind"] == "strongest"
    assert 2 < kept < 60
    assert np.all((~np.isnan(weights)).sum(axis=-1) == kept)
    np.testing.assert_allclose(
        np.sort(np.nan_to_num(weights[:3]))[..., -kept:], np.sort(true)[..., -kept:], atol=1e-5
    )
    held = ~np.isnan(weights[:3])
    np.testing.assert_allclose(weights[:3][held], true[held], atol=0.51 / 65535)


def test_where_nothing_fits_the_strongest_one_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LEAST_ROOM", 10)
    monkeypatch.setattr(page, "MOST_BYTES", 0)
    explanation = explained("cross", 9, 300)
    data, weights = unpacked(render(explanation), 0, 0)
    assert data["packing"]["kept"] == 1
    np.testing.assert_array_equal(
        np.nanargmax(weights[:3], axis=-1), explanation.maps[0].weights[0].argmax(axis=-1)
    )


def test_512_tokens_in_12_layers_of_12_heads_stay_below_five_megabytes() -> None:
    text = render(explained("encoder", 512, 512, layers=12, heads=12))
    assert len(text.encode("utf-8")) < 4_500_000
    data, weights = unpacked(text, 0, 11)
    assert data["packing"]["kept"] >= 12
    assert weights.shape == (14, 512, 512)


def test_a_long_text_is_cut_and_does_not_push_the_page_over_its_size() -> None:
    text = render(explained("encoder", 4, 4, text="word " * 1_000_000))
    assert len(text) < 200_000


def test_nothing_in_a_text_can_leave_its_place() -> None:
    everything = " ".join(NASTY)
    weights = softmax(1, 1, len(NASTY), len(NASTY))
    explanation = Explanation(
        title=everything,
        text=everything,
        output=everything,
        probabilities=dict.fromkeys(NASTY, 0.1),
        maps=(AttentionMap(name="encoder", queries=NASTY, keys=NASTY, weights=weights),),
        attributions=(Attribution(method="m", label=everything, pieces=NASTY, values=tuple(map(float, range(9)))),),
        notes=NASTY,
    )
    text = render(explanation)
    text.encode("utf-8")  # no lone surrogate is left
    plain, nasty = Scripts(render(explained("encoder", 2, 2, layers=1))), Scripts(text)
    assert nasty.tags == plain.tags
    assert nasty.found["code"] == plain.found["code"]
    data = json.loads(nasty.found["data"])
    assert data["text"] == data["title"] == data["output"] == everything
    assert tuple(data["maps"][0]["queries"]) == tuple(data["notes"]) == NASTY
    assert not re.search(r"[<>&\u2028]", nasty.found["data"])


def test_the_page_may_load_nothing_and_run_only_its_own_script() -> None:
    text = render(explained("encoder", 2, 2))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r"https?://|//cdn|@import|src=", text)


def test_numbers_that_are_none_travel_as_null() -> None:
    attribution = Attribution(method="gradient × input", label="x", pieces=("a",), values=(0.5,))
    data = json.loads(Scripts(render(explained("encoder", 2, 2, attributions=(attribution,)))).found["data"])
    assert data["attributions"][0]["total"] is None


def test_the_likeliest_label_comes_first() -> None:
    text = render(explained("encoder", 2, 2, probabilities={"no": 0.2, "yes": 0.8}))
    assert json.loads(Scripts(text).found["data"])["probabilities"] == [["yes", 0.8], ["no", 0.2]]


def test_a_row_tells_from_which_to_which_key_it_reads() -> None:
    weights = np.array([[[0, 0.5, 0, 0.5, 0], [1, 0, 0, 0, 0], [0.2] * 5]], dtype=np.float32)
    raw = page.Packing(kind="strongest", kept=1).pack(weights)
    low, high = raw[4 * 3 :].reshape(2, 2, 3)  # after steps and weights, each one of 16 bits a row
    assert low.tolist() == [[1, 0, 0], [3, 0, 4]]
    assert not high.any()


@pytest.mark.parametrize("kind", ["uint16", "strongest"])
def test_rounding_leaves_a_weight_above_zero_above_zero(kind: str) -> None:
    raw = page.Packing(kind=kind, kept=3).pack(np.array([[[1e-9, 0, 1]]], dtype=np.float32))
    at = 6 if kind == "strongest" else 0  # after the steps
    assert (raw[at : at + 3] + 256 * raw[at + 3 : at + 6].astype(int)).tolist() == [1, 0, 65535]


def test_the_highest_entropy_counts_only_the_keys_that_may_be_read() -> None:
    weights = np.tril(np.ones((4, 4), dtype=np.float32))[None, None]
    weights /= weights.sum(axis=-1, keepdims=True)
    shown = AttentionMap(name="decoder", queries=tuple("abcd"), keys=tuple("abcd"), weights=weights)
    data = json.loads(Scripts(render(Explanation(title="", text="", maps=(shown,)))).found["data"])
    assert data["maps"][0]["most_bits"] == pytest.approx(np.log2([1, 2, 3, 4]).mean(), abs=1e-6)
    assert data["maps"][0]["entropy"] == [[data["maps"][0]["most_bits"]]]  # reached here
