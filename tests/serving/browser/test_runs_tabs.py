"""The tabs Runs, Run and Compare, used as a person does: what they show equals what the API says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser_checks import assert_fits

from triform.io.locks import folder_lock


def fetch(address: str, path: str) -> Any:
    answer = httpx.get(f"{address}/{path}", timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def copies(runs_folder: Path, tmp_path: Path) -> Path:
    """A folder with copies of runs, which a test may change."""
    for name in ("reviews", "verses"):
        shutil.copytree(runs_folder / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


def append_events(folder: Path, *events: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def row_texts(tab: Any) -> list[str]:
    """The names in the first column of the table of runs, from top to bottom."""
    return [text.split("\n")[0].strip() for text in tab.locator("tbody th").all_inner_texts()]


# -- Runs


def test_the_table_shows_the_runs_of_the_api(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/runs?flat=1")
    tab.wait_for_selector("tr[data-run='reviews']")
    for run in fetch(studio, "api/runs")["runs"]:
        text = tab.inner_text(f"tr[data-run='{run['id']}']")
        for part in (run["id"], run["task"], run["data"], run["metric"]["text"], run["state"], str(run["step"])):
            assert part in text
        assert run["started"].replace("T", " ")[:16] in text
    assert tab.inner_text(".count") == "5 runs"


def test_runs_are_filtered_and_sorted_and_the_address_remembers_it(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/runs?flat=1")
    tab.wait_for_selector("tr[data-run='reviews']")
    tab.fill("input[type=search]", "classify seed")
    assert sorted(row_texts(tab)) == ["seeds/seed-1", "seeds/seed-2"]
    assert tab.inner_text(".count") == "2 of 5 runs"
    tab.fill("input[type=search]", "")
    tab.click("thead >> text=Run")
    assert row_texts(tab) == ["french", "reviews", "seeds/seed-1", "seeds/seed-2", "verses"]
    tab.click("thead >> text=Run")
    assert row_texts(tab)[0] == "verses"
    assert tab.get_attribute("thead th:has-text('Run')", "aria-sort") == "descending"
    tab.select_option("select[aria-label=Task]", "translate")
    assert row_texts(tab) == ["french"]
    tab.reload()
    tab.wait_for_selector("tr[data-run='french']")
    assert row_texts(tab) == ["french"]
    tab.fill("input[type=search]", "nothing like this")
    assert tab.inner_text(".empty") == "No run matches the filter."


def test_seeds_form_a_group_with_their_mean_and_its_curve(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/runs")
    tab.wait_for_selector("tr[data-group='seeds']")
    comparison = fetch(studio, "api/compare?run=seeds/seed-1&run=seeds/seed-2")
    mean = f"{100 * comparison['variants'][0]['mean']:.2f} %"
    assert f"mean {mean}" in tab.inner_text("tr[data-group='seeds']")
    step = fetch(studio, "api/runs/seeds/seed-1")["run"]["step"]
    assert tab.inner_text("tr[data-group='seeds'] td:nth-child(7)") == str(step)
    assert not tab.locator("tr[data-run='seeds/seed-1']").count()
    tab.press("tr[data-group='seeds'] button", "Enter")
    tab.wait_for_selector("tr[data-run='seeds/seed-1']")
    tab.wait_for_selector(".group-chart canvas")
    [curve] = [curve for curve in comparison["curves"] if curve["title"] == "Validation accuracy"]
    last = curve["series"][0]["points"][-1][1]
    assert tab.inner_text(".group-chart .legend b") == f"{100 * last:.2f} %"
    assert tab.get_attribute("tr[data-group='seeds'] button", "aria-expanded") == "true"
    tab.uncheck("text=Group seeds")
    assert "seeds/seed-1" in row_texts(tab)


def test_the_table_follows_a_run_that_trains(copies: Path, start_studio: Any, open_tab: Any) -> None:
    address = start_studio(folder=copies)
    tab = open_tab(address, "#/runs")
    tab.wait_for_selector("tr[data-run='reviews'] >> text=finished")
    append_events(copies / "reviews", {"event": "train", "step": 77, "loss": 0.5})
    with folder_lock(copies / "reviews", "training"):
        tab.wait_for_selector("tr[data-run='reviews'] >> text=training")
        assert "77" in tab.inner_text("tr[data-run='reviews']")
    tab.wait_for_selector("tr[data-run='reviews'] >> text=finished")


def test_selected_runs_are_compared(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/runs")
    tab.check("input[aria-label='Select reviews']")
    tab.check("input[aria-label='Select seeds']")
    tab.click("button:has-text('Compare 3')")
    tab.wait_for_selector("h1:has-text('Compare')")
    tab.wait_for_selector("text=Settings")
    assert tab.locator("table >> nth=0").inner_text().count("validation") == 2


def test_names_and_texts_are_shown_as_text(copies: Path, start_studio: Any, open_tab: Any) -> None:
    name = "<img src=x onerror=alert(1)>&amp; 'q' %41?#"
    (copies / "reviews").rename(copies / name)
    append_events(copies / name, {"event": "notice", "level": "warning", "text": "<b>bold</b>"})
    append_events(
        copies / name, {"event": "sample", "step": 9, "input": "<i>x</i>", "output": "\u202eabc", "expected": ""}
    )
    address = start_studio(folder=copies)
    tab = open_tab(address, "#/runs")
    tab.wait_for_selector("a.run-name")
    assert name in row_texts(tab)
    tab.click("a.run-name:has-text('img')")
    tab.wait_for_selector("h1:has-text('img')")
    assert name in tab.inner_text("h1")
    assert "<b>bold</b>" in tab.inner_text(".part-notices")
    tab.wait_for_selector(".part-samples >> text=<i>x</i>")
    assert not tab.locator("main img, main b:text-is('bold')").count()


# -- Run


def test_a_run_shows_its_figures_curves_notices_settings_and_files(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/run/seeds/seed-1")
    details = fetch(studio, "api/runs/seeds/seed-1")
    events = fetch(studio, "api/runs/seeds/seed-1/metrics")["events"]
    tab.wait_for_selector(".part-curves canvas")
    assert tab.inner_text("h1").startswith("seed-1")
    tiles = tab.inner_text(".tiles")
    for text in (details["run"]["metric"]["text"], f"{details['run']['parameters']:,}", "of 12", "cpu"):
        assert text in tiles
    for notice in details["notices"]:
        assert notice["text"] in tab.inner_text(".part-notices")
    valid_losses = [event["loss"] for event in events if event["event"] == "valid"]
    assert tab.inner_text("figure:has-text('Loss') >> li:has-text('valid') >> b") == f"{valid_losses[-1]:.4g}"
    titles = tab.locator("figure h3").all_inner_texts()
    assert titles[:2] == ["Loss", "Accuracy"]
    assert {"Learning rate", "Tokens per second", "F1"} <= set(titles)
    assert tab.inner_text("tr[data-setting='lr'] td").split() == ["0.01", "option"]
    assert not tab.locator("tr[data-setting='momentum']").count()
    tab.check("text=Show settings with default values too")
    assert tab.inner_text("tr[data-setting='momentum'] td").split() == ["0.9", "default"]
    for file in details["files"]:
        assert file["path"] in tab.inner_text(".part-files")


def test_a_curve_is_read_with_the_pointer_and_the_arrow_keys(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/run/reviews")
    tab.wait_for_selector(".part-curves canvas")
    rates = {
        e["step"]: e["lr"] for e in fetch(studio, "api/runs/reviews/metrics")["events"] if e["event"] == "train"
    }
    plot = tab.locator("figure:has-text('Learning rate') .canvas")
    plot.focus()
    for step in sorted(rates)[::-1]:
        tab.keyboard.press("ArrowLeft")
        tip = plot.locator(".tip").inner_text()
        assert f"step {step}" in tip
        assert float(tip.split()[-1]) == pytest.approx(rates[step], rel=1e-3)
    tab.keyboard.press("Escape")
    assert not plot.locator(".tip").is_visible()
    plot.hover()
    assert plot.locator(".tip").is_visible()


def test_curves_and_state_follow_a_run_that_trains(copies: Path, start_studio: Any, open_tab: Any) -> None:
    folder = copies / "reviews"
    address = start_studio(folder=copies)
    tab = open_tab(address, "#/run/reviews")
    tab.wait_for_selector("h1 >> text=finished")
    assert tab.locator("button:has-text('Delete')").count() == 1
    with folder_lock(folder, "training"):
        tab.wait_for_selector("h1 >> text=training")
        assert not tab.locator("button:has-text('Delete')").count()
        append_events(
            folder,
            {"event": "train", "step": 14, "loss": 0.25, "lr": 0.125, "tokens_per_s": 4321.0, "seconds": 3.0},
            {"event": "valid", "step": 14, "loss": 0.0625, "accuracy": 0.9375},
            {"event": "monitor", "set": "other", "step": 14, "loss": 0.5, "accuracy": 0.75},
        )
        tab.wait_for_selector("figure:has-text('Loss') >> text=0.0625")
        assert tab.inner_text("figure:has-text('Learning rate') b") == "0.125"
        assert tab.inner_text("figure:has-text('Tokens per second') b") == "4,321"
        assert tab.inner_text("figure:has-text('Accuracy') >> li:has-text('valid') >> b") == "93.75 %"
        assert tab.inner_text("figure:has-text('Accuracy') >> li:has-text('other') >> b") == "75.00 %"
        assert "14" in tab.inner_text(".tiles")
    tab.wait_for_selector("h1 >> text=finished")


def test_the_confusion_matrix_is_that_of_the_api(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/run/reviews")
    tab.click("button:text-is('Compute')")
    tab.wait_for_selector(".confusion")
    predictions = fetch(studio, "api/runs/reviews/predictions")
    counts = [int(text) for text in tab.locator(".confusion td").all_inner_texts()]
    assert counts == [n for row in predictions["details"]["confusion"] for n in row]
    for table in predictions["tables"]:
        cells = tab.locator(f".detail.{table['name']} tbody").locator("td, th").all_inner_texts()
        expected = [" ".join(cell.split()) for row in table["rows"] for cell in row]
        assert [" ".join(cell.split()) for cell in cells] == expected


def test_predictions_are_made_again_for_each_new_best(copies: Path, start_studio: Any, open_tab: Any) -> None:
    path = copies / "reviews" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    running = [line for line in lines if json.loads(line)["event"] not in ("end", "sample")]
    path.write_bytes(b"".join(running))
    tab = open_tab(start_studio(folder=copies), "#/run/reviews")
    tab.click("button:text-is('Compute')")
    tab.wait_for_selector(".confusion")
    best = [event["step"] for event in map(json.loads, running) if event["event"] == "best"][-1]
    append_events(copies / "reviews", {"event": "best", "step": 20, "metric": "accuracy", "value": 0.9})
    tab.wait_for_selector(".part-predictions option:has-text('step 20')", state="attached")
    assert tab.locator(".part-predictions option").all_inner_texts() == [f"step {best}", "step 20"]


def test_translations_are_side_by_side_with_the_expected_ones(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/run/french")
    tab.click("button:text-is('Compute')")
    tab.wait_for_selector("button:text-is('Compute again')")
    rows = tab.locator(".part-predictions > section > div > .wide tbody tr").all()
    samples = fetch(studio, "api/runs/french/predictions")["samples"]
    assert len(rows) == len(samples)
    for row, sample in zip(rows, samples, strict=True):
        texts = [cell.strip() for cell in row.locator("td").all_inner_texts()]
        assert texts == [sample["input"], sample["output"] or "(empty)", sample["expected"]]


def test_a_run_is_deleted_only_after_a_confirmation(copies: Path, start_studio: Any, open_tab: Any) -> None:
    address = start_studio(folder=copies)
    tab = open_tab(address, "#/run/reviews")
    tab.click("button:has-text('Delete')")
    tab.keyboard.press("Escape")
    assert (copies / "reviews").exists()
    tab.click("button:has-text('Delete')")
    tab.click("dialog >> button:has-text('Delete')")
    tab.wait_for_selector("h1:has-text('Runs')")
    tab.wait_for_selector("tr[data-run='verses']")
    assert not (copies / "reviews").exists()
    assert row_texts(tab) == ["verses"]


def test_a_read_only_server_shows_no_button_to_delete(copies: Path, start_studio: Any, open_tab: Any) -> None:
    address = start_studio(folder=copies, read_only=True)
    tab = open_tab(address, "#/run/reviews")
    tab.wait_for_selector(".part-curves canvas")
    assert not tab.locator("button:has-text('Delete')").count()


def test_an_unknown_run_says_so(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/run/missing", allow_status=404)
    assert "there is no run 'missing'" in tab.inner_text("[role=alert]")


def test_the_cursor_stays_on_a_curve_that_grows(copies: Path, start_studio: Any, open_tab: Any) -> None:
    tab = open_tab(start_studio(folder=copies), "#/run/reviews")
    tab.wait_for_selector(".part-curves canvas")
    plot = tab.locator("figure:has-text('Learning rate') .canvas")
    plot.hover()
    append_events(copies / "reviews", {"event": "train", "step": 14, "loss": 0.25, "lr": 0.125})
    tab.wait_for_selector("figure:has-text('Learning rate') >> b:text-is('0.125')")
    assert plot.locator(".tip").is_visible()


# -- Compare


def test_a_study_shows_its_verdict_table_and_curves(study_folder: Path, start_studio: Any, open_tab: Any) -> None:
    address = start_studio(folder=study_folder)
    tab = open_tab(address, "#/compare")
    tab.select_option("select[aria-label=Study]", "width")
    tab.wait_for_selector("text=Verdicts")
    comparison = fetch(address, "api/compare?study=width")
    assert comparison["pairs"][0]["verdict"] in tab.inner_text(".said")
    for row in comparison["variants"]:
        assert row["text"] in tab.inner_text("main")
    last = comparison["curves"][1]["series"][0]["points"][-1][1]
    assert tab.inner_text("figure >> nth=1 >> li >> nth=0 >> b") == f"{last:.4g}"
    assert tab.locator("figure canvas").count() == len(comparison["curves"])
    assert "model.d_model" in tab.inner_text("main")
    tab.reload()
    tab.wait_for_selector("text=Verdicts")
    assert tab.input_value("select[aria-label=Study]") == "width"


def test_runs_are_chosen_and_left_out_with_the_keyboard(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/compare")
    assert tab.inner_text(".empty") == "Choose runs above, or a study."
    tab.focus(".choice:has-text('reviews') input")
    tab.keyboard.press("Space")
    tab.wait_for_selector("figure canvas")
    tab.check(".choice:has-text('seeds') input")
    tab.wait_for_selector("text=they have no seed in common")
    assert "run=reviews" in tab.url
    tab.uncheck(".choice:has-text('reviews') input")
    tab.wait_for_selector("text=they have no seed in common", state="detached")


@pytest.mark.parametrize("fragment", ["#/runs", "#/run/reviews", "#/compare?run=reviews&run=seeds/seed-1"])
def test_the_tabs_fit_a_narrow_window(studio: str, open_tab: Any, fragment: str) -> None:
    tab = open_tab(studio, fragment, width=420, dark=True)
    tab.wait_for_selector("canvas" if fragment != "#/runs" else "tr[data-run]")
    assert_fits(tab)
