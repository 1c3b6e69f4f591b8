"""The commands as a user types them: train, predict, evaluate and doctor, for the three tasks."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import triform as package
from triform.cli import doctor
from triform.cli.main import skip_last_collection
from triform.nn.kernels.cpu_linear import Product

Command = Any  # `triform(...)` and `train(...)` of conftest: they give an Answer
Files = Any
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
GOOD, BAD = "the soup was lovely on day", "the soup was awful on day"


def make_classification_rows(count: int = 40) -> list[tuple[str, str]]:
    return [(f"{GOOD if index % 2 else BAD} {index % 7}", "good" if index % 2 else "bad") for index in range(count)]


def make_translation_pairs(count: int = 40) -> list[tuple[str, str]]:
    return [(f"{index % 7} times {index % 3}", f"{index % 7} fois {index % 3}") for index in range(count)]


def format_csv(rows: list[tuple[str, str]], header: str) -> str:
    return f"{header}\n" + "".join(f'"{first}",{second}\n' for first, second in rows)


def format_tsv(rows: list[tuple[str, str]], *, swap: bool = False) -> str:
    return "".join(f"{second}\t{first}\n" if swap else f"{first}\t{second}\n" for first, second in rows)


def format_jsonl(rows: list[tuple[str, str]], *names: str) -> str:
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


FILE_FORMATS: dict[str, tuple[str, Callable[[], str]]] = {
    "reviews.csv": ("classify", lambda: format_csv(make_classification_rows(), "review,sentiment")),
    "reviews.csv.gz": ("classify", lambda: format_csv(make_classification_rows(), "review,sentiment")),
    "last.tsv": ("classify", lambda: format_tsv(make_classification_rows())),
    "first.tsv": ("classify", lambda: format_tsv(make_classification_rows(), swap=True)),
    "reviews.jsonl": ("classify", lambda: format_jsonl(make_classification_rows(), "text", "label")),
    "story.txt": ("generate", lambda: "".join(f"{text}.\n" for text, _ in make_classification_rows())),
    "story.txt.gz": ("generate", lambda: "".join(f"{text}.\n" for text, _ in make_classification_rows())),
    "documents.jsonl": ("generate", lambda: format_jsonl(make_classification_rows(), "text", "label")),
    "pairs.tsv": ("translate", lambda: format_tsv(make_translation_pairs())),
    "pairs.csv": ("translate", lambda: format_csv(make_translation_pairs(), "en,fr")),
    "pairs.jsonl.gz": ("translate", lambda: format_jsonl(make_translation_pairs(), "en", "fr")),
}


def write_file(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


METRIC_NAMES = {
    "classify": {"loss", "accuracy", "f1", "rows"},
    "generate": {"loss", "perplexity", "bits_per_byte", "token_accuracy", "tokens"},
    "translate": {
        *("loss", "token_accuracy", "token_accuracy_with_padding", "bleu", "chrf", "sentence_bleu", "exact_match"),
        "pairs",
    },
}


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_every_form_of_file_is_trained_on_and_scored(
    train: Command, triform: Command, tmp_path: Path, name: str
) -> None:
    task, text = FILE_FORMATS[name]
    data, run = write_file(tmp_path / name, text()), tmp_path / "run"
    size_options = ("--set", "data.max_len=24", "--set", "train.max_steps=2")
    result = train(task, "--data", data, *size_options, "--out", run)
    assert result.code == 0, result.err
    assert f"run folder: {run}" in result.out
    assert f"triform predict {run}" in result.out
    metrics = triform("evaluate", run, "--data", data, "--json").json
    assert metrics["task"] == task
    assert set(metrics["sets"][name]) == METRIC_NAMES[task]
    if task == "classify":
        assert package.load(run).config.data.labels == ("bad", "good")


def test_an_aligned_pair_of_files_is_trained_on_and_scored(
    train: Command, triform: Command, tmp_path: Path
) -> None:
    source = write_file(tmp_path / "a.en.gz", "".join(f"{first}\n" for first, _ in make_translation_pairs()))
    target = write_file(tmp_path / "a.fr", "".join(f"{second}\n" for _, second in make_translation_pairs()))
    run, both = tmp_path / "run", ("--source", source, "--target", target)
    separate = (
        "--set",
        "tokenizer.joint_vocab=false",
        "--set",
        "train.max_steps=2",
        "--valid",
        f"{source},{target}",
    )
    assert train("translate", *both, *separate, "--out", run).code == 0
    assert sorted(path.name for path in run.glob("tokenizer*")) == [
        "tokenizer.source.json",
        "tokenizer.target.json",
    ]
    by_options = triform("evaluate", run, *both, "--json").json
    by_comma = triform("evaluate", run, "--data", f"{source},{target}", "--json").json
    own_metrics = triform("evaluate", run, "--json").json  # without --data: the validation files it was given
    assert by_options["sets"]["a.en.gz"] == by_comma["sets"]["a.en.gz"] == own_metrics["sets"]["valid"]
    assert by_options["sets"]["a.en.gz"]["pairs"] == 40
    assert by_options["bleu_signature"].startswith("nrefs:1|")
    assert "bleu: nrefs:1|" in triform("evaluate", run, *both).out


# -- answers


def test_a_label_comes_with_its_probabilities(triform: Command, classifier: Path) -> None:
    texts = [f"{GOOD} 1", "", "words never seen"]
    predictions = triform("predict", classifier, *texts, "--json").json
    assert [prediction["input"] for prediction in predictions] == texts
    for prediction in predictions:
        assert set(prediction) - {"notes"} == {"input", "output", "probabilities"}
        assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-6)
        assert prediction["output"] == max(prediction["probabilities"], key=prediction["probabilities"].__getitem__)
    plain = triform("predict", classifier, *texts).out.splitlines()
    assert [line.split("\t")[0] for line in plain] == [prediction["output"] for prediction in predictions]
    assert re.fullmatch(r"\w+\t\w+ \d+\.\d %  \w+ \d+\.\d %", plain[0])


def test_a_continuation_follows_its_prompt(triform: Command, writer: Path) -> None:
    decode_options = ("--set", "decode.max_new_tokens=5")
    predictions = triform("predict", writer, "1 bird", "", *decode_options, "--json").json
    assert [set(prediction) - {"notes"} for prediction in predictions] == [{"input", "output"}] * 2
    assert all(len(prediction["output"]) <= 5 for prediction in predictions)
    assert triform("predict", writer, "1 bird", *decode_options).out.startswith("1 bird")


def test_a_seed_makes_sampling_the_same_again(triform: Command, writer: Path) -> None:
    arguments = ("predict", writer, "1 bird", "--json", "--seed")
    assert triform(*arguments, 1).json == triform(*arguments, 1).json
    assert triform(*arguments, 1).json != triform(*arguments, 2).json


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("run", ["writer", "translator"])
def test_decode_settings_count_for_one_call(
    triform: Command, request: pytest.FixtureRequest, run: str, strategy: str
) -> None:
    path = request.getfixturevalue(run)
    before = (path / "config.toml").read_text()
    strategy_options = ("--set", f"decode.strategy={strategy}", "--set", "decode.max_new_tokens=3")
    sampling_options = ("--set", "decode.beam_size=2", "--set", "decode.top_k=5", "--set", "decode.temperature=0.5")
    predictions = triform(
        "predict", path, "1" if run == "writer" else "one and two", *strategy_options, *sampling_options, "--json"
    ).json
    assert len(predictions) == 1
    assert (path / "config.toml").read_text() == before


def test_texts_come_from_arguments_a_file_or_standard_input(
    triform: Command, tmp_path: Path, classifier: Path
) -> None:
    texts = [f"{GOOD} 1", f"{BAD} 2", "", "é 日本"]
    lines = "".join(f"{text}\n" for text in texts)
    named = write_file(tmp_path / "texts", lines)
    windows = write_file(tmp_path / "texts.txt.gz", lines.replace("\n", "\r\n"))
    direct = triform("predict", classifier, *texts, "--json").json
    assert [prediction["input"] for prediction in direct] == texts
    assert triform("predict", classifier, "--input", named, "--json").json == direct
    assert triform("predict", classifier, "--input", windows, "--json").json == direct
    assert triform("predict", classifier, "--input", "-", "--json", stdin=lines).json == direct


def test_several_sets_are_scored_under_their_names(
    triform: Command, tmp_path: Path, classifier: Path, files: Files
) -> None:
    small_file = write_file(tmp_path / "few.csv", format_csv(make_classification_rows(10), "text,label"))
    arguments = (
        "evaluate",
        classifier,
        "--data",
        f"a={files.csv}",
        "--data",
        f"b={small_file}",
        "--data",
        small_file,
    )
    report = triform(*arguments, "--json").json
    assert report["run"] == str(classifier)
    assert {name: metrics["rows"] for name, metrics in report["sets"].items()} == {"a": 40, "b": 10, "few.csv": 10}
    assert report["sets"]["b"] == report["sets"]["few.csv"]
    table = [line.split() for line in triform(*arguments).out.splitlines()]
    assert table[0] == ["set", "loss", "accuracy", "f1", "rows"]
    assert [row[0] for row in table[1:]] == ["a", "b", "few.csv"]


def test_a_file_name_with_an_equals_sign_is_a_file(triform: Command, tmp_path: Path, classifier: Path) -> None:
    file = write_file(tmp_path / "a=b.csv", format_csv(make_classification_rows(10), "text,label"))
    assert list(triform("evaluate", classifier, "--data", file, "--json").json["sets"]) == ["a=b.csv"]


def test_a_run_with_a_validation_file_is_scored_on_it_without_data(
    train: Command, triform: Command, tmp_path: Path, files: Files
) -> None:
    valid, run = (
        write_file(tmp_path / "v.csv", format_csv(make_classification_rows(12), "text,label")),
        tmp_path / "run",
    )
    assert train("classify", "--data", files.csv, "--valid", valid, "--out", run).code == 0
    assert triform("evaluate", run, "--json").json["sets"]["valid"]["rows"] == 12


def test_doctor_says_what_is_here(triform: Command) -> None:
    report = triform("doctor", "--json").json
    assert report["problems"] == []
    assert report["devices"]["auto"] in ("cpu", "cuda", "mps")
    assert report["devices"]["cpu_waiting"]
    assert {"python", "system", "packages", "attention", "products", "disk"} <= set(report)
    assert set(report["products"]) == {
        f"fp32 product of {rows} on the CPU" for rows in ("1 row", "16 rows", "1,024 rows")
    }
    assert set(report["products"].values()) <= {product.value for product in Product}
    assert all(report["packages"].values())
    plain = triform("doctor")
    assert plain.code == 0
    assert plain.out.rstrip().endswith("no problems found")


def test_doctor_names_the_packages_that_are_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=]", requirement)[0] for requirement in requirements}

    extras = project["optional-dependencies"]
    assert set(doctor.PACKAGES) == names(project["dependencies"])
    assert {extra: set(packages) for extra, packages in doctor.OPTIONAL_PACKAGES.items()} == {
        extra: names(requirements) for extra, requirements in extras.items() if extra != "all"
    }


def test_doctor_fails_when_something_is_wrong(triform: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("triform.nn.attention.naive_attention", broken)
    result = triform("doctor", "--json")
    assert result.code == 1
    assert json.loads(result.out)["problems"] == ["attention: RuntimeError: no such kernel"]
    assert "attention: RuntimeError: no such kernel" in triform("doctor").err


def test_a_command_skips_the_last_collection_unless_triton_would_report_leaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("gc.freeze", lambda: calls.append("freeze"))
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    skip_last_collection()
    monkeypatch.setitem(sys.modules, "triton", sys)
    skip_last_collection()
    assert calls == ["freeze"]


def test_the_version_is_the_packages(triform: Command) -> None:
    result = triform("--version")
    assert (result.code, result.out) == (0, f"triform {package.__version__}\n")


@pytest.mark.parametrize("command", ["demo", "train", "predict", "evaluate", "doctor"])
def test_every_command_explains_itself(triform: Command, command: str) -> None:
    assert command in triform("--help").out
    result = triform(command, "--help")
    assert result.code == 0
    assert f"triform {command}" in result.out


@pytest.mark.parametrize(("command", "message"), [((), "evaluate"), (("train",), "--overwrite")])
def test_help_imports_nothing_heavy(command: tuple[str, ...], message: str) -> None:
    help_ = [sys.executable, "-X", "importtime", "-m", "triform", *command, "--help"]
    completed = subprocess.run(help_, capture_output=True, text=True, check=True)
    assert message in completed.stdout
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in completed.stderr.splitlines()}
    assert {"triform", "typer"} <= modules
    assert not modules & {"torch", "numpy", "rich", "tokenizers", "safetensors", "sacrebleu"}


# -- the run folder


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_a_run_folder_holds_what_the_design_says_and_nothing_pickled(
    request: pytest.FixtureRequest, name: str
) -> None:
    run = request.getfixturevalue(name)
    assert {path.name for path in run.iterdir()} == {
        *("config.toml", "tokenizer.json", "model.safetensors", "checkpoints", "metrics.jsonl", "report.html"),
        *("digests.json", "sources.json"),
    }
    kinds = {path.suffix for path in run.rglob("*") if path.is_file()}
    assert kinds == {".toml", ".json", ".safetensors", ".jsonl", ".html"}
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        "digests.json",
        "state.json",
        "tensors.safetensors",
    ]
    assert json.loads((checkpoint / "state.json").read_text())["finished"] == "max_steps"
    for file in (run / "model.safetensors", checkpoint / "tensors.safetensors"):
        assert load_file(file)


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_a_stored_config_leaves_nothing_open(request: pytest.FixtureRequest, name: str) -> None:
    run = request.getfixturevalue(name)
    stored = tomllib.loads((run / "config.toml").read_text())
    assert stored["format"] == 2
    assert stored["triform"] == package.__version__
    assert stored["tokenizer"]["kind"] != "auto"
    unset_sizes = [stored["data"]["max_len"], stored["tokenizer"]["vocab_size"], stored["train"]["lr"]]
    unset_sizes += [stored["model"][size] for size in ("d_model", "d_ff", "n_layers", "n_heads")]
    unset_sizes += [stored["train"][every] for every in ("eval_every", "checkpoint_every", "log_every")]
    assert all(value > 0 for value in unset_sizes)
    assert stored["train"]["warmup_steps"] >= 0


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_metrics_tell_the_whole_story_one_event_a_line(request: pytest.FixtureRequest, name: str) -> None:
    run = request.getfixturevalue(name)
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start"
    assert kinds.count("train") == kinds.count("valid") == 4
    assert {"best", "end", "sample"} <= set(kinds)
    assert [event["step"] for event in events if event["event"] == "valid"] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_a_report_opens_without_a_network(request: pytest.FixtureRequest, name: str) -> None:
    page = (request.getfixturevalue(name) / "report.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""", page)
    assert "@import" not in page


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_the_stored_config_gives_the_same_run_again_bit_for_bit(
    triform: Command, request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    run, second_run = request.getfixturevalue(name), tmp_path / "again"
    task = package.load(run).config.task
    arguments = ("--config", run / "config.toml", "--device", "cpu", "--out", second_run)
    assert triform("train", task, *arguments).code == 0
    for file in ("config.toml", "tokenizer.json", "model.safetensors"):
        assert (second_run / file).read_bytes() == (run / file).read_bytes(), file
    (first,), (second,) = (list(folder.glob("checkpoints/*/tensors.safetensors")) for folder in (run, second_run))
    assert first.read_bytes() == second.read_bytes()


def test_another_seed_gives_another_run(train: Command, tmp_path: Path, files: Files, classifier: Path) -> None:
    assert train("classify", "--data", files.csv, "--seed", 1, "--out", tmp_path / "run").code == 0
    model = "model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() != (classifier / model).read_bytes()


def test_a_run_with_no_name_gets_one_that_is_free(
    train: Command, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("classify-rows", "classify-rows-2"):
        assert f"run folder: runs/{name}\n" in train("classify", "--data", files.csv).out


def test_a_preset_a_file_and_settings_lie_over_each_other(triform: Command, tmp_path: Path, files: Files) -> None:
    config_file = write_file(
        tmp_path / "mine.toml", "[model]\nn_layers = 1\nd_model = 32\nd_ff = 32\n[train]\nmax_steps = 2\n"
    )
    options = ("--preset", "tiny", "--config", config_file, "--set", "model.d_model=16", "--set", "model.n_heads=2")
    run = tmp_path / "run"
    assert triform("train", "classify", "--data", files.csv, *options, "--device", "cpu", "--out", run).code == 0
    model = package.load(run).config.model
    assert (model.n_layers, model.d_model, model.d_ff, model.n_heads) == (1, 16, 32, 2)


# -- progress, and Ctrl-C


def test_progress_is_plain_text_when_nobody_watches(train: Command, tmp_path: Path, files: Files) -> None:
    result = train("classify", "--data", files.csv, "--out", tmp_path / "run")
    assert "step 4/4  valid loss " in result.err
    assert "  accuracy " in result.err
    assert "done after 4 steps" in result.err
    assert not re.search("[\r\x1b\x08]", result.err + result.out)
    quiet = train("classify", "--data", files.csv, "--out", tmp_path / "quiet", "--quiet")
    assert quiet.err == ""


LONGER_OPTIONS = ("--set", "train.max_steps=20", "--set", "train.eval_every=5", "--set", "train.checkpoint_every=5")
# A command that gets Ctrl-C in the midst of step 12.
INTERRUPTED_COMMAND = """
import os, signal
from triform.cli.main import main
from triform.training.trainer import Trainer
step = Trainer.step
def interrupt_then_step(trainer):
    if trainer.progress.step == 11:
        os.kill(os.getpid(), signal.SIGINT)
    step(trainer)
Trainer.step = interrupt_then_step
main()
"""


def run_interrupted_training(files: Files, run: Path) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own, which gets a signal."""
    small = ("--set", "model.d_model=16", "--set", "model.n_layers=1", "--set", "model.n_heads=2")
    command = [
        "train",
        "classify",
        "--data",
        str(files.csv),
        "--device",
        "cpu",
        "--out",
        str(run),
        *small,
        *LONGER_OPTIONS,
    ]
    code = [sys.executable, "-c", INTERRUPTED_COMMAND, *command]
    return subprocess.run(code, capture_output=True, text=True, env=ONE_THREAD, check=False)


def test_ctrl_c_saves_and_says_how_to_go_on(train: Command, triform: Command, tmp_path: Path, files: Files) -> None:
    run = tmp_path / "run"
    completed = run_interrupted_training(files, run)
    err = completed.stderr
    assert completed.returncode == 130, err
    assert completed.stdout == ""
    assert "Traceback" not in err
    assert not re.search("[\r\x1b]", err)
    last_line = err.splitlines()[-1]
    assert last_line.startswith("triform: stopped at step 12, and everything is saved; ")
    assert last_line.endswith(f"continue with: triform train classify --out {run} --resume --device cpu")
    assert [path.name for path in run.glob("checkpoints/step-*")] == ["step-000000012"]
    assert (run / "report.html").exists()

    # The best model so far can be used as it is,
    assert len(triform("predict", run, f"{GOOD} 1", "--json").json) == 1
    assert triform("evaluate", run, "--data", files.csv, "--json").json["sets"]["rows.csv"]["rows"] == 40
    assert "already contains an unfinished run" in train("classify", "--data", files.csv, "--out", run).refusal

    # and the command that was offered ends where an unbroken run ends.
    resumed = triform("train", "classify", "--out", run, "--resume", "--device", "cpu")
    assert resumed.code == 0, resumed.err
    assert "continuing from step 12" in resumed.err
    uninterrupted = tmp_path / "whole"
    assert train("classify", "--data", files.csv, *LONGER_OPTIONS, "--out", uninterrupted).code == 0
    assert (run / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()
    (first,), (second,) = (
        list(folder.glob("checkpoints/*/tensors.safetensors")) for folder in (run, uninterrupted)
    )
    assert first.read_bytes() == second.read_bytes()


def test_an_interruption_before_training_begins_is_no_traceback(
    triform: Command, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("triform.launch.build_trainer", interrupted)
    result = triform("train", "classify", "--data", files.csv, "--out", tmp_path / "run")
    assert (result.code, result.err) == (130, "triform: stopped before training started; nothing was saved\n")


def test_a_run_begins_with_another_and_its_adapter_is_used_by_itself(
    triform: Command, tmp_path: Path, files: Files, classifier: Path, writer: Path
) -> None:
    run = tmp_path / "run"
    train_options = ("--set", "train.max_steps=4", "--set", "train.lora_rank=2", "--set", "train.lr=0.1")
    arguments = ("train", "classify", "--data", files.csv, "--from", classifier, *train_options, "--device", "cpu")
    result = triform(*arguments, "--out", run)
    assert result.code == 0, result.err
    groups = "encoder.embedding 2, encoder.blocks 14, encoder.final_norm 2, classification_head 2"
    assert f"{classifier}: 20 tensors loaded: {groups}" in result.err
    assert "of them trainable, on cpu" in result.err
    for command in (("predict", "the soup", "--json"), ("evaluate", "--json")):
        full_result = triform(command[0], run, *command[1:]).json
        adapter_result = triform(
            command[0], classifier, *command[1:], "--adapter", run / "adapter.safetensors"
        ).json
        assert (
            full_result[0] == adapter_result[0]
            if command[0] == "predict"
            else full_result["sets"] == adapter_result["sets"]
        )
    full_result, adapter_result, base_result = (
        triform("explain", model, "the soup", "--out", tmp_path / "maps.html", *more).out
        for model, more in ((run, ()), (classifier, ("--adapter", run / "adapter.safetensors")), (classifier, ()))
    )
    assert full_result == adapter_result != base_result
    assert triform("check", run).code == 0
    refusal = triform("predict", writer, "x", "--adapter", run / "adapter.safetensors").refusal
    assert refusal.startswith(f"{run / 'adapter.safetensors'} is an adapter for another base")
    refusal = triform(*arguments, "--out", tmp_path / "none", "--set", "model.d_model=32").refusal
    assert "remove model.d_model: 32 (the run has 16)" in refusal


def test_texts_of_different_lengths_are_evaluated_separately(
    triform: Command, files: Files, writer: Path, classifier: Path
) -> None:
    arguments = ("evaluate", writer, "--data", files.txt, "--lengths", "4,16")
    sets = triform(*arguments, "--json").json["sets"]
    assert list(sets) == ["story.txt, 1 to 4 tokens", "story.txt, 5 to 16 tokens"]
    assert "story.txt, 5 to 16 tokens" in triform(*arguments).out
    assert "lengths 4, 17 must be ascending numbers" in triform("evaluate", writer, "--lengths", "4,17").refusal
    assert "--lengths 4,x must be whole numbers" in triform("evaluate", classifier, "--lengths", "4,x").refusal
    for option in (("--stride", 2), ("--baselines",)):
        assert f"--lengths cannot be combined with {option[0]}" in triform(*arguments, *option).refusal


def test_a_stride_is_said_in_the_answer(triform: Command, files: Files, writer: Path, classifier: Path) -> None:
    arguments = ("evaluate", writer, "--data", files.txt)
    assert triform(*arguments, "--json").json["stride"] == 16
    strided = triform(*arguments, "--stride", 4, "--json").json
    assert strided["stride"] == 4
    assert (
        strided["sets"]["story.txt"]["tokens"] == triform(*arguments, "--json").json["sets"]["story.txt"]["tokens"]
    )
    assert "windows of 16 tokens that start every 4 tokens" in triform(*arguments, "--stride", 4).out
    assert "must be between 1 and 16" in triform(*arguments, "--stride", 17).refusal
    assert "stride applies to generate only" in triform("evaluate", classifier, "--stride", 4).refusal
