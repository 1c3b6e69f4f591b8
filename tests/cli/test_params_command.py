"""`triform params`: what it counts, where sizes come from, and what it asks for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import triform as package

Command = Callable[..., Any]


def count_saved_parameters(path: Path) -> int:
    model = package.load(path, device="cpu").task.model
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_a_run_is_counted_as_it_is(triform: Command, request: pytest.FixtureRequest, name: str) -> None:
    run = request.getfixturevalue(name)
    report = triform("params", run, "--json").json
    assert report["parameters"] == report["trainable"] == count_saved_parameters(run)
    assert report["parameters"] == sum(part["total"] for part in report["parts"])


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
@pytest.mark.parametrize("setting", ["train.lora_rank=2", "train.freeze_layers=1", "train.freeze_layers=0"])
def test_the_report_counts_trainable_parameters_if_not_all_are(
    triform: Command, request: pytest.FixtureRequest, name: str, setting: str, tmp_path: Path
) -> None:
    base = request.getfixturevalue(name)
    task = package.load(base, device="cpu").config.task
    train_options = ("--set", "train.max_steps=1", "--device", "cpu")
    result = triform("train", task, "--from", base, "--set", setting, *train_options, "--out", tmp_path / "run")
    match = re.search(r"([\d,]+) parameters, ([\d,]+) of them trainable", result.err)
    assert match
    n_parameters, n_trainable = (int(number.replace(",", "")) for number in match.groups())
    report = triform("params", tmp_path / "run", "--json").json
    assert (report["parameters"], report["trainable"]) == (count_saved_parameters(base), n_trainable)
    assert report["adapters"] == n_parameters - count_saved_parameters(base)
    memory = {item["name"]: item["count"] for item in report["memory"]["training"]}
    assert (memory["gradients"], memory["state of adamw"]) == (n_trainable, 2 * n_trainable)
    output = triform("params", tmp_path / "run").out
    assert "all trainable" not in output
    assert re.search(rf"\ntrainable +{n_trainable:,} ", output)


def test_two_vocabularies_are_two_sizes(triform: Command, train: Command, files: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pair = ("--source", files.source, "--target", files.target)
    assert train("translate", *pair, "--set", "tokenizer.joint_vocab=false", "--out", run).code == 0
    report = triform("params", run, "--json").json
    assert report["parameters"] == count_saved_parameters(run)
    assert {"V", "V′"} <= report["letters"].keys()


def test_a_run_can_be_counted_as_if_it_were_otherwise(triform: Command, writer: Path) -> None:
    actual = triform("params", writer, "--json").json["letters"]
    changed = triform("params", writer, "--set", "model.n_layers=3", "--vocab-size", 999, "--json").json["letters"]
    assert changed == actual | {"L": 3, "V": 999}


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        (("speeches-classifier",), 576_467),
        (("speeches-lm",), 863_243),
        (("gpt2-small",), 124_439_808),
        (("speeches-lm", "--vocab-size", 1000), 863_243 - 4_755 * (64 + 64 + 1)),
        (("speeches-lm", "--set", "tokenizer.vocab_size=1000"), 863_243 - 4_755 * (64 + 64 + 1)),
        (("speeches-lm", "--max-len", 64), 863_243 + 32 * 64),
        (("speeches-lm", "--set", "data.max_len=64"), 863_243 + 32 * 64),
        (("speeches-classifier", "--labels", 5), 576_467 + 2 * 101),
        (("transformer-base", "--vocab-size", 30_000), 59_498_496),
    ],
)
def test_presets_have_their_reported_sizes_unless_told(
    triform: Command, arguments: tuple[object, ...], total: int
) -> None:
    assert triform("params", "--preset", *arguments, "--json").json["parameters"] == total


def test_a_size_fits_any_task(triform: Command) -> None:
    sizes = ("--vocab-size", 500, "--max-len", 32, "--labels", 2)
    for task, form in (("classify", "encoder"), ("generate", "decoder"), ("translate", "encoder-decoder")):
        assert triform("params", "--preset", "tiny", "--task", task, *sizes, "--json").json["form"] == form


def test_a_file_of_settings_is_counted_and_its_open_width_chosen(triform: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nd_model = 32\nn_layers = 1\nn_heads = 2\n[data]\nmax_len = 16\n", encoding="utf-8")
    arguments = ("params", "--config", file, "--vocab-size", 100)
    assert triform(*arguments, "--task", "generate", "--json").json["letters"]["f"] == 4 * 32
    assert "the task is missing; add --task" in triform(*arguments).refusal


def test_the_config_of_a_run_is_a_file_of_settings(triform: Command, writer: Path, tmp_path: Path) -> None:
    config_file = shutil.copy(writer / "config.toml", tmp_path / "alone.toml")
    assert triform("params", "--config", config_file, "--json").json["parameters"] == count_saved_parameters(writer)


# -- what is shown


def test_the_table_adds_up_before_the_readers_eyes(triform: Command) -> None:
    out = triform("params", "--preset", "gpt2-small").out
    assert out.startswith("gpt2-small: decoder, 124,439,808 parameters\n")
    line = next(line for line in out.splitlines() if "key, value" in line)
    assert re.search(r"2·d·d \+ 2·d +2·768·768 \+ 2·768 +1,181,184 +12 +14,174,208 +11\.4 %", line)
    assert "50,257·768" in out
    assert "shared" in next(line for line in out.splitlines() if "logits: weights" in line)
    assert max(map(len, out.splitlines())) < 130


@pytest.mark.parametrize("change", [(), ("model.tie_embeddings=false",), ("model.bias=false",)])
def test_the_published_count_is_walked_to_the_exact_one(triform: Command, change: tuple[str, ...]) -> None:
    sets = [word for assignment in change for word in ("--set", assignment)]
    arguments = ("params", "--preset", "transformer-base", "--vocab-size", 30_000, *sets)
    report = triform(*arguments, "--json").json
    steps = report["reconciliation"]
    assert steps[3]["sum"] == 68_554_752
    assert steps[-1]["sum"] == report["parameters"]
    out = triform(*arguments).out
    assert "68,554,752" in out
    assert re.search(r"arithmetic error in feedforward +-55,296 +68,499,456", out)
    assert out.split("this model")[-1].split()[0] == f"{report['parameters']:,}"


def test_other_sizes_have_nothing_to_reconcile(triform: Command) -> None:
    assert not triform("params", "--preset", "transformer-base", "--json").json["reconciliation"]
    assert "published" not in triform("params", "--preset", "ted-set4").out


def test_memory_follows_batch_length_optimizer_and_precision(triform: Command) -> None:
    def report_memory(*more: object) -> Any:
        return triform("params", "--preset", "gpt2-small", "--batch-size", 4, *more, "--json").json["memory"]

    plain = report_memory()
    assert report_memory("--length", 256)["activation_bytes"] < plain["activation_bytes"] / 3.9
    saved = plain["training_bytes"] - report_memory("--optimizer", "sgd")["training_bytes"]
    assert saved == 4 * 124_439_808  # one running mean instead of two
    assert report_memory("--precision", "bf16")["activation_bytes"] < plain["activation_bytes"]
    assert plain["cache_bytes_per_token"] == {"token": 2 * 12 * 768 * 4}


def test_a_preset_is_counted_without_torch() -> None:
    code = (
        "import sys\nfrom triform.cli.params import params\nparams(preset='gpt2-small')\n"
        "print('torch' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.endswith("False\n")


# -- what is refused


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "exactly one of RUN, --preset NAME and --config FILE"),
        (("runs/x", "--preset", "tiny"), "exactly one of RUN"),
        (("--preset", "small"), "fits any task; add --task"),
        (("--preset", "small", "--task", "generate"), "--vocab-size"),
        (("--preset", "small", "--task", "generate", "--vocab-size", 9), "--max-len"),
        (("--preset", "small", "--task", "classify", "--vocab-size", 9, "--max-len", 9), "--labels"),
        (("--preset", "gpt2-small", "--task", "classify"), "is for generate"),
        (("--preset", "gpt3"), "unknown preset"),
        (("--preset", "small", "--task", "sing"), "choose from classify"),
        (("--preset", "gpt2-small", "--set", "model.heads=3"), "unknown setting"),
        (("--preset", "gpt2-small", "--set", "model.n_heads=7"), "not divisible"),
        (("--preset", "gpt2-small", "--length", 2000), "--length 2000: the model reads at most"),
        (("--preset", "gpt2-small", "--labels", -1), "--labels -1"),
        (("--preset", "gpt2-small", "--optimizer", "lion"), "choose from adam"),
        (("--preset", "gpt2-small", "--precision", "fp8"), "choose from auto, fp32, bf16"),
        (("--config", "nowhere.toml"), "nowhere.toml: no such file"),
        (("nowhere",), "nowhere: no such run folder"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_line(
    triform: Command, arguments: tuple[object, ...], problem: str
) -> None:
    assert problem in triform("params", *arguments).refusal


def test_the_memory_of_several_devices_decides_between_ddp_and_fsdp(triform: Any) -> None:
    arguments = ("params", "--preset", "gpt2-small", "--devices", 4, "--json", "--device-memory")
    small, large = (triform(*arguments, size).json["devices"] for size in ("2GB", "80GB"))
    assert (small["auto"], large["auto"]) == ("fsdp", "ddp")
    assert small["ddp"]["total"] > small["fsdp"]["total"]
    assert small["ddp"]["weights"] == pytest.approx(4 * small["fsdp"]["weights"], abs=4)
    assert "train.parallel=auto chooses ddp" in triform(*arguments[:5], "--device-memory", "80GB").out
    for option, value in (("--device-memory", "80GB"), ("--device-speed", "1TFLOP/s")):
        assert f"{option} needs --devices N" in triform(*arguments[:3], option, value).refusal


def test_the_time_of_a_step_falls_with_the_number_of_devices(triform: Any) -> None:
    arguments = ("params", "--preset", "gpt2-small", "--batch-size", 8, "--device-speed", "400TFLOP/s", "--devices")
    one, four = (triform(*arguments, number, "--json").json["devices"] for number in (1, 4))
    assert one["step_seconds"] == pytest.approx(4 * four["step_seconds"])
    # 6 operations per parameter and token, and 12 per layer, token, token that is read and dimension
    expected = 8 * 1024 * (6 * 124_439_808 + 12 * 12 * 1024 * 768)
    assert one["step_flops"] == pytest.approx(expected, rel=0.1)
    assert "ms, without communication" in triform(*arguments, 4).out
    assert "such as 400TFLOP/s" in triform(*arguments[:5], "--devices", 2, "--device-speed", "fast").refusal
    assert "--devices -1: must not be negative" in triform("params", "--preset", "tiny", "--devices", -1).err
