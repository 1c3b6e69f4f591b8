"""Without torch: the NumPy models learn the built-in sets, all parts work, and torch is never imported."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from triform import scratch
from triform.config import Config, DataConfig, DecodeConfig, ModelConfig, TokenizerConfig, TrainConfig
from triform.data import builtin_sets

GREEDY = DecodeConfig(strategy="greedy")


def load_pairs(name: str) -> tuple[list[str], list[str]]:
    first, second = zip(*builtin_sets.load_pairs(name), strict=True)
    return list(first), list(second)


def test_a_classifier_learns_the_reviews() -> None:
    config = Config(
        model=ModelConfig(d_model=32, n_layers=2, n_heads=2, dropout=0.0),
        train=TrainConfig(max_steps=1_600, batch_tokens=512, lr=3e-3),
    )
    model = scratch.TextClassifier(config).fit(*load_pairs("builtin:reviews/train"))
    texts, labels = load_pairs("builtin:reviews/test")
    accuracy = np.mean(
        [prediction == label for prediction, label in zip(model.predict(texts), labels, strict=True)]
    )
    assert accuracy >= 0.95


def test_a_translator_learns_the_numbers() -> None:
    config = Config(
        tokenizer=TokenizerConfig(kind="word"),
        model=ModelConfig(d_model=32, n_layers=1, n_heads=4, dropout=0.0),
        train=TrainConfig(max_steps=800, batch_tokens=512, lr=6e-3),
    )
    model = scratch.Translator(config).fit(*load_pairs("builtin:numbers/train"))
    sources, targets = load_pairs("builtin:numbers/test")
    predictions = model.translate(sources[:500], GREEDY)
    assert np.mean([prediction == target for prediction, target in zip(predictions, targets, strict=False)]) >= 0.9


def test_a_language_model_learns_the_stories() -> None:
    config = Config(
        data=DataConfig(max_len=32),
        tokenizer=TokenizerConfig(kind="char"),
        model=ModelConfig(d_model=32, n_layers=1, n_heads=2, dropout=0.0),
        train=TrainConfig(max_steps=150, batch_size=16, lr=1e-2),
    )
    model = scratch.LanguageModel(config).fit(builtin_sets.load_text("builtin:stories"))
    assert model.losses[0] > 4
    assert np.mean(model.losses[-20:]) < 2.6
    assert len(model.generate(["The "], DecodeConfig(max_new_tokens=30), seed=1)[0]) == 30


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_few_texts_are_learned_by_heart_with_dropout_and_smoothing(activation: str, norm_position: str) -> None:
    model = ModelConfig(
        d_model=16, n_layers=2, n_heads=2, activation=activation, norm_position=norm_position, attention_dropout=0.1
    )
    train = TrainConfig(max_steps=150, batch_size=4, lr=5e-3, label_smoothing=0.1, optimizer="adam")
    texts, labels = ["good one", "bad one", "one good", "one bad thing"], ["yes", "no", "yes", "no"]
    classifier = scratch.TextClassifier(Config(model=model, train=train)).fit(texts, labels)
    assert classifier.predict(texts) == labels
    assert classifier.losses[-1] < 0.6 * classifier.losses[0]


def test_nothing_imports_torch() -> None:
    code = """
import sys, tempfile
from triform import scratch
from triform.config import Config, DataConfig, DecodeConfig, ModelConfig, TrainConfig
config = Config(model=ModelConfig(d_model=8, n_layers=1, n_heads=2), train=TrainConfig(max_steps=2, batch_size=2),
                data=DataConfig(max_len=8))
texts, others = ["one two", "two three", "three four"], ["a", "b", "a"]
learners = [scratch.TextClassifier(config).fit(texts, others), scratch.LanguageModel(config).fit(texts * 9),
            scratch.Translator(config).fit(texts, others)]
for learner in learners:
    with tempfile.TemporaryDirectory() as folder:
        learner.save(folder)
        scratch.load(folder).predict(["one"])
learners[1].generate(["one"], DecodeConfig(max_new_tokens=3))
learners[2].translate(["one"])
print(sorted({"torch", "scipy", "transformers"} & sys.modules.keys()), "numpy" in sys.modules)
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert completed.stdout == "[] True\n", completed.stderr
