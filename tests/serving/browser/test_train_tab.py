"""The tab Train, used as a person does: a file is chosen, looked at, trained on, and the job is followed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser_checks import assert_fits

from triform.serving import ServerOptions, training_jobs
from triform.serving.training_jobs import TrainingJobs
from warm_processes import run_module, start_process

REVIEWS = (
    "review,stars,id\n"
    + "".join(f"{'good' if n % 3 else 'bad'} film number {n},{'five' if n % 3 else 'one'},{n}\n" for n in range(60))
    + "bad film number 0,five,60\n"
)
TINY = {"model.d_model": "16", "model.n_layers": "1", "train.epochs": "", "train.batch_size": "4"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs. A process that a failed test leaves behind is asked to stop."""
    path = tmp_path / "runs"
    path.mkdir()
    yield path
    jobs = TrainingJobs(ServerOptions(folder=path))
    for job in jobs.summarise_all():
        if job.can_stop:
            jobs.stop(job.id)


class WarmJob:
    """A job in a process that has imported torch; tests/serving/test_jobs_api.py starts the command itself."""

    def __init__(self, arguments: Sequence[str], log_file: Path) -> None:
        log_file.unlink(missing_ok=True)
        self.process = start_process(run_module, "triform", *arguments, log_file=log_file)
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> None:
        self.process.join()

    def kill(self) -> None:
        self.process.kill()


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    path.write_text(REVIEWS, encoding="utf-8")
    return path


def test_a_model_is_trained_stopped_and_resumed_through_the_page(
    folder: Path, reviews: Path, start_studio: Any, open_tab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_jobs, "start_detached", WarmJob)
    address = start_studio(folder=folder)
    tab = open_tab(address, "#/train")
    tab.set_input_files("input[data-slot=data]", str(reviews))
    tab.wait_for_selector("text=61 rows")
    assert tab.is_checked("input[value=classify]")
    assert [head.strip() for head in tab.locator("thead th").all_inner_texts()] == [
        "review (text)",
        "stars (label)",
        "id",
    ]
    assert "41 (67.2 %)" in tab.inner_text(".label-counts li:has-text('five')")
    assert "2 rows have a text that also occurs with another label" in tab.inner_text(".notices")
    tab.select_option("#preset", "tiny")
    for name, value in TINY.items():
        tab.fill(f"[data-setting='{name}']", value)
    tab.click("summary:has-text('Further settings')")
    tab.fill(
        "#extra",
        "train.max_steps=100000\ntrain.eval_every=1000\ntrain.log_every=5\ntrain.patience=0\nmodel.n_heads=2",
    )
    tab.wait_for_selector(".costs")
    costs = tab.inner_text(".costs")
    assert "100,000" in costs.split("\n")
    tab.fill("#run-name", "stars")
    tab.press("#run-name", "Enter")
    tab.wait_for_selector(".part-curves canvas", timeout=300_000)
    tab.click("h1 button:has-text('Stop')")
    tab.wait_for_selector("h1 >> text=stopped", timeout=300_000)
    assert tab.url.endswith("#/run/stars")
    tab.click("h1 button:has-text('Resume')")
    tab.click("h1 button:has-text('Stop'):enabled", timeout=300_000)
    tab.wait_for_selector("h1 >> text=stopped", timeout=300_000)
    run = httpx.get(f"{address}/api/runs/stars").json()["run"]
    assert (run["max_steps"], run["state"], run["data"]) == (100_000, "stopped", "reviews.csv")
    assert f"{run['parameters']:,}" in costs
    tab.goto(f"{address}/#/train")
    tab.wait_for_selector("article[data-job=stars] >> text=stopped", timeout=300_000)
    tab.click("article[data-job=stars] summary")
    [job] = httpx.get(f"{address}/api/jobs").json()["jobs"]
    assert tab.inner_text("article[data-job=stars] pre").strip() == job["log"].strip()


def test_mistakes_are_explained_next_to_what_is_wrong(
    folder: Path, tmp_path: Path, start_studio: Any, open_tab: Any
) -> None:
    address = start_studio(folder=folder, max_upload=5_000)
    tab = open_tab(address, "#/train", allow_status=400)
    tab.click("button:has-text('Start training')")
    tab.wait_for_selector("[role=alert] >> text=Choose data first.")
    broken = tmp_path / "<b>broken.csv"
    broken.write_text("text,label\na,b\nc,d,e\n", encoding="utf-8")
    tab.set_input_files("input[data-slot=data]", str(broken))
    tab.wait_for_selector("[role=alert] >> text=<b>broken.csv, line 3: expected 2 columns, found 3")
    large = tmp_path / "large.txt"
    large.write_text("x" * 5_001, encoding="utf-8")
    tab.set_input_files("input[data-slot=data]", str(large))
    tab.wait_for_selector("[role=alert] >> text=large.txt has 5.00 kB; the limit of this server is 5.00 kB.")
    tab.click("button:has-text('Use builtin:reviews')")
    tab.wait_for_selector("text=10,000 rows")
    tab.fill("[data-setting='model.d_model']", "wide")
    tab.wait_for_selector("[role=alert] >> text=d_model")
    tab.fill("[data-setting='model.d_model']", "")
    tab.click("summary:has-text('Further settings')")
    tab.fill("#extra", "train.epoch=3")
    tab.click("button:has-text('Start training')")
    tab.wait_for_selector("[role=alert] >> text=did you mean 'train.epochs'?")
    assert [path.name for path in folder.iterdir()] == [".studio"]


def test_two_files_are_dropped_for_a_translator_in_a_narrow_dark_window(
    folder: Path, start_studio: Any, open_tab: Any
) -> None:
    address = start_studio(folder=folder)
    tab = open_tab(address, "#/train", width=420, dark=True)
    tab.focus("input[value=classify]")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert tab.is_checked("input[value=translate]")
    tab.check("text=Two files with matching lines")
    drop = """(zone, [name, text]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([text], name));
      zone.dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }"""
    for slot, name in (("source", "a.en"), ("target", "a.fr")):
        text = "".join(f"{name} {n}\n" for n in range(12))
        tab.locator(f".drop-zone:has([data-slot={slot}])").evaluate(drop, [name, text])
        tab.wait_for_selector(f".drop-zone >> text={name}")
    tab.wait_for_selector("text=12 rows")
    assert tab.locator("tbody tr").first.inner_text().split() == ["a.en", "0", "a.fr", "0"]
    assert_fits(tab)


def test_a_read_only_studio_says_that_it_does_not_train(folder: Path, start_studio: Any, open_tab: Any) -> None:
    tab = open_tab(start_studio(folder=folder, read_only=True), "#/train")
    tab.wait_for_selector("text=This server does not train")
    assert not tab.locator("input").count()
