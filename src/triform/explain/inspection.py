"""Explain one prediction: the attention of one forward pass, and the attributions of a label."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from triform.analysis.host_memory import GIB, available_memory
from triform.errors import ConfigError
from triform.explain.attention_maps import AttentionMap, Attribution, Explanation
from triform.explain.attribution import compute_attributions
from triform.explain.recorder import has_attention, record_attention, require_attention_stacks
from triform.generation.backend import check_finite
from triform.models.ensemble import refuse_ensemble
from triform.models.factory import AnyClassifier
from triform.tasks import Task
from triform.tasks.classify import Classify
from triform.tasks.explanation import ExplanationInput, build_explanation_input
from triform.tasks.prediction import Keep
from triform.tasks.pretraining import refuse_pretraining
from triform.text import SPECIAL_TOKENS

BYTES_PER_RECORDED_WEIGHT = 12  # float32: as it is recorded, in the tensor of all layers, and while it is checked
PADDING_PIECE = SPECIAL_TOKENS[0]  # the label of padding, whatever it is called in an imported vocabulary


def explain(
    task: Task,
    text: str,
    *,
    target: str = "",
    max_new_tokens: int = 0,
    keep: Keep | None = None,
    pad_to: int = 0,
    title: str = "",
    maps: bool = True,
    attributions: bool = True,
) -> Explanation:
    """Compute the attention maps of a text, and attributions if the task is classification.

    Args:
        task: The task of a run.
        text: The text, prompt or source.
        target: The label, continuation or translation to explain. The default is the prediction of the model.
        max_new_tokens: Maximum number of tokens to generate, for tasks that generate text.
        keep: The part to show of a text that is longer than the model's context.
        pad_to: Pad the text, and for translation also the target, to this number of tokens.
        title: Title of the explanation. The default is the name of the task.
        maps: Whether to compute attention maps.
        attributions: Whether to compute attributions, which takes many passes of the model.

    Returns:
        The explanation, which can be saved as a page or a picture.

    Raises:
        ConfigError: The model has no attention, and the task is not classification; or `pad_to` is more than the
            model reads.
    """
    refuse_ensemble(task.model, "an explanation")
    refuse_pretraining(task.config, "an explanation")
    if maps and not (attributions and isinstance(task, Classify)):  # attributions do not need attention
        require_attention_stacks(task.model)  # before any text is generated
    if pad_to:
        _validate_pad_to(task, pad_to)
    explanation_input = build_explanation_input(task, text, target, max_new_tokens, keep)
    model = _private_copy(task.model).eval()
    with_maps = maps and has_attention(model)
    attention_maps = _compute_maps(task, model, explanation_input, pad_to) if with_maps else ()
    notes = explanation_input.notes
    if pad_to and not any(attention_map.n_padding for attention_map in attention_maps):
        notes = (*notes, f"no padding is shown, because the text is at least {pad_to} tokens long")
    return Explanation(
        title=title or task.name,
        text=text,
        output=explanation_input.prediction.output,
        probabilities=explanation_input.prediction.probabilities,
        maps=attention_maps,
        attributions=_compute_attributions(task, model, explanation_input, target) if attributions else (),
        notes=notes,
    )


def _private_copy(model: nn.Module) -> nn.Module:
    """Return a copy of a model that shares its weights, so that other threads do not see replaced kernels."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _validate_pad_to(task: Task, pad_to: int) -> None:
    if not has_attention(task.model):
        raise ConfigError("this model is recurrent and has no attention maps to pad")
    if not 0 < pad_to <= task.config.data.max_len:
        raise ConfigError(
            f"cannot pad a text to {pad_to} tokens; choose a number from 1 to {task.config.data.max_len}, which is "
            "what this model reads"
        )


def _compute_maps(
    task: Task, model: nn.Module, explanation_input: ExplanationInput, pad_to: int
) -> tuple[AttentionMap, ...]:
    _require_memory_for_maps(task, model, explanation_input, pad_to)
    arguments = _pad_inputs(task, explanation_input.inputs, pad_to) if pad_to else explanation_input.inputs
    with record_attention(model) as record, torch.no_grad():
        check_finite(model(*arguments))
    return tuple(_build_map(task, stack, explanation_input, record[stack][:, 0]) for stack in record.stacks())


def _require_memory_for_maps(
    task: Task, model: nn.Module, explanation_input: ExplanationInput, pad_to: int
) -> None:
    """Raise `ConfigError` if the maps do not fit into memory."""
    n_heads = 1 if task.config.model.is_recurrent else task.config.model.n_heads
    n_weights = 0
    for stack, layers in require_attention_stacks(model).items():
        queries, keys = explanation_input.pieces[stack]
        n_weights += len(layers) * n_heads * max(len(queries), pad_to) * max(len(keys), pad_to)
    needed_bytes, available_bytes = BYTES_PER_RECORDED_WEIGHT * n_weights, available_memory()
    if needed_bytes > available_bytes:
        n_tokens = max(len(keys) for _, keys in explanation_input.pieces.values())
        raise ConfigError(
            f"the attention maps of {n_tokens} tokens need {needed_bytes / GIB:,.1f} GiB of memory; "
            f"{available_bytes / GIB:,.1f} GiB are free: shorten the text"
        )


def _pad_inputs(task: Task, inputs: tuple[Tensor, ...], pad_to: int) -> tuple[Tensor, ...]:
    """Return the inputs (1, T) padded on the right, followed by a mask for each, as all forms of the model read."""
    padded, masks = [], []
    for tokens, tokenizer in zip(inputs, task.tokenizers, strict=True):
        n_padding = max(0, pad_to - tokens.shape[1])
        padded.append(nn.functional.pad(tokens, (0, n_padding), value=tokenizer.special_tokens.pad_or_zero))
        masks.append(nn.functional.pad(torch.ones_like(tokens, dtype=torch.bool), (0, n_padding), value=False))
    return (*padded, *masks)


def _build_map(task: Task, stack: str, explanation_input: ExplanationInput, weights: Tensor) -> AttentionMap:
    """Build a map from weights (L, H, T, S). Queries that are padding are left out; keys that are padding stay."""
    queries, keys = explanation_input.pieces[stack]
    n_padding = weights.shape[-1] - len(keys)
    config = task.config.model
    return AttentionMap(
        name=stack,
        queries=tuple(queries),
        keys=(*keys, *[PADDING_PIECE] * n_padding),
        weights=weights[:, :, : len(queries)].contiguous().numpy(),
        n_padding=n_padding,
        causal=stack == "decoder" or (stack == "encoder" and config.attention_direction == "causal"),
        windows=() if stack == "cross" else tuple(config.windows),
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
