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
from triform.explain.attention_maps import Explanation
from triform.explain.recorder import record_attention
from triform.run import Run

N_THREADS = 8
WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord"]
TEXTS = ["amber birch", "cedar", "dune ember fjord amber birch cedar dune", "ember ember ember"]
TINY = {"model": {"d_model": 16, "n_heads": 2, "n_layers": 2}, "quiet": True}
Job = Callable[[], Any]


def sentences() -> list[str]:
    rng = random.Random(3)
    return [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) for _ in range(80)]


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=needs_cuda)])
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
def frequent_thread_switches() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual, so that what can go wrong does."""
    default_interval = sys.getswitchinterval()
    sys.setswitchinterval(default_interval / 1000)
    yield
    sys.setswitchinterval(default_interval)


def jobs(run: Run) -> list[Job]:
    """Calls that differ in everything that can be asked of a call."""
    explain_call = partial(run.explain, TEXTS[0])
    if run.config.task == "classify":
        predict_calls = [partial(run.predict, TEXTS[:n], top=n - 1) for n in (1, 2, 4)]
        return [*predict_calls, explain_call, partial(run.explain, TEXTS[2], target="dune"), run.evaluate]
    settings: list[dict[str, Any]] = [
        *({"temperature": temperature, "seed": seed} for temperature in (0.5, 2.0) for seed in (1, 2)),
        {"top_k": 2, "seed": 7},
        {"top_p": 0.5, "seed": 7},
        *({"beam_size": size, "top": size} for size in (2, 3)),
        {"strategy": "greedy", "max_new_tokens": 3},
        {},
    ]
    calls: list[Job] = [
        partial(run.predict, TEXTS, **{"max_new_tokens": 5 + index % 4, **setting})
        for index, setting in enumerate(settings)
    ]
    if run.config.task == "generate":
        return [*calls, explain_call, partial(run.explain, TEXTS[1], max_new_tokens=3), run.evaluate]
    evaluations = ({"beam_size": 2, "max_new_tokens": 4}, {"strategy": "greedy", "max_new_tokens": 6}, {"top_k": 3})
    return [*calls, explain_call, *(partial(run.evaluate, **settings) for settings in evaluations)]


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, Explanation):
        assert (actual.output, actual.notes) == (expected.output, expected.notes)
        for left, right in zip(actual.maps, expected.maps, strict=True):
            np.testing.assert_allclose(left.weights, right.weights, atol=1e-5)
        for left, right in zip(actual.attributions, expected.attributions, strict=True):
            assert left.values == pytest.approx(right.values, abs=1e-4)
    elif isinstance(expected, dict):
        assert actual == pytest.approx(expected, rel=1e-5)
    else:
        assert [prediction.output for prediction in actual] == [prediction.output for prediction in expected]
        for left, right in zip(actual, expected, strict=True):
            assert left.probabilities == pytest.approx(right.probabilities, abs=1e-5)
            assert [item.text for item in left.alternatives] == [item.text for item in right.alternatives]


@pytest.mark.usefixtures("frequent_thread_switches")
def test_eight_threads_get_the_answers_of_one(runs: dict[str, Run]) -> None:
    all_jobs = [job for run in runs.values() for job in jobs(run)]
    expected = [job() for job in all_jobs]
    settings = {task: run.config for task, run in runs.items()}
    barrier = threading.Barrier(N_THREADS)

    def run_in_random_order(seed: int) -> list[tuple[int, Any]]:
        order = random.Random(seed).sample(range(len(all_jobs)), len(all_jobs) // 2)
        barrier.wait(timeout=120)
        return [(index, all_jobs[index]()) for index in order]

    with ThreadPoolExecutor(N_THREADS) as threads:
        for answers in threads.map(run_in_random_order, range(N_THREADS)):
            for index, answer in answers:
                assert_same(answer, expected[index])
    for task, run in runs.items():
        assert run.config is settings[task], "a call changed the settings of the run"
        assert all(not module.training for module in run.task.model.modules())


@pytest.mark.usefixtures("frequent_thread_switches")
def test_threads_that_record_attention_see_their_own_calls_only(runs: dict[str, Run]) -> None:
    run = runs["classify"]
    model = run.task.model
    kernels = [layer.kernel for layer in model.attention_stacks()["encoder"]]  # type: ignore[operator]
    barrier = threading.Barrier(4)

    def record_own_calls(length: int) -> None:
        tokens = torch.full((1, length), 5, device=run.task.device)
        for _ in range(10):
            barrier.wait(timeout=120)
            with record_attention(model) as recording, torch.inference_mode():
                model(tokens)
            assert recording["encoder"].shape == (2, 1, 2, length, length)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(record_own_calls, range(3, 7)))
    assert [layer.kernel for layer in model.attention_stacks()["encoder"]] == kernels  # type: ignore[operator]


def test_an_explanation_leaves_the_model_alone(runs: dict[str, Run]) -> None:
    for run in runs.values():
        before = {id(module): dict(vars(module)) for module in run.task.model.modules()}
        run.explain(TEXTS[0])
        for module in run.task.model.modules():
            assert vars(module).keys() == before[id(module)].keys()
