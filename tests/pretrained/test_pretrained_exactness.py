"""Imported models equal `transformers`: logits, the states after each layer, gradients, what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from published import (
    TINY_MODELS,
    build_and_import,
    decode_greedy,
    map_gradients,
    random_tokens,
    record_outputs,
    relative_difference,
)
from torch import Tensor

from triform.pretrained import ImportedModel

PRECISION = pytest.mark.parametrize(
    ("double", "tolerance"), [(False, 1e-4), (True, 1e-9)], ids=["float32", "float64"]
)
EVERY_MODEL = pytest.mark.parametrize("name", TINY_MODELS)
KEEP_MASK = torch.ones(2, 11, dtype=torch.bool)
KEEP_MASK[1, 7:] = False


def compute_logits(reference: Any, imported: ImportedModel) -> tuple[Tensor, Tensor]:
    """Logits of both for the same rows, of which the second is shorter."""
    if imported.config.task == "generate":
        return imported.model(random_tokens()), reference(input_ids=random_tokens()).logits
    if imported.config.task == "classify":
        expected = reference(input_ids=random_tokens(), attention_mask=KEEP_MASK.long())
        return imported.model(random_tokens(), KEEP_MASK), expected.logits
    target = random_tokens(length=6, seed=6)
    expected = reference(input_ids=random_tokens(), attention_mask=KEEP_MASK.long(), decoder_input_ids=target)
    return imported.model(random_tokens(), target, KEEP_MASK), expected.logits


@EVERY_MODEL
@PRECISION
def test_logits_are_equal(name: str, double: bool, tolerance: float, tmp_path: Path) -> None:
    with torch.no_grad():
        assert relative_difference(*compute_logits(*build_and_import(name, tmp_path, double=double))) <= tolerance


@EVERY_MODEL
@PRECISION
def test_gradients_are_equal(name: str, double: bool, tolerance: float, tmp_path: Path) -> None:
    reference, imported = build_and_import(name, tmp_path, double=double)
    actual, expected = compute_logits(reference, imported)
    cotangent = torch.randn(actual.shape, generator=torch.Generator().manual_seed(1), dtype=actual.dtype)
    actual.backward(cotangent)
    expected.backward(cotangent)
    reference_gradients = map_gradients(reference, imported)
    largest = max(float(gradient.detach().abs().max()) for gradient in reference_gradients.values())
    for own_name, parameter in imported.model.named_parameters():
        if own_name == "lm_head.bias" and imported.config.task != "classify":
            continue  # theirs is not trained
        assert parameter.grad is not None
        if double:
            assert relative_difference(parameter.grad, reference_gradients[own_name]) <= tolerance, own_name
        else:  # terms as large as the largest gradient cancel in small ones, and leave their rounding behind
            assert (
                float((parameter.grad - reference_gradients[own_name].detach()).abs().max()) <= tolerance * largest
            ), own_name


@EVERY_MODEL
@PRECISION
def test_states_after_each_layer_are_equal(name: str, double: bool, tolerance: float, tmp_path: Path) -> None:
    reference, imported = build_and_import(name, tmp_path, double=double)
    model = imported.model
    models = [model, model.encoder] if hasattr(model, "encoder") and hasattr(model, "blocks") else [model]
    stacks = [getattr(module, "encoder", module) if not hasattr(module, "blocks") else module for module in models]
    n = imported.config.model.n_layers
    for stack in stacks:
        with record_outputs([stack.embedding, *stack.blocks, stack.final_norm]) as outputs, torch.no_grad():
            compute_logits(reference, imported)
        expected = reference_states(reference, stack is getattr(model, "encoder", None))
        assert len(expected) == n + 1
        actual = [*outputs[:n], outputs[-1]]  # theirs are after the last norm
        for actual_state, expected_state in zip(actual, expected, strict=True):
            assert relative_difference(actual_state[0], expected_state[0]) <= tolerance
            assert relative_difference(actual_state[1, :6], expected_state[1, :6]) <= tolerance  # without padding


def reference_states(reference: Any, encoder: bool) -> list[Tensor]:
    """Their embeddings and the states after each layer."""
    with torch.no_grad():
        if reference.config.is_encoder_decoder:
            output = reference(
                input_ids=random_tokens(),
                attention_mask=KEEP_MASK.long(),
                decoder_input_ids=random_tokens(length=6, seed=6),
                output_hidden_states=True,
            )
            return list(output.encoder_hidden_states if encoder else output.decoder_hidden_states)
        extra = {} if reference.config.model_type in ("gpt2", "llama") else {"attention_mask": KEEP_MASK.long()}
        return list(reference(input_ids=random_tokens(), output_hidden_states=True, **extra).hidden_states)


@pytest.mark.parametrize("name", [name for name, case in TINY_MODELS.items() if case.task != "classify"])
def test_what_is_written_greedily_is_equal(name: str, tmp_path: Path) -> None:
    reference, imported = build_and_import(name, tmp_path)
    prompts, steps = random_tokens(length=5), 16
    reference.generation_config.eos_token_id = None  # whatever comes, all tokens are wanted
    start = reference.config.decoder_start_token_id if reference.config.is_encoder_decoder else None
    expected = reference.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        pad_token_id=1,
        max_new_tokens=steps,
        do_sample=False,
        num_beams=1,
        no_repeat_ngram_size=0 if start is None else 1,
    )
    actual = decode_greedy(imported, prompts.tolist(), steps, start)
    assert actual == expected[:, -steps:].tolist()
    assert any(len(set(row)) > 1 for row in actual)
