"""NumPy and torch agree: the same scores and the same gradients from the same weights, whatever the settings."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scratch_twins import MODEL_CLASSES, Case, Twins, all_cases, case_id, relative_difference, single_change_cases

from triform.config import DataSizes, ModelConfig
from triform.scratch import models, weights
from triform.scratch.module import FlatParameters

SCALE_CASES: list[Case] = [
    (architecture, {"attention_scale": scale}) for architecture in MODEL_CLASSES for scale in ("d_model", "none")
]
CASES = single_change_cases() + SCALE_CASES + random.Random(7).sample(all_cases(), 60)  # of 20,736


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_scores_and_gradients_are_those_of_torch(case: Case) -> None:
    twins = Twins(*case)
    assert relative_difference(*twins.logits()) < 1e-9
    loss, expected = twins.losses(smoothing=0.1)
    assert abs(loss - expected) < 1e-9 * abs(expected)
    gradients = twins.gradients()
    assert gradients.keys() == twins.weights.named.keys()
    for name, pair in gradients.items():
        assert relative_difference(*pair) < 1e-9, name


@pytest.mark.parametrize("architecture", MODEL_CLASSES)
def test_a_wrong_gradient_would_be_seen(architecture: str) -> None:
    twins = Twins(architecture, {})
    twins.losses(smoothing=0.0)
    name, (ours, theirs) = next(iter(twins.gradients().items()))
    ours[...] *= 1 + 1e-7
    assert relative_difference(ours, theirs) > 1e-9, name


@pytest.mark.parametrize("architecture", MODEL_CLASSES)
def test_gradients_of_several_batches_add_up(architecture: str) -> None:
    twins = Twins(architecture, {})
    twins.losses(smoothing=0.0)
    first_grad = twins.weights.grad.copy()
    _, backward = twins.ours.loss(**twins.inputs, **twins.targets)
    backward(0.25)
    np.testing.assert_allclose(twins.weights.grad, 2 * first_grad, rtol=1e-12)


@pytest.mark.parametrize("architecture", MODEL_CLASSES)
def test_fresh_weights_are_spread_as_in_torch(architecture: str) -> None:
    ours, theirs = MODEL_CLASSES[architecture]
    config = ModelConfig(d_model=64, d_ff=256, n_layers=3, n_heads=4, scale_embeddings=True)
    sizes = DataSizes(vocab_size=300, max_len=50, n_labels=40)
    model, reference = ours(config, sizes), theirs(config, sizes)
    parameters = FlatParameters(model)
    weights.initialise_weights(model, config.n_layers, np.random.default_rng(0))
    for name, parameter in reference.named_parameters():
        value, expected = parameters.named[name].value, parameter.detach().numpy()
        assert abs(value.std() - expected.std()) <= 0.05 * expected.std(), name
        assert value.dtype == np.float32


def test_the_future_cannot_be_seen() -> None:
    twins = Twins("decoder", {})
    tokens = twins.inputs["tokens"]
    changed = tokens.copy()
    changed[:, 3:] = (changed[:, 3:] + 1) % 11
    before, after = twins.ours(tokens)[0], twins.ours(changed)[0]
    np.testing.assert_allclose(before[:, :3], after[:, :3], rtol=1e-10)
    assert (before[:, 3:] != after[:, 3:]).all()


def test_padding_changes_nothing() -> None:
    twins = Twins("encoder", {})
    tokens, keep = twins.inputs["tokens"], twins.inputs["keep"]
    batched = twins.ours(tokens, keep)[0]
    for row, length in enumerate(keep.sum(axis=1)):
        np.testing.assert_allclose(twins.ours(tokens[row : row + 1, :length])[0][0], batched[row], rtol=1e-12)


def test_every_registry_knows_just_what_is_supported() -> None:
    from triform.scratch import activations, blocks, generation, layers, optim, supported

    assert tuple(activations.ACTIVATIONS) == supported.MODEL_ALLOWED["activation"]
    assert set(layers.POSITIONS) == set(supported.MODEL_ALLOWED["positions"])
    assert tuple(blocks.RESIDUALS) == ("pre", "post")
    assert tuple(optim.OPTIMIZERS) == supported.TRAIN_ALLOWED["optimizer"]
    assert tuple(optim.SCHEDULES) == supported.TRAIN_ALLOWED["schedule"]
    assert tuple(generation.STRATEGIES) == ("greedy", "sample")
    assert models.EncoderClassifier is MODEL_CLASSES["encoder"][0]


@pytest.mark.parametrize("attention_direction", ["auto", "causal"])
@pytest.mark.parametrize("architecture", ["encoder", "seq2seq"])
@pytest.mark.parametrize("rows", [(1,), (0, 1, 2)], ids=str)
def test_where_nothing_may_be_read_nothing_is_taken_as_in_torch(
    architecture: str, attention_direction: str, rows: tuple[int]
) -> None:
    twins = Twins(architecture, {"attention_direction": attention_direction})
    keep = twins.inputs["keep" if architecture == "encoder" else "source_keep"]
    keep[0, :2] = False  # looking back, the first position has nothing to read either
    keep[list(rows)] = False
    assert relative_difference(*twins.logits()) < 1e-9
    twins.losses(smoothing=0.1)
    for name, pair in twins.gradients().items():
        assert relative_difference(*pair) < 1e-9, name


def test_a_label_that_is_no_prediction_counts_as_little_as_in_torch() -> None:
    twins = Twins("encoder", {"head_hidden": 5})
    twins.targets["labels"][1] = -100
    loss, expected = twins.losses(smoothing=0.1)
    assert abs(loss - expected) < 1e-9 * abs(expected)
    for name, pair in twins.gradients().items():
        assert relative_difference(*pair) < 1e-9, name
