"""The study of LSTM and Transformer: equal in parameters and time, run from data to table on made-up sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triform.config import Sizes
from triform.errors import ConfigError, DivergedError, InterruptedRun
from triform.reproduce.outcome import read, write
from triform.reproduce.page import pages
from triform.reproduce.runner import Asked
from triform.reproduce.why import runner
from triform.reproduce.why.equal import equal_width, parameters, seconds_of, steps_per_second
from triform.reproduce.why.parts import NAME, PARTS, RATES, SHAKESPEARE, SPEECHES, TED, WITHIN, Part
from triform.reproduce.why.runner import Study, best_rate, why_transformers
from triform.reproduce.why.tables import section, verdicts
from triform.run import Run
from triform.settings import Settings, build
from triform.training.trainer import Trainer

REAL_SIZES = {
    "speeches": Sizes(vocab_size=4_100, max_len=64, n_labels=3),
    "shakespeare": Sizes(vocab_size=69, max_len=256),
    "ted": Sizes(vocab_size=6_000, max_len=96),
}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_an_lstm_can_have_as_many_parameters_as_the_transformer(part: Part) -> None:
    sizes, task = REAL_SIZES[part.name], {"task": part.system.task}
    settings = {**part.settings("transformer"), **task}
    settings.setdefault("model.d_ff", 4 * settings["model.d_model"])
    wanted = parameters(settings, sizes)
    own = {**part.settings("lstm"), **task}
    own["model.d_model"] = equal_width(own, sizes, wanted)
    assert abs(parameters(own, sizes) - wanted) <= WITHIN * wanted
    assert build(own).model.kind == "lstm"


def test_lengths_fall_into_bins_that_cover_all_of_them() -> None:
    assert SPEECHES.bins == ("1 to 10", "11 to 20", "21 to 30", "31 or more")
    assert [SPEECHES.bin_of(length) for length in (1, 10, 11, 30, 31, 400)] == [
        *("1 to 10", "1 to 10", "11 to 20", "21 to 30", "31 or more", "31 or more")
    ]
    assert SHAKESPEARE.bins[-1] == "129 to 256"  # a window has no more
    assert SHAKESPEARE.bin_of(256) == "129 to 256"


def test_the_rate_is_that_of_the_second_half_and_all_learning_is_timed() -> None:
    heard = [{"event": "train", "step": 5 * (n + 1), "step_ms": ms} for n, ms in enumerate((90, 50, 20, 10, 20))]
    heard.insert(2, {"event": "valid", "step": 10, "loss": 1.0})
    assert steps_per_second(heard) == pytest.approx(50.0)
    assert seconds_of(heard) == pytest.approx(5 * 0.190)


@pytest.fixture(scope="module")
def quick(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Asked, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("why")
    asked = Asked(data=str(data), out=folder / "runs", results=folder / "results", device="cpu", quick=True)
    return asked, why_transformers(asked)


def test_every_part_is_run_and_told(quick: tuple[Asked, dict[str, Any]]) -> None:
    asked, outcome = quick
    assert list(outcome["parts"]) == [part.name for part in PARTS]
    assert read(asked.kept, NAME) == json.loads(json.dumps(outcome))
    for part in PARTS:
        found = outcome["parts"][part.name]
        assert [each["name"] for each in found["variants"]] == ["transformer", "lstm"]
        for each in found["variants"]:
            assert [run["seed"] for run in each["runs"]] == [0, 1]
            for run in each["runs"]:
                assert part.judged.rpartition(".")[0] in run["scores"]
                assert run["seconds"] > 0
                assert run["epochs"] > 0
                assert any(name in run["scores"] for name in part.bins)
            assert [tried["rate"] for tried in each["tries"]] == list(RATES[:2])
            assert each["settings"]["train.lr"] == min(each["tries"], key=lambda tried: tried["loss"])["rate"]
    accuracy = outcome["parts"]["speeches"]["variants"][0]["runs"][0]["scores"]
    assert accuracy["test"]["rows"] == 12
    assert accuracy["unseen"]["rows"] == 4
    told = section(outcome)
    assert "A quick run" in told
    for part in (SPEECHES, SHAKESPEARE, TED):
        assert f"### {part.title}" in told
    assert told.count("**lstm**") == 9
    assert "| loss held out, by `train.lr` | 0.001 | 0.002 |" in told
    assert section(outcome) in pages(asked.kept)[""]


def test_what_judges_does_not_choose_the_rate(quick: tuple[Asked, dict[str, Any]], data: Path) -> None:
    whole = "".join((data / "tinyshakespeare" / "input.txt").read_text().splitlines(keepends=True)[:400])
    [learned] = (quick[0].out / f"{NAME}-quick" / "shakespeare" / "data").glob("learned.txt")
    assert learned.read_text() == whole[: int(0.9 * len(whole))]
    for run in (quick[0].out / f"{NAME}-quick" / "ted").glob("try-*/seed-0/config.toml"):
        told = run.read_text()
        assert "valid_fraction = 0.1" in told
        assert 'valid_source = ""' in told


def test_the_rate_is_that_of_the_lowest_loss_and_a_model_may_diverge_at_some() -> None:
    assert (
        best_rate([{"rate": 1e-3, "loss": 2.0}, {"rate": 2e-3, "loss": 1.5}, {"rate": 4e-3, "loss": 1.5}]) == 2e-3
    )
    assert best_rate([{"rate": 1e-3, "loss": 2.0}, {"rate": 2e-3, "loss": None}]) == 1e-3
    with pytest.raises(DivergedError, match="every rate"):
        best_rate([{"rate": 1e-3, "loss": None}])


def test_a_rate_at_which_a_model_diverges_is_told_and_not_taken(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Study._trained

    def diverges(self: Study, name: str, settings: Settings, steps: int, seed: int) -> Run:
        if settings.get("train.lr") == RATES[0]:
            raise DivergedError("the loss is not finite at step 3")
        return trained(self, name, settings, steps, seed)

    monkeypatch.setattr(Study, "_trained", diverges)
    monkeypatch.setattr(runner, "PARTS", (SPEECHES,))
    asked = Asked(data=str(data), out=tmp_path / "runs", results=tmp_path, device="cpu", quick=True, seeds=1)
    outcome = why_transformers(asked)
    assert [each["settings"]["train.lr"] for each in outcome["parts"]["speeches"]["variants"]] == [RATES[1]] * 2
    assert capsys.readouterr().err.count("not finite at step 3") == 2
    assert section(outcome).count("| diverged | **") == 2


def test_a_second_call_trains_nothing_again(
    quick: tuple[Asked, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, outcome = quick

    def never(self: Trainer) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "fit", never)
    again = why_transformers(asked)
    assert {name: part["variants"] for name, part in again["parts"].items()} == {
        name: part["variants"] for name, part in outcome["parts"].items()
    }


def test_a_stopped_study_says_how_it_goes_on(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(data=str(data), out=tmp_path / "runs", results=tmp_path, device="cpu", quick=True)
    after = Trainer.after_step

    def stops(self: Trainer) -> None:
        after(self)
        self.stop()

    monkeypatch.setattr(Trainer, "after_step", stops)
    with pytest.raises(InterruptedRun, match=f"go on with: triform reproduce {NAME} --quick --data"):
        why_transformers(asked)


def test_it_has_no_other_settings_and_says_when_it_was_not_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--setting best"):
        why_transformers(Asked(setting="best"))
    assert f"Not run yet: `triform reproduce {NAME}`" in section(None)
    assert f"Not run yet: `triform reproduce {NAME}`" in pages(tmp_path)[""]


def test_a_part_that_waits_is_told_of(quick: tuple[Asked, dict[str, Any]]) -> None:
    outcome = quick[1]
    some = {name: found for name, found in outcome["parts"].items() if name != TED.name}
    told = section(outcome | {"parts": some})
    assert f"### {TED.title}\n\nNot run yet" in told
    assert told.count("Not run yet") == 1


def test_remarks_stay_with_the_figures_they_are_on(
    quick: tuple[Asked, dict[str, Any]],
) -> None:
    asked, outcome = quick
    assert "Of these figures." in section(outcome | {"notes": ["Of these figures."]})
    write(asked.kept, outcome | {"notes": ["Of these figures."]})
    assert "notes" not in why_transformers(asked)


def test_the_verdict_is_paired_by_seed_and_corrected_for_all_parts() -> None:
    def found(score: str, first: float, second: float) -> dict[str, Any]:
        place, _, name = score.rpartition(".")
        return {
            "variants": [
                {"runs": [{"seed": n, "scores": {place: {name: base + 0.01 * n}}} for n in range(8)]}
                for base in (first, second)
            ]
        }

    told = [(TED, found("test.bleu", 20.0, 12.0)), (SHAKESPEARE, found("windows.loss", 1.6, 1.5))]
    bleu, loss = verdicts(told)
    assert "transformer better by 8.00" in bleu
    assert "lstm better by" in loss
    assert "corrected" in bleu
