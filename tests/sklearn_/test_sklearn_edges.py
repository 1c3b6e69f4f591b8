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
from triform.sklearn import InputError, LanguageModel, TextClassifier, TextVectorizer, Translator, validation
from triform.sklearn import estimator as estimator_module
from triform.text import SpecialTokens

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
def run_with_unsorted_labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose labels are in an order of their own, as a published model's may be."""
    folder = tmp_path_factory.mktemp("runs")
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": text, "label": y}) + "\n" for text, y in zip(X, Y, strict=True)))
    model_settings = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    train_settings = {"max_steps": 15, "lr": 0.02}
    data = {"train": str(file), "labels": ["p", "n"], "valid_fraction": 0.0}
    return triform.train(
        "classify",
        data=data,
        model=model_settings,
        train=train_settings,
        out=folder / "run",
        device="cpu",
        quiet=True,
    ).path


# -- runs


def test_classes_are_sorted_whatever_the_order_of_the_runs_labels(run_with_unsorted_labels: Path) -> None:
    loaded = TextClassifier.from_run(run_with_unsorted_labels, device="cpu")
    run = triform.load(run_with_unsorted_labels, device="cpu")
    assert list(run.config.data.labels) == ["p", "n"]
    for model in (loaded, pickle.loads(pickle.dumps(loaded))):
        assert model.classes_.tolist() == ["n", "p"]
        probabilities, expected = (
            model.predict_proba(X),
            [prediction.probabilities or {} for prediction in run.predict(X)],
        )
        assert np.allclose(probabilities, [[by_label["n"], by_label["p"]] for by_label in expected], atol=1e-6)
        assert model.predict(X).tolist() == [prediction.output for prediction in run.predict(X)] == Y
        assert get_scorer("roc_auc")(model, X, Y) == 1.0
        assert get_scorer("neg_log_loss")(model, X, Y) == pytest.approx(
            -log_loss(Y, probabilities, labels=["n", "p"])
        )
        assert log_loss(Y, probabilities, labels=["n", "p"]) < 0.5


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("transformer", pooling) for pooling in ("mean", "first", "last")]
    + [(kind, pooling) for kind in ("lstm", "gru", "rnn") for pooling in ("mean", "last")],
)
def test_a_vectorizer_gives_what_reaches_the_head(kind: str, pooling: str) -> None:
    head_settings = {} if kind == "transformer" else {"n_heads": None}
    settings = {"model.kind": kind, "model.pooling": pooling}
    vectorizer = TextVectorizer(**TINY | head_settings, max_len=4, tokenizer="word", settings=settings).fit(X, Y)
    run, texts = vectorizer._fitted_run, [*X[:2], "soup", "", "a good day b or a good meal"]
    head_inputs: list[torch.Tensor] = []
    run.task.model.classification_head.register_forward_pre_hook(lambda head, inputs: head_inputs.append(inputs[0]))
    # The second as BERT's.
    for special in (run.task.tokenizer.special_tokens, SpecialTokens(before=(2,), after=(3,))):
        run.task.tokenizer.special_tokens = special
        head_inputs.clear()
        for text in texts:
            run.predict([text])
        assert np.allclose(vectorizer.transform(texts), torch.cat(head_inputs).numpy(), atol=1e-6)


def test_a_vectorizer_of_a_run_refuses_settings_of_its_own(run_with_unsorted_labels: Path) -> None:
    vectorizer = TextVectorizer(run=run_with_unsorted_labels, device="cpu", random_state=3, verbose=True)
    assert vectorizer.fit(X).transform(X).shape == (len(X), 16)
    for parameters in (
        {"d_model": 64},
        {"preset": "tiny"},
        {"settings": {"model.d_ff": 8}},
        {"validation_fraction": 0.2},
    ):
        with pytest.raises(ConfigError, match=f"run' determines all settings; remove {next(iter(parameters))}$"):
            clone(vectorizer).set_params(**parameters).fit(X)


def test_a_vectorizer_tells_no_classes_that_could_go_stale(run_with_unsorted_labels: Path) -> None:
    vectorizer = TextVectorizer(**TINY).fit(X, [y.upper() for y in Y])
    from_run = TextVectorizer(run=run_with_unsorted_labels, device="cpu").fit(X)
    assert not hasattr(vectorizer, "classes_")
    assert not hasattr(from_run, "classes_")


def test_another_device_counts_at_the_next_answer(
    run_with_unsorted_labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TextClassifier.from_run(run_with_unsorted_labels, device="cpu")
    probabilities, run = model.predict_proba(X), model._fitted_run
    assert model._fitted_run is run
    with pytest.raises(ConfigError, match="unknown device 'abacus'"):
        model.set_params(device="abacus").predict(X)
    monkeypatch.setattr(
        estimator_module, "resolve_device", lambda name: torch.device("cpu" if name == "cpu" else "mps")
    )
    devices: list[str] = []
    original_load = estimator_module.load

    def load_and_record(path: str, *, device: str) -> Any:
        devices.append(device)
        return original_load(path, device="cpu")

    monkeypatch.setattr(estimator_module, "load", load_and_record)
    assert np.array_equal(model.set_params(device="mps").predict_proba(X), probabilities)
    assert model._run is not run
    assert devices == ["mps"]
    model.set_params(device="cpu").predict(X)
    assert devices == ["mps"]


def test_what_is_shown_of_a_fit_speaks_of_x(capfd: pytest.CaptureFixture[str]) -> None:
    TextClassifier(**TINY, verbose=True).fit(X, Y)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "X: 20 texts to train on, 2 labels: n, p"
    assert not any("triform-" in line for line in lines)


# -- random numbers


def test_torch_draws_after_a_fit_what_it_would_have_drawn(run_with_unsorted_labels: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(4)
    for action in (
        lambda: LanguageModel(**TINY).fit(X).generate(["good"], max_new_tokens=2),
        lambda: TextClassifier.from_run(run_with_unsorted_labels, device="cpu").predict(X),
    ):
        torch.manual_seed(7)
        action()
        assert torch.equal(torch.rand(4), expected)


def test_threads_learn_what_one_would(run_with_unsorted_labels: Path) -> None:
    def fit_weights(seed: int) -> bytes:
        model = TextClassifier(**TINY | {"max_steps": 40, "dropout": 0.3, "random_state": seed}).fit(X, Y)
        TextClassifier.from_run(run_with_unsorted_labels, device="cpu")  # which draws weights, only to replace them
        return model._files["model.safetensors"]

    sequential = [fit_weights(seed) for seed in range(4)]
    assert Parallel(n_jobs=4, backend="threading")(delayed(fit_weights)(seed) for seed in range(4)) == sequential


def test_the_states_of_all_devices_are_kept_once_cuda_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    forked_devices: list[list[int]] = []

    def fork_rng(devices: Any = None) -> Any:
        forked_devices.append(list(devices))
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    for initialized in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda initialized=initialized: initialized)
        with estimator_module.isolated_rng("cpu"):
            pass
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with estimator_module.isolated_rng("auto"):
        pass
    assert forked_devices == [[], [0, 1], [0, 1]]


# -- what is said


def test_saving_over_a_run_asks_for_the_parameter(run_with_unsorted_labels: Path, tmp_path: Path) -> None:
    model = TextClassifier.from_run(run_with_unsorted_labels, device="cpu")
    folder = model.save(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"run already contains a run; choose another path or use overwrite=True$"
    ):
        model.save(folder)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file is a file; choose another path$"):
        model.save(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"exists and is not a run folder; choose another path$"):
        model.save(tmp_path)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda: TextClassifier(**TINY, validation_fraction=0.01).fit(X[:4], Y[:4]), "raise validation_fraction, "),
        (lambda: Translator(**TINY, validation_fraction=0.01).fit(X[:2], X[:2]), "raise validation_fraction, or"),
        (lambda: LanguageModel(**TINY, validation_fraction=0.1).fit(X[:1]), "set validation_fraction to 0$"),
        (lambda: TextClassifier(**TINY | {"random_state": -1}).fit(X, Y), "^random_state=-1 must be between"),
        (lambda: TextClassifier(**TINY).fit(X, [np.inf] + [1.0] * 19), r"contains infinity: row 0 is inf \(float"),
        (lambda: TextClassifier(**TINY).fit([np.inf, *X[1:]], Y), r"X: row 0 is inf \(float\)"),
        (lambda: TextClassifier(**TINY).fit(X, ["\ud800", "a"] * 10), "y has a label with half of a surrogate"),
        (lambda: Translator(**TINY).fit(X, [""] * 20), "^y: all rows are empty$"),
        (lambda: Translator(**TINY).fit([" "] * 20, X), "^X: all rows are empty$"),
        (lambda: Translator(**TINY).fit(["a", ""], ["", "b"]), "^X and y: every row has an empty side$"),
        (lambda: TextClassifier(**TINY, settings="foo").fit(X, Y), "settings='foo' must be a dict of names"),
        (lambda: TextClassifier(**TINY, settings={3: 3}).fit(X, Y), "settings={3: 3} must be a dict of names"),
        (
            lambda: TextClassifier(**TINY, settings={"train.lora_rank": 4}).fit(X, Y),
            r"name it with settings={'train.init_from': RUN}$",
        ),
    ],
)
def test_errors_name_what_an_estimator_was_given(fit: Any, message: str) -> None:
    with pytest.raises((InputError, ConfigError), match=message):
        fit()


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not there")
def test_a_device_that_is_not_there_is_said_as_a_parameter() -> None:
    with pytest.raises(ConfigError, match=r"use device='auto' or 'cpu'$"):
        TextClassifier(**TINY | {"device": "cuda"}).fit(X, Y)


def test_what_is_said_in_other_words_is_still_said_elsewhere() -> None:
    source = Path(triform.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in source.rglob("*.py") if path.parent != source / "sklearn"]
    for cli_text in validation.MESSAGE_REPLACEMENTS:
        assert any(cli_text in text for text in texts), cli_text


def test_generating_takes_numpys_numbers_and_states() -> None:
    model = LanguageModel(**TINY, tokenizer="char").fit(X)

    def generate(**settings: Any) -> list[str]:
        return model.generate(["good"] * 2, **{"max_new_tokens": 9} | settings)

    assert generate(random_state=np.int64(4)) == generate(random_state=4) != generate()
    states = [np.random.RandomState(seed) for seed in (3, 3)]
    assert generate(random_state=states[0]) == generate(random_state=states[1]) != generate(random_state=states[1])
    assert generate(max_new_tokens=np.int64(3), temperature=np.float64(0.5)) == generate(
        max_new_tokens=3, temperature=0.5
    )
    for random_state in (-1, 2**32):
        with pytest.raises(ConfigError, match=rf"^random_state={random_state} must be between 0 and"):
            generate(random_state=random_state)
    with pytest.raises(ValueError, match="'x' cannot be used to seed"):
        generate(random_state="x")
    with pytest.raises(ConfigError, match="random_state"):
        generate(seed=3)
    with pytest.raises(ConfigError, match=r"unknown setting 'decode\.texts'"):
        generate(texts=["a"])
    with pytest.raises(InputError, match=r"not in the vocabulary: 'Z', 'ü'; .* train with tokenizer='bpe'"):
        model.generate(["good", "Zü"])
