"""One text looked at from inside: the attention of one pass, and what speaks for a label."""

from __future__ import annotations

import copy

import torch
from torch import nn

from triform.explain.attention_maps import AttentionMap, Attribution, Explanation
from triform.explain.attribution import compute_attributions
from triform.explain.recorder import has_attention, record_attention, require_attention_stacks
from triform.generation.backend import check_finite
from triform.models.factory import AnyClassifier
from triform.tasks import Task
from triform.tasks.classify import Classify
from triform.tasks.explanation import ExplanationInput, build_explanation_input


def explain(task: Task, text: str, *, target: str = "", max_new_tokens: int = 0, title: str = "") -> Explanation:
    """Attention maps of a text (and a target, or the model's own output); for labels also attributions."""
    if not isinstance(task, Classify):  # of a label tokens speak too, whether or not anything attends to them
        require_attention_stacks(task.model)  # refused before anything is written
    explanation_input = build_explanation_input(task, text, target, max_new_tokens)
    model = _private_copy(task.model).eval()
    maps = _compute_maps(model, explanation_input) if has_attention(model) else ()
    return Explanation(
        title=title or task.name,
        text=text,
        output=explanation_input.prediction.output,
        probabilities=explanation_input.prediction.probabilities,
        maps=maps,
        attributions=_compute_attributions(task, model, explanation_input, target),
        notes=explanation_input.notes,
    )


def _private_copy(model: nn.Module) -> nn.Module:
    """A model of the same weights, not copied, in which parts can be exchanged unseen by other threads."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _compute_maps(model: nn.Module, explanation_input: ExplanationInput) -> tuple[AttentionMap, ...]:
    with record_attention(model) as record, torch.no_grad():
        check_finite(model(*explanation_input.inputs))
    return tuple(
        AttentionMap(
            name=stack,
            queries=tuple(explanation_input.pieces[stack][0]),
            keys=tuple(explanation_input.pieces[stack][1]),
            weights=record[stack][:, 0].numpy(),
        )
        for stack in record.stacks()
    )


def _compute_attributions(
    task: Task, model: nn.Module, explanation_input: ExplanationInput, target: str
) -> tuple[Attribution, ...]:
    if not isinstance(task, Classify) or not isinstance(model, AnyClassifier):
        return ()
    label = target or explanation_input.prediction.output
    pieces = explanation_input.pieces["encoder"][0]
    unknown_token = task.tokenizer.special_tokens.unk_or_pad
    return compute_attributions(
        model,
        explanation_input.inputs[0],
        task.config.data.labels.index(label),
        unknown_token=unknown_token,
        pieces=pieces,
        label_name=label,
    )
