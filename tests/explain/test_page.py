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
from triform.explain.attention_maps import AttentionMap, Attribution, Explanation
from triform.explain.page import render_page

HOSTILE_TEXTS = (
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


def random_weights(n_layers: int, n_heads: int, n_queries: int, n_keys: int) -> np.ndarray:
    logits = np.random.default_rng(3).normal(size=(n_layers, n_heads, n_queries, n_keys))
    weights = np.exp(logits, out=logits)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def build_explanation(
    name: str, n_queries: int, n_keys: int, *, n_layers: int = 2, n_heads: int = 3, **fields: Any
) -> Explanation:
    queries, keys = (
        tuple(f" q{index}" for index in range(n_queries)),
        tuple(f" k{index}" for index in range(n_keys)),
    )
    attention_map = AttentionMap(
        name=name, queries=queries, keys=keys, weights=random_weights(n_layers, n_heads, n_queries, n_keys)
    )
    return Explanation(**{"title": "Title", "text": "Text", "maps": (attention_map,), **fields})


class ScriptParser(HTMLParser):
    """The contents of a page's script elements, by id, as a browser would cut them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self.tags: list[str] = []
        self.current_id: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.current_id = dict(attrs).get("id") or "code" if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self.current_id = None

    def handle_data(self, data: str) -> None:
        if self.current_id is not None:
            self.scripts[self.current_id] = self.scripts.get(self.current_id, "") + data


def decode_page(text: str, map_index: int, layer: int) -> tuple[dict[str, Any], np.ndarray]:
    """The data of a page, and one layer's weights (V, T, S) read back from its blob; NaN where none was kept."""
    scripts = ScriptParser(text).scripts
    data = json.loads(scripts["data"])
    raw = np.frombuffer(zlib.decompress(base64.b64decode(scripts[f"blob-{map_index}-{layer}"])), dtype=np.uint8)
    map_data, encoding = data["maps"][map_index], data["packing"]
    shape = (len(map_data["views"]), len(map_data["queries"]), len(map_data["keys"]))
    if encoding["kind"] == "float32":
        return data, np.ascontiguousarray(raw.reshape(4, -1).T).view("<f4").reshape(shape)
    if encoding["kind"] == "uint16":
        return data, np.ascontiguousarray(raw.reshape(2, -1).T).view("<u2").reshape(shape) / 65535
    top_k = min(encoding["kept"], shape[2])
    entries = shape[0] * shape[1] * top_k
    low, high, weight_low, weight_high = raw[: 4 * entries].astype(int).reshape(4, *shape[:2], top_k)
    weights = np.full(shape, np.nan)
    np.put_along_axis(
        weights, (low + 256 * high).cumsum(axis=-1), (weight_low + 256 * weight_high) / 65535, axis=-1
    )
    return data, weights


def test_a_small_page_holds_the_weights_as_they_are_with_average_and_rollout() -> None:
    explanation = build_explanation("encoder", 6, 6)
    attention_map = explanation.maps[0]
    for layer in range(2):
        data, weights = decode_page(render_page(explanation), 0, layer)
        np.testing.assert_array_equal(weights[:3], attention_map.weights[layer])
        np.testing.assert_array_equal(weights[3], attention_map.average()[layer])
        np.testing.assert_array_equal(weights[4], attention_map.rollout()[layer])
    assert data["maps"][0]["views"] == ["head 1", "head 2", "head 3", "average of heads", "rollout"]
    np.testing.assert_allclose(data["maps"][0]["summary"]["entropy"], attention_map.entropy(), atol=1e-6)


def test_cross_attention_has_an_average_but_no_rollout() -> None:
    data, weights = decode_page(render_page(build_explanation("cross", 4, 7)), 0, 0)
    assert weights.shape == (4, 4, 7)
    assert data["maps"][0]["views"][-1] == "average of heads"


def test_a_larger_page_rounds_before_it_leaves_anything_out(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = build_explanation("encoder", 60, 60)
    monkeypatch.setattr(page, "MIN_WEIGHT_BYTES", 80_000)
    monkeypatch.setattr(page, "MAX_PAGE_BYTES", 0)
    data, weights = decode_page(render_page(explanation), 0, 1)
    assert data["packing"]["kind"] == "uint16"
    np.testing.assert_allclose(weights[:3], explanation.maps[0].weights[1], atol=0.51 / 65535)


def test_the_strongest_keys_are_kept_when_not_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = build_explanation("encoder", 60, 60)
    monkeypatch.setattr(page, "MIN_WEIGHT_BYTES", 16_000)
    monkeypatch.setattr(page, "MAX_PAGE_BYTES", 0)
    data, weights = decode_page(render_page(explanation), 0, 1)
    top_k, original = data["packing"]["kept"], explanation.maps[0].weights[1]
    assert data["packing"]["kind"] == "strongest"
    assert 2 < top_k < 60
    assert np.all((~np.isnan(weights)).sum(axis=-1) == top_k)
    np.testing.assert_allclose(
        np.sort(np.nan_to_num(weights[:3]))[..., -top_k:], np.sort(original)[..., -top_k:], atol=1e-5
    )
    is_kept = ~np.isnan(weights[:3])
    np.testing.assert_allclose(weights[:3][is_kept], original[is_kept], atol=0.51 / 65535)


def test_where_nothing_fits_the_strongest_one_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MIN_WEIGHT_BYTES", 10)
    monkeypatch.setattr(page, "MAX_PAGE_BYTES", 0)
    explanation = build_explanation("cross", 9, 300)
    data, weights = decode_page(render_page(explanation), 0, 0)
    assert data["packing"]["kept"] == 1
    np.testing.assert_array_equal(
        np.nanargmax(weights[:3], axis=-1), explanation.maps[0].weights[0].argmax(axis=-1)
    )


def test_512_tokens_in_12_layers_of_12_heads_stay_below_five_megabytes() -> None:
    text = render_page(build_explanation("encoder", 512, 512, n_layers=12, n_heads=12))
    assert len(text.encode("utf-8")) < 4_500_000
    data, weights = decode_page(text, 0, 11)
    assert data["packing"]["kept"] >= 12
    assert weights.shape == (14, 512, 512)


def test_a_long_text_is_cut_and_does_not_push_the_page_over_its_size() -> None:
    text = render_page(build_explanation("encoder", 4, 4, text="word " * 1_000_000))
    assert len(text) < 200_000


def test_nothing_in_a_text_can_leave_its_place() -> None:
    everything = " ".join(HOSTILE_TEXTS)
    weights = random_weights(1, 1, len(HOSTILE_TEXTS), len(HOSTILE_TEXTS))
    explanation = Explanation(
        title=everything,
        text=everything,
        output=everything,
        probabilities=dict.fromkeys(HOSTILE_TEXTS, 0.1),
        maps=(AttentionMap(name="encoder", queries=HOSTILE_TEXTS, keys=HOSTILE_TEXTS, weights=weights),),
        attributions=(
            Attribution(method="m", label=everything, pieces=HOSTILE_TEXTS, values=tuple(map(float, range(9)))),
        ),
        notes=HOSTILE_TEXTS,
    )
    text = render_page(explanation)
    text.encode("utf-8")  # no lone surrogate is left
    plain, nasty = ScriptParser(render_page(build_explanation("encoder", 2, 2, n_layers=1))), ScriptParser(text)
    assert nasty.tags == plain.tags
    assert nasty.scripts["code"] == plain.scripts["code"]
    data = json.loads(nasty.scripts["data"])
    assert data["text"] == data["title"] == data["output"] == everything
    assert tuple(data["maps"][0]["queries"]) == tuple(data["notes"]) == HOSTILE_TEXTS
    assert not re.search(r"[<>&\u2028]", nasty.scripts["data"])


def test_the_page_may_load_nothing_and_run_only_its_own_script() -> None:
    text = render_page(build_explanation("encoder", 2, 2))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r"https?://|//cdn|@import|src=", text)


def test_numbers_that_are_none_travel_as_null() -> None:
    attribution = Attribution(method="gradient × input", label="x", pieces=("a",), values=(0.5,))
    data = json.loads(
        ScriptParser(render_page(build_explanation("encoder", 2, 2, attributions=(attribution,)))).scripts["data"]
    )
    assert data["attributions"][0]["total"] is None


def test_the_likeliest_label_comes_first() -> None:
    text = render_page(build_explanation("encoder", 2, 2, probabilities={"no": 0.2, "yes": 0.8}))
    assert json.loads(ScriptParser(text).scripts["data"])["probabilities"] == [["yes", 0.8], ["no", 0.2]]


def test_a_row_tells_from_which_to_which_key_it_reads() -> None:
    weights = np.array([[[0, 0.5, 0, 0.5, 0], [1, 0, 0, 0, 0], [0.2] * 5]], dtype=np.float32)
    raw = page.WeightEncoding(kind="strongest", top_k=1).encode(weights)
    low, high = raw[4 * 3 :].reshape(2, 2, 3)  # after steps and weights, each one of 16 bits a row
    assert low.tolist() == [[1, 0, 0], [3, 0, 4]]
    assert not high.any()


@pytest.mark.parametrize("kind", ["uint16", "strongest"])
def test_rounding_leaves_a_weight_above_zero_above_zero(kind: str) -> None:
    raw = page.WeightEncoding(kind=kind, top_k=3).encode(np.array([[[1e-9, 0, 1]]], dtype=np.float32))
    offset = 6 if kind == "strongest" else 0  # after the steps
    assert (raw[offset : offset + 3] + 256 * raw[offset + 3 : offset + 6].astype(int)).tolist() == [1, 0, 65535]


def test_the_highest_entropy_counts_only_the_keys_that_may_be_read() -> None:
    weights = np.tril(np.ones((4, 4), dtype=np.float32))[None, None]
    weights /= weights.sum(axis=-1, keepdims=True)
    attention_map = AttentionMap(name="decoder", queries=tuple("abcd"), keys=tuple("abcd"), weights=weights)
    data = json.loads(
        ScriptParser(render_page(Explanation(title="", text="", maps=(attention_map,)))).scripts["data"]
    )
    assert data["maps"][0]["summary"]["most_bits"] == pytest.approx(np.log2([1, 2, 3, 4]).mean(), abs=1e-6)
    assert data["maps"][0]["summary"]["entropy"] == [[data["maps"][0]["summary"]["most_bits"]]]  # reached here
