"""NumPy and torch agree: the same scores and the same gradients from the same weights, whatever the settings."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scratch_twins import FORMS, Case, Twins, apart, grid, named, one_by_one

from triform.config import ModelConfig, Sizes
from triform.scratch import models, weights
from triform.scratch.part import Weights

CASES = one_by_one() + random.Random(7).sample(grid(), 60)  # of 20,736


@pytest.mark.parametrize("case", CASES, ids=named)
def test_scores_and_gradients_are_those_of_torch(case: Case) -> None:
    twins = Twins(*case)
    assert apart(*twins.scores()) < 1e-9
    loss, wanted = twins.losses(smoothing=0.1)
    assert abs(loss - wanted) < 1e-9 * abs(wanted)
    gradients = twins.gradients()
    assert gradients.keys() == twins.weights.named.keys()
    for name, pair in gradients.items():
        assert apart(*pair) < 1e-9, name


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_gradient_would_be_seen(form: str) -> None:
    twins = Twins(form, {})
    twins.losses(smoothing=0.0)
    name, (ours, theirs) = next(iter(twins.gradients().items()))
    ours[...] *= 1 + 1e-7
    assert apart(ours, theirs) > 1e-9, name


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_several_batches_add_up(form: str) -> None:
    twins = Twins(form, {})
    twins.losses(smoothing=0.0)
    once = twins.weights.grad.copy()
    _, back = twins.ours.loss(**twins.inputs, **twins.targets)
    back(0.25)
    np.testing.assert_allclose(twins.weights.grad, 2 * once, rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_fresh_weights_are_spread_as_in_torch(form: str) -> None:
    ours, theirs = FORMS[form]
    config = ModelConfig(d_model=64, d_ff=256, n_layers=3, n_heads=4, scale_embeddings=True)
    sizes = Sizes(vocab_size=300, max_len=50, n_labels=40)
    model, reference = ours(config, sizes), theirs(config, sizes)
    held = Weights(model)
    weights.initialise(model, config.n_layers, np.random.default_rng(0))
    for name, parameter in reference.named_parameters():
        value, wanted = held.named[name].value, parameter.detach().numpy()
        assert abs(value.std() - wanted.std()) <= 0.05 * wanted.std(), name
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
    whole = twins.ours(tokens, keep)[0]
    for row, length in enumerate(keep.sum(axis=1)):
        np.testing.assert_allclose(twins.ours(tokens[row : row + 1, :length])[0][0], whole[row], rtol=1e-12)


def test_every_registry_knows_just_what_is_supported() -> None:
    from triform.scratch import activations, attention, blocks, decode, layers, optim, supported

    assert tuple(activations.ACTIVATIONS) == supported.MODEL["activation"]
    assert set(layers.POSITIONS) == set(supported.MODEL["positions"])
    assert tuple(attention.SCALES) == supported.MODEL["score"]
    assert tuple(blocks.RESIDUALS) == ("pre", "post")
    assert tuple(optim.OPTIMIZERS) == supported.TRAIN["optimizer"]
    assert tuple(optim.SHAPES) == supported.TRAIN["schedule"]
    assert tuple(decode.CHOICES) == ("greedy", "sample")
    assert models.Classifier is FORMS["encoder"][0]


@pytest.mark.parametrize("reach", ["auto", "causal"])
@pytest.mark.parametrize("form", ["encoder", "seq2seq"])
@pytest.mark.parametrize("rows", [(1,), (0, 1, 2)], ids=str)
def test_where_nothing_may_be_read_nothing_is_taken_as_in_torch(form: str, reach: str, rows: tuple[int]) -> None:
    twins = Twins(form, {"reach": reach})
    keep = twins.inputs["keep" if form == "encoder" else "source_keep"]
    keep[0, :2] = False  # looking back, the first position has nothing to read either
    keep[list(rows)] = False
    assert apart(*twins.scores()) < 1e-9
    twins.losses(smoothing=0.1)
    for name, pair in twins.gradients().items():
        assert apart(*pair) < 1e-9, name


def test_a_label_that_is_no_prediction_counts_as_little_as_in_torch() -> None:
    twins = Twins("encoder", {"head_hidden": 5})
    twins.targets["labels"][1] = -100
    loss, wanted = twins.losses(smoothing=0.1)
    assert abs(loss - wanted) < 1e-9 * abs(wanted)
    for name, pair in twins.gradients().items():
        assert apart(*pair) < 1e-9, name
