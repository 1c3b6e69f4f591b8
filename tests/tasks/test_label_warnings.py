"""Warnings about labels before training: each where it is due, and none where labels are sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from task_cases import prepare_task

from triform.config import Config
from triform.config.settings import build_config
from triform.errors import WarningText
from triform.tasks import TASKS
from triform.tasks.label_warnings import label_warnings


def spread_evenly(n_labels: int, n_texts: int) -> np.ndarray:
    return np.arange(n_texts) % n_labels


def share_of_first(share: float, n_texts: int, n_labels: int = 2) -> np.ndarray:
    """Label 0 for this share of the texts, the other labels in turn for the rest."""
    first = round(share * n_texts)
    return np.concatenate([np.zeros(first, dtype=np.int64), 1 + np.arange(n_texts - first) % (n_labels - 1)])


def test_a_majority_label_is_named_with_the_accuracy_it_would_give() -> None:
    train, valid = share_of_first(0.9, 1000), share_of_first(0.85, 200)
    (notice,) = label_warnings("mail.csv", ("ham", "spam"), train, valid)
    assert isinstance(notice, WarningText)
    assert notice == (
        "mail.csv: the labels are unbalanced: in the training texts, 'ham' is 90.0 % and 'spam' is 10.0 %. Always "
        "predicting 'ham' has an accuracy of 85.00 % on the validation texts. Compare models by F1 as well, which "
        "gives all labels the same weight"
    )
    (notice,) = label_warnings("mail.csv", ("ham", "spam"), train, None)
    assert "an accuracy of 90.00 % on the training texts" in notice


def test_a_label_that_is_hardly_there_counts_as_imbalance_too() -> None:
    train = np.repeat([0, 1, 2], [500, 480, 20])
    (notice,) = label_warnings("a.csv", ("x", "y", "z"), train, None)
    assert "'x' is 50.0 % and 'z' is 2.0 %" in notice


@pytest.mark.parametrize("share", [0.34, 0.5, 0.7])
def test_labels_of_ordinary_balance_give_no_warning(share: float) -> None:
    train = share_of_first(share, 600, n_labels=3)
    assert label_warnings("a.csv", ("x", "y", "z"), train, train) == []


@pytest.mark.parametrize(("n_texts", "points"), [(1, 98), (25, 20), (99, 10)])
def test_a_small_validation_set_is_told_with_its_interval(n_texts: int, points: int) -> None:
    valid = spread_evenly(2, n_texts)
    (notice,) = label_warnings("a.csv", ("x", "y"), spread_evenly(2, 1000), valid)
    assert isinstance(notice, WarningText)
    assert f"the 95 % interval of the accuracy is up to ± {points} percentage points" in notice


def test_a_validation_set_of_a_hundred_or_none_at_all_gives_no_warning() -> None:
    train = spread_evenly(2, 1000)
    assert label_warnings("a.csv", ("x", "y"), train, spread_evenly(2, 100)) == []
    assert label_warnings("a.csv", ("x", "y"), train, None) == []


@pytest.mark.parametrize(
    ("labels", "n_texts"),
    [
        ([f"{value / 10:.1f}" for value in range(312)], 5000),  # prices
        ([str(value) for value in range(18, 90)], 5000),  # ages
        ([str(value) for value in range(500)], 1000),  # numbered from 0, but twice each: a count
    ],
)
def test_a_column_of_numbers_is_told_that_triform_classifies(labels: list[str], n_texts: int) -> None:
    (notice,) = label_warnings("a.csv", labels, spread_evenly(len(labels), n_texts), None)
    assert isinstance(notice, WarningText)
    assert f"contains numbers with {len(labels)} distinct values" in notice
    assert "does not support regression" in notice


@pytest.mark.parametrize(
    "labels",
    [
        [str(value) for value in range(1, 11)],  # ratings
        [str(value) for value in range(77)],  # categories by number
        [f"intent {value}" for value in range(150)],
    ],
)
def test_ratings_and_numbered_categories_give_no_warning(labels: list[str]) -> None:
    assert label_warnings("a.csv", labels, spread_evenly(len(labels), 20 * len(labels)), None) == []


def test_the_built_in_reviews_give_no_warning(tmp_path: Path) -> None:
    config = build_config(
        {"task": "classify", "model.d_model": 8, "model.n_heads": 1, "model.n_layers": 1}, Config()
    )
    prepared_task = TASKS["classify"].prepare(config, tmp_path)
    assert [notice for notice in prepared_task.notices if isinstance(notice, WarningText)] == []


def test_training_says_what_is_wrong_with_the_labels(tmp_path: Path) -> None:
    path = tmp_path / "mail.csv"
    rows = [f"letter number {i},{'spam' if i % 12 == 0 else 'ham'}" for i in range(240)]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    notices = prepare_task("classify", tmp_path, path).notices
    warnings = [notice for notice in notices if isinstance(notice, WarningText)]
    assert len(warnings) == 2
    assert "'ham' is 9" in warnings[0]
    assert "the validation data has only " in warnings[1]
