"""The estimators at work: fit, predict, pickle, save, and what they say to bad input."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import triform
from triform.data import token_cache
from triform.errors import CheckpointError, ConfigError, RunInterruptedError
from triform.sklearn import InputError, LanguageModel, TextClassifier, TextVectorizer, Translator
from triform.sklearn import estimator as estimator_module

GOOD_WORDS, BAD_WORDS = ("fine", "lovely", "great", "superb"), ("dull", "awful", "grim", "sad")
X = [f"the {noun} was {word}" for noun in ("soup", "room", "film") for word in GOOD_WORDS + BAD_WORDS]
Y = [1 if text.split()[-1] in GOOD_WORDS else 0 for text in X]
PAIRS = [(f"to see {n} black cats", f"voir les {n} chats noirs") for n in range(24)]
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))
TINY: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 1,
    "n_heads": 2,
    "max_steps": 2,
    "device": "cpu",
    "random_state": 0,
}
TINY_LONGER_TRAINING = TINY | {"max_steps": 30, "learning_rate": 0.02}
EVERY_ESTIMATOR = pytest.mark.parametrize("kind", [TextClassifier, LanguageModel, Translator, TextVectorizer])


def fit_estimator(estimator_class: Any, **parameters: Any) -> Any:
    estimator = estimator_class(**TINY | parameters)
    return estimator.fit(SOURCES, TARGETS) if estimator_class is Translator else estimator.fit(X, Y)


def predict_own_data(estimator: Any) -> Any:
    """What an estimator makes of its own data."""
    if isinstance(estimator, TextClassifier):
        return estimator.predict_proba(X)
    if isinstance(estimator, TextVectorizer):
        return estimator.transform(X)
    if isinstance(estimator, Translator):
        return estimator.predict(SOURCES[:4]).tolist()
    return [estimator.score(X), *estimator.generate(["the "], max_new_tokens=8)]


@pytest.fixture(scope="module")
def classifier() -> TextClassifier:
    return TextClassifier(**TINY_LONGER_TRAINING).fit(X, Y)


# -- the four of them


def test_a_classifier_learns_and_tells_its_classes_as_they_were_given(classifier: TextClassifier) -> None:
    assert classifier.score(X, Y) == 1.0
    assert classifier.classes_.tolist() == [0, 1]
    assert classifier.predict(X[:2]).dtype == np.array(Y).dtype
    probabilities = classifier.predict_proba(X)
    assert probabilities.shape == (len(X), 2)
    assert log_loss(Y, probabilities) < 0.3  # warns where shares do not sum to one
    assert is_classifier(classifier)


@pytest.mark.parametrize("labels", [["no", "yes"], [-1.0, 1.0], [False, True], ["10", "9"]])
def test_classes_may_be_of_any_kind(labels: list[Any]) -> None:
    y = [labels[class_index] for class_index in Y]
    model = TextClassifier(**TINY).fit(X, y)
    assert model.classes_.tolist() == labels
    assert set(model.predict(X).tolist()) <= set(labels)
    best = model.predict_proba(X).argmax(axis=1)
    assert model.predict(X).tolist() == [labels[class_index] for class_index in best]


def test_the_classifier_is_the_one_that_triform_train_makes(classifier: TextClassifier, tmp_path: Path) -> None:
    file = tmp_path / "reviews.jsonl"
    file.write_text("".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in zip(X, Y, strict=True)))
    run = triform.train(
        "classify", data=file, out=tmp_path / "run", seed=0, device="cpu", quiet=True,
        model={"d_model": 16, "n_layers": 1, "n_heads": 2}, train={"max_steps": 30, "lr": 0.02},
        **{"data.valid_fraction": 0.0},
    )  # fmt: skip
    expected = [list((prediction.probabilities or {}).values()) for prediction in run.predict(X)]
    assert np.allclose(classifier.predict_proba(X), expected, atol=1e-6)


def test_a_vectorizer_gives_what_the_layer_of_labels_reads(tmp_path: Path) -> None:
    vectorizer, texts = fit_estimator(TextVectorizer), [*X, "the soup was fine, and so was the room", ""]
    features = vectorizer.transform(texts)
    assert features.shape == (len(texts), 16)
    assert features.dtype == np.float32
    assert vectorizer.get_feature_names_out().tolist() == [f"textvectorizer{n}" for n in range(16)]
    run = triform.load(vectorizer.save(tmp_path / "run"), device="cpu")
    head = run.task.model.classification_head
    logits = features @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.allclose(probabilities, TextClassifier.from_run(tmp_path / "run").predict_proba(texts), atol=1e-5)


def test_a_vectorizer_takes_a_run_and_then_needs_no_labels(classifier: TextClassifier, tmp_path: Path) -> None:
    folder = classifier.save(tmp_path / "run")
    vectorizer = clone(TextVectorizer(run=folder, device="cpu")).fit(X)
    assert np.array_equal(vectorizer.transform(X), TextVectorizer.from_run(folder, device="cpu").transform(X))
    assert vectorizer.get_params()["run"] == folder


def test_a_language_model_scores_and_writes() -> None:
    model = LanguageModel(**TINY_LONGER_TRAINING).fit(X)
    assert model.score(X) > fit_estimator(LanguageModel).score(X)  # more steps, less loss
    assert 0 < model.bits_per_byte(X) < 8
    same_seed, other_seed = (model.generate(["the "] * 2, max_new_tokens=12, random_state=seed) for seed in (0, 1))
    assert model.generate(["the "] * 2, max_new_tokens=12) == same_seed != other_seed
    assert model.generate(["the "], strategy="greedy", max_new_tokens=3)[0]
    with pytest.raises(InputError, match="tokenizer='char' or 'bpe'"):
        fit_estimator(LanguageModel, tokenizer="word", max_len=8).bits_per_byte(X)


def test_a_translator_is_scored_by_bleu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fit_estimator(Translator)
    assert model.predict(SOURCES[:3]).shape == (3,)
    hypotheses = [TARGETS[0], "voir les 7 chats", TARGETS[2]]
    monkeypatch.setattr(model, "predict", lambda X: np.array(hypotheses, dtype=object))
    expected = sacrebleu.corpus_bleu(hypotheses, [TARGETS[:3]]).score / 100
    assert model.score(SOURCES[:3], TARGETS[:3]) == pytest.approx(expected)
    assert 0.5 < expected < 1


# -- what scikit-learn does with an estimator


@EVERY_ESTIMATOR
def test_a_pickle_answers_alike_and_holds_no_torch(kind: Any) -> None:
    estimator = fit_estimator(kind)
    pickled = pickle.dumps(estimator)
    assert b"torch" not in pickled
    unpickled = pickle.loads(pickled)
    assert np.array_equal(predict_own_data(unpickled), predict_own_data(estimator))
    assert np.array_equal(predict_own_data(copy.deepcopy(estimator)), predict_own_data(estimator))
    assert unpickled.get_params() == estimator.get_params()


@EVERY_ESTIMATOR
def test_the_same_random_state_learns_the_same(kind: Any) -> None:
    first, second, other = (fit_estimator(kind, random_state=seed) for seed in (3, np.int64(3), 4))
    assert np.array_equal(predict_own_data(first), predict_own_data(second))
    assert first.settings_["seed"] == 3
    assert other._files["model.safetensors"] != first._files["model.safetensors"]


def test_a_random_state_may_be_an_object_or_nothing() -> None:
    seeds = [
        fit_estimator(TextClassifier, random_state=np.random.RandomState(5)).settings_["seed"] for _ in range(2)
    ]
    assert seeds[0] == seeds[1]
    np.random.seed(1)
    assert fit_estimator(TextClassifier, random_state=None).settings_["seed"] != seeds[0]


@EVERY_ESTIMATOR
def test_saving_writes_a_run_that_triform_opens(kind: Any, tmp_path: Path) -> None:
    estimator = fit_estimator(kind)
    folder = estimator.save(tmp_path / "run")
    assert {"config.toml", "model.safetensors", "metrics.jsonl", "report.html"} <= {
        p.name for p in folder.iterdir()
    }
    assert triform.load(folder).config.task == kind.task
    assert str(tempfile.gettempdir()) not in (folder / "metrics.jsonl").read_text()
    loaded = kind.from_run(folder, device="cpu")
    assert np.array_equal(predict_own_data(loaded), predict_own_data(estimator))
    assert {name: loaded.get_params()[name] for name in TINY} == TINY
    with pytest.raises(CheckpointError, match="already contains"):
        estimator.save(folder)
    assert estimator.save(folder, overwrite=True) == folder


def test_a_run_opened_keeps_its_settings_when_it_is_fitted_again(tmp_path: Path) -> None:
    settings = {"model.bias": False, "train.clip_norm": 0.0, "model.d_ff": 24}
    folder = fit_estimator(TextClassifier, settings=settings, dropout=0.0).save(tmp_path / "run")
    loaded = TextClassifier.from_run(folder)
    assert loaded.classes_.tolist() == ["0", "1"]
    refitted = clone(loaded).fit(X, [str(label) for label in Y])
    for name in (*settings, "model.dropout", "data.max_len", "train.max_steps", "seed"):
        assert refitted.settings_[name] == loaded.settings_[name]
    with pytest.raises(CheckpointError, match="is a run of classify; Translator opens runs of translate"):
        Translator.from_run(folder)


def test_a_grid_may_be_searched_by_several_processes() -> None:
    grid = {"d_model": np.array([8, 16]), "settings": [{"model.d_ff": 8}]}
    parallel, sequential = (GridSearchCV(TextClassifier(**TINY), grid, cv=2, n_jobs=n).fit(X, Y) for n in (2, 1))
    assert np.isfinite(parallel.cv_results_["mean_test_score"]).all()
    assert np.array_equal(parallel.cv_results_["mean_test_score"], sequential.cv_results_["mean_test_score"])
    assert parallel.best_estimator_.predict(X[:2]).shape == (2,)


def test_a_pipeline_reads_features_off_texts() -> None:
    pipeline = make_pipeline(TextVectorizer(**TINY_LONGER_TRAINING), LogisticRegression())
    assert cross_val_score(pipeline, np.array(X), Y, cv=2).shape == (2,)
    assert pipeline.fit(X, Y).score(X, Y) == 1.0


def test_other_estimators_are_cross_validated_by_their_own_score() -> None:
    assert (cross_val_score(LanguageModel(**TINY), X, cv=2) < 0).all()
    assert (cross_val_score(Translator(**TINY), SOURCES, TARGETS, cv=2) >= 0).all()


def test_parameters_become_settings_and_a_preset_lies_under_them() -> None:
    model = TextClassifier(
        preset="tiny", n_layers=1, dropout=0.3, tokenizer="char", max_len=12, epochs=0.5, batch_size=4,
        learning_rate=0.5, validation_fraction=0.25, settings={"train.log_every": 7}, device="cpu",
    ).fit(X, Y)  # fmt: skip
    expected = {
        "model.d_model": 64, "model.n_layers": 1, "model.dropout": 0.3, "tokenizer.kind": "char",
        "data.max_len": 12, "train.epochs": 0.5, "train.batch_size": 4, "train.lr": 0.5,
        "data.valid_fraction": 0.25, "train.log_every": 7,
    }  # fmt: skip
    assert {name: model.settings_[name] for name in expected} == expected


# -- traces


def test_fitting_says_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fit_estimator(TextClassifier)  # the first time, torch makes a folder of its own among temporary files
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(token_cache, "MIN_CACHED_BYTES", 1)  # even where the data is large
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    estimators = [fit_estimator(kind) for kind in (TextClassifier, LanguageModel, Translator)]
    for estimator in estimators:
        predict_own_data(pickle.loads(pickle.dumps(estimator)))
    with pytest.raises(InputError):
        fit_estimator(LanguageModel, max_len=4000)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")
    fit_estimator(TextClassifier, verbose=True)
    assert "2 steps" in capfd.readouterr().err


def test_a_fit_that_was_stopped_is_an_interrupt_and_leaves_the_estimator_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raise_interrupted(*arguments: object, **settings: object) -> None:
        raise RunInterruptedError("stopped at step 1, and everything is saved; continue with: triform train")

    monkeypatch.setattr(estimator_module, "train", raise_interrupted)
    model = TextClassifier(**TINY)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_scikit_learn_is_imported_only_when_it_is_asked_for() -> None:
    code = (
        "import sys, triform, triform.cli.main; print('sklearn' in sys.modules)\n"
        "import triform.sklearn; print('sklearn' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["False", "True"]


# -- bad input


@EVERY_ESTIMATOR
def test_asking_before_fitting_is_told_so(kind: Any, tmp_path: Path) -> None:
    estimator = kind()
    for call in (lambda: predict_own_data(estimator), lambda: estimator.save(tmp_path / "run")):
        with pytest.raises(NotFittedError, match=f"This {kind.__name__} instance is not fitted yet"):
            call()
    assert not (tmp_path / "run").exists()
    assert not hasattr(pickle.loads(pickle.dumps(estimator)), "settings_")


@EVERY_ESTIMATOR
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "X is a single text, 'one text'; pass a list of texts"),
        ([], "X is empty; pass at least one text"),
        (7, r"X is 7 \(int\)"),
        ({"a": 1}, r"X is {'a': 1} \(dict\)"),
        ([["a"], ["b"]], r"X: row 0 is \['a'\] \(list\)"),
        (["a", None], r"X: row 1 is missing \(None\)"),
        (["a", "b", float("nan")], r"X: row 2 is missing \(nan\)"),
        (["a", 3], r"X: row 1 is 3 \(int\)"),
        (["a", "\ud800"], "X: row 1 contains half of a surrogate pair"),
        (np.ones((3, 2)), r"X is a ndarray of shape \(3, 2\)"),
    ],
)
def test_what_is_no_list_of_texts_is_named(kind: Any, texts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**TINY).fit(texts, ["a", "b", "c"])


@pytest.mark.parametrize("kind", [TextClassifier, Translator, TextVectorizer])
def test_x_and_y_must_be_of_one_length(kind: Any) -> None:
    with pytest.raises(InputError, match="X has 24 texts but y has 23"):
        kind(**TINY).fit(X, SOURCES[:23])
    with pytest.raises(InputError, match="requires y to be passed, but the target y is None"):
        kind(**TINY).fit(X)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"] * 24, "y has only one class, .*'a'.*; a classifier needs at least two classes"),
        ([*Y[:23], None], "row 23 is missing"),
        ([*Y[:23], float("nan")], "row 23 is missing"),
        (["a", "a "] * 12, "labels that look the same"),
        (["a", ""] * 12, "an empty label"),
        (np.linspace(0, 1, 24), "Unknown label type"),
    ],
)
def test_labels_that_cannot_be_learned_are_named(labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextClassifier(**TINY).fit(X, labels)


def test_too_little_text_is_said_of_x_and_not_of_a_file() -> None:
    with pytest.raises(InputError, match=r"^X: only \d+ tokens to train on"):
        fit_estimator(LanguageModel, max_len=4000)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"d_model": 10, "n_heads": 3}, "not divisible"),
        ({"d_model": "wide"}, "model.d_model='wide' must be a whole number"),
        ({"settings": {"model.depth": 3}}, "unknown setting 'model.depth'"),
        ({"settings": {"data.train": "a.csv"}}, "'data.train' cannot be set here"),
        ({"settings": {"seed": 3}}, "'seed' cannot be set here"),
        ({"preset": "shakespeare-char"}, "not classify"),
        ({"device": "abacus"}, "unknown device 'abacus'"),
    ],
)
def test_parameters_are_judged_when_fitting(parameters: dict[str, Any], message: str) -> None:
    model = TextClassifier(**TINY | parameters)
    with pytest.raises(ConfigError, match=message):
        model.fit(X, Y)


def test_a_damaged_pickle_is_found_when_it_is_opened(classifier: TextClassifier) -> None:
    unpickled = pickle.loads(pickle.dumps(classifier))
    unpickled._files["model.safetensors"] = unpickled._files["model.safetensors"][:-8]
    with pytest.raises(CheckpointError, match="is damaged"):
        unpickled.predict(X)


def test_a_pickle_from_another_machine_is_opened_on_a_device_of_this_one(classifier: TextClassifier) -> None:
    unpickled = pickle.loads(pickle.dumps(classifier)).set_params(device="abacus")
    with pytest.raises(ConfigError, match="unknown device 'abacus'"):
        unpickled.predict(X)
    assert np.array_equal(unpickled.set_params(device="cpu").predict(X), classifier.predict(X))
