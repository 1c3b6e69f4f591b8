"""Text generated with a mixture has the probabilities with which the mixture is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import triform
from triform.data.token_store import TokenStore
from triform.errors import ConfigError
from triform.generation.backend import Request
from triform.generation.scheduler import generate
from triform.tasks.language_model_data import LanguageModelDataset
from triform.tasks.mixture import MixedLanguageModel
from triform.tasks.mixture_decoding import MixedGenerate, MixtureAdapter

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "red", "dogs", "run"]
MAX_LEN = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> triform.Run:
    """A word model that has taken a few steps on a random text with a pattern."""
    folder = tmp_path_factory.mktemp("mixture")
    rng = np.random.default_rng(3)
    lines = (" ".join(rng.choice(WORDS, 6)) + " the cat sat on a mat" for _ in range(60))
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    settings = {
        "tokenizer.kind": "word",
        "data.max_len": MAX_LEN,
        "data.valid_fraction": 0.2,
        "train.max_steps": 20,
    }
    tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    data = str(folder / "train.txt")
    return triform.train(
        "generate", out=folder / "run", data=data, device="cpu", quiet=True, model=tiny, **settings
    )


@pytest.fixture(scope="module", params=["ngram", "cache", "ngram,cache"])
def mixed(run: triform.Run, request: pytest.FixtureRequest) -> tuple[triform.Run, MixedLanguageModel]:
    mixture = run.mixtures.find(request.param.split(","))
    return replace(run, task=MixedGenerate.build(mixture)), mixture


def probabilities_by_hand(mixture: MixedLanguageModel, context: Sequence[int]) -> np.ndarray[Any, Any]:
    """The probability of each next token, from scoring the context with this token as an evaluation does."""
    probs = []
    for token in range(mixture.task.tokenizer.vocab_size):
        tokens = np.array([*context, token])
        scored = mixture.score(LanguageModelDataset(TokenStore(tokens, np.array([0, len(tokens)])), 1, MAX_LEN))
        probs.append(mixture.weights.mix(scored.probs, scored.buckets)[-1])
    return np.array(probs)


@torch.inference_mode()
def test_each_next_token_has_the_probability_with_which_it_is_evaluated(
    mixed: tuple[triform.Run, MixedLanguageModel],
) -> None:
    run, mixture = mixed
    context = mixture.task.tokenizer.encode("red dogs the cat")
    stepper = run.task.predictor.build_adapter().build_stepper()  # type: ignore[attr-defined]
    logits = stepper.append_rows([context])
    for token in mixture.task.tokenizer.encode("sat on red"):
        expected = probabilities_by_hand(mixture, context)
        np.testing.assert_allclose(logits.view(-1).exp().numpy(), expected, rtol=1e-4)
        assert expected.sum() == pytest.approx(1, abs=1e-5)
        logits, context = stepper.step(torch.tensor([[token]])), [*context, token]
    plain = run.task.model(torch.tensor([context]))[0, -1].softmax(-1)
    assert (logits.view(-1).exp() - plain).abs().max() > 0.01, "the counts change the probabilities"


def test_greedy_decoding_takes_the_most_probable_token_of_the_mixture(
    mixed: tuple[triform.Run, MixedLanguageModel],
) -> None:
    run, mixture = mixed
    tokenizer, predictor = mixture.task.tokenizer, mixture.task.predictor
    context, banned = tokenizer.encode("saw the"), list(predictor.constraints.banned)
    expected = list(context)
    for _ in range(6):
        probs = probabilities_by_hand(mixture, expected)
        probs[banned] = -1
        expected.append(int(probs.argmax()))
    prediction = run.predict("saw the", strategy="greedy", max_new_tokens=6, top=2)[0]
    assert prediction.output.split() == tokenizer.decode(expected[2:]).split()
    first = probabilities_by_hand(mixture, context)
    first[banned] = -1
    probabilities = [alternative.probability for alternative in prediction.alternatives]
    np.testing.assert_allclose(probabilities, sorted(first)[::-1][:2], rtol=1e-4)


@pytest.mark.parametrize("strategy", ["greedy", "sample"])
def test_texts_of_a_batch_are_those_of_each_prompt_alone(
    strategy: Any, mixed: tuple[triform.Run, MixedLanguageModel]
) -> None:
    """Texts that end early leave the batch, and texts that outgrow the context forget their older half."""
    run, _ = mixed
    prompts, settings = ["the", "red dogs run the cat", "a mat and"], {"strategy": strategy, "max_new_tokens": 20}
    batched = [prediction.output for prediction in run.predict(prompts, seed=5, **settings)]
    alone = [run.predict([prompt], seed=5, rows=[row], **settings)[0].output for row, prompt in enumerate(prompts)]
    assert batched == alone
    assert len(batched[1].split()) > MAX_LEN


def test_what_a_mixture_cannot_decode_is_refused(run: triform.Run, mixed: Any, tmp_path: Path) -> None:
    _, mixture = mixed
    with pytest.raises(ConfigError, match=r"decode\.mix works with greedy decoding and sampling"):
        run.predict("the", beam_size=2, mix="ngram")
    tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    classifier = triform.train(
        "classify", out=tmp_path / "run", device="cpu", quiet=True, model=tiny, train={"max_steps": 1}
    )
    with pytest.raises(ConfigError, match=r"decode\.mix is for generate; this run is for classify"):
        classifier.predict("good", mix="ngram")
    with pytest.raises(ConfigError, match=r"decode\.mix is for generate; this run is for classify"):
        classifier.evaluate(mix="ngram")
    predictor = run.task.predictor
    adapter = MixtureAdapter(predictor.build_adapter(), mixture)  # type: ignore[attr-defined]
    requests = [Request([1, 2], 3, 0, replace(run.config.decode, strategy="greedy"))]
    assert generate(adapter, requests, mixture.task.predictor.constraints)
