"""Several threads that use one run at once get the answers that one thread alone would get."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import triform
from triform.explain.maps import Explanation
from triform.explain.record import record_attention
from triform.run import Run

N_THREADS = 8
WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord"]
TEXTS = ["amber birch", "cedar", "dune ember fjord amber birch cedar dune", "ember ember ember"]
TINY = {"model": {"d_model": 16, "n_heads": 2, "n_layers": 2}, "quiet": True}
Job = Callable[[], Any]


def sentences() -> list[str]:
    rng = random.Random(3)
    return [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) for _ in range(80)]


without_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=without_cuda)])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("threads")
    texts = sentences()
    (folder / "rows.tsv").write_text("".join(f"{text}\t{text.split()[0]}\n" for text in texts), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "pairs.tsv").write_text("".join(f"{text}\t{text[::-1]}\n" for text in texts), encoding="utf-8")
    files = {"classify": "rows.tsv", "generate": "text.txt", "translate": "pairs.tsv"}
    settings: Any = {"train": {"max_steps": 4}, "tokenizer": {"kind": "bpe", "vocab_size": 270}, **TINY}
    return {
        task: triform.train(task, data=folder / file, out=folder / task, device=request.param, **settings)  # type: ignore[arg-type]
        for task, file in files.items()
    }


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual, so that what can go wrong does."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 1000)
    yield
    sys.setswitchinterval(usual)


def jobs(run: Run) -> list[Job]:
    """Calls that differ in everything that can be asked of a call."""
    explained = partial(run.explain, TEXTS[0])
    if run.config.task == "classify":
        predicted = [partial(run.predict, TEXTS[:n]) for n in (1, 2, 4)]
        return [*predicted, explained, partial(run.explain, TEXTS[2], target="dune"), run.evaluate]
    settings: list[dict[str, Any]] = [
        *({"temperature": heat, "seed": seed} for heat in (0.5, 2.0) for seed in (1, 2)),
        {"top_k": 2, "seed": 7},
        {"top_p": 0.5, "seed": 7},
        *({"beam_size": size} for size in (2, 3)),
        {"strategy": "greedy", "max_new_tokens": 3},
        {},
    ]
    found: list[Job] = [partial(run.predict, TEXTS, **{"max_new_tokens": 8, **each}) for each in settings]
    if run.config.task == "generate":
        return [*found, explained, partial(run.explain, TEXTS[1], n_new=3), run.evaluate]
    return [*found, explained, partial(run.evaluate, beam_size=2, max_new_tokens=4)]


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Explanation):
        assert (found.output, found.notes) == (expected.output, expected.notes)
        for one, other in zip(found.maps, expected.maps, strict=True):
            np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)
        for one, other in zip(found.attributions, expected.attributions, strict=True):
            assert one.values == pytest.approx(other.values, abs=1e-4)
    elif isinstance(expected, dict):
        assert found == pytest.approx(expected, rel=1e-5)
    else:
        assert [each.output for each in found] == [each.output for each in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


@pytest.mark.usefixtures("often_switched")
def test_eight_threads_get_the_answers_of_one(runs: dict[str, Run]) -> None:
    work = [job for run in runs.values() for job in jobs(run)]
    expected = [job() for job in work]
    settings = {task: run.config for task, run in runs.items()}
    together = threading.Barrier(N_THREADS)

    def in_some_order(seed: int) -> list[tuple[int, Any]]:
        order = random.Random(seed).sample(range(len(work)), len(work))
        together.wait(timeout=20)
        return [(place, work[place]()) for place in order]

    with ThreadPoolExecutor(N_THREADS) as threads:
        for answers in threads.map(in_some_order, range(N_THREADS)):
            for place, found in answers:
                assert_same(found, expected[place])
    for task, run in runs.items():
        assert run.config is settings[task], "a call changed the settings of the run"
        assert all(not module.training for module in run.task.model.modules())


@pytest.mark.usefixtures("often_switched")
def test_threads_that_record_attention_see_their_own_calls_only(runs: dict[str, Run]) -> None:
    run = runs["classify"]
    model = run.task.model
    kernels = [layer.kernel for layer in model.attention_stacks()["encoder"]]  # type: ignore[operator]
    together = threading.Barrier(4)

    def recorded(length: int) -> None:
        tokens = torch.full((1, length), 5, device=run.task.device)
        for _ in range(10):
            together.wait(timeout=20)
            with record_attention(model) as recording, torch.inference_mode():
                model(tokens)
            assert recording["encoder"].shape == (2, 1, 2, length, length)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(recorded, range(3, 7)))
    assert [layer.kernel for layer in model.attention_stacks()["encoder"]] == kernels  # type: ignore[operator]


def test_an_explanation_leaves_the_model_alone(runs: dict[str, Run]) -> None:
    for run in runs.values():
        before = {id(module): dict(vars(module)) for module in run.task.model.modules()}
        run.explain(TEXTS[0])
        for module in run.task.model.modules():
            assert vars(module).keys() == before[id(module)].keys()
