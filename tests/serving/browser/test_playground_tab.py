"""The tab Playground, used as a person would: classify, generate and translate, with the numbers of the API."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from browser_checks import assert_fits, post_json, read_weights

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "amber birch cedar dune"


def open_run(open_tab: Any, studio: str, run: str, **options: Any) -> Page:
    tab: Page = open_tab(studio, "#/playground", **options)
    tab.wait_for_selector("#run-select")
    tab.select_option("#run-select", run)
    return tab


def submit(tab: Page, text: str) -> None:
    tab.fill("#playground-text", text)
    tab.click("form button.primary")


def test_a_text_is_classified_and_its_tokens_are_coloured(studio: str, open_tab: Any) -> None:
    tab = open_run(open_tab, studio, "reviews")
    submit(tab, TEXT)
    tab.wait_for_selector("#attribution-tokens .token")
    labels: Any = post_json(studio, "/predict", model="reviews", inputs=TEXT)
    assert tab.inner_text("#predicted-label") == labels[0]["label"]
    assert tab.locator("#label-bars .name").all_inner_texts() == [item["label"] for item in labels]
    assert tab.locator("#label-bars .num").all_inner_texts() == [f"{item['score']:.4f}" for item in labels]
    assert tab.locator("#attribution-tokens .token").all_inner_texts() == TEXT.split()
    tab.focus("#attribution-tokens .token >> nth=0")
    tab.keyboard.press("ArrowRight")
    for label in (labels[0]["label"], labels[1]["label"]):
        tab.select_option("#explained-label", label)
        tab.wait_for_selector(f"#attribution-method option:has-text('logit of {label}')", state="attached")
        value = post_json(studio, "/api/attribution", model="reviews", text=TEXT, label=label)["attributions"][0][
            "values"
        ][1]
        tab.hover("#attribution-tokens .token >> nth=1")
        assert tab.inner_text("#attribution-readout") == f"birch #2: {value:+.4f}".replace("-", "−")
    colours = tab.eval_on_selector_all(
        "#attribution-tokens .token", "nodes => nodes.map(node => node.style.background)"
    )
    assert len(set(colours)) > 1


def test_a_text_is_continued_token_by_token_with_alternatives(studio: str, open_tab: Any) -> None:
    tab = open_run(open_tab, studio, "verses")
    tab.fill("#temperature", "1.2")
    tab.fill("#top-k", "4")
    tab.fill("#seed", "3")
    tab.fill("#max-tokens", "12")
    submit(tab, "amber birch")
    tab.wait_for_selector("#generation-status:has-text('12 tokens. The limit of tokens is reached.')")
    settings = {"temperature": 1.2, "top_k": 4, "top_p": 1, "seed": 3, "max_tokens": 12, "logprobs": 5}
    choice = post_json(studio, "/v1/completions", model="verses", prompt="amber birch", **settings)["choices"][0]
    logprobs = choice["logprobs"]
    assert tab.locator("#generated .token").all_inner_texts() == [text.strip() for text in logprobs["tokens"]]
    tab.hover("#generated .token >> nth=4")
    expected = sorted(logprobs["top_logprobs"][4].items(), key=lambda item: -item[1])
    assert tab.locator("#alternatives .name").all_inner_texts() == [text.strip() for text, _ in expected]
    chances = [f"{math.exp(logprob):.4f}" for _, logprob in expected]
    assert tab.locator("#alternatives .num").all_inner_texts() == chances
    assert f"probability {math.exp(logprobs['token_logprobs'][4]):.4f}" in tab.inner_text("#alternatives")
    tab.focus("#generated .token >> nth=4")
    tab.keyboard.press("ArrowLeft")
    assert "#4" in tab.inner_text("#alternatives h3")


def test_generation_continues_from_a_chosen_alternative(studio: str, open_tab: Any) -> None:
    tab = open_run(open_tab, studio, "verses")
    tab.fill("#temperature", "0")
    tab.fill("#max-tokens", "6")
    submit(tab, "amber")
    tab.wait_for_selector("#generation-status:has-text('6 tokens')")
    before = tab.locator("#generated .token").all_inner_texts()
    tab.hover("#generated .token >> nth=2")
    other = next(text for text in tab.locator("#alternatives .name").all_inner_texts() if text != before[2])
    tab.click(f"#alternatives button:has-text('{other}')")
    tab.wait_for_selector("#generation-status:has-text('9 tokens')")  # three that stay, and six new ones
    after = tab.locator("#generated .token").all_inner_texts()
    assert after[:3] == [*before[:2], other]
    prompt = " ".join(["amber", *after[:3]])
    answer = post_json(studio, "/v1/completions", model="verses", prompt=prompt, temperature=0, max_tokens=6)
    assert after[3:] == answer["choices"][0]["text"].split()
    tab.click("#continue")
    tab.wait_for_selector("#generation-status:has-text('15 tokens')")


def test_generation_is_stopped(studio: str, open_tab: Any) -> None:
    tab = open_run(open_tab, studio, "verses")
    tab.fill("#max-tokens", "100000")
    submit(tab, "amber birch")
    tab.wait_for_selector("#generated .token >> nth=3")
    tab.click("#stop")
    tab.wait_for_selector("#generation-status:has-text('Stopped.')")
    assert tab.is_enabled("form button.primary")


def test_a_text_is_translated_with_alternatives_and_their_alignment(studio: str, open_tab: Any) -> None:
    tab = open_run(open_tab, studio, "french")
    tab.fill("#alternative-count", "2")
    submit(tab, TEXT)
    tab.wait_for_selector("#alignment-readout:not(:empty)")
    body = {"q": TEXT, "source": "auto", "target": "auto", "model": "french", "alternatives": 2}
    answer = post_json(studio, "/translate", **body)
    translations = [answer["translatedText"], *answer["alternatives"]]
    assert tab.locator("#translations button").all_inner_texts() == [text or "(empty)" for text in translations]
    tab.click("#translations button >> nth=1")
    tab.wait_for_selector(f"#target-tokens .token:has-text('{translations[1].split()[0]}')")
    assert tab.inner_text("#translation") == translations[1]
    selection = {"model": "french", "text": TEXT, "target": translations[1], "part": "cross", "head": "average"}
    for layer in (1, 0):
        tab.select_option("#alignment-layer", str(layer))
        weights = read_weights(studio, layer=layer, **selection)
        best = int(weights[0].argmax())
        tab.hover("#target-tokens .token >> nth=0")
        tab.wait_for_selector(f"#alignment-readout:has-text('→ {TEXT.split()[best]} #{best + 1}')")
        tab.wait_for_selector(f"#alignment-readout:has-text('{weights[0, best]:.4f}')")
    tab.hover("#source-tokens .token >> nth=2")
    best = int(weights[:, 2].argmax())
    assert tab.inner_text("#alignment-readout").endswith(f"#{best + 1}: {weights[best, 2]:.4f}")


def test_an_error_of_the_server_is_shown_and_texts_stay_texts(studio: str, open_tab: Any) -> None:
    tab = open_run(open_tab, studio, "verses", allow_status=400)
    submit(tab, "amber " * 5000)
    assert "this model reads at most" in tab.inner_text("[role=alert]")
    tab.select_option("#run-select", "reviews")
    submit(tab, "<b>amber</b> <img src=x>")
    tab.wait_for_selector("#attribution-tokens .token")
    assert tab.locator("#attribution-tokens img").count() == 0


def test_the_attention_of_a_text_is_one_link_away(studio: str, open_tab: Any) -> None:
    tab = open_run(open_tab, studio, "reviews")
    submit(tab, TEXT)
    tab.click("text=Look at its attention")
    tab.wait_for_selector("#heatmap[data-shown]")
    assert tab.input_value("#attention-text") == TEXT
    assert tab.input_value("#run-select") == "reviews"


@pytest.mark.parametrize(
    ("run", "result", "dark"),
    [
        ("reviews", "#attribution-readout:not(:empty)", True),
        ("verses", "#generation-status:has-text('tokens')", False),
        ("french", "#alignment-readout:not(:empty)", True),
    ],
)
def test_results_fit_a_narrow_window(studio: str, open_tab: Any, run: str, result: str, dark: bool) -> None:
    tab = open_run(open_tab, studio, run, width=420, dark=dark)
    submit(tab, TEXT * 3)
    tab.wait_for_selector(result)
    assert_fits(tab)
