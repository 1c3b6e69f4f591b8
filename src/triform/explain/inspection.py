"""Explain one prediction: the attention of one forward pass, and the attributions of a label."""

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
    """Compute the attention maps of a text, and attributions if the task is classification.

    Args:
        task: The task of a run.
        text: The text, prompt or source.
        target: The label, continuation or translation to explain. The default is the prediction of the model.
        max_new_tokens: Maximum number of tokens to generate, for tasks that generate text.
        title: Title of the explanation. The default is the name of the task.

    Returns:
        The explanation, which can be saved as a page or a picture.

    Raises:
        ConfigError: The model has no attention, and the task is not classification.
    """
    if not isinstance(task, Classify):  # attributions of a label do not need attention
        require_attention_stacks(task.model)  # before any text is generated
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
    """Return a copy of a model that shares its weights, so that other threads do not see replaced kernels."""
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
