"""One text looked at from inside: the attention of one pass, and what speaks for a label."""

from __future__ import annotations

import torch

from triform.explain.attribute import attributions
from triform.explain.maps import AttentionMap, Attribution, Explanation
from triform.explain.record import attends, layers_of, record_attention
from triform.tasks import Task
from triform.tasks.classify import Classify
from triform.tasks.task import Look


def explain(task: Task, text: str, *, target: str = "", n_new: int = 0, title: str = "") -> Explanation:
    """Attention maps of a text (and a target, or the model's own output); for labels also attributions."""
    task.model.eval()
    if not isinstance(task, Classify):  # of a label tokens speak too, whether or not anything attends to them
        layers_of(task.model)  # refused before anything is written
    look = task.look(text, target, n_new)
    maps = _maps(task, look) if attends(task.model) else ()
    return Explanation(
        title=title or task.name,
        text=text,
        output=look.prediction.output,
        probabilities=look.prediction.probabilities,
        maps=maps,
        attributions=_attributions(task, look, target),
        notes=look.notes,
    )


def _maps(task: Task, look: Look) -> tuple[AttentionMap, ...]:
    with record_attention(task.model) as recording, torch.no_grad():
        task.model(*look.inputs)
    return tuple(
        AttentionMap(
            name=stack,
            queries=tuple(look.pieces[stack][0]),
            keys=tuple(look.pieces[stack][1]),
            weights=recording[stack][:, 0].numpy(),
        )
        for stack in recording.stacks()
    )


def _attributions(task: Task, look: Look, target: str) -> tuple[Attribution, ...]:
    if not isinstance(task, Classify):
        return ()
    name = target or look.prediction.output
    pieces = look.pieces["encoder"][0]
    unknown = task.tokenizer.special.nothing
    return attributions(task.model, look.inputs[0], task.numbers[name], unknown=unknown, pieces=pieces, name=name)
