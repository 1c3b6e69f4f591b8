"""Imported models equal `transformers`: logits, the states after each layer, gradients, what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from published import EVERY_MODEL, apart, both, gradients, greedy, tokens, watched
from torch import Tensor

from triform.pretrained import Imported

PRECISION = pytest.mark.parametrize(("double", "most"), [(False, 1e-4), (True, 1e-9)], ids=["float32", "float64"])
EVERY = pytest.mark.parametrize("name", EVERY_MODEL)
KEEP = torch.ones(2, 11, dtype=torch.bool)
KEEP[1, 7:] = False


def answers(theirs: Any, ours: Imported) -> tuple[Tensor, Tensor]:
    """Logits of both for the same rows, of which the second is shorter."""
    if ours.config.task == "generate":
        return ours.model(tokens()), theirs(input_ids=tokens()).logits
    if ours.config.task == "classify":
        wanted = theirs(input_ids=tokens(), attention_mask=KEEP.long())
        return ours.model(tokens(), KEEP), wanted.logits
    target = tokens(length=6, seed=6)
    wanted = theirs(input_ids=tokens(), attention_mask=KEEP.long(), decoder_input_ids=target)
    return ours.model(tokens(), target, KEEP), wanted.logits


@EVERY
@PRECISION
def test_logits_are_equal(name: str, double: bool, most: float, tmp_path: Path) -> None:
    with torch.no_grad():
        assert apart(*answers(*both(name, tmp_path, double=double))) <= most


@EVERY
@PRECISION
def test_gradients_are_equal(name: str, double: bool, most: float, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path, double=double)
    got, wanted = answers(theirs, ours)
    cotangent = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=got.dtype)
    got.backward(cotangent)
    wanted.backward(cotangent)
    others = gradients(theirs, ours)
    largest = max(float(other.detach().abs().max()) for other in others.values())
    for mine, parameter in ours.model.named_parameters():
        if mine == "head.bias" and ours.config.task != "classify":
            continue  # theirs is not trained
        assert parameter.grad is not None
        if double:
            assert apart(parameter.grad, others[mine]) <= most, mine
        else:  # terms as large as the largest gradient cancel in small ones, and leave their rounding behind
            assert float((parameter.grad - others[mine].detach()).abs().max()) <= most * largest, mine


@EVERY
@PRECISION
def test_states_after_each_layer_are_equal(name: str, double: bool, most: float, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path, double=double)
    model = ours.model
    inner = [model, model.encoder] if hasattr(model, "encoder") and hasattr(model, "blocks") else [model]
    stacks = [getattr(each, "encoder", each) if not hasattr(each, "blocks") else each for each in inner]
    n = ours.config.model.n_layers
    for stack in stacks:
        with watched([stack.embedding, *stack.blocks, stack.norm]) as seen, torch.no_grad():
            answers(theirs, ours)
        wanted = states(theirs, stack is getattr(model, "encoder", None))
        assert len(wanted) == n + 1
        got = [*seen[:n], seen[-1]]  # theirs are after the last norm
        for mine, other in zip(got, wanted, strict=True):
            assert apart(mine[0], other[0]) <= most
            assert apart(mine[1, :6], other[1, :6]) <= most  # without padding


def states(theirs: Any, encoder: bool) -> list[Tensor]:
    """Their embeddings and the states after each layer."""
    with torch.no_grad():
        if theirs.config.is_encoder_decoder:
            found = theirs(
                input_ids=tokens(),
                attention_mask=KEEP.long(),
                decoder_input_ids=tokens(length=6, seed=6),
                output_hidden_states=True,
            )
            return list(found.encoder_hidden_states if encoder else found.decoder_hidden_states)
        more = {} if theirs.config.model_type in ("gpt2", "llama") else {"attention_mask": KEEP.long()}
        return list(theirs(input_ids=tokens(), output_hidden_states=True, **more).hidden_states)


@pytest.mark.parametrize("name", [name for name, case in EVERY_MODEL.items() if case.task != "classify"])
def test_what_is_written_greedily_is_equal(name: str, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path)
    prompts, steps = tokens(length=5), 16
    theirs.generation_config.eos_token_id = None  # whatever comes, all tokens are wanted
    start = theirs.config.decoder_start_token_id if theirs.config.is_encoder_decoder else None
    wanted = theirs.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        pad_token_id=1,
        max_new_tokens=steps,
        do_sample=False,
        num_beams=1,
        no_repeat_ngram_size=0 if start is None else 1,
    )
    got = greedy(ours, prompts.tolist(), steps, start)
    assert got == wanted[:, -steps:].tolist()
    assert any(len(set(row)) > 1 for row in got)
