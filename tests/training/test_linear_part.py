"""The linear part of a classifier: the solution of scikit-learn, mixed with the encoder, the same when resumed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from same_runs import MODEL, StoppedAfter, assert_same_run, train_run
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB

from triform.config.settings import build_config
from triform.errors import CheckpointError, ConfigError
from triform.experiments.seeds import train_seeds
from triform.launch import train
from triform.models.wide import TermClassifier
from triform.nn.layouts import as_layout
from triform.run import Run, load
from triform.serving.run_details import predict_validation_rows
from triform.tasks.classify import Classify
from triform.training import linear_part
from triform.training.linear_part import (
    RegressionSettings,
    find_linear_part,
    fit_linear_part,
    fit_mixture,
    select_settings,
    solve_mixture,
)

TRAIN_SETTINGS = {"max_steps": 6, "eval_every": 3, "log_every": 3, "checkpoint_every": 2, "batch_size": 8}
WITH_TERMS = {**MODEL, "term_buckets": 2**14}


REFITS = {"refit_linear_part": True}


def load_part(path: Path, checkpoint: str) -> TermClassifier:
    part = find_linear_part(load(path, device="cpu", checkpoint=checkpoint).task.model)
    assert part is not None
    return part


def term_logits(run: Run, texts: list[str]) -> np.ndarray[Any, Any]:
    part = find_linear_part(run.task.model)
    assert part is not None
    tokens = [torch.tensor([run.task.tokenizer.encode(text)]) for text in texts]
    return torch.cat([part.term_logits(row, as_layout(None)) for row in tokens]).detach().numpy()


@pytest.mark.parametrize("uses_ratios", [False, True])
def test_the_fitted_weights_are_those_of_scikit_learn(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses_ratios: bool
) -> None:
    settings = RegressionSettings(c=10.0, uses_ratios=uses_ratios)
    monkeypatch.setattr(linear_part, "select_settings", lambda *_, **__: settings)
    monkeypatch.setattr(linear_part, "MAX_NGRAM_TOKENS", 0)  # words share nothing
    valid = tmp_path / "valid.tsv"
    valid.write_text("good\tword1\nbad\tword3\n", encoding="utf-8")
    out = train_run(rows, tmp_path / "run", TRAIN_SETTINGS, model=WITH_TERMS, valid=str(valid))
    labels, texts = zip(*(line.split("\t") for line in Path(rows).read_text().splitlines()), strict=True)
    options: dict[str, Any] = {"token_pattern": r"\S+", "ngram_range": (1, 2)}
    counts = CountVectorizer(**options).fit(texts)
    document_frequency = counts.transform(texts).getnnz(axis=0)
    frequent = [
        term for term, index in counts.vocabulary_.items() if " " not in term or document_frequency[index] > 1
    ]
    vectorizer = TfidfVectorizer(**options, sublinear_tf=True, vocabulary=frequent)
    features = vectorizer.fit_transform(texts)
    scale = np.ones(features.shape[1])
    if uses_ratios:  # the log-count ratio of Naive Bayes
        scale = np.abs(np.diff(MultinomialNB(alpha=1.0).fit(features > 0, labels).feature_log_prob_, axis=0)[0])
    classifier = LogisticRegression(C=10.0, tol=1e-8, max_iter=5000).fit(features @ np.diag(scale), labels)
    expected = classifier.decision_function(vectorizer.transform(texts[:20]) @ np.diag(scale))
    logits = term_logits(load(out, device="cpu"), list(texts[:20]))
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], expected, atol=2e-3)


def test_the_model_computes_the_logits_of_the_character_ngrams_that_were_fitted(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[tuple[Any, Any]] = []

    def record(settings: RegressionSettings, inputs: Any, labels: Any) -> Any:
        fitted.append((inputs, fit(settings, inputs, labels)))
        return fitted[-1][1]

    fit = RegressionSettings.fit
    monkeypatch.setattr(RegressionSettings, "fit", record)
    settings = {"model": WITH_TERMS, "data.valid_fraction": 0.0}
    run = load(train_run(rows, tmp_path / "run", TRAIN_SETTINGS, **settings), device="cpu")
    inputs, classifier = fitted[-1]  # words and pairs, shared n-grams, n-grams of the texts
    texts = [line.split("\t")[1] for line in Path(rows).read_text().splitlines()]
    assert load_part(tmp_path / "run", "best").ngram_logits.any()
    logits = term_logits(run, texts)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], classifier.decision_function(inputs), atol=1e-3)


def test_held_out_texts_decide_whether_words_of_one_label_count_for_more() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=300)
    polarity = np.repeat([-1.0, 0.0, 1.0], [100, 800, 100])  # most words say nothing about the label
    favoured = rng.random((300, 1000)) < 0.1 * np.exp(0.5 * np.outer(2 * labels - 1, polarity))
    selected = select_settings(csr_matrix(favoured / 10), labels, try_ratios=True)
    assert selected.uses_ratios
    assert not select_settings(csr_matrix(favoured / 10), labels, try_ratios=False).uses_ratios
    dense = csr_matrix(rng.normal(0.1 * np.outer(2 * labels - 1, polarity)))  # every feature is in every text
    assert not select_settings(dense, labels, try_ratios=True).uses_ratios


def test_words_with_common_letters_share_a_part_of_their_weight(tmp_path: Path) -> None:
    lines = [f"good\tamazing film{n}\ngood\tamazed crowd{n}\nbad\tboring plot{n}\n" for n in range(12)]
    lines += ["good\tamazement\n", "bad\tamazement\n", "good\tzzz\n", "bad\tzzz\n"]
    path = tmp_path / "rows.tsv"
    path.write_text("".join(lines), encoding="utf-8")
    settings = {"model": WITH_TERMS, "data.valid_fraction": 0.0}
    run = load(train_run(str(path), tmp_path / "run", TRAIN_SETTINGS, **settings), device="cpu")
    known, unrelated = term_logits(run, ["amazement", "zzz"])
    gain = (known - unrelated)[list(run.config.data.labels).index("good")]
    assert gain > 0.01


def test_an_encoder_that_knows_nothing_gets_no_weight_and_one_that_knows_more_gets_one() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (400,), generator=generator)
    signal = torch.nn.functional.one_hot(labels, 2).double() - 0.5
    noise = torch.randn(2, 400, 2, generator=generator, dtype=torch.float64)
    useless, useful = 3 * noise[0], 2 * signal + noise[1]
    encoder, terms = solve_mixture(torch.stack([useless, useful]), labels)
    assert encoder < 0.1 < terms
    encoder, terms = solve_mixture(torch.stack([useful, useless]), labels)
    assert terms < 0.1 < encoder
    assert solve_mixture(torch.zeros(2, 0, 2, dtype=torch.float64), labels[:0]) == [0.0, 1.0]


def test_validation_fits_the_mixture_and_leaves_no_other_trace(rows: str, tmp_path: Path) -> None:
    run = load(train_run(rows, tmp_path / "run", TRAIN_SETTINGS, model=WITH_TERMS), device="cpu")
    assert isinstance(run.task, Classify)
    part = find_linear_part(run.task.model)
    assert part is not None
    fitted = {name: parameter.clone() for name, parameter in part.named_parameters()}
    assert not torch.equal(fitted["mixture"], torch.ones(2))
    part.mixture.data = torch.tensor([0.3, 0.7])
    fit_mixture(run.task, run.task.data.load_validation_dataset([], run.path))
    for name, parameter in part.named_parameters():
        torch.testing.assert_close(parameter, fitted[name])


def test_a_resumed_run_ends_with_the_same_bits(rows: str, tmp_path: Path, stopped_after: StoppedAfter) -> None:
    unbroken = train_run(rows, tmp_path / "unbroken", TRAIN_SETTINGS, model=WITH_TERMS)
    with stopped_after(5):
        train_run(rows, tmp_path / "parts", TRAIN_SETTINGS, model=WITH_TERMS)
    train("classify", out=tmp_path / "parts", device="cpu", quiet=True, resume=True)
    assert_same_run(unbroken, tmp_path / "parts")


def test_each_of_several_seeds_has_the_linear_part_that_it_has_alone(rows: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"data": rows, "model": WITH_TERMS, "train": TRAIN_SETTINGS | REFITS}
    train_seeds("classify", 2, out=tmp_path / "both", seed=1, device="cpu", quiet=True, **config)
    train("classify", out=tmp_path / "alone", seed=2, device="cpu", quiet=True, **config)
    for checkpoint in ("latest", "best"):  # before and after the held-out texts were learned
        for name, expected in load_part(tmp_path / "alone", checkpoint).named_parameters():
            assert torch.equal(load_part(tmp_path / "both" / "seed-2", checkpoint).get_parameter(name), expected)
            assert expected.any(), name


def test_a_run_that_starts_from_another_fits_its_own_linear_part(rows: str, tmp_path: Path) -> None:
    base = train_run(rows, tmp_path / "base", TRAIN_SETTINGS, model=WITH_TERMS)
    other = tmp_path / "other.tsv"
    other.write_text("".join(f"{'abc'[n % 3]}\tword{n % 3} thing{n}\n" for n in range(40)), encoding="utf-8")
    out = tmp_path / "new"
    settings = {"train": {**TRAIN_SETTINGS, "init_from": str(base)}}
    run = train("classify", data=str(other), out=out, device="cpu", quiet=True, **settings)
    part = find_linear_part(run.task.model)
    assert part is not None
    assert part.weight.shape[1] == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "generate"}, "model.term_buckets applies to classify only"),
        ({"task": "classify", "train.objective": "masked"}, "model.term_buckets applies to classify only"),
        ({"task": "classify", "train.parallel": "fsdp"}, "leave out train.parallel=fsdp"),
        ({"task": "classify", "model.kind": "gru"}, "has no effect with model.kind=gru"),
    ],
    ids=str,
)
def test_a_linear_part_is_refused_where_it_has_no_place(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config({"model.term_buckets": 64, **settings})


def refit_run(rows: str, out: Path, **settings: Any) -> Run:
    return load(train_run(rows, out, TRAIN_SETTINGS | REFITS, model=WITH_TERMS, **settings), device="cpu")


def test_the_linear_part_learns_the_held_out_texts_only_after_training(rows: str, tmp_path: Path) -> None:
    run, plain = (
        refit_run(rows, tmp_path / "run"),
        load(train_run(rows, tmp_path / "plain", TRAIN_SETTINGS), device="cpu"),
    )
    training = load(run.path, device="cpu", checkpoint="latest")
    refitted, held_out = (find_linear_part(item.task.model) for item in (run, training))
    assert refitted is not None
    assert held_out is not None
    assert not torch.equal(refitted.weight, held_out.weight)
    # The vocabulary has the words of the held-out texts, which the linear part of training does not know.
    assert run.task.tokenizer.vocab_size >= plain.task.tokenizer.vocab_size
    assert int((refitted.idf > 0).sum()) > int((held_out.idf > 0).sum())
    part, data = refitted, run.task.data
    expected = {name: parameter.clone() for name, parameter in part.named_parameters()}
    fit_linear_part(run.task, data.load_dataset(data.training_name, []))  # all rows of the file
    for name, parameter in part.named_parameters():
        torch.testing.assert_close(parameter, expected[name], atol=1e-3, rtol=1e-3)


def test_the_training_texts_alone_decide_whether_character_ngrams_count(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = refit_run(rows, tmp_path / "first").task.data
    n_tokens = int(data.load_dataset(data.training_name, []).lengths.sum())
    monkeypatch.setattr(linear_part, "MAX_NGRAM_TOKENS", n_tokens - 1)  # of all rows; a tenth is held out
    refit_run(rows, tmp_path / "run")
    assert all(load_part(tmp_path / "run", name).ngram_logits.any() for name in ("latest", "best"))


def test_metrics_of_the_held_out_texts_are_those_of_training(rows: str, tmp_path: Path) -> None:
    run = refit_run(rows, tmp_path / "run")
    best = run.progress()["best"]
    assert isinstance(best, dict)
    assert run.evaluate()["loss"] == pytest.approx(best["loss"], rel=1e-5)
    learned = run.task.evaluator.evaluate(run.task.data.load_validation_dataset([]))
    assert learned["loss"] != pytest.approx(best["loss"], rel=1e-3)  # the model that predicts has learned them
    assert (
        predict_validation_rows(run).details
        == predict_validation_rows(replace(run, task=run.validation_task)).details
    )


def test_an_ensemble_of_refitted_runs_is_evaluated_with_the_parts_of_training(rows: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "train": TRAIN_SETTINGS | REFITS | {"eval_every": TRAIN_SETTINGS["max_steps"]},
        "model": WITH_TERMS,
    }
    paths = [tmp_path / str(seed) for seed in (1, 2)]
    for seed, path in enumerate(paths):
        train("classify", data=rows, out=path, seed=seed, device="cpu", quiet=True, **config)
    both = load(list(map(str, paths)), device="cpu")
    latest = load(list(map(str, paths)), device="cpu", checkpoint="latest")
    assert both.validation_task.model is not both.task.model
    assert both.evaluate()["loss"] == pytest.approx(latest.evaluate()["loss"], rel=1e-5)
    assert both.evaluate()["loss"] != pytest.approx(
        both.task.evaluator.evaluate(both.task.data.load_validation_dataset([]))["loss"], rel=1e-3
    )


def test_a_finished_run_that_is_resumed_is_refitted_to_the_same_bits(rows: str, tmp_path: Path) -> None:
    run = refit_run(rows, tmp_path / "run")
    before, report = (
        run.path.joinpath("model.safetensors").read_bytes(),
        run.path.joinpath("metrics.jsonl").read_bytes(),
    )
    train("classify", out=run.path, device="cpu", quiet=True, resume=True)
    assert run.path.joinpath("model.safetensors").read_bytes() == before
    samples = [
        line for line in run.path.joinpath("metrics.jsonl").read_bytes().splitlines() if b'"details"' in line
    ]
    assert [line for line in report.splitlines() if b'"details"' in line][-1:] == samples[-1:]


def test_a_refitted_run_without_a_checkpoint_asks_for_another_file(rows: str, tmp_path: Path) -> None:
    run = refit_run(rows, tmp_path / "run")
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(CheckpointError, match="name another file to evaluate"):
        load(run.path, device="cpu").evaluate()
    assert load(run.path, device="cpu").evaluate(rows)["rows"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "generate"}, "train.refit_linear_part applies to classify only"),
        ({"task": "classify", "data.valid": "valid.csv"}, "leave out data.valid"),
        ({"task": "classify", "train.init_from": "runs/base", "train.lora_rank": 2}, "more than the adapters"),
    ],
    ids=str,
)
def test_refitting_is_refused_where_nothing_is_held_out(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config({"train.refit_linear_part": True, **settings})
