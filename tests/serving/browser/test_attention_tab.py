"""The tab Attention, used as a person would: what it shows is what the API answers."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_checks import assert_fits, post_json, read_weights

import triform

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "amber birch cedar dune"


def show_attention(tab: Page, text: str, run: str = "") -> None:
    if run:
        tab.select_option("#run-select", run)
    tab.fill("#attention-text", text)
    tab.click("form button.primary")
    tab.wait_for_selector("#heatmap[data-shown]")


def wait_for(tab: Page, selection: str) -> None:
    """Wait for the map, layer and view with these numbers."""
    tab.wait_for_selector(f"#heatmap[data-shown='{selection}']")


def read_readout(tab: Page) -> tuple[int, int, float]:
    dataset: dict[str, Any] = tab.eval_on_selector("#readout", "node => ({...node.dataset})")
    return int(dataset["query"]), int(dataset["key"]), float(dataset["weight"])


def test_any_part_layer_and_head_of_a_run_is_shown(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/attention")
    tab.wait_for_selector("#run-select")
    show_attention(tab, TEXT, run="french")
    assert "2 layers of 2 heads, best weights" in tab.inner_text("#attention-status")
    for part, number, layer, view, head in (
        ("encoder", 0, 1, 1, 1),
        ("encoder", 0, 1, 3, "rollout"),
        ("decoder", 1, 0, 2, "average"),
        ("cross", 2, 1, 0, 0),
    ):
        tab.select_option("#map-select", str(number))
        tab.select_option("#layer-select", str(layer))
        tab.select_option("#head-select", str(view))
        wait_for(tab, f"{number} {layer} {view}")
        weights = read_weights(studio, model="french", text=TEXT, part=part, layer=layer, head=head)
        tab.hover('.token[data-side="query"][data-index="0"]')
        strongest = int(weights[0].argmax())
        assert read_readout(tab) == (0, strongest, float(weights[0, strongest]))
        assert tab.inner_text("#weight") == f"{weights[0, strongest]:.4f}"


def test_all_heads_are_a_grid_and_a_table_from_which_one_is_chosen(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/attention?run=reviews&text=" + TEXT.replace(" ", "+"))  # a link opens it at once
    wait_for(tab, "0 0 0")
    summary = post_json(studio, "/api/attention", model="reviews", text=TEXT)["summary"]
    tab.wait_for_selector("#entropy button")
    cells = tab.locator("#entropy button")
    assert cells.all_inner_texts() == [f"{value:.2f}" for row in summary["entropy"] for value in row]
    tab.select_option("#summary-select", "distance")
    assert cells.all_inner_texts() == [f"{value:.2f}" for row in summary["distance"] for value in row]
    cells.nth(2).click()
    wait_for(tab, "0 1 0")
    tab.wait_for_selector("#thumbnails[data-shown='0 1'] button")
    assert tab.locator("#thumbnails button").count() == 2
    assert tab.get_attribute("#thumbnails button >> nth=0", "aria-pressed") == "true"
    tab.click("#thumbnails button >> nth=1")
    wait_for(tab, "0 1 1")
    pixels = tab.evaluate(
        "() => { const canvas = document.querySelectorAll('#thumbnails canvas')[1];"
        " const {data} = canvas.getContext('2d').getImageData(0, 0, 4, 4);"
        " return [canvas.width, canvas.height, new Set(new Uint32Array(data.buffer)).size]; }"
    )
    assert pixels[:2] == [4, 4]
    assert pixels[2] > 1


def test_the_heat_map_is_read_with_the_keyboard(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/attention")
    tab.wait_for_selector("#run-select")
    show_attention(tab, TEXT, run="verses")
    tab.keyboard.press("Escape")
    tab.focus("#heatmap")
    tab.keyboard.press("Shift+ArrowDown")
    wait_for(tab, "0 1 0")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowLeft")
    weights = read_weights(studio, model="verses", text=TEXT, layer=1)
    query, key, weight = read_readout(tab)
    assert query == 3
    assert weight == float(weights[query, key])
    assert f"{weight:.4f}" in (tab.get_attribute("#heatmap", "aria-label") or "")


@pytest.fixture(scope="module")
def long_run(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that reads 512 tokens."""
    folder = tmp_path_factory.mktemp("long")
    triform.train(
        "generate",
        data={"train": str(data_folder / "text.txt"), "max_len": 512},
        out=folder / "long",
        model={"d_model": 16, "n_layers": 1, "n_heads": 2},
        train={"max_steps": 1},
        tokenizer={"kind": "char"},
        device="cpu",
        quiet=True,
    )
    return folder


def test_512_tokens_are_shown_and_another_head_is_one_choice_away(
    long_run: Path, start_studio: Any, open_tab: Any
) -> None:
    address = start_studio(folder=long_run)
    tab = open_tab(address, "#/attention")
    tab.wait_for_selector("#run-select")
    text = "amber birch dune " * 32
    show_attention(tab, text[:512])
    assert tab.inner_text("#attention-status").startswith("512 tokens, 1 layer of 2 heads")
    tab.wait_for_selector("#thumbnails button >> nth=1")
    tab.click("#thumbnails button >> nth=1")
    wait_for(tab, "0 0 1")
    weights = read_weights(address, model="long", text=text[:512], head=1)
    tab.click('.token[data-side="query"][data-index="40"]')
    assert read_readout(tab) == (40, int(weights[40].argmax()), float(weights[40].max()))


def test_a_run_in_training_is_followed_from_checkpoint_to_checkpoint(
    runs_folder: Path, tmp_path: Path, start_studio: Any, open_tab: Any
) -> None:
    shutil.copytree(runs_folder / "reviews", tmp_path / "reviews")
    address = start_studio(folder=tmp_path)
    tab = open_tab(address, "#/attention")
    tab.wait_for_selector("#run-select")
    show_attention(tab, TEXT)
    assert "best weights" in tab.inner_text("#attention-status")
    tab.select_option("#checkpoint-select", "latest")
    tab.wait_for_selector("#attention-status:has-text('checkpoint of step 12')")
    tab.select_option("#layer-select", "1")
    wait_for(tab, "0 1 0")
    checkpoint = tmp_path / "reviews/checkpoints/step-000000012"
    checkpoint = checkpoint.rename(checkpoint.with_name("step-000000016"))
    tab.click("#refresh")
    tab.wait_for_selector("#attention-status:has-text('checkpoint of step 16')")
    wait_for(tab, "0 1 0")  # the layer stays
    checkpoint = checkpoint.rename(checkpoint.with_name("step-000000018"))
    post_json(
        address, "/api/attention", model="reviews", text=TEXT, checkpoint="latest"
    )  # another tab has loaded it
    tab.select_option("#layer-select", "0")
    tab.wait_for_selector("#attention-status:has-text('checkpoint of step 18')")
    tab.check("#follow")
    checkpoint.rename(checkpoint.with_name("step-000000020"))
    tab.wait_for_selector("#attention-status:has-text('checkpoint of step 20')")


def test_a_text_that_the_model_cannot_read_is_an_error_and_the_tab_goes_on(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/attention?run=verses", allow_status=400)
    tab.wait_for_selector("#run-select")
    tab.fill("#attention-text", "   ")
    tab.click("form button.primary")
    assert "the text is empty" in tab.inner_text("[role=alert]")
    show_attention(tab, TEXT)
    assert tab.locator("[role=alert]").count() == 0


def test_an_example_of_the_run_is_one_click_away(studio: str, open_tab: Any) -> None:
    from playwright.sync_api import expect

    tab = open_tab(studio, "#/attention?run=reviews")
    with urllib.request.urlopen(f"{studio}/api/runs/reviews") as response:
        inputs = list(
            dict.fromkeys(sample["input"] for sample in json.load(response)["samples"] if sample["input"])
        )
    assert len(inputs) > 1
    for text in inputs[:2]:
        tab.click("#example")
        expect(tab.locator("#attention-text")).to_have_value(text)
    tab.click("form button.primary")
    wait_for(tab, "0 0 0")


def test_a_run_without_recorded_samples_has_examples_of_its_validation_data(studio: str, open_tab: Any) -> None:
    from playwright.sync_api import expect

    tab = open_tab(studio, "#/attention?run=reviews")
    tab.route("**/api/runs/reviews", lambda route: route.fulfill(json={"samples": []}))
    tab.click("#example")
    expect(tab.locator("#attention-text")).not_to_have_value("", timeout=240_000)
    assert tab.inner_text("#example") == "Example"


def test_another_tab_can_be_opened_while_maps_are_shown(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/attention?run=reviews&text=amber+birch")
    wait_for(tab, "0 0 0")
    tab.click("#tabs a:has-text('Runs')")
    tab.wait_for_selector("tr[data-run]")
    tab.wait_for_timeout(100)  # a change of the size is observed in the next frame


def test_the_maps_fit_a_narrow_dark_window(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/attention?run=french&text=" + "amber+" * 40, width=420, dark=True)
    wait_for(tab, "0 0 0")
    tab.wait_for_selector("#thumbnails button")
    assert_fits(tab)
