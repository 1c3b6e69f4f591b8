"""`triform plan`: its report, its JSON, its one-line errors, and its comparison with published figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.plan import calibrate_overlap, compare_all, format_markdown, summarise

from triform.analysis.cluster import DEFAULT_OVERLAP

Command = Callable[..., Any]
SCALING_PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_the_report_names_memory_speed_duration_and_failures(triform: Command) -> None:
    report = triform("plan", "--params", "7B", "--gpus", 1024, "--tokens", "2T").out
    assert report.startswith("6,987,962,560 parameters: 33 layers of width 4,160\n1,024 H200 GPUs in 128 nodes.")
    assert "does not fit one GPU. This plan uses FSDP: every GPU holds a part of the model." in report
    for name in (
        *("memory of a GPU", "gathered weights", "bytes that a GPU sends", "tokens per second and GPU"),
        *("model FLOP utilisation", "efficiency compared with one node", "time lost to checkpoints and failures"),
    ):
        assert name in report


def test_json_has_the_inputs_and_the_results(triform: Command) -> None:
    options = ("--gpu", "a100", "--gpus", 16, "--batch-tokens", "524288", "--utilisation", 0.5, "--overlap", 1)
    plan = triform("plan", "--preset", "gpt2-small", *options, "--json").json
    assert plan["parallel"] == "ddp"
    assert plan["cluster"]["nodes"] == 2
    assert plan["cluster"]["peak_flops"] == 312e12
    assert plan["batch"]["tokens_per_step"] == 524_288
    assert plan["step"]["waiting"] == 0
    assert plan["model_flop_utilisation"] == pytest.approx(0.5)
    assert plan["tokens_per_second"] == pytest.approx(16 * 0.5 * 312e12 / plan["model"]["flops_per_token"])


def test_measured_tokens_per_second_of_one_gpu_replace_the_utilisation(triform: Command) -> None:
    options = ("--preset", "gpt2-small", "--gpus", 1, "--tokens-per-second")
    assert triform("plan", *options, "480k", "--json").json["tokens_per_second"] == pytest.approx(480_000)
    assert "needs 4.3 times the peak speed of the GPU" in triform("plan", *options, "5M").refusal
    assert "leave one of them out" in triform("plan", *options, "5k", "--utilisation", 0.4).refusal


def test_links_memory_peak_and_checkpoints_are_options(triform: Command) -> None:
    options = (
        *("--gpu-memory", "40GiB", "--peak-flops", "500TFLOP/s", "--node-link", "100GB/s"),
        *("--network-link", "80Gb/s", "--checkpoint-speed", "1GB/s", "--checkpoint-interval", "30min"),
        *("--gpu-mtbf", "1000h", "--restart-time", "60s", "--parallel", "fsdp", "--precision", "fp32"),
    )
    plan = triform("plan", "--params", "1B", "--gpus", 32, "--gpus-per-node", 4, *options, "--json").json
    assert plan["parallel"] == "fsdp"
    assert plan["cluster"]["memory_bytes"] == 40 * 2**30
    assert plan["cluster"]["node_bandwidth"] == 100e9
    assert plan["cluster"]["network_bandwidth"] == 10e9
    assert plan["batch"]["precision"] == "fp32"
    assert plan["checkpoints"]["interval"] == 1_800
    assert plan["checkpoints"]["mtbf"] == 1_000 * 3_600 / 32
    assert plan["checkpoints"]["write_seconds"] == plan["checkpoints"]["size"] / 1e9


def test_a_settings_file_and_a_translator_are_planned(triform: Command, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(
        'task = "translate"\n[model]\nd_model = 64\nd_ff = 256\nn_layers = 2\nn_heads = 2\n'
        "[train]\nbatch_tokens = 65536\n[data]\nmax_len = 128\n[tokenizer]\nvocab_size = 1000\n",
        encoding="utf-8",
    )
    plan = triform("plan", "--config", settings, "--gpus", 4, "--json").json
    assert plan["batch"]["tokens_per_step"] == 65_536
    assert plan["model"]["n_blocks"] == 4
    assert plan["cluster"]["nodes"] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--params", "7Q", "--gpus", "8"), "--params 7Q: expected a positive number with a unit, such as 7B"),
        (("--params", "-7B", "--gpus", "8"), "--params -7B: expected a positive number"),
        (("--params", "0", "--gpus", "8"), "--params 0: must be above 0"),
        (("--params", "1e400", "--gpus", "8"), "--params 1e400: the number is too large"),
        (("--params", "7B", "--gpus", "0"), "--gpus: must be at least 1"),
        (("--params", "7B", "--gpus", "-8"), "--gpus: must be at least 1"),
        (("--params", "7B", "--gpus", "many"), "--gpus: must be a whole number"),
        (("--params", "7B"), "missing option --gpus"),
        (("--params", "7B", "--gpus", "1020"), "not a multiple of the 8 GPUs of a node; write 1016 or 1024"),
        (("--gpus", "8"), "name a model with exactly one of --params COUNT, --preset NAME and --config FILE"),
        (("--params", "7B", "--preset", "gpt2-small", "--gpus", "8"), "exactly one of --params"),
        (("--params", "7B", "--gpus", "8", "--gpu", "Z80"), "--gpu Z80: unknown; choose H200, H100, A100"),
        (("--params", "7B", "--gpus", "8", "--overlap", "2"), "--overlap 2: must be from 0 to 1"),
        (("--params", "7B", "--gpus", "8", "--utilisation", "0"), "--utilisation 0: must be above 0"),
        (("--params", "7B", "--gpus", "8", "--network-link", "400Gb"), "such as 50GB/s (bytes) or 400Gb/s (bits)"),
        (("--params", "7B", "--gpus", "8", "--gpu-memory", "80"), "--gpu-memory 80: expected a positive number"),
        (("--params", "7B", "--gpus", "8", "--gpu-mtbf", "5 years"), "such as 90s, 10min, 50000h or 3d"),
        (("--params", "7B", "--gpus", "8", "--parallel", "tp"), "--parallel tp: choose auto, ddp or fsdp"),
        (("--params", "7B", "--gpus", "8", "--precision", "int8"), "--precision int8: choose bf16 or fp32"),
        (("--params", "7B", "--gpus", "8", "--set", "model.d_ff=8"), "leave out --set and --task"),
        (("--params", "7B", "--gpus", "64", "--batch-tokens", "64k"), "need --batch-tokens 131072 or more"),
        (("--preset", "gpt2-small", "--gpus", "8", "--length", "2048"), "the model reads at most 1024 tokens"),
        (("--params", "70B", "--gpus", "8"), "With FSDP, 24 GPUs are the smallest number that is enough."),
        (
            ("--params", "7B", "--gpus", "8", "--length", "1000000"),
            "No number of GPUs is enough: use shorter texts",
        ),
    ],
)
def test_bad_input_is_one_line(triform: Command, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in triform("plan", *arguments).refusal


def test_the_table_of_published_figures_is_the_one_that_the_benchmark_computes() -> None:
    page = SCALING_PAGE.read_text(encoding="utf-8")
    comparisons = compare_all()
    assert format_markdown(comparisons) in page
    assert summarise(comparisons) in page


def test_the_default_overlap_is_the_calibrated_one() -> None:
    assert calibrate_overlap() == pytest.approx(DEFAULT_OVERLAP, abs=0.01)


def test_half_of_the_predictions_are_within_a_tenth_of_the_published_figures() -> None:
    errors = [abs(row.error) for row in compare_all() if not row.note]
    assert sum(error < 0.1 for error in errors) > len(errors) / 2
    assert max(errors) < 0.3
