"""The estimators where other things begin: runs of other makers, threads, other devices, odd values."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import get_scorer, log_loss

import triform
from triform.sklearn import TextClassifier

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
