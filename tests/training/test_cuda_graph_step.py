"""A step that is recorded and replayed learns what a plain one learns. Here a recording is played by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from triform.config import Config, DataSizes, ModelConfig, TaskName
from triform.config.settings import build_config
from triform.data.samplers import round_up_length
from triform.models.decoder import Decoder
from triform.nn.kernels.sdpa import mask_cache
from triform.tasks import TASKS, PreparedTask, losses
from triform.training import graph_cache
from triform.training.build_step import load_device_dataset
from triform.training.compilation import compiled_blocks, should_compile
from triform.training.cuda_graph_step import CudaGraphTrainStep
from triform.training.freezing import freeze_parameters
from triform.training.train_step import TrainStep

WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "islet", "jetty"]
SETTINGS = {
    "seed": 3,
    "data.max_len": 20,
    "tokenizer.kind": "word",
    "model.d_model": 16,
    "model.n_layers": 2,
    "model.n_heads": 2,
    "model.dropout": 0.0,
    "train.lr": 0.01,
    "train.batch_size": 6,
    "train.log_every": 50,
    "train.max_steps": 50,
    "train.label_smoothing": 0.1,
}
every_task = pytest.mark.parametrize("name", ["classify", "generate", "translate"])


@pytest.fixture(autouse=True)
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """In float64, with a recording that keeps the work and does it at every replay, as a graph does."""
    recordings: list[str] = []

    def fake_record(fn: Callable[[], None], pool: object) -> Any:
        recordings.append("graph")
        return SimpleNamespace(replay=fn)

    monkeypatch.setattr(graph_cache, "capture_cuda_graph", fake_record)
    torch.set_default_dtype(torch.float64)
    yield recordings
    torch.set_default_dtype(torch.float32)


def prepare_task(name: TaskName, folder: Path, **overrides: Any) -> PreparedTask:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 26))) for _ in range(80)]
    if name == "generate":
        path = folder / "text.txt"
        path.write_text("\n".join(texts), encoding="utf-8")
    else:
        path = folder / "rows.tsv"
        second_columns = (
            ["yes" if "amber" in text else "no" for text in texts] if name == "classify" else texts[::-1]
        )
        header = "text\tlabel" if name == "classify" else "source\ttarget"
        lines = [f"{text}\t{second_column}" for text, second_column in zip(texts, second_columns, strict=True)]
        path.write_text("\n".join([header, *lines]), encoding="utf-8")
    settings = {"task": name, "data.train": str(path), **SETTINGS, **overrides}
    return TASKS[name].prepare(build_config(settings, Config()), folder / "run")


def build_pair(
    name: TaskName, tmp_path: Path, **settings: Any
) -> tuple[PreparedTask, TrainStep, CudaGraphTrainStep]:
    """The same beginning twice: to be learned plainly, and as recorded."""
    folders = [tmp_path / "plain", tmp_path / "recorded"]
    for folder in folders:
        folder.mkdir()
    first, second = (prepare_task(name, folder, **settings) for folder in folders)
    for prepared_task in (first, second):
        torch.manual_seed(1)
        freeze_parameters(prepared_task.task.model, prepared_task.task.config)
    device_dataset = second.train.to_device(torch.device("cpu"), second.task.config.train)
    assert device_dataset is not None
    graph_step = CudaGraphTrainStep(second.task, second.train, device_dataset, 50)
    graph_step.graph_cache.capture_enabled = True
    return first, TrainStep(first.task, first.train), graph_step


def assert_same_training(
    prepared_task: PreparedTask, plain: TrainStep, graph_step: CudaGraphTrainStep, steps: int = 12
) -> None:
    config = prepared_task.task.config
    sampler = prepared_task.train.sampler(config.train, config.seed)
    for step in range(1, steps + 1):
        batch_indices = [sampler.next_batch() for _ in range(config.train.grad_accumulation)]
        stats = plain.step(batch_indices, 0.01 / step), graph_step.step(batch_indices, 0.01 / step)
        assert stats[0][:2] == stats[1][:2]  # predictions and real tokens; what is filled up may differ
        assert stats[1].n_positions >= stats[1].n_tokens
    torch.testing.assert_close(plain.losses, graph_step.losses, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(plain.grad_norm, graph_step.grad_norm, rtol=1e-4, atol=1e-6)
    for actual, expected in zip(plain.task.model.parameters(), graph_step.task.model.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train.batch_size": 0, "train.batch_tokens": 64},
        {"train.optimizer": "sgd", "train.clip_norm": 0.0},
        {"train.grad_accumulation": 2, "model.window": 3},
        {"model.positions": "alibi", "train.optimizer": "adam"},
        {"train.freeze_layers": 1, "train.layer_decay": 0.5},
        {"train.init_from": "a run", "train.lora_rank": 2, "train.layer_decay": 0.8},
    ],
    ids=lambda settings: "-".join(f"{name}={value}" for name, value in settings.items()) or "plain",
)
@every_task
def test_what_is_replayed_learns_as_what_is_run(name: TaskName, settings: dict[str, Any], tmp_path: Path) -> None:
    first, plain, graph_step = build_pair(name, tmp_path, **settings)
    assert_same_training(first, plain, graph_step)
    assert not graph_step.notices


@pytest.mark.parametrize("simcut", [0.0, 2.0])
@pytest.mark.parametrize("name", ["classify", "translate"])
def test_cut_tokens_are_replayed_as_they_are_run(
    name: TaskName, simcut: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are padded to different widths here, so that tokens are not drawn, but chosen by their place."""
    monkeypatch.setattr(
        losses, "draw_cut_tokens", lambda shape, share, device: (torch.arange(shape[-1]) % 4 == 1).expand(shape)
    )
    settings = {"train.token_cutoff": 0.25, "train.simcut": simcut}
    first, plain, graph_step = build_pair(name, tmp_path, **settings)
    assert_same_training(first, plain, graph_step, steps=6)
    assert not graph_step.notices


def test_shapes_come_again_and_each_is_recorded_once(tmp_path: Path, fake_graphs: list[str]) -> None:
    first, plain, graph_step = build_pair("classify", tmp_path)
    assert_same_training(first, plain, graph_step, steps=40)
    graphs, inputs = graph_step.graph_cache.graphs, graph_step.graph_cache.static_inputs
    assert set(graphs) <= set(inputs)
    assert len(fake_graphs) == len(graphs) >= 2
    assert all(shape[0] == (6, shape[0][1]) for shape in inputs)  # the last batch of an epoch is filled up


def test_only_the_first_two_steps_of_a_shape_are_setups(tmp_path: Path) -> None:
    _, _, graph_step = build_pair("classify", tmp_path)
    n_setups = []
    for _ in range(4):
        graph_step.step([np.arange(6)], 0.01)
        n_setups.append(graph_step.n_setups)
    assert n_setups == [1, 2, 2, 2]


def test_a_step_that_cannot_be_recorded_is_run_and_said_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fn: Callable[[], None], pool: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand a trace")

    monkeypatch.setattr(graph_cache, "capture_cuda_graph", refuse)
    first, plain, graph_step = build_pair("classify", tmp_path)
    assert_same_training(first, plain, graph_step)
    assert len(graph_step.notices) == 1
    assert "operation not permitted when stream is capturing)" in graph_step.notices[0]


def test_masks_made_while_a_recording_failed_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a graph is captured nothing is computed: what was made then and kept would be read as it is."""

    def refuse(fn: Callable[[], None], pool: object) -> None:
        for attention_mask in graph_step.task.model.layer_masks:
            cache = mask_cache(attention_mask)
            assert cache.dense_masks
            cache.dense_masks = {key: torch.zeros_like(mask) for key, mask in cache.dense_masks.items()}
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graph_cache, "capture_cuda_graph", refuse)
    first, plain, graph_step = build_pair("generate", tmp_path, **{"model.window": 3})
    assert_same_training(first, plain, graph_step)
    assert len(graph_step.notices) == 1


def test_blocks_that_cannot_be_compiled_run_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triform.training import cuda_graph_step

    def refuse(*inputs: Any) -> None:
        raise RuntimeError("Failed to find C compiler\nand a trace")

    @contextmanager
    def broken_blocks(model: nn.Module) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model.encoder.blocks[1], "forward", refuse)
            yield

    first, plain, graph_step = build_pair("classify", tmp_path)
    monkeypatch.setattr(cuda_graph_step, "compiled_blocks", broken_blocks)
    monkeypatch.setattr(cuda_graph_step, "should_compile", lambda *size: True)
    assert_same_training(first, plain, graph_step)
    assert len(graph_step.notices) == 1
    assert (
        "cannot be compiled here, so they run without compilation (Failed to find C compiler)"
        in graph_step.notices[0]
    )


def test_of_too_many_shapes_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_cache, "MAX_GRAPHS", 1)
    first, plain, graph_step = build_pair("translate", tmp_path)
    assert_same_training(first, plain, graph_step, steps=30)
    assert len(graph_step.graph_cache.graphs) == 1
    assert len(graph_step.notices) == 1


@every_task
def test_what_is_gathered_is_what_a_batch_holds(name: TaskName, tmp_path: Path) -> None:
    prepared_task = prepare_task(name, tmp_path)
    train = prepared_task.task.config.train
    device_dataset = prepared_task.train.to_device(torch.device("cpu"), train)
    sampler = prepared_task.train.sampler(train, 0)
    assert device_dataset is not None
    for _ in range(20):
        indices = sampler.next_batch()
        batch, plan = prepared_task.train.batch(indices), device_dataset.plan(indices)
        gathered = device_dataset.gather(torch.from_numpy(plan.rows), plan.shape)
        assert (plan.n_predictions, plan.n_tokens) == (batch.n_predictions, batch.n_tokens)
        torch.testing.assert_close(
            prepared_task.task.loss(gathered), prepared_task.task.loss(batch), rtol=1e-10, atol=1e-10
        )


def test_data_too_large_for_a_device_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared_task = prepare_task("generate", tmp_path)
    monkeypatch.setattr("triform.tasks.device_data.MAX_DEVICE_TOKENS", prepared_task.train.store.n_tokens - 1)
    assert prepared_task.train.to_device(torch.device("cpu"), prepared_task.task.config.train) is None


def test_data_that_finds_no_room_beside_the_model_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_out_of_memory(*inputs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    prepared_task = prepare_task("generate", tmp_path)
    assert load_device_dataset(prepared_task.task, prepared_task.train) is not None
    monkeypatch.setattr(type(prepared_task.train), "to_device", raise_out_of_memory)
    assert load_device_dataset(prepared_task.task, prepared_task.train) is None


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_rung_is_near_and_there_are_few(length: int, max_length: int) -> None:
    length = min(length, max_length)
    padded_length = round_up_length(length, max_length)
    assert length <= padded_length <= min(max_length, max(8, 1.3 * length + 8))
    assert round_up_length(padded_length, max_length) == padded_length
    assert len({round_up_length(size, 512) for size in range(1, 513)}) <= 20


def test_compiling_is_for_long_runs_of_many_tokens() -> None:
    assert should_compile(124_000_000, 16_384, 5_000)
    assert not should_compile(124_000_000, 16_384, 20)
    assert not should_compile(800_000, 768, 5_000)
    assert not should_compile(100_000_000, 512, 20_000)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, while it traces
@every_task
def test_compiled_blocks_give_the_same_loss_and_are_put_back(
    name: TaskName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced as for compiling, then run as it is."""
    from triform.training import compilation as module

    original_compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn: original_compile(fn, backend="eager", fullgraph=True))
    for cached_function in (module._compiled_block_forward, module._compiled_cross_block_forward):
        cached_function.cache_clear()
    try:
        prepared_task = prepare_task(name, tmp_path)
        batch = prepared_task.train.batch(np.arange(6))
        plain = prepared_task.task.loss(batch)
        with compiled_blocks(prepared_task.task.model):
            traced = prepared_task.task.loss(batch)
        gradients = [
            torch.autograd.grad(loss, list(prepared_task.task.model.parameters())) for loss in (plain, traced)
        ]
        torch.testing.assert_close(traced, plain, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-7, atol=1e-9)
        assert not any({"forward", "project"} & vars(item).keys() for item in prepared_task.task.model.modules())
    finally:
        for cached_function in (module._compiled_block_forward, module._compiled_cross_block_forward):
            cached_function.cache_clear()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_all_layers_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass fills what rules remember, so there may be a second one; never one a layer."""
    from triform.training import compilation as module

    original_compile, graphs = torch.compile, []

    def count(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda fn: original_compile(fn, backend=count, fullgraph=True))
    module._compiled_block_forward.cache_clear()
    try:
        config = ModelConfig(d_model=16, d_ff=32, n_layers=12, n_heads=2)
        model, tokens = Decoder(config, DataSizes(vocab_size=20, max_len=16)), torch.randint(0, 20, (2, 16))
        for _ in range(3):
            with compiled_blocks(model):
                model(tokens).sum().backward()
        assert 1 <= len(graphs) <= 2
    finally:
        module._compiled_block_forward.cache_clear()
