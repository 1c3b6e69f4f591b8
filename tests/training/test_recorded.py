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

from triform.config import Config, ModelConfig, Sizes, TaskName
from triform.data.loader import rung
from triform.models.decoder import Decoder
from triform.settings import build
from triform.tasks import TASKS, Prepared
from triform.training import replay
from triform.training.compiled import compiled, pays
from triform.training.layers import limit_learning
from triform.training.learner import Learner
from triform.training.recorded import Recorded
from triform.training.trainer import resident_of

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
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """In float64, with a recording that keeps the work and does it at every replay, as a graph does."""
    made: list[str] = []

    def record(work: Callable[[], None], pool: object) -> Any:
        made.append("graph")
        return SimpleNamespace(replay=work)

    monkeypatch.setattr(replay, "record", record)
    torch.set_default_dtype(torch.float64)
    yield made
    torch.set_default_dtype(torch.float32)


def prepared(name: TaskName, folder: Path, **asked: Any) -> Prepared:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 26))) for _ in range(80)]
    if name == "generate":
        path = folder / "text.txt"
        path.write_text("\n".join(texts), encoding="utf-8")
    else:
        path = folder / "rows.tsv"
        others = ["yes" if "amber" in text else "no" for text in texts] if name == "classify" else texts[::-1]
        heading = "text\tlabel" if name == "classify" else "source\ttarget"
        lines = [f"{text}\t{other}" for text, other in zip(texts, others, strict=True)]
        path.write_text("\n".join([heading, *lines]), encoding="utf-8")
    settings = {"task": name, "data.train": str(path), **SETTINGS, **asked}
    return TASKS[name].prepare(build(settings, Config()), folder / "run")


def pair(name: TaskName, tmp_path: Path, **asked: Any) -> tuple[Prepared, Learner, Recorded]:
    """The same beginning twice: to be learned plainly, and as recorded."""
    folders = [tmp_path / "plain", tmp_path / "recorded"]
    for folder in folders:
        folder.mkdir()
    first, second = (prepared(name, folder, **asked) for folder in folders)
    for each in (first, second):
        torch.manual_seed(1)
        limit_learning(each.task.model, each.task.config)
    resident = second.train.on(torch.device("cpu"), second.task.config.train)
    assert resident is not None
    replayed = Recorded(second.task, second.train, resident, 50)
    replayed.replay.recording = True
    return first, Learner(first.task, first.train), replayed


def learn_alike(first: Prepared, plain: Learner, replayed: Recorded, steps: int = 12) -> None:
    config = first.task.config
    sampler = first.train.sampler(config.train, config.seed)
    for step in range(1, steps + 1):
        drawn = [sampler.next() for _ in range(config.train.accumulate)]
        counts = plain.step(drawn, 0.01 / step), replayed.step(drawn, 0.01 / step)
        assert counts[0][:2] == counts[1][:2]  # predictions and real tokens; what is filled up may differ
        assert counts[1].n_places >= counts[1].n_tokens
    torch.testing.assert_close(plain.losses, replayed.losses, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(plain.norm, replayed.norm, rtol=1e-4, atol=1e-6)
    for one, other in zip(plain.task.model.parameters(), replayed.task.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"train.batch_size": 0, "train.batch_tokens": 64},
        {"train.optimizer": "sgd", "train.clip_norm": 0.0},
        {"train.accumulate": 2, "model.window": 3},
        {"model.positions": "alibi", "train.optimizer": "adam"},
        {"train.freeze": 1, "train.layer_decay": 0.5},
        {"train.base": "a run", "train.lora_rank": 2, "train.layer_decay": 0.8},
    ],
    ids=lambda asked: "-".join(f"{name}={value}" for name, value in asked.items()) or "plain",
)
@every_task
def test_what_is_replayed_learns_as_what_is_run(name: TaskName, asked: dict[str, Any], tmp_path: Path) -> None:
    first, plain, replayed = pair(name, tmp_path, **asked)
    learn_alike(first, plain, replayed)
    assert not replayed.notices


def test_shapes_come_again_and_each_is_recorded_once(tmp_path: Path, by_hand: list[str]) -> None:
    first, plain, replayed = pair("classify", tmp_path)
    learn_alike(first, plain, replayed, steps=40)
    graphs, inputs = replayed.replay.graphs, replayed.replay.inputs
    assert set(graphs) <= set(inputs)
    assert len(by_hand) == len(graphs) >= 2
    assert all(shape[0] == (6, shape[0][1]) for shape in inputs)  # the last batch of an epoch is filled up


def test_a_step_that_cannot_be_recorded_is_run_and_said_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(work: Callable[[], None], pool: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand a trace")

    monkeypatch.setattr(replay, "record", refuse)
    first, plain, replayed = pair("classify", tmp_path)
    learn_alike(first, plain, replayed)
    assert len(replayed.notices) == 1
    assert "operation not permitted when stream is capturing)" in replayed.notices[0]


def test_masks_made_while_a_recording_failed_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a graph is captured nothing is computed: what was made then and kept would be read as it is."""

    def refuse(work: Callable[[], None], pool: object) -> None:
        for rule in replayed.task.model.reaches:
            assert rule._masks
            rule._masks = {key: torch.zeros_like(mask) for key, mask in rule._masks.items()}
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(replay, "record", refuse)
    first, plain, replayed = pair("generate", tmp_path, **{"model.window": 3})
    learn_alike(first, plain, replayed)
    assert len(replayed.notices) == 1


def test_blocks_that_cannot_be_compiled_run_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triform.training import recorded

    def refuse(*inputs: Any) -> None:
        raise RuntimeError("Failed to find C compiler\nand a trace")

    @contextmanager
    def broken(model: nn.Module) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model.encoder.blocks[1], "forward", refuse)
            yield

    first, plain, replayed = pair("classify", tmp_path)
    monkeypatch.setattr(recorded, "compiled", broken)
    monkeypatch.setattr(recorded, "pays", lambda *size: True)
    learn_alike(first, plain, replayed)
    assert len(replayed.notices) == 1
    assert "cannot be compiled here and run as they are (Failed to find C compiler)" in replayed.notices[0]


def test_of_too_many_shapes_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MOST_GRAPHS", 1)
    first, plain, replayed = pair("translate", tmp_path)
    learn_alike(first, plain, replayed, steps=30)
    assert len(replayed.replay.graphs) == 1
    assert len(replayed.notices) == 1


@every_task
def test_what_is_gathered_is_what_a_batch_holds(name: TaskName, tmp_path: Path) -> None:
    made = prepared(name, tmp_path)
    train = made.task.config.train
    resident = made.train.on(torch.device("cpu"), train)
    sampler = made.train.sampler(train, 0)
    assert resident is not None
    for _ in range(20):
        indices = sampler.next()
        batch, plan = made.train.batch(indices), resident.plan(indices)
        found = resident.gather(torch.from_numpy(plan.rows), plan.shape)
        assert (plan.weight, plan.n_tokens) == (batch.weight, batch.n_tokens)
        torch.testing.assert_close(made.task.loss(found), made.task.loss(batch), rtol=1e-10, atol=1e-10)


def test_data_too_large_for_a_device_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared("generate", tmp_path)
    monkeypatch.setattr("triform.tasks.resident.MOST_TOKENS", made.train.store.total - 1)
    assert made.train.on(torch.device("cpu"), made.task.config.train) is None


def test_data_that_finds_no_room_beside_the_model_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*inputs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    made = prepared("generate", tmp_path)
    assert resident_of(made.task, made.train) is not None
    monkeypatch.setattr(type(made.train), "on", full)
    assert resident_of(made.task, made.train) is None


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_rung_is_near_and_there_are_few(length: int, most: int) -> None:
    length = min(length, most)
    found = rung(length, most)
    assert length <= found <= min(most, max(8, 1.3 * length + 8))
    assert rung(found, most) == found
    assert len({rung(each, 512) for each in range(1, 513)}) <= 20


def test_compiling_is_for_long_runs_of_many_tokens() -> None:
    assert pays(124_000_000, 16_384, 5_000)
    assert not pays(124_000_000, 16_384, 20)
    assert not pays(800_000, 768, 5_000)
    assert not pays(100_000_000, 512, 20_000)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, while it traces
@every_task
def test_compiled_blocks_give_the_same_loss_and_are_put_back(
    name: TaskName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced as for compiling, then run as it is."""
    from triform.training import compiled as module

    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda work: whole(work, backend="eager", fullgraph=True))
    for made in (module._block, module._cross_block):
        made.cache_clear()
    try:
        task = prepared(name, tmp_path)
        batch = task.train.batch(np.arange(6))
        plain = task.task.loss(batch)
        with compiled(task.task.model):
            traced = task.task.loss(batch)
        slopes = [torch.autograd.grad(loss, list(task.task.model.parameters())) for loss in (plain, traced)]
        torch.testing.assert_close(traced, plain, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-7, atol=1e-9)
        assert not any({"forward", "projected"} & vars(each).keys() for each in task.task.model.modules())
    finally:
        for made in (module._block, module._cross_block):
            made.cache_clear()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_all_layers_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass fills what rules remember, so there may be a second one; never one a layer."""
    from triform.training import compiled as module

    whole, made = torch.compile, []

    def count(graph: torch.fx.GraphModule, inputs: object) -> Any:
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda work: whole(work, backend=count, fullgraph=True))
    module._block.cache_clear()
    try:
        config = ModelConfig(d_model=16, d_ff=32, n_layers=12, n_heads=2)
        model, tokens = Decoder(config, Sizes(vocab_size=20, max_len=16)), torch.randint(0, 20, (2, 16))
        for _ in range(3):
            with compiled(model):
                model(tokens).sum().backward()
        assert 1 <= len(made) <= 2
    finally:
        module._block.cache_clear()
