"""The page of a study: readable with no script and no network, nothing over anything else."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from triform.experiments.study.page import MAX_VISIBLE_PAIRS
from triform.experiments.study.results import StudyResult
from triform.reporting.mean_curves import MAX_CURVE_STEPS, mean_with_band

if TYPE_CHECKING:
    from playwright.sync_api import Browser

StudySpec = dict[str, Any]
RunStudy = Callable[..., StudyResult]


def test_a_mean_curve_has_the_steps_that_most_runs_have() -> None:
    runs = [[(1, 2.0), (2, 4.0), (3, 9.0)], [(1, 4.0), (2, 4.0)], [(1, 6.0)]]
    mean, band = mean_with_band([[(float(step), value) for step, value in run] for run in runs])
    assert mean == [(1, 4.0), (2, 4.0)]
    assert band == [(1, 2.0, 6.0), (2, 4.0, 4.0)]
    assert mean_with_band([[(1.0, 2.0)]]) == ([(1, 2.0)], [])  # of one run there is no band
    assert mean_with_band([]) == ([], [])


def test_a_band_never_goes_beyond_the_runs_behind_it() -> None:
    _, band = mean_with_band([[(1.0, 1.0)], [(1.0, 1.0)], [(1.0, 0.4)]])  # accuracies end at 1
    assert band[0][2] == 1.0
    assert band[0][1] > 0.4


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    run = [(float(step), 1.0) for step in range(1, 5001)]
    mean, band = mean_with_band([run, run])
    assert len(mean) == len(band) <= MAX_CURVE_STEPS + 1
    assert (mean[0][0], mean[-1][0]) == (1, 5000)


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture
def page(page_folder: Path, workdir: Path, spec: StudySpec, run_study: RunStudy) -> Path:
    """More variants than there are colours, one with a long name, and a set whose name is markup.

    The study is run once; the page needs no other file.
    """
    path = page_folder / "study.html"
    if path.exists():
        return path
    spec["variants"] = {f"v{n}": {"model.d_ff": 8 + 8 * n} for n in range(8)}
    spec["variants"]["a-name-that-is-longer-than-most-variants-have"] = {"model.window": 2}
    spec["tests"] = {"<b>more</b>": "more.tsv"}
    run_study(spec, out="out", seeds=2)
    return Path(shutil.copy(workdir / "out" / "study.html", path))


def test_the_page_holds_everything_itself(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<b>more</b>" not in text
    assert "&lt;b&gt;more&lt;/b&gt;" in text
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?://", text)
    assert "nan" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    for name in ("Verdicts", "Metrics", "Curves", "Costs", "Settings that differ", "How the figures were computed"):
        assert f"<h2>{name}</h2>" in text
    assert text.count('class="band ') == 3 * 9  # training loss, validation loss and score, of every variant
    assert len(set(re.findall(r'class="(line tone-\w[^"]*)"', text))) == 9  # no two curves look alike
    assert MAX_VISIBLE_PAIRS < 9 * 8 / 2
    assert "<summary>Figures of all 36 pairs</summary>" in text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    requirements = {"playwright": importlib.util.find_spec("playwright"), "chromium": shutil.which("chromium")}
    if missing := [name for name, location in requirements.items() if not location]:
        reason = f"not installed: {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


LABELS = ".strips b, .strips .value, .strips text, .chart .tick, .legend li, h3"
OVERLAPS = f"""() => {{
  const boxes = [...document.querySelectorAll('{LABELS}')]
    .map(node => [node.textContent, node.getBoundingClientRect()])
    .filter(([, box]) => box.width);
  const found = [];
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {{
    const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (x > 1 && y > 3) found.push(a + ' / ' + b);
  }}));
  return found;
}}"""


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without"])
@pytest.mark.parametrize("width", [1200, 420])
def test_no_label_lies_over_another(browser: Browser, page: Path, width: int, script: bool) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=script)
    tab = context.new_page()
    requests: list[str] = []
    messages: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.goto(page.resolve().as_uri())
    assert tab.evaluate("() => document.querySelectorAll('.strips b').length") == 9 * 4
    assert tab.evaluate(OVERLAPS) == []
    assert tab.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    context.close()
    assert len(requests) == 1
    assert not messages
