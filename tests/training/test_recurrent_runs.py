"""Recurrent kinds through the trainer, the run folder and the commands, as any model goes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from same_runs import StoppedAfter

import triform
from triform import scratch
from triform.analysis.costs import Workload, estimate_costs
from triform.config import Config, DataSizes, ModelConfig, TrainConfig
from triform.config.presets import preset
from triform.config.settings import build_config
from triform.errors import ConfigError
from triform.experiments.seeds import train_seeds
from triform.explain.probes import build_untrained_model
from triform.launch import resolve_settings
from triform.models.factory import build_decoder
from triform.nn.loss import cross_entropy
from triform.pretrained.families import FAMILIES
from triform.pretrained.run_export import EXPORT_FORMATS, export
from triform.scratch.supported import check_model
from triform.tasks.defaults import resolve_defaults
from triform.tasks.language_model_data import EVAL_WINDOWS_PER_STATE
from triform.training.compilation import compiled_blocks
from triform.training.run_folder import RunFolder

TASK_SETTINGS: dict[str, dict[str, Any]] = {
    "classify": {
        "model": {"kind": "lstm", "d_model": 64, "n_layers": 1},
        "train": {"max_steps": 300, "batch_size": 64, "lr": 1e-2, "eval_every": 300},
    },
    "translate": {
        "model": {"kind": "gru", "d_model": 96, "n_layers": 1, "attention_score": "additive", "dropout": 0.0},
        "train": {"max_steps": 400, "batch_tokens": 512, "lr": 8e-3, "eval_every": 400},
    },
    "generate": {
        "model": {"kind": "lstm", "d_model": 64, "n_layers": 1},
        "train": {"max_steps": 120, "lr": 8e-3, "eval_every": 120},
    },
}
MIN_METRICS = {"classify": ("accuracy", 0.95), "translate": ("exact_match", 0.8)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, triform.Run]:
    folder = tmp_path_factory.mktemp("recurrent")
    torch.set_num_threads(1)
    return {
        task: triform.train(task, out=str(folder / task), device="cpu", quiet=True, **settings)  # type: ignore[arg-type]
        for task, settings in TASK_SETTINGS.items()
    }


@pytest.mark.parametrize("task", MIN_METRICS)
def test_the_built_in_sets_are_learned(runs: dict[str, triform.Run], task: str) -> None:
    metric, minimum = MIN_METRICS[task]
    assert runs[task].evaluate()[metric] >= minimum


def test_a_language_model_learns_and_gains_by_what_it_carries(runs: dict[str, triform.Run]) -> None:
    run = runs["generate"]
    events = [json.loads(line) for line in RunFolder(run.path).metrics_file.read_bytes().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "train"]
    assert losses[-1] < losses[0] - 0.8
    width = run.config.data.max_len
    carried_loss = run.evaluate()["loss"]
    assert carried_loss < run.evaluate(stride=width - 1)["loss"]
    assert carried_loss < run.evaluate(stride=width)["loss"]  # side by side, each from an empty state
    windows = next(iter(run.task.evaluator.batches(run.task.data.load_validation_dataset([]), quick=False)))
    assert windows.tokens.shape[1] == EVAL_WINDOWS_PER_STATE * width


def test_a_text_goes_on_beyond_a_window_from_a_prompt_of_any_length(runs: dict[str, triform.Run]) -> None:
    run = runs["generate"]
    prompt = "the sea and the wind " * 40
    assert len(run.task.predictor.encode_prompt(prompt)) > run.config.data.max_len
    result = run.predict([prompt, "the "], max_new_tokens=2 * run.config.data.max_len, strategy="greedy")
    assert result[1].output == run.predict(["the "], max_new_tokens=256, strategy="greedy")[0].output


def test_maps_of_a_translation_are_shown_and_a_label_is_explained_without_any(
    runs: dict[str, triform.Run], tmp_path: Path
) -> None:
    translation = runs["translate"].explain("one hundred and five")
    assert [attention_map.name for attention_map in translation.maps] == ["cross"]
    np.testing.assert_allclose(translation.maps[0].weights.sum(-1), 1, atol=1e-5)
    for name in ("maps.html", "maps.png"):
        assert translation.save(tmp_path / name).stat().st_size > 1_000
    explanation = runs["classify"].explain("a dull and tiresome film")
    assert explanation.maps == ()
    values = explanation.attributions[0].values
    assert sum(values) == pytest.approx(explanation.attributions[0].total, abs=0.05)
    explanation.save(tmp_path / "label.html")
    explanation.save(tmp_path / "label.png")
    with pytest.raises(ConfigError, match="has no attention to show"):
        runs["generate"].explain("the sea")


def test_a_recurrent_run_answers_in_fp32_and_refuses_other_numbers(runs: dict[str, triform.Run]) -> None:
    path = runs["classify"].path
    assert triform.load(path, device="cpu").precision == "fp32"
    for precision in ("bf16", "int8"):
        with pytest.raises(ConfigError, match=rf"precision {precision} is for Transformers; model\.kind=lstm"):
            triform.load(path, device="cpu", precision=precision)


TINY = {
    "model": {"kind": "lstm", "d_model": 16, "n_layers": 2, "dropout": 0.3},
    "train": {"max_steps": 12, "eval_every": 4, "checkpoint_every": 2, "log_every": 2, "batch_size": 4},
}


DATA = {
    "classify": "".join(f"{'good' if n % 3 else 'bad'}\tword{n % 17} thing{n % 5} is {n}\n" for n in range(90)),
    "generate": "".join(f"line {n} says {'so ' * (n % 4)}it is {n * 7 % 13}.\n" for n in range(150)),
    "translate": "".join(f"one {n} two {n % 7}\tun {n} deux {n % 7}\n" for n in range(90)),
}


def write_data(task: str, folder: Path) -> str:
    path = folder / ("text.txt" if task == "generate" else "rows.tsv")
    path.write_text(DATA[task], encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("task", DATA)
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(
    task: Any, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    options: dict[str, Any] = {"data": write_data(task, tmp_path), "device": "cpu", "quiet": True, **TINY}
    uninterrupted = triform.train(task, out=str(tmp_path / "whole"), **options)
    with stopped_after(5):
        triform.train(task, out=str(tmp_path / "cut"), **options)
    resumed = triform.train(task, out=str(tmp_path / "cut"), resume=True, **options)
    actual, expected = (load_file(RunFolder(run.path).model_file) for run in (resumed, uninterrupted))
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in actual)


def test_several_seeds_are_trained_one_after_another(tmp_path: Path) -> None:
    progress = io.StringIO()
    rows = write_data("classify", tmp_path)
    result = train_seeds(
        "classify", 2, data=rows, out=str(tmp_path / "seeds"), device="cpu", progress=progress, **TINY
    )
    assert "seed 0:" in progress.getvalue()
    assert "seed 1:" in progress.getvalue()
    first = load_file(RunFolder(result.folders[0]).model_file)
    second = load_file(RunFolder(result.folders[1]).model_file)
    assert not torch.equal(
        first["encoder.embedding.token_embedding.weight"], second["encoder.embedding.token_embedding.weight"]
    )


def test_nothing_of_it_is_compiled() -> None:
    model = build_decoder(ModelConfig(kind="lstm", d_model=8, n_layers=1), DataSizes(vocab_size=9, max_len=8))
    with compiled_blocks(model):
        assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.n_heads": 4}, r"model\.n_heads=4 has no effect with model\.kind=lstm"),
        ({"model.positions": "rotary"}, r"model\.positions=rotary has no effect"),
        ({"model.window": 8}, r"model\.window=8 has no effect"),
        ({"model.norm": "rms"}, r"model\.norm=rms has no effect"),
        ({"model.d_ff": 64}, r"model\.d_ff=64 has no effect"),
        ({"model.layer_windows": (8,), "model.n_layers": 1}, r"model\.layer_windows=\[8\] has no effect"),
        ({"model.pooling": "first"}, r"model\.pooling=first does not work with model\.kind=lstm"),
        ({"model.d_model": 15}, r"model\.d_model=15 must be even"),
        ({"model.attention_score": "additive"}, r"model\.attention_score=additive applies to attention"),
        ({"train.precision": "bf16"}, r"train\.precision=bf16 applies to Transformers only"),
        (
            {"train.init_from": "x", "train.lora_rank": 2},
            r"train\.lora_rank applies to Transformers only, not to model\.kind=lstm",
        ),
    ],
)
def test_what_has_no_effect_on_a_recurrent_model_is_refused_by_name(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config({"model.kind": "lstm", **settings})


def test_what_says_the_same_is_let_pass() -> None:
    build_config({"model.kind": "gru", "model.n_heads": 1, "model.positions": "none", "model.dropout": 0.4})
    build_config({"task": "generate", "model.kind": "gru", "model.d_model": 15})
    build_config(
        {
            "task": "translate",
            "model.kind": "gru",
            "model.attention_score": "additive",
            "model.attention_direction": "causal",
        }
    )


def test_open_settings_and_sizes_are_chosen_for_the_kind() -> None:
    config = resolve_defaults(Config(model=ModelConfig(kind="gru")), 1_000, {"data.max_len": 8})
    assert (config.model.d_model, config.model.n_layers, config.model.n_heads, config.model.d_ff) == (128, 2, 0, 0)
    settings = resolve_settings("generate", "small", None, {"model.kind": "lstm"})
    assert build_config(settings).model == ModelConfig(kind="lstm", d_model=256, n_layers=3)
    with pytest.raises(ConfigError, match="preset 'ted-set1' is a transformer, not lstm"):
        preset("ted-set1", "translate", "lstm")


def test_exports_refuse_recurrent_kinds_by_name(runs: dict[str, triform.Run], tmp_path: Path) -> None:
    model = ModelConfig(kind="lstm", d_model=8, n_layers=1)
    for action in (
        lambda: check_model(model),
        lambda: scratch.TextClassifier(Config(model=ModelConfig(kind="lstm"))),
        lambda: scratch.load(runs["classify"].path),
    ):
        with pytest.raises(ConfigError, match=r"model\.kind=lstm is not supported by triform\.scratch"):
            action()
    for engine in EXPORT_FORMATS:
        with pytest.raises(
            ConfigError, match=rf"--to {engine} supports only Transformers, so a run with model\.kind=lstm"
        ):
            export(runs["classify"].task, engine, tmp_path / engine)
    for family in FAMILIES:
        config = Config(task=family.task, model=model)
        assert any(
            "model.kind=lstm" in problem
            for problem in family.find_mismatches(config, DataSizes(vocab_size=9, max_len=8))
        )


def test_memory_does_not_grow_with_what_is_written() -> None:
    config = Config(task="generate", model=ModelConfig(kind="lstm", d_model=8, n_layers=2), train=TrainConfig())
    sizes = DataSizes(vocab_size=9, max_len=64)
    short, long = (estimate_costs(config, sizes, Workload(batch_size=2, length=length)) for length in (8, 64))
    assert short.inference_bytes == long.inference_bytes
    assert short.cache_per_token == (("token", 0),)
    assert long.forward_flops == 8 * short.forward_flops
    cells = next(component for component in long.flop_items if component.name == "decoder: cells")
    assert cells.per_unit == 2 * 2 * 4 * 2 * 8 * 8  # two operations, two layers, four gates, two matrices


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_what_autograd_keeps_is_near_the_estimate(task: Any, kind: Any) -> None:
    config = Config(task=task, model=ModelConfig(kind=kind, d_model=64, n_layers=2))
    sizes = DataSizes(vocab_size=50, max_len=64, n_labels=3)
    model, saved_tensors = build_untrained_model(config, sizes).train(), {}
    parameter_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def record_saved(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in parameter_storages:
            saved_tensors[storage.data_ptr()] = storage.nbytes(), x  # held, so that no other takes its place
        return x

    tokens = torch.randint(4, 50, (16, 64))
    with torch.autograd.graph.saved_tensors_hooks(record_saved, lambda x: x):
        logits = model(tokens, tokens) if task == "translate" else model(tokens)
        cross_entropy(logits, torch.arange(16) % 3 if task == "classify" else tokens, 0.0)
    estimated_bytes = estimate_costs(config, sizes, Workload(batch_size=16, length=64, gpu=False)).activation_bytes
    assert 0.8 < estimated_bytes / sum(size for size, _ in saved_tensors.values()) < 1.4


def test_an_estimator_of_scikit_learn_takes_the_kind_as_any_setting() -> None:
    sklearn = pytest.importorskip("triform.sklearn")
    texts = [f"{word} {n}" for n in range(12) for word in ("good", "bad")]
    labels = [text.split()[0] for text in texts]
    settings = {"model.kind": "gru", "train.lr": 2e-2, "train.batch_size": 8}
    result = sklearn.TextClassifier(
        d_model=16, n_layers=1, max_steps=40, settings=settings, random_state=0, device="cpu"
    )
    assert result.fit(texts, labels).score(texts, labels) == 1.0
