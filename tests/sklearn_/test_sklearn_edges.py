"""The estimators where other things begin: runs of other makers, threads, other devices, odd values."""

from __future__ import annotations

import json
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.metrics import get_scorer, log_loss

import triform
from triform.sklearn import LanguageModel, TextClassifier, TextVectorizer
from triform.sklearn import estimator as estimator_module
from triform.text import Special

X = ["good soup a", "bad day b", "good meal c", "bad soup d"] * 5
Y = ["p", "n"] * 10
TINY: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 1,
    "n_heads": 2,
    "max_steps": 2,
    "device": "cpu",
    "random_state": 0,
}


@pytest.fixture(scope="module")
def p_before_n(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose labels are in an order of their own, as a published model's may be."""
    folder = tmp_path_factory.mktemp("runs")
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": text, "label": y}) + "\n" for text, y in zip(X, Y, strict=True)))
    shape = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    learning = {"max_steps": 15, "lr": 0.02}
    data = {"train": str(file), "labels": ["p", "n"], "valid_fraction": 0.0}
    return triform.train(
        "classify", data=data, model=shape, train=learning, out=folder / "run", device="cpu", quiet=True
    ).path


# -- runs


def test_classes_are_sorted_whatever_the_order_of_the_runs_labels(p_before_n: Path) -> None:
    opened = TextClassifier.from_run(p_before_n, device="cpu")
    run = triform.load(p_before_n, device="cpu")
    assert list(run.config.data.labels) == ["p", "n"]
    for model in (opened, pickle.loads(pickle.dumps(opened))):
        assert model.classes_.tolist() == ["n", "p"]
        shares, expected = model.predict_proba(X), [found.probabilities or {} for found in run.predict(X)]
        assert np.allclose(shares, [[each["n"], each["p"]] for each in expected], atol=1e-6)
        assert model.predict(X).tolist() == [found.output for found in run.predict(X)] == Y
        assert get_scorer("roc_auc")(model, X, Y) == 1.0
        assert get_scorer("neg_log_loss")(model, X, Y) == pytest.approx(-log_loss(Y, shares, labels=["n", "p"]))
        assert log_loss(Y, shares, labels=["n", "p"]) < 0.5


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("transformer", pooling) for pooling in ("mean", "first", "last")]
    + [(kind, pooling) for kind in ("lstm", "gru", "rnn") for pooling in ("mean", "last")],
)
def test_a_vectorizer_gives_what_reaches_the_head(kind: str, pooling: str) -> None:
    heads = {} if kind == "transformer" else {"n_heads": None}
    settings = {"model.kind": kind, "model.pooling": pooling}
    vectorizer = TextVectorizer(**TINY | heads, max_len=4, tokenizer="word", settings=settings).fit(X, Y)
    run, texts = vectorizer._model, [*X[:2], "soup", "", "a good day b or a good meal"]
    reached: list[torch.Tensor] = []
    run.task.model.head.register_forward_pre_hook(lambda head, given: reached.append(given[0]))
    for special in (run.task.tokenizer.special, Special(before=(2,), after=(3,))):  # the second as BERT's
        run.task.tokenizer.special = special
        reached.clear()
        for text in texts:
            run.predict([text])
        assert np.allclose(vectorizer.transform(texts), torch.cat(reached).numpy(), atol=1e-6)


# -- random numbers


def test_torch_draws_after_a_fit_what_it_would_have_drawn(p_before_n: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(4)
    for work in (
        lambda: LanguageModel(**TINY).fit(X).generate(["good"], max_new_tokens=2),
        lambda: TextClassifier.from_run(p_before_n, device="cpu").predict(X),
    ):
        torch.manual_seed(7)
        work()
        assert torch.equal(torch.rand(4), expected)


def test_threads_learn_what_one_would(p_before_n: Path) -> None:
    def fitted(seed: int) -> bytes:
        model = TextClassifier(**TINY | {"max_steps": 40, "dropout": 0.3, "random_state": seed}).fit(X, Y)
        TextClassifier.from_run(p_before_n, device="cpu")  # which draws weights, only to replace them
        return model._files["model.safetensors"]

    alone = [fitted(seed) for seed in range(4)]
    assert Parallel(n_jobs=4, backend="threading")(delayed(fitted)(seed) for seed in range(4)) == alone


def test_the_states_of_all_devices_are_kept_once_cuda_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[int]] = []

    def fork_rng(devices: Any = None) -> Any:
        kept.append(list(devices))
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    for begun in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda begun=begun: begun)
        with estimator_module.undisturbed("cpu"):
            pass
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with estimator_module.undisturbed("auto"):
        pass
    assert kept == [[], [0, 1], [0, 1]]
