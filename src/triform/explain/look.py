"""One text looked at from inside: the attention of one pass, and what speaks for a label."""

from __future__ import annotations

import copy

import torch
from torch import nn

from triform.explain.attribute import attributions
from triform.explain.maps import AttentionMap, Attribution, Explanation
from triform.explain.record import attends, layers_of, record_attention
from triform.models.kinds import AnyClassifier
from triform.nn.vocabulary import check_finite
from triform.tasks import Task
from triform.tasks.classify import Classify
from triform.tasks.task import Look


def explain(task: Task, text: str, *, target: str = "", n_new: int = 0, title: str = "") -> Explanation:
    """Attention maps of a text (and a target, or the model's own output); for labels also attributions."""
    if not isinstance(task, Classify):  # of a label tokens speak too, whether or not anything attends to them
        layers_of(task.model)  # refused before anything is written
    look = task.look(text, target, n_new)
    model = _private_copy(task.model).eval()
    maps = _maps(model, look) if attends(model) else ()
    return Explanation(
        title=title or task.name,
        text=text,
        output=look.prediction.output,
        probabilities=look.prediction.probabilities,
        maps=maps,
        attributions=_attributions(task, model, look, target),
        notes=look.notes,
    )


def _private_copy(model: nn.Module) -> nn.Module:
    """A model of the same weights, not copied, in which parts can be exchanged unseen by other threads."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _maps(model: nn.Module, look: Look) -> tuple[AttentionMap, ...]:
    with record_attention(model) as recording, torch.no_grad():
        check_finite(model(*look.inputs))
    return tuple(
        AttentionMap(
            name=stack,
            queries=tuple(look.pieces[stack][0]),
            keys=tuple(look.pieces[stack][1]),
            weights=recording[stack][:, 0].numpy(),
        )
        for stack in recording.stacks()
    )


def _attributions(task: Task, model: nn.Module, look: Look, target: str) -> tuple[Attribution, ...]:
    if not isinstance(task, Classify) or not isinstance(model, AnyClassifier):
        return ()
    name = target or look.prediction.output
    pieces = look.pieces["encoder"][0]
    unknown = task.tokenizer.special.nothing
    return attributions(model, look.inputs[0], task.numbers[name], unknown=unknown, pieces=pieces, name=name)
