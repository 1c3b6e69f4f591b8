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
from sklearn.base import clone
from sklearn.metrics import get_scorer, log_loss

import triform
from triform.errors import CheckpointError, ConfigError
from triform.sklearn import InputError, LanguageModel, TextClassifier, TextVectorizer, Translator, given
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


def test_a_vectorizer_of_a_run_refuses_settings_of_its_own(p_before_n: Path) -> None:
    vectorizer = TextVectorizer(run=p_before_n, device="cpu", random_state=3, verbose=True)
    assert vectorizer.fit(X).transform(X).shape == (len(X), 16)
    for more in (
        {"d_model": 64},
        {"preset": "tiny"},
        {"settings": {"model.d_ff": 8}},
        {"validation_fraction": 0.2},
    ):
        with pytest.raises(
            ConfigError, match=f"run' has learned with settings of its own; leave out {next(iter(more))}$"
        ):
            clone(vectorizer).set_params(**more).fit(X)


def test_a_vectorizer_tells_no_classes_that_could_go_stale(p_before_n: Path) -> None:
    vectorizer = TextVectorizer(**TINY).fit(X, [y.upper() for y in Y])
    again = TextVectorizer(run=p_before_n, device="cpu").fit(X)
    assert not hasattr(vectorizer, "classes_")
    assert not hasattr(again, "classes_")


def test_another_device_counts_at_the_next_answer(p_before_n: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TextClassifier.from_run(p_before_n, device="cpu")
    shares, opened = model.predict_proba(X), model._model
    assert model._model is opened
    with pytest.raises(ConfigError, match="unknown device 'abacus'"):
        model.set_params(device="abacus").predict(X)
    monkeypatch.setattr(
        estimator_module, "pick_device", lambda name: torch.device("cpu" if name == "cpu" else "mps")
    )
    asked: list[str] = []
    load = estimator_module.load

    def noted(path: str, *, device: str) -> Any:
        asked.append(device)
        return load(path, device="cpu")

    monkeypatch.setattr(estimator_module, "load", noted)
    assert np.array_equal(model.set_params(device="mps").predict_proba(X), shares)
    assert model._run is not opened
    assert asked == ["mps"]
    model.set_params(device="cpu").predict(X)
    assert asked == ["mps"]


def test_what_is_shown_of_a_fit_speaks_of_x(capfd: pytest.CaptureFixture[str]) -> None:
    TextClassifier(**TINY, verbose=True).fit(X, Y)
    shown = capfd.readouterr().err.splitlines()
    assert shown[0] == "X: 20 texts to train on, 2 labels: n, p"
    assert not any("triform-" in line for line in shown)


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


# -- what is said


def test_saving_over_a_run_asks_for_the_parameter(p_before_n: Path, tmp_path: Path) -> None:
    model = TextClassifier.from_run(p_before_n, device="cpu")
    folder = model.save(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"run: already holds a run; choose another path or give overwrite=True$"
    ):
        model.save(folder)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file: is a file; choose another path$"):
        model.save(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"exists and is not a run folder; choose another path$"):
        model.save(tmp_path)


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        (lambda: TextClassifier(**TINY, validation_fraction=0.01).fit(X[:4], Y[:4]), "raise validation_fraction, "),
        (lambda: Translator(**TINY, validation_fraction=0.01).fit(X[:2], X[:2]), "raise validation_fraction, or"),
        (lambda: LanguageModel(**TINY, validation_fraction=0.1).fit(X[:1]), "set validation_fraction to 0$"),
        (lambda: TextClassifier(**TINY | {"random_state": -1}).fit(X, Y), "^random_state=-1 must lie between"),
        (lambda: TextClassifier(**TINY).fit(X, [np.inf] + [1.0] * 19), r"contains infinity: row 0 is inf \(float"),
        (lambda: TextClassifier(**TINY).fit([np.inf, *X[1:]], Y), r"X: row 0 is inf \(float\)"),
        (lambda: TextClassifier(**TINY).fit(X, ["\ud800", "a"] * 10), "y has a label with half of a surrogate"),
        (lambda: Translator(**TINY).fit(X, [""] * 20), "^y: no row has any text$"),
        (lambda: Translator(**TINY).fit([" "] * 20, X), "^X: no row has any text$"),
        (lambda: Translator(**TINY).fit(["a", ""], ["", "b"]), "^X and y: no row has text on both sides$"),
        (lambda: TextClassifier(**TINY, settings="foo").fit(X, Y), "settings='foo' must be a dict of names"),
        (lambda: TextClassifier(**TINY, settings={3: 3}).fit(X, Y), "settings={3: 3} must be a dict of names"),
        (
            lambda: TextClassifier(**TINY, settings={"train.lora_rank": 4}).fit(X, Y),
            r"say which with settings={'train.base': RUN}$",
        ),
    ],
)
def test_errors_name_what_an_estimator_was_given(fit: Any, said: str) -> None:
    with pytest.raises((InputError, ConfigError), match=said):
        fit()


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not there")
def test_a_device_that_is_not_there_is_said_as_a_parameter() -> None:
    with pytest.raises(ConfigError, match=r"use device='auto' or 'cpu'$"):
        TextClassifier(**TINY | {"device": "cuda"}).fit(X, Y)


def test_what_is_said_in_other_words_is_still_said_elsewhere() -> None:
    source = Path(triform.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in source.rglob("*.py") if path.parent != source / "sklearn"]
    for theirs in given.WORDS:
        assert any(theirs in text for text in texts), theirs


def test_generating_takes_numpys_numbers_and_states() -> None:
    model = LanguageModel(**TINY, tokenizer="char").fit(X)

    def written(**how: Any) -> list[str]:
        return model.generate(["good"] * 2, **{"max_new_tokens": 9} | how)

    assert written(random_state=np.int64(4)) == written(random_state=4) != written()
    states = [np.random.RandomState(seed) for seed in (3, 3)]
    assert written(random_state=states[0]) == written(random_state=states[1]) != written(random_state=states[1])
    assert written(max_new_tokens=np.int64(3), temperature=np.float64(0.5)) == written(
        max_new_tokens=3, temperature=0.5
    )
    for random_state in (-1, 2**32):
        with pytest.raises(ConfigError, match=rf"^random_state={random_state} must lie between 0 and"):
            written(random_state=random_state)
    with pytest.raises(ValueError, match="'x' cannot be used to seed"):
        written(random_state="x")
    with pytest.raises(ConfigError, match="random_state"):
        written(seed=3)
    with pytest.raises(ConfigError, match=r"unknown setting 'decode\.texts'"):
        written(texts=["a"])
    with pytest.raises(InputError, match=r"never saw in training: 'Z', 'ü'; .* train with tokenizer='bpe'"):
        model.generate(["good", "Zü"])
