"""The attention page in a browser: what it shows is what was recorded, and it asks nothing of any network."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from triform.explain import page
from triform.explain.attention_maps import AttentionMap, Attribution, Explanation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SOURCE = (" the", " black", " cat", " sat", ".")
TARGET = ("<s>", " le", " chat", " noir", "</script><b>", "\n", "שלום")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    missing = [name for name, is_installed in [
        ("playwright", importlib.util.find_spec("playwright")),
        ("chromium", shutil.which("chromium")),
    ] if not is_installed]  # fmt: skip
    if missing:
        reason = f"not installed: {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab that must neither ask for anything but the page itself nor complain."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    page.close()
    assert not complaints
    assert len(requests) == 1, requests
    assert requests[0].startswith("file://")


def random_map(name: str, queries: tuple[str, ...], keys: tuple[str, ...], **sizes: int) -> AttentionMap:
    shape = (sizes.get("layers", 3), sizes.get("heads", 2), len(queries))
    weights = np.random.default_rng(len(name)).dirichlet(np.full(len(keys), 0.5), size=shape)
    return AttentionMap(name=name, queries=queries, keys=keys, weights=weights.astype(np.float32))


TRANSLATION_EXPLANATION = Explanation(
    title="A translation",
    text="the black cat sat.",
    output="le chat noir </script>",
    maps=(
        random_map("encoder", SOURCE, SOURCE),
        random_map("decoder", TARGET, TARGET),
        random_map("cross", TARGET, SOURCE, layers=2, heads=4),
    ),
    notes=("only the first 5 tokens were read",),
)
CLASSIFICATION_EXPLANATION = Explanation(
    title="A label",
    text="the black cat sat.",
    output="good",
    probabilities={"bad": 0.125, "good": 0.875},
    maps=(random_map("encoder", SOURCE, SOURCE),),
    attributions=(
        Attribution(
            method="integrated gradients",
            label="good",
            pieces=SOURCE,
            values=(0.5, -1.25, 0.0625, 0.0, 0.75),
            total=0.0634,
        ),
        Attribution(method="gradient × input", label="good", pieces=SOURCE, values=(0.1, 0.2, -0.4, 0.3, 0.0)),
    ),
)


def open_page(tab: Page, explanation: Explanation, folder: Path) -> None:
    tab.goto(explanation.save(folder / "page.html").resolve().as_uri())
    tab.wait_for_selector("#readout[data-weight]")


def hover(tab: Page, side: str, index: int) -> None:
    tab.hover(f'.token[data-side="{side}"][data-index="{index}"]')


def read_readout(tab: Page) -> tuple[int, int, float]:
    dataset: dict[str, Any] = tab.eval_on_selector("#readout", "node => ({...node.dataset})")
    return int(dataset["query"]), int(dataset["key"]), float(dataset["weight"])


def wait_for(tab: Page, layer: int, view: str) -> None:
    """Weights are shown when they are unpacked, a moment after they were chosen."""
    name = "document.getElementById('view-name').textContent"
    heatmap_is_current = (
        "document.getElementById('heatmap').dataset.shown === `${state.map} ${state.layer} ${state.view}`"
    )
    deadline = time.monotonic() + 30
    # Asked from here: `wait_for_function` asks again by eval, which the page's own policy forbids.
    while not tab.evaluate(f"{name} === 'layer {layer}, {view}' && {heatmap_is_current}"):
        assert time.monotonic() < deadline, tab.inner_text("#view-name")
        tab.wait_for_timeout(20)


def test_layer_and_head_switch_and_a_hovered_token_shows_the_recorded_weight(tab: Page, tmp_path: Path) -> None:
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    weights = TRANSLATION_EXPLANATION.maps[0].weights
    for layer, head, query in [(0, 0, 3), (2, 1, 0), (1, 0, 4)]:
        tab.select_option("#layer-select", str(layer))
        tab.select_option("#head-select", str(head))
        wait_for(tab, layer + 1, f"head {head + 1}")
        hover(tab, "query", query)
        strongest = int(weights[layer, head, query].argmax())
        assert read_readout(tab) == (query, strongest, float(weights[layer, head, query, strongest]))
        assert tab.inner_text("#weight") == f"{weights[layer, head, query, strongest]:.4f}"
        assert tab.locator("#list .num").all_inner_texts() == [
            f"{weight:.4f}" for weight in np.sort(weights[layer, head, query])[::-1]
        ]


def test_average_and_rollout_are_the_ones_python_computes(tab: Page, tmp_path: Path) -> None:
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    attention_map = TRANSLATION_EXPLANATION.maps[0]
    tab.select_option("#layer-select", "2")
    for name, weights in [
        ("average of heads", attention_map.average()[2]),
        ("rollout", attention_map.rollout()[2]),
    ]:
        tab.select_option("#head-select", label=name)
        wait_for(tab, 3, name)
        hover(tab, "query", 1)
        assert read_readout(tab) == (1, int(weights[1].argmax()), float(weights[1].max()))


def test_a_hovered_key_shows_who_reads_it_and_the_pinned_query_s_weight(tab: Page, tmp_path: Path) -> None:
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    tab.select_option("#map-select", label="Cross-attention")
    wait_for(tab, 1, "head 1")
    weights = TRANSLATION_EXPLANATION.maps[2].weights
    assert "rollout" not in tab.locator("#head-select option").all_inner_texts()
    tab.click('.token[data-side="query"][data-index="4"]')
    hover(tab, "key", 2)
    assert read_readout(tab) == (4, 2, float(weights[0, 0, 4, 2]))
    assert tab.locator("#list .num").all_inner_texts() == [f"{w:.4f}" for w in np.sort(weights[0, 0, :, 2])[::-1]]
    tab.hover("#title")  # away from the tokens the pinned query is back
    assert read_readout(tab)[0] == 4


def test_the_heat_map_tells_the_number_under_the_mouse_and_under_the_keys(tab: Page, tmp_path: Path) -> None:
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    weights = TRANSLATION_EXPLANATION.maps[0].weights
    tab.locator("#heatmap").scroll_into_view_if_needed()
    position = tab.evaluate("() => ({left: heat.left + 3.5 * heat.w / 5, top: 1.5 * heat.h / 5})")
    tab.hover("#heatmap", position={"x": position["left"], "y": position["top"]})
    assert read_readout(tab) == (1, 3, float(weights[0, 0, 1, 3]))
    tab.focus("#heatmap")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowLeft")
    assert read_readout(tab) == (2, 2, float(weights[0, 0, 2, 2]))


def test_a_cell_of_the_entropy_table_chooses_its_head_and_arrows_go_on(tab: Page, tmp_path: Path) -> None:
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    cells = tab.locator("#entropy button")
    entropy = TRANSLATION_EXPLANATION.maps[0].entropy()
    assert cells.all_inner_texts() == [f"{bits:.2f}" for bits in entropy.flatten()]
    cells.nth(5).click()
    wait_for(tab, 3, "head 2")
    assert tab.input_value("#layer-select") == "2"
    assert tab.input_value("#head-select") == "1"
    tab.keyboard.press("ArrowUp")
    wait_for(tab, 2, "head 2")
    tab.keyboard.press("ArrowLeft")
    wait_for(tab, 2, "head 1")
    assert tab.get_attribute('#entropy button[aria-pressed="true"]', "data-layer") == "1"


def test_the_numbers_of_heads_are_their_entropy_or_their_distance(tab: Page, tmp_path: Path) -> None:
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    distance = TRANSLATION_EXPLANATION.maps[0].mean_distance()
    assert distance is not None
    tab.select_option("#summary-select", label="distance, in tokens")
    cells = tab.locator("#entropy button")
    assert cells.all_inner_texts() == [f"{tokens:.2f}" for tokens in distance.flatten()]
    cells.nth(3).click()
    wait_for(tab, 2, "head 2")
    tab.select_option("#map-select", label="Cross-attention")  # its queries and keys are of different texts
    wait_for(tab, 1, "head 1")
    assert tab.locator("#summary-select option").all_inner_texts() == ["entropy, in bits"]
    entropy = TRANSLATION_EXPLANATION.maps[2].entropy()
    assert cells.all_inner_texts() == [f"{bits:.2f}" for bits in entropy.flatten()]


def test_shift_and_arrows_move_layer_and_head_from_anywhere_and_arrows_the_token(tab: Page, tmp_path: Path) -> None:
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    tab.keyboard.press("Shift+ArrowDown")
    tab.keyboard.press("Shift+ArrowRight")
    wait_for(tab, 2, "head 2")
    tab.focus('.token[data-side="query"][data-index="0"]')
    tab.keyboard.press("ArrowRight")
    weights = TRANSLATION_EXPLANATION.maps[0].weights[1, 1]
    assert read_readout(tab) == (1, int(weights[1].argmax()), float(weights[1].max()))
    tab.keyboard.press("Shift+ArrowLeft")
    wait_for(tab, 2, "head 1")
    weights = TRANSLATION_EXPLANATION.maps[0].weights[1, 0]
    assert read_readout(tab) == (1, int(weights[1].argmax()), float(weights[1].max()))


def test_texts_stay_texts(tab: Page, tmp_path: Path) -> None:
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    tab.select_option("#map-select", label="Decoder self-attention")
    wait_for(tab, 1, "head 1")
    token_texts = tab.locator('.token[data-side="query"]').all_inner_texts()
    assert token_texts == ["<s>", "le", "chat", "noir", "</script><b>", "⏎", "שלום"]
    assert tab.inner_text("#output") == TRANSLATION_EXPLANATION.output
    assert tab.locator("#notes li").all_inner_texts() == list(TRANSLATION_EXPLANATION.notes)
    assert tab.locator("b").count() == 1  # the number's own


def test_a_prediction_has_bars_and_attributions_that_can_be_switched(tab: Page, tmp_path: Path) -> None:
    open_page(tab, CLASSIFICATION_EXPLANATION, tmp_path)
    assert tab.inner_text("#label") == "good"
    assert tab.locator("#bars .num").all_inner_texts() == ["0.8750", "0.1250"]
    tokens = tab.locator("#attribution .token")
    tokens.nth(1).hover()
    assert tab.inner_text("#attribution-readout") == "black #2: −1.2500"
    assert "sum of attributions +0.0625" in tab.inner_text("#attribution-sum")
    assert "+0.0634" in tab.inner_text("#attribution-sum")
    negative = tokens.nth(1).evaluate("node => node.style.background")
    tab.select_option("#attribution-select", "1")
    tokens.nth(1).hover()
    assert tab.inner_text("#attribution-readout") == "black #2: +0.2000"
    assert tab.inner_text("#attribution-sum") == "sum of attributions +0.2000"
    assert tokens.nth(1).evaluate("node => node.style.background") != negative


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_its_width_and_hovering_moves_nothing(tab: Page, tmp_path: Path, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    open_page(tab, TRANSLATION_EXPLANATION, tmp_path)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    offsets_script = "() => ['list', 'heatmap', 'entropy', 'keys'].map(id => document.getElementById(id).offsetTop)"
    before = tab.evaluate(offsets_script)
    for side, index in [("query", 2), ("key", 4), ("query", 0)]:
        hover(tab, side, index)
        assert tab.evaluate(offsets_script) == before


def test_512_tokens_in_12_layers_of_12_heads_open_and_answer(tab: Page, tmp_path: Path) -> None:
    pieces = tuple(f" w{index}" for index in range(512))
    attention_map = random_map("encoder", pieces, pieces, layers=12, heads=12)
    open_page(tab, Explanation(title="Long", text="", maps=(attention_map,)), tmp_path)
    assert "largest of up to 512 weights in each row are stored" in tab.inner_text("#packing")
    tab.select_option("#layer-select", "11")
    tab.select_option("#head-select", "7")
    wait_for(tab, 12, "head 8")
    hover(tab, "query", 9)
    query, key, weight = read_readout(tab)
    row = attention_map.weights[11, 7, 9]
    assert (query, key) == (9, int(row.argmax()))
    assert weight == pytest.approx(float(row.max()), abs=0.51 / 65535)
    hover(tab, "key", int(row[:40].argmin()))  # too weak to be kept
    tab.click('.token[data-side="query"][data-index="9"]')
    hover(tab, "key", int(row[:40].argmin()))
    assert tab.inner_text("#weight").startswith("≤ 0.0")
    assert tab.get_attribute("#readout", "data-weight") == ""


def causal_map(size: int, **sizes: int) -> AttentionMap:
    pieces = tuple(f" w{index}" for index in range(size))
    weights = np.tril(random_map("decoder", pieces, pieces, **sizes).weights + np.float32(1e-4))
    weights /= weights.sum(axis=-1, keepdims=True)
    return AttentionMap(name="decoder", queries=pieces, keys=pieces, weights=weights)


def read_pixel(tab: Page, query: int, key: int) -> str:
    copy = "const c = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true})"
    cut = f"c.drawImage(heat.base, {key}, {query}, 1, 1, 0, 0, 1, 1)"
    channels = tab.evaluate(f"() => {{ {copy}; {cut}; return [...c.getImageData(0, 0, 1, 1).data]; }}")
    return "rgb({}, {}, {})".format(*channels[:3])


def test_what_was_left_out_is_drawn_otherwise_than_what_may_not_be_read(
    tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MIN_WEIGHT_BYTES", 30_000)
    monkeypatch.setattr(page, "MAX_PAGE_BYTES", 0)
    attention_map = causal_map(100, layers=1)
    open_page(tab, Explanation(title="Long", text="", maps=(attention_map,)), tmp_path)
    assert "coloured by their average" in tab.inner_text("#packing")
    row = attention_map.weights[0, 0, 60]
    weak = int(row[:61].argmin())
    zero = tab.eval_on_selector(".swatch.zero", "node => getComputedStyle(node).backgroundColor")
    assert read_pixel(tab, 60, 61) == read_pixel(tab, 60, 99) == zero
    assert read_pixel(tab, 60, weak) not in (zero, "rgb(255, 255, 255)", "rgb(244, 246, 251)")
    kept_weights = tab.evaluate("[...rowOf(state.matrix, 60)].filter(value => value > 0)")
    mean = tab.evaluate("state.matrix.mean[60]")
    assert mean == pytest.approx((1 - sum(kept_weights)) / (61 - len(kept_weights)), abs=1e-6)
    tab.click('.token[data-side="query"][data-index="60"]')
    hover(tab, "key", 61)
    assert tab.inner_text("#weight") == "0, not read"
    hover(tab, "key", weak)
    assert tab.inner_text("#weight").startswith("≤ 0.0")


def test_keys_and_heat_map_give_the_same_number_the_same_colour(tab: Page, tmp_path: Path) -> None:
    open_page(tab, Explanation(title="Causal", text="", maps=(causal_map(12),)), tmp_path)
    assert tab.locator("#unread").is_visible()
    for query in (2, 7):
        hover(tab, "query", query)
        style = "node => node.style.background"
        for key in range(12):
            token = tab.locator(f'.token[data-side="key"][data-index="{key}"]')
            assert token.evaluate(style) == read_pixel(tab, query, key)
    assert read_pixel(tab, 2, 3) == read_pixel(tab, 7, 11) != read_pixel(tab, 7, 7)


@pytest.mark.parametrize("width", [400, 1400])
def test_labels_of_the_heat_map_never_touch(tab: Page, tmp_path: Path, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    pieces = tuple(f" w{index}" for index in range(120))
    attention_map = random_map("cross", pieces[:70], pieces)
    open_page(tab, Explanation(title="Wide", text="", maps=(attention_map,)), tmp_path)
    heatmap = tab.evaluate("({...heat, base: null})")
    assert heatmap["everyKey"] > 1
    assert heatmap["everyKey"] * heatmap["w"] / 120 >= 13
    assert heatmap["everyQuery"] * heatmap["h"] / 70 >= 13
    assert tab.evaluate("label(' w7', 7, 4)") == "8 w7"
    tab.locator("#heatmap").scroll_into_view_if_needed()
    x, y = heatmap["left"] + 99.5 * heatmap["w"] / 120, heatmap["top"] + 35.5 * heatmap["h"] / 70
    tab.hover("#heatmap", position={"x": x, "y": y})
    assert read_readout(tab) == (35, 99, float(attention_map.weights[0, 0, 35, 99]))


def test_white_space_is_seen_and_a_plain_note_is_no_warning(tab: Page, tmp_path: Path) -> None:
    notes = ("each row of cross-attention is labelled", "cut")
    pieces = ("a", "\n", "\n", "b")
    attention_map = random_map("encoder", pieces, pieces)
    open_page(
        tab, Explanation(title="White", text="a\n\nb", output=" \n", maps=(attention_map,), notes=notes), tmp_path
    )
    assert tab.inner_text("#output") == "only white space: ·⏎"
    assert tab.locator("#notes li").all_inner_texts() == ["cut"]
    assert tab.inner_text("#remarks") == notes[0]
    tops = tab.evaluate("[...document.querySelectorAll('#queries .token')].map(node => node.offsetTop)")
    assert len(set(tops)) == 1


@pytest.mark.parametrize("width", [1200, 420])
def test_the_sums_of_each_layer_are_shown_beside_the_map(tab: Page, tmp_path: Path, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    weights = np.tril(np.ones((2, 2, 3, 5), dtype=np.float32))
    weights[1, :, 1] = [0.25, 0.25, 0.25, 0.125, 0.125]  # a leak to the future and to padding
    weights /= weights.sum(-1, keepdims=True)
    keys = ("a", "b", "c", "<pad>", "<pad>")
    leaking = AttentionMap(
        name="decoder", queries=keys[:3], keys=keys, weights=weights, n_padding=2, causal=True, windows=(2, -1)
    )
    tab.goto(Explanation(title="t", text="a b c", maps=(leaking,)).save(tmp_path / "sums.html").as_uri())
    tab.wait_for_selector("#heatmap[data-shown]")
    rows = tab.locator("#sums tbody tr").all()
    assert [cell.inner_text() for cell in rows[0].locator("td").all()] == ["1.000000", "0", "0", "0.1111"]
    assert [cell.inner_text() for cell in rows[1].locator("td").all()] == ["1.000000", "0.0833", "0.0833", "–"]
    note = tab.locator("#sums-note").inner_text()
    assert "It must be 0 on padding, on later tokens and outside the window." in note
    assert "The last 2 keys are padding." in note
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
