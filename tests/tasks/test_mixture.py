"""A language model mixed with counts: exact probabilities, the best weights, and nothing from later text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triform
from triform.data.token_store import TokenStore
from triform.errors import ConfigError, DataError
from triform.evaluation.mixture import MixtureWeights, cache_probabilities, maximise_likelihood
from triform.tasks.language_model_data import LanguageModelDataset
from triform.tasks.mixture import MixedLanguageModel, token_losses

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "red", "dogs", "run"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> triform.Run:
    """A word model that has taken a few steps on a random text with a pattern."""
    folder = tmp_path_factory.mktemp("mixture")
    rng = np.random.default_rng(3)
    lines = (" ".join(rng.choice(WORDS, 6)) + " the cat sat on a mat" for _ in range(60))
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    settings = {"tokenizer.kind": "word", "data.max_len": 8, "data.valid_fraction": 0.2, "train.max_steps": 20}
    tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    data = str(folder / "train.txt")
    return triform.train(
        "generate", out=folder / "run", data=data, device="cpu", quiet=True, model=tiny, **settings
    )


@pytest.fixture(scope="module")
def mixed(run: triform.Run) -> MixedLanguageModel:
    return run.mixtures.find(["ngram", "cache"])


def dataset(tokens: list[int]) -> LanguageModelDataset:
    return LanguageModelDataset(TokenStore(np.array(tokens), np.array([0, len(tokens)])), 1, 8)


def test_the_probabilities_of_all_tokens_sum_to_one(mixed: MixedLanguageModel) -> None:
    prefix = mixed.task.tokenizer.encode("the cat sat on red dogs dogs and the cat")
    for length in (1, 4, len(prefix)):
        total = 0.0
        for token in range(mixed.task.tokenizer.vocab_size):
            scored = mixed.score(dataset([*prefix[:length], token]))
            total += mixed.weights.mix(scored.probs, scored.buckets)[-1]
        assert total == pytest.approx(1.0, abs=1e-6)


def test_only_the_text_before_a_token_changes_its_probability(mixed: MixedLanguageModel) -> None:
    tokens = mixed.task.tokenizer.encode("the cat sat on a mat and saw red dogs run the cat sat")
    first = mixed.score(dataset(tokens))
    second = mixed.score(dataset([*tokens[:9], *reversed(tokens[9:])]))
    np.testing.assert_allclose(first.probs[:, :8], second.probs[:, :8], rtol=1e-6)
    np.testing.assert_array_equal(first.buckets[:8], second.buckets[:8])


def test_a_mixture_is_better_than_the_model_on_validation_data(run: triform.Run, mixed: MixedLanguageModel) -> None:
    mixture = run.evaluate(mix=["ngram", "cache"])
    plain, ngram = run.evaluate(), run.baselines()["ngram"]
    assert mixture["loss"] < plain["loss"]
    assert mixture["tokens"] == plain["tokens"] == ngram["tokens"]
    assert mixture["perplexity"] == pytest.approx(math.exp(mixture["loss"]))
    assert "token_accuracy" not in mixture
    assert mixed.components == ("model", f"{ngram['order']}-gram", "cache")
    np.testing.assert_allclose(mixed.weights.by_bucket.sum(axis=1), 1.0)
    assert float(token_losses(mixed.task, mixed.valid).mean()) == pytest.approx(plain["loss"], rel=1e-5)


def test_another_file_uses_the_weights_of_the_validation_data(
    run: triform.Run, mixed: MixedLanguageModel, tmp_path: Path
) -> None:
    (tmp_path / "test.txt").write_text("the cat sat on a mat and the cat saw dogs", encoding="utf-8")
    data = mixed.task.text_data.load_dataset(str(tmp_path / "test.txt"), [])
    scored = mixed.score(data)
    expected = -np.log(mixed.weights.mix(scored.probs, scored.buckets)).mean()
    file = str(tmp_path / "test.txt")
    assert run.evaluate(file, mix=["ngram", "cache"])["loss"] == pytest.approx(expected)
    assert run.evaluate(file, mix=["ngram", "cache"], stride=2)["tokens"] == len(data)
    texts = [{"text": (tmp_path / "test.txt").read_text(encoding="utf-8")}]
    in_memory = run.evaluate(texts, mix=["ngram", "cache"])
    assert in_memory["tokens"] >= len(data), "data in memory, whose column is not that of the training data"


def test_the_weights_never_come_from_the_text_that_they_are_used_on(run: triform.Run, tmp_path: Path) -> None:
    """The validation data is recognised even if it is named as a file."""
    chunks = run.task.data.split_examples(held_out=True)
    (tmp_path / "valid.txt").write_text("".join(chunk.text for chunk in chunks), encoding="utf-8")
    named = run.evaluate(str(tmp_path / "valid.txt"), mix="ngram")
    assert named == run.evaluate(mix="ngram")


def test_ngram_scores_are_those_of_its_loss(mixed: MixedLanguageModel) -> None:
    assert mixed.ngram is not None
    tokens = np.asarray(mixed.valid.store.tokens, np.int64)
    probs, n_known = mixed.ngram.score(tokens)
    assert -np.log(probs).mean() == pytest.approx(mixed.ngram.loss(tokens))
    assert n_known.min() >= 0
    assert n_known.max() < mixed.ngram.order


def test_weights_have_the_highest_likelihood_of_a_grid() -> None:
    rng = np.random.default_rng(0)
    probs = rng.random((2, 500))
    weights = maximise_likelihood(probs, np.zeros(2))
    grid = np.linspace(0, 1, 1001)
    likelihoods = [np.log(share * probs[0] + (1 - share) * probs[1]).sum() for share in grid]
    assert weights[0] == pytest.approx(grid[int(np.argmax(likelihoods))], abs=2e-3)


def test_a_bucket_without_tokens_has_the_weights_of_all_tokens() -> None:
    probs = np.random.default_rng(1).random((3, 40))
    weights = MixtureWeights.fit(probs, np.zeros(40, np.int64), 2)
    np.testing.assert_allclose(weights.by_bucket[1], maximise_likelihood(probs, np.zeros(3)), atol=1e-6)
    np.testing.assert_allclose(weights.mean, weights.by_bucket[0])


def test_a_cache_counts_the_tokens_before() -> None:
    probs = cache_probabilities(np.array([0, 0, 1, 0, 1]), 4, size=2)
    expected = [(1 + 1 / 4) / 2, (0 + 1 / 4) / 3, (1 + 1 / 4) / 3, (1 + 1 / 4) / 3]
    np.testing.assert_allclose(probs, expected)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (["words"], r"decode\.mix=words is not valid; choose from ngram, cache$"),
        ("ngrams", r"decode\.mix=ngrams is not valid; .* \(did you mean 'ngram'\?\)"),
        (["cache"] * 2, r"decode\.mix=cache,cache names a component twice"),
        (3, r"decode\.mix=3 must be a list"),
    ],
)
def test_bad_mixtures_are_refused(run: triform.Run, mix: object, message: str) -> None:
    for call in (run.evaluate, lambda **decode: run.predict("the", **decode)):
        with pytest.raises(ConfigError, match=message):
            call(mix=mix)


def test_what_cannot_be_evaluated_with_a_mixture_is_refused(run: triform.Run) -> None:
    with pytest.raises(ConfigError, match=r"details are for the model alone"):
        run.evaluate(mix="ngram", details=True)
    with pytest.raises(ConfigError, match=r"ranges of lengths are for the model alone"):
        run.evaluate_by_length(edges=[4, 8], mix="ngram")


def test_the_setting_of_a_run_is_used_by_each_call_that_does_not_override_it(
    run: triform.Run, mixed: MixedLanguageModel
) -> None:
    config = run.config
    set_run = replace(
        run, task=run.task.with_config(replace(config, decode=replace(config.decode, mix=("ngram", "cache"))))
    )
    assert set_run.evaluate() == run.evaluate(mix=["ngram", "cache"])
    assert set_run.evaluate(mix=()) == run.evaluate()
    assert set_run.mixtures.find(("ngram", "cache")) is set_run.mixtures.find(["ngram", "cache"]), (
        "it is made only once"
    )
    options = {"strategy": "greedy", "max_new_tokens": 1, "top": 2}
    ours, theirs = (set_run.predict("red dogs", **options)[0], run.predict("red dogs", **options)[0])  # type: ignore[arg-type]
    assert ours == run.predict("red dogs", mix="ngram,cache", **options)[0]  # type: ignore[arg-type]
    assert ours.alternatives != theirs.alternatives
    assert set_run.predict("red dogs", mix=(), **options)[0] == theirs  # type: ignore[arg-type]


def test_the_setting_is_stored_with_the_run(tmp_path: Path) -> None:
    tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    options: dict[str, Any] = {"model": tiny, "train": {"max_steps": 1}, "device": "cpu", "quiet": True}
    run = triform.train("generate", out=tmp_path / "run", decode={"mix": ["ngram"]}, **options)
    assert 'mix = ["ngram"]' in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert triform.load(tmp_path / "run", device="cpu").config.decode.mix == ("ngram",)
    assert "token_accuracy" not in run.evaluate()


def test_a_run_whose_training_data_is_gone_is_refused(run: triform.Run, tmp_path: Path) -> None:
    from triform.config.settings import build_config

    task = run.task.with_config(build_config({"data.train": str(tmp_path / "gone.txt")}, run.config))
    with pytest.raises(DataError, match=r"gone\.txt"):
        MixedLanguageModel(task, ["ngram"])
    without_valid = run.task.with_config(build_config({"data.valid_fraction": 0.0}, run.config))
    with pytest.raises(ConfigError, match="learns its weights on validation data"):
        MixedLanguageModel(without_valid, ["cache"])
