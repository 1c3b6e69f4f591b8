"""What notebooks show of runs, predictions, explanations and studies: HTML in which every text is text."""

from __future__ import annotations

import json
import os
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triform
from triform.evaluation.baselines import BaselineMetrics
from triform.experiments.seed_results import SeedResults
from triform.explain.attention_maps import AttentionMap, Explanation
from triform.html.notebook import notebook_style
from triform.tasks.prediction import Alternative, Prediction, PredictionList

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\ud800&amp;"
VOID_TAGS = {"img", "input", "br", "meta"}


class TagReader(HTMLParser):
    """The tags, attributes and texts of an output."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open_tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID_TAGS:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += "" if self.open_tags[-1:] == ["style"] else data


def read_output(displayed: Any) -> TagReader:
    html = displayed._repr_html_()
    json.dumps(html, ensure_ascii=False).encode("utf-8")  # as a notebook stores it
    reader = TagReader(html)
    assert not reader.open_tags
    assert not {"script", "img", "link"} & set(reader.tags)
    assert not [value for name, value in reader.attributes if name in ("src", "href")]
    return reader


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> triform.Run:
    folder = tmp_path_factory.mktemp("outputs")
    rows = "".join(f"{'good' if n % 2 else 'bad'},thing {n % 7}\n" for n in range(60))
    (folder / "rows.csv").write_text(rows, encoding="utf-8")
    return triform.train(
        "classify", data=str(folder / "rows.csv"), out=str(folder / "run <i>"), device="cpu", quiet=True,
        model={"d_model": 16, "n_heads": 2, "n_layers": 1}, train={"max_steps": 4, "eval_every": 2, "log_every": 1},
    )  # fmt: skip


def test_a_run_shows_its_task_data_size_metric_and_curves(run: triform.Run) -> None:
    output = read_output(run)
    n_parameters = sum(parameter.numel() for parameter in run.task.model.parameters())
    for text in ("classify", "run <i>", "rows.csv", f"{n_parameters:,}", "Best accuracy", "Finished"):
        assert text in output.text
    assert output.tags.count("figure") == 2  # the loss and the accuracy
    assert ("data-chart", None) not in output.attributes  # the script that reads it is not part of an output


def test_a_run_without_a_history_shows_its_size(run: triform.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "imported")
    (tmp_path / "imported" / "metrics.jsonl").unlink()
    output = read_output(triform.load(tmp_path / "imported", device="cpu"))
    assert "imported" in output.text
    assert "Parameters" in output.text
    assert "figure" not in output.tags


def test_predictions_are_a_list_that_is_shown_as_a_table(run: triform.Run) -> None:
    text = HOSTILE.replace("\ud800", "")  # a model refuses a surrogate
    predictions = run.predict(["thing 1", text])
    assert isinstance(predictions, list)
    assert predictions == list(predictions)
    assert repr(predictions) == repr(list(predictions))
    output = read_output(predictions)
    assert output.tags.count("tr") == 3
    assert text in output.text
    assert f"{100 * predictions[0].probabilities[predictions[0].output]:.2f} %" in output.text


def test_a_long_list_of_predictions_is_cut_and_says_so() -> None:
    output = read_output(PredictionList(Prediction(input=str(n), output="x") for n in range(1200)))
    assert output.tags.count("tr") == 51
    assert "and 1,150 more" in output.text
    assert "no predictions" in read_output(PredictionList()).text


def test_a_prediction_of_a_label_has_a_bar_for_each_label() -> None:
    probabilities = {"good": 0.75, HOSTILE: 0.25}
    output = read_output(Prediction(input="a film", output="good", probabilities=probabilities, notes=(HOSTILE,)))
    widths = [value for name, value in output.attributes if name == "width"]
    assert widths == ["75.00%", "25.00%"]
    assert output.text.index("75.00 %") < output.text.index("25.00 %")


def test_a_prediction_of_text_shows_input_output_and_alternatives() -> None:
    next_tokens = (Alternative(text=" cat", probability=0.5), Alternative(text="\n", probability=0.25))
    output = read_output(Prediction(input="The", output=" cat sat", alternatives=next_tokens))
    assert "' cat'" in output.text
    assert "'\\n'" in output.text  # white space is visible
    hypotheses = (Alternative(text="le chat", score=-0.5), Alternative(text=HOSTILE, score=-1.25))
    output = read_output(Prediction(input="the cat", output="le chat", alternatives=hypotheses))
    assert "-1.250" in output.text


def test_an_explanation_is_a_page_in_a_sandboxed_frame() -> None:
    weights = np.full((1, 2, 2, 2), 0.5, dtype=np.float32)
    attention_map = AttentionMap(name="encoder", queries=("a", HOSTILE), keys=("a", HOSTILE), weights=weights)
    explanation = Explanation(title=HOSTILE, text=HOSTILE, maps=(attention_map,))
    assert repr(attention_map) == "AttentionMap(name='encoder', layers=1, heads=2, queries=2, keys=2)"
    assert len(repr(explanation)) < 400
    output = read_output(explanation)
    attributes = dict(output.attributes)
    assert attributes["sandbox"] == "allow-scripts"  # without allow-same-origin, it cannot reach the notebook
    page = attributes["srcdoc"]
    assert page is not None
    assert "default-src 'none'" in page
    assert '<html lang="en" class="inline">' in page
    assert "alert(1)</script>" not in page


def test_in_a_browser_a_frame_follows_the_theme_and_rules_of_the_notebook_do_not_apply() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None and os.environ.get("CI") != "true":
        pytest.skip("no Chromium")
    from playwright.sync_api import sync_playwright

    weights = np.full((1, 2, 2, 2), 0.5, dtype=np.float32)
    attention_map = AttentionMap(name="encoder", queries=("a", "b"), keys=("a", "b"), weights=weights)
    frame = Explanation(title="title", text="a b", maps=(attention_map,))._repr_html_()
    table = PredictionList([Prediction(input="a", output="b")])._repr_html_()
    rules = ".host td { text-align: right; color: red } .host tbody tr:nth-child(odd) { background: red }"
    body = f'<body data-jp-theme-light="false"><div class="host">{frame}{table}</div></body>'
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="light")
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.set_content(f"<!DOCTYPE html><style>{rules}</style>{body}")
        page.wait_for_function("document.querySelector('iframe').style.height")  # the page has answered its height
        inner = page.frames[1]
        assert inner.evaluate("document.documentElement.dataset.theme") == "dark"
        assert inner.evaluate("document.body.scrollHeight <= innerHeight")  # nothing is cut
        page.evaluate("document.body.dataset.jpThemeLight = 'true'")
        inner.wait_for_function("document.documentElement.dataset.theme === 'light'")
        computed = "name => getComputedStyle(document.querySelector('tbody ' + name[0]))[name[1]]"
        names = (("td", "textAlign"), ("td", "color"), ("tr", "backgroundColor"))
        style = [page.evaluate(computed, name) for name in names]
        browser.close()
    assert style == ["left", "rgb(27, 30, 37)", "rgba(0, 0, 0, 0)"]
    assert not problems


def test_several_seeds_are_shown_with_their_interval() -> None:
    folders = tuple(Path(f"seeds/seed-{n}") for n in range(3))
    output = read_output(
        SeedResults(path=Path("seeds"), folders=folders, metric="accuracy", values=(0.5, 0.6, 0.7))
    )
    assert "60.00 ± 24.84 %" in output.text  # 4.3027 * 10 / sqrt(3)
    assert [value for name, value in output.attributes if value == "run"] == ["run"] * 3


def test_baselines_are_shown_as_a_table_with_reasons() -> None:
    baselines = BaselineMetrics({"majority": {"accuracy": 0.5}}, {"tfidf": f"because {HOSTILE}"})
    output = read_output(baselines)
    assert "50.00 %" in output.text
    assert "tfidf: because" in output.text


def test_a_study_shows_its_verdicts_and_metrics(run: triform.Run, tmp_path: Path) -> None:
    study = {
        "task": "classify",
        "common": {
            "data": {"train": run.config.data.train},
            "train": {"max_steps": 2},
            "model": {"d_model": 16, "n_heads": 2},
        },
        "variants": {"one": {"model": {"n_layers": 1}}, "two": {"model": {"n_layers": 2}}},
    }
    result = triform.compare(study, seeds=2, out=tmp_path / "study", device="cpu", quiet=True)
    output = read_output(result)
    for text in ("one and two", "95 % interval", "2 variants × 2 seeds"):
        assert text in output.text
    assert len(repr(result)) < 300


def test_the_style_of_an_output_does_not_leave_it() -> None:
    style = notebook_style()
    depth, outside = 0, ""
    for character in style:
        depth -= character == "}"
        outside += character if depth == 0 else ""
        depth += character == "{"
    assert depth == 0
    assert re.sub(r"[{}\s]", "", outside) == ".triform-output" * 3  # every rule is nested in the class of an output
    assert "url(" not in unescape(style)
