"""Bad input: one line that names the place and the remedy, exit code 2, and nothing lost."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import triform as package
from triform.cli.usage import describe_url
from triform.io.digests import record_digests
from triform.io.run_layout import CHECKPOINT_FILES
from triform.training.run_folder import RunFolder
from triform.training.tensors import read_tensors
from triform.training.trainer import Trainer

Command = Any  # `triform(...)` and `train(...)` of conftest: they give an Answer
Files = Any


def write_file(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def copy_run(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "copy"))


def read_folder(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, to see that nothing was lost."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_run_folder(folder: Path) -> bool:
    return (folder / "config.toml").exists()


GOOD_ROWS = "text,label\n" + "a fine day,good\na grey day,bad\n" * 10

# -- files that cannot be used


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.csv", None, "{path}: no such file"),
        ("empty.csv", "", "{path}: the file is empty"),
        ("empty.tsv", "\n\n", "{path}: the file is empty"),
        ("empty.jsonl", "", "{path}: the file is empty"),
        ("empty.csv.gz", gzip.compress(b"", mtime=0), "{path}: the file is empty"),
        ("header.csv", "text,label\n", "{path}: the file is empty: it has a header but no rows"),
        (
            "story.txt",
            "once\n",
            "{path}: a .txt file has no labels; use a .csv, .tsv, .jsonl or .parquet file with a label column",
        ),
        ("odd.pdf", "text,label\n", "unknown file format '.pdf'; supported formats are .txt, .csv"),
        ("few.csv", GOOD_ROWS + "only a text\n", "{path}, line 22: expected at least 2 columns, found 1"),
        ("few.tsv", "fine\tgood\ngrey\tbad\nlost\n", "{path}, line 3: expected at least 2 columns, found 1"),
        (
            "latin.csv",
            GOOD_ROWS.encode() + b"caf\xe9,good\n",
            "{path}, line 22: the text is not UTF-8; convert it with",
        ),
        (
            "latin.jsonl",
            b'{"text": "caf\xe9", "label": "x"}\n',
            "{path}, line 1: the text is not UTF-8; convert it with",
        ),
        ("broken.jsonl", '{"text": "a", "label": "x"}\n{"text"\n', "{path}, line 2: the line is not JSON"),
        ("unzipped.csv.gz", b"text,label\n", "{path}: the gzip file is damaged or incomplete"),
        ("one.csv", "text,label\n" + "a,same\n" * 20, "only one label, 'same'; a classifier needs at least two"),
        ("bare.csv", GOOD_ROWS + "a day,\n", "{path}, line 22: the label is empty; fill it in or remove the row"),
    ],
)
def test_a_file_that_cannot_be_learned_from(
    train: Command, tmp_path: Path, name: str, text: str | bytes | None, message: str
) -> None:
    path = tmp_path / name
    if text is not None:
        write_file(path, text)
    refusal = train("classify", "--data", path, "--out", tmp_path / "run").refusal
    assert message.format(path=path) in refusal
    assert not is_run_folder(tmp_path / "run")


@pytest.mark.parametrize("name", ["text_column", "label_column"])
def test_a_wrong_column_is_answered_with_those_there_are(
    train: Command, tmp_path: Path, files: Files, name: str
) -> None:
    arguments = ("--data", files.csv, "--out", tmp_path / "run")
    refusal = train("classify", *arguments, "--set", f"data.{name}=colour").refusal
    assert f"{files.csv}: no column 'colour'" in refusal
    assert "'text'" in refusal
    assert "'label'" in refusal
    assert f"set data.{name} to one of " in refusal
    assert "to a number from 1 to 2" in train("classify", *arguments, "--set", f"data.{name}=7").refusal
    assert not is_run_folder(tmp_path / "run")


@pytest.mark.parametrize("task", ["generate", "translate"])
def test_the_other_tasks_refuse_missing_and_empty_files_alike(train: Command, tmp_path: Path, task: str) -> None:
    suffix = "txt" if task == "generate" else "tsv"
    for text, message in (
        (None, "no such file"),
        ("", "is empty"),
        (b"a\tb\n\xff\tc\n", "line 2: the text is not UTF-8"),
    ):
        path = tmp_path / f"data.{suffix}"
        if text is not None:
            write_file(path, text)
        refusal = train(task, "--data", path, "--out", tmp_path / "run").refusal
        assert refusal.startswith(str(path))
        assert message in refusal
    assert not is_run_folder(tmp_path / "run")


def test_a_validation_file_is_checked_too(train: Command, tmp_path: Path, files: Files) -> None:
    arguments = ("classify", "--data", files.csv, "--out", tmp_path / "run", "--valid")
    assert "no such file" in train(*arguments, tmp_path / "none.csv").refusal
    unseen = write_file(tmp_path / "v.csv", GOOD_ROWS + "so so,mixed\n")
    refusal = train(*arguments, unseen).refusal
    assert f"{unseen}, line 22: label 'mixed' is not in the training data; its labels are bad, good" in refusal
    assert not is_run_folder(tmp_path / "run")


def test_a_label_that_training_never_saw_is_found_when_evaluating(
    triform: Command, tmp_path: Path, classifier: Path
) -> None:
    unseen = write_file(tmp_path / "test.csv", GOOD_ROWS + "so so,mixed\n")
    refusal = triform("evaluate", classifier, "--data", unseen).refusal
    assert f"{unseen}, line 22: label 'mixed' is not in the training data; its labels are bad, good" in refusal


def test_a_rare_label_of_the_training_file_is_no_mistake(train: Command, tmp_path: Path) -> None:
    rare = write_file(tmp_path / "rare.csv", GOOD_ROWS + "".join(f"odd {n},rare{n}\n" for n in range(12)))
    assert train("classify", "--data", rare, "--out", tmp_path / "run").code == 0


def test_sources_and_targets_of_unequal_number(
    train: Command, triform: Command, tmp_path: Path, files: Files, translator: Path
) -> None:
    short = write_file(tmp_path / "short.fr", "un\ndeux\n")
    message = f"{files.source} has 40 lines but {short} has 2; the files must match line by line"
    out = ("--out", tmp_path / "run")
    assert message in train("translate", "--source", files.source, "--target", short, *out).refusal
    aligned_files = ("--source", files.source, "--target", files.target, *out)
    assert message in train("translate", *aligned_files, "--valid", f"{files.source},{short}").refusal
    assert message in triform("evaluate", translator, "--data", f"{files.source},{short}").refusal
    assert "must be given together" in train("translate", "--source", files.source, *out).refusal
    assert "must be given together" in triform("evaluate", translator, "--source", files.source).refusal
    assert not is_run_folder(tmp_path / "run")


def test_a_validation_set_that_is_empty_after_filtering(train: Command, tmp_path: Path, files: Files) -> None:
    out = ("--out", tmp_path / "run")
    sides = write_file(tmp_path / "v.tsv", "one\t\n\tdeux\n")
    pairs = ("--source", files.source, "--target", files.target)
    refusal = train("translate", *pairs, "--valid", sides, *out).refusal
    assert f"{sides}: no pairs with two non-empty sides to evaluate on" in refusal
    few = write_file(tmp_path / "few.csv", "text,label\na b,x\nc d,y\n")
    refusal = train("classify", "--data", few, *out).refusal
    assert f"{few}: no rows are left for validation; use --valid FILE, or raise data.valid_fraction" in refusal
    empty = write_file(tmp_path / "v.txt", "a")
    refusal = train("generate", "--data", files.txt, "--valid", empty, "--set", "data.max_len=16", *out).refusal
    assert f"{empty}: fewer than two tokens to evaluate on; use more text" in refusal
    assert not is_run_folder(tmp_path / "run")


def test_pairs_that_are_all_half_empty_cannot_be_learned_from(train: Command, tmp_path: Path) -> None:
    sides = write_file(tmp_path / "t.tsv", "one\t\n\tdeux\n" * 20)
    refusal = train("translate", "--data", sides, "--out", tmp_path / "run").refusal
    assert refusal.startswith(str(sides))
    assert not is_run_folder(tmp_path / "run")


# -- text that is too long, or strange


def test_long_texts_are_cut_for_a_classifier_with_a_count_in_the_log(
    train: Command, triform: Command, tmp_path: Path, files: Files
) -> None:
    run = tmp_path / "run"
    short = ("--set", "data.max_len=5")
    result = train("classify", "--data", files.csv, "--valid", files.csv, *short, "--out", run)
    assert result.code == 0
    note = f"{files.csv}: 40 of 40 texts were truncated to 5 tokens (data.max_len)"
    assert note in result.err
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    assert {"event": "notice", "level": "info", "text": note} in events
    assert f"note: {note}" in triform("evaluate", run, "--data", files.csv).err
    result = triform("predict", run, "the soup was lovely " * 200)
    assert (result.code, result.err) == (0, "note: only the first 5 of 800 tokens of the text were read\n")
    result = triform("predict", run, "", "the soup", " ")
    assert result.err == "note: 2 of 3 texts: the text is empty\n"


def test_a_language_model_reads_a_long_text_in_windows(triform: Command, files: Files, writer: Path) -> None:
    scores = triform("evaluate", writer, "--data", files.txt, "--json").json["sets"]["story.txt"]
    assert scores["tokens"] == len(files.txt.read_text()) - 1  # far more than data.max_len=16
    long_text = files.txt.read_text()[:200]
    predictions = triform("predict", writer, long_text, "--json", "--set", "decode.max_new_tokens=3").json
    assert len(predictions[0]["output"]) <= 3


def test_a_text_too_short_for_one_window_says_what_to_lower(train: Command, tmp_path: Path, files: Files) -> None:
    arguments = ("--data", files.txt, "--set", "data.max_len=9000", "--out", tmp_path / "run")
    refusal = train("generate", *arguments).refusal
    assert "data.max_len=9000 needs more; lower data.max_len or use more text" in refusal
    assert not is_run_folder(tmp_path / "run")


def test_a_prompt_with_unknown_characters_names_them(triform: Command, writer: Path) -> None:
    refusal = triform("predict", writer, "1 bird ☃ Ω").refusal
    assert "'☃', 'Ω'" in refusal
    assert "tokenizer.kind=bpe" in refusal
    assert "lone surrogate" in triform("predict", writer, "1 bird \udcff").refusal


def test_nothing_to_predict_says_how_to_give_it(triform: Command, tmp_path: Path, classifier: Path) -> None:
    assert "give TEXT, --input FILE, or --input -" in triform("predict", classifier).refusal
    assert "standard input is empty" in triform("predict", classifier, "--input", "-").refusal
    assert "no such file" in triform("predict", classifier, "--input", tmp_path / "none.txt").refusal
    empty = write_file(tmp_path / "empty.txt", "")
    assert f"{empty}: the file is empty" in triform("predict", classifier, "--input", empty).refusal
    latin = write_file(tmp_path / "latin.txt", b"fine\ncaf\xe9\n")
    assert f"{latin}, line 2: the text is not UTF-8" in triform("predict", classifier, "--input", latin).refusal


def test_standard_input_that_is_not_utf8_is_refused(triform: Command, classifier: Path) -> None:
    assert "UTF-8" in triform("predict", classifier, "--input", "-", stdin=b"caf\xe9\n").refusal


# -- settings that cannot be


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--set", "model.d_model=15"),
            "model.d_model=15 is not divisible by model.n_heads=2; try d_model=14 or 16",
        ),
        (("--set", "tokenizer.vocab_size=9999"), "(22 at most); set it to 22 or lower, or remove the setting"),
        (("--set", "model.d_modle=8"), "unknown setting 'model.d_modle'; did you mean 'model.d_model'?"),
        (("--set", "model.d_model=wide"), "model.d_model='wide' must be a whole number"),
        (("--set", "model.d_model"), "write --set name=value"),
        (("--set", "train.lr=-1"), "train.lr=-1.0 must be between 0 and 1e+38"),
        (("--set", "train.epochs=inf", "--set", "train.max_steps=0"), "train.epochs=inf must be a number"),
        (("--set", "train.epochs=2"), "train.max_steps and train.epochs cannot be combined"),
        (("--set", "data.header=perhaps"), "data.header=perhaps is not valid; choose from auto, yes, no"),
        (("--seed", "-1"), "seed=-1 must be between 0 and 4294967295"),
        (("--seed", str(2**64)), "must be between 0 and 4294967295"),
        (("--preset", "speeches-clasifier"), "did you mean 'speeches-classifier'?"),
        (("--preset", "speeches-lm"), "preset 'speeches-lm' is for generate, not classify"),
        (("--config", "none.toml"), "none.toml: no such file"),
        (("--device", "tpu"), "unknown device 'tpu'; choose from auto, cpu, cuda, mps"),
    ],
)
def test_a_setting_that_cannot_be(
    train: Command, tmp_path: Path, files: Files, arguments: tuple[str, ...], message: str
) -> None:
    refusal = train("classify", "--data", files.csv, "--out", tmp_path / "run", *arguments).refusal
    assert message in refusal
    assert not is_run_folder(tmp_path / "run")


def test_a_wrong_line_in_a_config_file_is_named_with_the_file(train: Command, tmp_path: Path, files: Files) -> None:
    config_file = write_file(tmp_path / "mine.toml", "[model]\nd_modle = 3\n")
    arguments = ("classify", "--data", files.csv, "--out", tmp_path / "run", "--config", config_file)
    assert (
        f"{config_file}: unknown setting 'model.d_modle'; did you mean 'model.d_model'?"
        in train(*arguments).refusal
    )
    write_file(config_file, "seed = \n")
    assert f"{config_file}: not valid TOML: Invalid value (at line 1" in train(*arguments).refusal
    write_file(config_file, 'task = "generate"\n')
    assert "the settings are for generate, not classify" in train(*arguments).refusal


def test_an_unknown_task_names_the_known_ones(triform: Command) -> None:
    refusal = triform("train", "summarise").refusal
    assert refusal == "unknown task 'summarise'; choose from classify, generate, translate"


def test_a_device_that_is_not_here_says_what_to_use(
    triform: Command, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refusal = triform("predict", classifier, "x", "--device", "cuda").refusal
    assert refusal == "device 'cuda' is not available here; use --device auto or --device cpu"


def test_a_trained_run_takes_only_decode_settings(triform: Command, classifier: Path, writer: Path) -> None:
    assert "only decode.* settings can be changed" in triform("predict", writer, "1", "--set", "seed=3").refusal
    assert (
        "only decode.* settings can be changed" in triform("evaluate", classifier, "--set", "model.d_ff=3").refusal
    )
    assert (
        "decode.beam_size=0 must be between 1 and 1000"
        in triform("predict", writer, "1", "--set", "decode.beam_size=0").refusal
    )
    assert "did you mean 'decode.top_k'?" in triform("predict", writer, "1", "--set", "decode.topk=1").refusal
    assert "must be between" in triform("predict", writer, "1", "--seed", 2**64).refusal


def test_sets_of_one_name_are_to_be_named_apart(triform: Command, classifier: Path, files: Files) -> None:
    twice = triform("evaluate", classifier, "--data", files.csv, "--data", files.csv).refusal
    assert twice == "--data: two files have the name 'rows.csv'; give them different names with --data NAME=FILE"
    for argument, missing in ((f"={files.csv}", "name"), ("dev=", "file")):
        message = f"--data {argument}: the {missing} is missing; write --data NAME=FILE"
        assert triform("evaluate", classifier, "--data", argument).refusal == message


def test_without_data_a_run_is_scored_on_what_was_held_out_of_its_own(
    train: Command, triform: Command, tmp_path: Path, files: Files
) -> None:
    run = tmp_path / "run"
    assert train("classify", "--data", files.csv, "--out", run, "--set", "data.valid_fraction=0.2").code == 0
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    best = [event["value"] for event in last if event["event"] == "best"][-1]
    assert triform("evaluate", run, "--json").json["sets"]["valid"]["accuracy"] == best
    full_run = tmp_path / "whole"
    assert train("classify", "--data", files.csv, "--out", full_run, "--set", "data.valid_fraction=0").code == 0
    assert "this run has no validation data" in triform("evaluate", full_run).refusal


def test_a_named_set_needs_a_file(train: Command, triform: Command, tmp_path: Path, files: Files) -> None:
    run = tmp_path / "run"
    assert train("classify", "--data", files.csv, "--valid", files.csv, "--out", run).code == 0
    triform("evaluate", run, "--data", "test=").refusal  # noqa: B018


def test_a_file_name_that_is_not_utf8_is_refused_before_training(
    train: Command, tmp_path: Path, files: Files
) -> None:
    bad_file = Path(shutil.copy(files.csv, tmp_path / "\udcff.csv"))
    train("classify", "--data", bad_file, "--out", tmp_path / "run").refusal  # noqa: B018


def test_a_folder_whose_name_is_not_utf8_is_refused_before_anything_is_written(
    triform: Command, tmp_path: Path, files: Files, classifier: Path, writer: Path
) -> None:
    out = tmp_path / "\udcff"
    tokenizer = tmp_path / "tokenizer.json"
    assert triform("tokenizer", "train", files.txt, "--kind", "char", "--out", tokenizer).code == 0
    study = 'task = "classify"\n[common]\ndata.train = "builtin:reviews"\ntrain.max_steps = 2\n'
    (tmp_path / "study.toml").write_text(study + "[variants.a]\n[variants.b]\nmodel.dropout = 0.2\n")
    (tmp_path / "space.toml").write_text(study + "[space]\ntrain.lr = [0.1, 0.2]\n")
    before = sorted(tmp_path.iterdir())
    for arguments in (
        ("train", "classify", "--data", files.csv),
        ("train", "classify", "--data", files.csv, "--seeds", 2),
        ("pretrain", "--data", files.txt),
        ("distill", classifier),
        ("compare", tmp_path / "study.toml"),
        ("search", tmp_path / "space.toml"),
        ("demo",),
        ("convert", "export", writer, "--to", "hf"),
        ("data", "tokenize", files.txt, "--tokenizer", tokenizer),
    ):
        assert "is not valid Unicode" in triform(*arguments, "--out", out).last_line, arguments
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [("train",), ("train", "classify", "--wings"), ("fly",), ("predict",)])
def test_a_command_written_wrongly_is_one_line_too(triform: Command, arguments: tuple[str, ...]) -> None:
    triform(*arguments).refusal  # noqa: B018


@pytest.mark.parametrize("arguments", [("train",), ("train", "classify", "--wings"), ("fly",), ("predict",)])
def test_a_command_written_wrongly_ends_with_code_2(triform: Command, arguments: tuple[str, ...]) -> None:
    result = triform(*arguments)
    assert result.code == 2
    assert "Traceback" not in result.err


# -- a loss that is not finite


def test_a_loss_that_is_not_finite_stops_and_says_what_to_try(train: Command, tmp_path: Path, files: Files) -> None:
    diverging_options = ("--set", "train.lr=1e30", "--set", "train.clip_norm=0")
    line = train("classify", "--data", files.csv, *diverging_options, "--out", tmp_path / "run").last_line
    assert "loss is not finite at step" in line
    assert "Try a lower train.lr than 1e+30" in line


def test_the_last_good_checkpoint_survives_a_loss_that_is_not_finite(
    train: Command,
    triform: Command,
    tmp_path: Path,
    files: Files,
    classifier: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triform.tasks import Classify

    run, original_loss, calls = tmp_path / "run", Classify.loss, []

    def loss(self: Classify, batch: Any) -> Any:
        calls.append(1)
        return original_loss(self, batch) * (math.nan if len(calls) >= 3 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(Classify, "loss", loss)
        line = train("classify", "--data", files.csv, "--out", run).last_line
    checkpoint = run / "checkpoints" / "step-000000002"
    assert f"not finite at step 3; the last good checkpoint is {checkpoint}." in line
    assert checkpoint.is_dir()
    assert triform("predict", run, "the soup", "--json").json[0]["output"] in ("good", "bad")
    assert triform("train", "classify", "--out", run, "--resume").code == 0
    assert (run / "model.safetensors").read_bytes() == (classifier / "model.safetensors").read_bytes()


def test_no_broken_weights_are_kept_when_training_diverges(train: Command, tmp_path: Path, files: Files) -> None:
    run = tmp_path / "run"
    diverging_options = ("--set", "train.lr=1e30", "--set", "train.clip_norm=0")
    assert train("classify", "--data", files.csv, *diverging_options, "--out", run).code == 2
    latest = RunFolder(run).latest_checkpoint()
    saved_models = [read_tensors(run / "model.safetensors")] if (run / "model.safetensors").exists() else []
    if latest is not None:
        saved = read_tensors(latest / "tensors.safetensors")
        saved_models.append({name[6:]: tensor for name, tensor in saved.items() if name.startswith("model.")})
    for weights in saved_models:
        RunFolder(run).write_weights(weights)
        probabilities = package.load(run).predict(["the soup"])[0].probabilities
        assert probabilities is not None
        assert all(map(math.isfinite, probabilities.values()))


# -- disks and folders


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """A disk that is full for every file beyond this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("size", "file_name"), [(100, "tokens"), (3_000, "model.safetensors"), (30_000, "checkpoints/step-")]
)
def test_a_full_disk_stops_with_one_line_and_resume_ends_the_same(
    train: Command, tmp_path: Path, files: Files, classifier: Path, size: int, file_name: str
) -> None:
    run = tmp_path / "run"
    arguments = ("classify", "--data", files.csv, "--out", run)
    with limit_file_size(size):
        result = train(*arguments)
    assert result.last_line.startswith(f"{run / file_name}")
    assert "cannot be written: " in result.last_line
    assert "File too large" in result.last_line
    assert not list(run.glob("checkpoints/step-*"))
    assert train(*arguments, "--resume").code == 0
    assert (run / "model.safetensors").read_bytes() == (classifier / "model.safetensors").read_bytes()


def test_a_disk_that_fills_up_later_keeps_the_checkpoint_before(
    train: Command, tmp_path: Path, files: Files, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triform.training import run_folder

    run, save = tmp_path / "run", run_folder.save_tensors
    arguments = ("classify", "--data", files.csv, "--out", run)

    def raise_disk_full(path: Path, tensors: Any) -> None:
        if path.parent.name.endswith(".part") and (run / "checkpoints" / "step-000000002").exists():
            path.write_bytes(b"half of")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "save_tensors", raise_disk_full)
        line = train(*arguments).last_line
    assert "cannot be written: No space left on device; the last checkpoint is intact" in line
    assert "continue with --resume" in line
    assert [path.name for path in run.glob("checkpoints/step-*")] == ["step-000000002"]
    assert train(*arguments, "--resume").code == 0
    assert (run / "model.safetensors").read_bytes() == (classifier / "model.safetensors").read_bytes()


def test_a_report_that_cannot_be_written_costs_nothing_else(
    train: Command, triform: Command, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def raise_disk_full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "report.html"))

    with monkeypatch.context() as patch:
        patch.setattr("triform.run_log.write_report", raise_disk_full)
        line = train("classify", "--data", files.csv, "--out", run).last_line
    assert line == f"{run / 'report.html'}: No space left on device"
    assert triform("predict", run, "the soup").code == 0


def test_resume_writes_a_report_that_is_missing(train: Command, tmp_path: Path, classifier: Path) -> None:
    run = copy_run(classifier, tmp_path)
    (run / "report.html").unlink()
    assert train("classify", "--out", run, "--resume").code == 0
    assert (run / "report.html").exists()


def test_a_finished_run_that_lost_its_checkpoints_is_not_trained_anew(
    triform: Command, tmp_path: Path, classifier: Path
) -> None:
    run = copy_run(classifier, tmp_path)
    shutil.rmtree(run / "checkpoints")
    assert (
        "lost its checkpoints, so it cannot be resumed"
        in triform("train", "classify", "--out", run, "--resume").refusal
    )
    assert triform("predict", run, "x").code == 0


def test_resume_of_a_finished_run_changes_nothing(triform: Command, tmp_path: Path, classifier: Path) -> None:
    run = copy_run(classifier, tmp_path)
    assert triform("train", "classify", "--out", run, "--resume").code == 0
    assert read_folder(run) == read_folder(classifier)


def test_a_folder_that_cannot_be_written(train: Command, tmp_path: Path, files: Files) -> None:
    file = write_file(tmp_path / "file", "mine")
    for out, problem in ((file / "run", "cannot be written: "), (file, "is a file")):
        refusal = train("classify", "--data", files.csv, "--out", out).refusal
        assert refusal.startswith(f"{out} {problem}")
    assert file.read_text() == "mine"


# -- run folders that are damaged, foreign or from the future


def damage_file(run: Path, file_name: str) -> None:
    checkpoint = next((run / "checkpoints").glob("step-*"))
    path = {
        "model": run / "model.safetensors",
        "config": run / "config.toml",
        "tokenizer": run / "tokenizer.json",
        "checkpoint": checkpoint / "tensors.safetensors",
        "state": checkpoint / "state.json",
    }[file_name]
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


@pytest.mark.parametrize("file_name", ["model", "config", "tokenizer"])
def test_a_damaged_run_is_not_opened(triform: Command, tmp_path: Path, classifier: Path, file_name: str) -> None:
    run = copy_run(classifier, tmp_path)
    damage_file(run, file_name)
    before = read_folder(run)
    for arguments in (("predict", run, "x"), ("evaluate", run), ("train", "classify", "--out", run, "--resume")):
        if file_name != "model" or arguments[0] != "train":
            refusal = triform(*arguments).refusal
            assert refusal.startswith(str(run))
            assert "damaged" in refusal
    assert read_folder(run) == before


@pytest.mark.parametrize("file_name", ["checkpoint", "state"])
def test_a_damaged_checkpoint_is_not_resumed_but_the_model_still_works(
    triform: Command, tmp_path: Path, classifier: Path, file_name: str
) -> None:
    run = copy_run(classifier, tmp_path)
    damage_file(run, file_name)
    (run / "report.html").unlink()  # so that something is left to do
    refusal = triform("train", "classify", "--out", run, "--resume").refusal
    assert refusal.startswith(str(run / "checkpoints"))
    assert "is damaged" in refusal
    assert triform("predict", run, "x").code == 0


@pytest.mark.parametrize("text", ["[1]", "{}"])
def test_a_checkpoint_state_of_another_shape_is_damaged(
    triform: Command, tmp_path: Path, classifier: Path, text: str
) -> None:
    run = copy_run(classifier, tmp_path)
    write_file(next(run.glob("checkpoints/step-*")) / "state.json", text)
    assert "is damaged" in triform("train", "classify", "--out", run, "--resume").refusal


@pytest.mark.parametrize(
    ("name", "message"), [("tokenizer.json", "no such tokenizer file"), ("config.toml", "no config.toml")]
)
def test_a_run_that_lost_a_file(
    triform: Command, tmp_path: Path, classifier: Path, name: str, message: str
) -> None:
    run = copy_run(classifier, tmp_path)
    (run / name).unlink()
    assert message in triform("predict", run, "x").refusal


def test_a_finished_run_that_lost_its_model_is_damaged(triform: Command, tmp_path: Path, classifier: Path) -> None:
    run = copy_run(classifier, tmp_path)
    (run / "model.safetensors").unlink()
    for command in (("predict", run, "x"), ("evaluate", run), ("explain", run, "x"), ("check", run)):
        assert triform(*command).refusal.startswith(f"{run / 'model.safetensors'} is damaged")


def test_an_interrupted_run_is_used_as_its_checkpoint_left_it_with_a_note(
    train: Command, triform: Command, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pages = tmp_path / "run", tmp_path / "maps.html"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "after_step", Trainer.stop)
        result = train("classify", "--data", files.csv, "--out", run, "--set", "train.eval_every=100")
    assert result.code == 130
    assert "everything is saved" in result.err
    note = f"note: {run}: training was interrupted at step 1, before the first validation"
    commands = (("predict", run, "x"), ("evaluate", run), ("explain", run, "soup", "--out", pages), ("check", run))
    for command in commands:
        result = triform(*command)
        assert (result.code, result.err.count(note)) == (0, 1), result.err
    shutil.rmtree(run / "checkpoints")
    for command in commands:
        assert triform(*command).refusal.startswith(f"{run} has no model and no checkpoint yet")


def test_weights_that_do_not_fit_the_settings(triform: Command, tmp_path: Path, classifier: Path) -> None:
    run = copy_run(classifier, tmp_path)
    config = run / "config.toml"
    config.write_text(config.read_text().replace("d_model = 16", "d_model = 32"))
    assert (
        "config.toml does not match digests.json: it is damaged, or was edited"
        in triform("predict", run, "x").refusal
    )
    assert "does not match the settings" in triform("predict", run, "x", "--no-verify").refusal


def test_what_is_no_run_folder_is_not_opened(triform: Command, tmp_path: Path, files: Files) -> None:
    assert "no such run folder" in triform("predict", tmp_path / "none", "x").refusal
    assert "no such run folder" in triform("predict", files.csv, "x").refusal
    assert "is not a run folder: it has no config.toml" in triform("evaluate", tmp_path).refusal


def test_the_studio_needs_a_folder_that_contains_runs(
    triform: Command, tmp_path: Path, classifier: Path, files: Files
) -> None:
    assert triform("studio", files.csv).refusal == f"{files.csv} is a file; name a folder with runs"
    missing = tmp_path / "none"
    assert triform("studio", missing).refusal == f"{missing}: no such folder; name a folder with runs"
    assert not missing.exists()
    expected = f"{classifier} is a run; name the folder that contains it: triform studio {classifier.parent}"
    assert triform("studio", classifier).refusal == expected


def test_a_run_of_another_format_names_the_version_that_wrote_it(
    triform: Command, tmp_path: Path, classifier: Path
) -> None:
    run = copy_run(classifier, tmp_path)
    config = run / "config.toml"
    newer = config.read_text().replace("format = 2", "format = 99").replace("[model]", "[model]\nwings = 2")
    config.write_text(newer.replace(f'"{package.__version__}"', '"9.0.0"'))
    record_digests(run)
    before = read_folder(run)
    for arguments in (("predict", run, "x"), ("evaluate", run), ("train", "classify", "--out", run, "--resume")):
        refusal = triform(*arguments).refusal
        assert refusal.startswith(
            f"{run} has run format 99, and this Triform ({package.__version__}) reads format 2"
        )
        assert refusal.endswith("open it with Triform 9.0.0")
    assert read_folder(run) == before


def test_a_tokenizer_of_a_newer_version_is_not_read(triform: Command, tmp_path: Path, classifier: Path) -> None:
    run = copy_run(classifier, tmp_path)
    saved = json.loads((run / "tokenizer.json").read_text())
    saved["triform"]["format"] = 99
    write_file(run / "tokenizer.json", json.dumps(saved))
    record_digests(run)
    assert "has format 99, and this Triform reads formats up to 1" in triform("predict", run, "x").refusal


# -- --out, --resume and --overwrite


def test_resume_needs_to_know_which_run(train: Command, tmp_path: Path) -> None:
    assert train("classify", "--resume").refusal == "--resume needs --out RUN, the folder of the run to continue"
    refusal = train("classify", "--resume", "--out", tmp_path / "none").refusal
    assert refusal == f"{tmp_path / 'none'}: no such run folder, so there is nothing to resume"
    assert not (tmp_path / "none").exists()


def test_resume_with_other_settings_says_which_differ(
    train: Command, tmp_path: Path, files: Files, classifier: Path
) -> None:
    run = copy_run(classifier, tmp_path)
    before = read_folder(run)
    other_options = ("--set", "model.d_ff=99", "--seed", "3", "--data", "other.csv")
    refusal = train("classify", "--out", run, "--resume", *other_options).refusal
    assert "--resume continues with the stored settings, but these differ: " in refusal
    for difference in (
        "model.d_ff: 99 (the run has 64)",
        "seed: 3 (the run has 0)",
        f"data.train: {Path('other.csv').absolute()}",
    ):
        assert difference in refusal
    assert "task: generate (the run has classify)" in train("generate", "--out", run, "--resume").refusal
    assert read_folder(run) == before


def test_resume_with_data_that_changed_is_refused(train: Command, tmp_path: Path, files: Files) -> None:
    data = Path(shutil.copy(files.csv, tmp_path / "data.csv"))
    run = tmp_path / "run"
    assert train("classify", "--data", data, "--out", run).code == 0
    (run / "report.html").unlink()  # so that something is left to do
    data.write_text(data.read_text().replace("soup", "stew"))
    refusal = train("classify", "--out", run, "--resume").refusal
    assert refusal == f"{run} cannot be resumed: {data} has changed since the run started"


def test_the_same_command_with_resume_is_no_other_setting(train: Command, tmp_path: Path, files: Files) -> None:
    arguments = ("classify", "--data", files.csv, "--out", tmp_path / "run", "--set", "model.d_ff=0")
    assert train(*arguments).code == 0
    assert train(*arguments, "--resume").code == 0


def test_a_finished_run_is_not_replaced_unless_asked(
    train: Command, tmp_path: Path, files: Files, classifier: Path
) -> None:
    run = copy_run(classifier, tmp_path)
    before = read_folder(run)
    arguments = ("classify", "--data", files.csv, "--out", run)
    refusal = train(*arguments).refusal
    assert refusal == f"{run} already contains a finished run; choose another --out or use --overwrite"
    assert read_folder(run) == before
    assert train(*arguments, "--overwrite", "--seed", "5").code == 0
    assert package.load(run).config.seed == 5


def test_an_unfinished_run_is_to_be_resumed(train: Command, tmp_path: Path, files: Files, classifier: Path) -> None:
    run = copy_run(classifier, tmp_path)
    state = next(run.glob("checkpoints/step-*")) / "state.json"
    write_file(state, state.read_text().replace('"max_steps"', '""'))
    record_digests(state.parent, CHECKPOINT_FILES)
    refusal = train("classify", "--data", files.csv, "--out", run).refusal
    assert f"{run} already contains an unfinished run (continue it with --resume)" in refusal
    assert "--overwrite" in refusal


def test_overwrite_with_bad_data_keeps_the_old_run(
    train: Command, triform: Command, tmp_path: Path, classifier: Path
) -> None:
    run = copy_run(classifier, tmp_path)
    bad = write_file(tmp_path / "bad.csv", GOOD_ROWS + "only a text\n")
    assert "line 22" in train("classify", "--data", bad, "--out", run, "--overwrite").refusal
    assert read_folder(run) == read_folder(classifier)
    assert triform("predict", run, "x").code == 0


@pytest.mark.parametrize("options", [(), ("--overwrite",), ("--resume",)])
@pytest.mark.parametrize("name", ["thesis.txt", "wandb/run.wandb", "tensorboard/events", "checkpoints/model.pt"])
def test_a_folder_with_other_things_in_it_is_never_taken(
    train: Command, tmp_path: Path, files: Files, options: tuple[str, ...], name: str
) -> None:
    home = tmp_path / "home"
    (home / name).parent.mkdir(parents=True)
    write_file(home / name, "years of work")
    refusal = train("classify", "--data", files.csv, "--out", home, *options).refusal
    assert refusal == f"{home} exists and is not a run folder; choose another --out"
    assert read_folder(home) == {name: b"years of work"}


def test_a_label_folder_whose_name_is_not_utf8_is_refused(train: Command, tmp_path: Path) -> None:
    for label in (b"good", b"caf\xe9"):
        folder = tmp_path / "rooms" / os.fsdecode(label)
        try:
            folder.mkdir(parents=True)
        except OSError:
            pytest.skip("this file system refuses such a name itself")
        for number in range(10):
            write_file(folder / f"{number}.txt", f"room {number}")
    refusal = train("classify", "--data", tmp_path / "rooms", "--out", tmp_path / "run").refusal
    assert refusal.startswith("data.labels='caf\\udce9' is not valid Unicode; rename the file or folder")
    assert not (tmp_path / "run").exists()


def test_overwrite_leaves_files_that_are_not_the_runs(
    train: Command, tmp_path: Path, files: Files, classifier: Path
) -> None:
    run = copy_run(classifier, tmp_path)
    write_file(run / "notes.md", "mine")
    assert train("classify", "--data", files.csv, "--out", run, "--overwrite").code == 0
    assert (run / "notes.md").read_text() == "mine"


def test_what_a_failed_start_left_is_no_obstacle(train: Command, tmp_path: Path, files: Files) -> None:
    run = tmp_path / "run"
    assert train("classify", "--data", tmp_path / "none.csv", "--out", run).code == 2
    assert train("classify", "--data", files.csv, "--out", run).code == 0


@pytest.mark.parametrize("options", [(), ("--overwrite",), ("--resume",)])
def test_a_run_killed_before_its_config_was_written_can_begin_again(
    train: Command, tmp_path: Path, files: Files, classifier: Path, options: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(classifier / "tokenizer.json", run)
    assert train("classify", "--data", files.csv, "--out", run, *options).code == 0


def test_an_error_of_one_process_is_printed_with_its_rank(
    triform: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "triform.cli.main.FIRST_PROCESS_SECONDS", 0.0
    )  # in which torchrun has not ended this process
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    assert triform("train", "classify", "--dta", "x.csv").refusal.startswith("rank 3: no such option --dta")


def test_the_cause_is_kept_when_token_shards_at_an_address_cannot_be_read(triform: Command) -> None:
    refusal = triform("train", "generate", "--data", "memory://nowhere/shards", "--device", "cpu").refusal
    assert refusal.startswith("memory://nowhere/shards: no manifest.json, so these are not token shards")
    problem = "s3://bucket/shards/manifest.json: s3:// needs another package"
    assert describe_url(problem, ["train", "--data", "s3://bucket/shards/"]) == problem


def test_token_shards_are_for_language_models(triform: Command, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words of a text\n" * 20, encoding="utf-8")
    shards, tokenizer = tmp_path / "shards", tmp_path / "tokenizer.json"
    assert triform("tokenizer", "train", tmp_path / "text.txt", "--out", tokenizer).code == 0
    options = ("--tokenizer", tokenizer, "--out", shards, "--shards", 1)
    assert triform("data", "tokenize", tmp_path / "text.txt", *options).code == 0
    refusal = triform("train", "classify", "--data", shards, "--out", tmp_path / "run", "--device", "cpu").refusal
    assert "contains token shards, which only `triform train generate --data` reads; give a file" in refusal


@pytest.mark.parametrize("command", [("check", "classify"), ("serve", "runs/x"), ("doctor",), ("data", "list")])
def test_commands_of_one_process_refuse_torchrun(
    triform: Command, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert triform(*command).refusal == f"triform {command[0]} runs in one process; start it without torchrun"
    monkeypatch.delenv("LOCAL_RANK")  # as in a job of Kubernetes, which is not started by torchrun
    if command[0] == "data":
        assert triform(*command).code == 0


@pytest.mark.parametrize("option", ["--shards", "--shard-tokens", "--workers"])
def test_token_shards_need_numbers_of_at_least_one(triform: Command, tmp_path: Path, option: str) -> None:
    refusal = triform("data", "tokenize", "x.txt", "--out", tmp_path / "out", option, 0).refusal
    assert refusal.startswith(f"{option}: must be at least 1")
