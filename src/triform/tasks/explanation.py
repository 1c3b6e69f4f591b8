"""The input of an explanation: one encoded text, and the tokens that label its attention maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from triform.errors import DataError
from triform.tasks.classify import Classify
from triform.tasks.generate import Generate
from triform.tasks.prediction import Keep, Prediction, empty_text_notes, truncate_with_notes, unknown_word_notes
from triform.tasks.task import Task
from triform.tasks.translate import Translate


@dataclass(frozen=True, kw_only=True)
class ExplanationInput:
    """One text as the model reads it."""

    inputs: tuple[Tensor, ...]  # the arguments of the model
    pieces: dict[str, tuple[list[str], list[str]]]  # for each attention stack, the tokens of queries and keys
    prediction: Prediction
    notes: tuple[str, ...] = ()


def build_explanation_input(
    task: Task, text: str, target: str = "", max_new_tokens: int = 0, keep: Keep | None = None
) -> ExplanationInput:
    """Encode a text together with a target or with the model's own output.

    Args:
        task: The task of the run.
        text: The text to explain.
        target: The label, continuation or translation to explain. The default is the model's prediction.
        max_new_tokens: For generate: the number of tokens to generate if there is no target.
        keep: The part to show of a text that is longer than the model's context, as for `Predictor.predict`.

    Raises:
        DataError: The text is empty, or the target is not a label.
    """
    if not text.strip():
        raise DataError("the text is empty, so there is nothing to explain")
    return BUILDERS[task.name](task, text, target, max_new_tokens, keep)


def _classification_input(
    task: Classify, text: str, target: str, max_new_tokens: int, keep: Keep | None
) -> ExplanationInput:
    labels, tokenizer = task.config.data.labels, task.tokenizer
    if target and target not in labels:
        raise DataError(f"unknown label {target!r}; choose from {', '.join(labels)}")
    special, max_len = tokenizer.special_tokens, task.config.data.max_len
    tokens, _ = truncate_with_notes(tokenizer.encode(text), max_len, "text", special, keep_last=keep == "last")
    pieces = tokenizer.format_pieces(tokens)
    prediction = task.predictor.predict([text], keep=keep)[0]
    return ExplanationInput(
        inputs=(torch.tensor([tokens], device=task.device),),
        pieces={"encoder": (pieces, pieces)},
        prediction=prediction,
        notes=(*prediction.notes, *unknown_word_notes(text, tokenizer)),
    )


def _generation_input(
    task: Generate, text: str, target: str, max_new_tokens: int, keep: Keep | None
) -> ExplanationInput:
    tokenizer, predictor = task.tokenizer, task.predictor
    prompt = [*tokenizer.special_tokens.before, *tokenizer.encode(text)]
    if not target and max_new_tokens:
        decode = replace(task.config.decode, strategy="greedy", max_new_tokens=max_new_tokens)
        generated = predictor.generate([prompt], decode=decode)[0]
    else:
        generated = tokenizer.encode(target)
    # As in decoding, the model reads the newest tokens by default.
    keep_last = keep != "first"
    tokens, notes = truncate_with_notes(prompt + generated, task.config.data.max_len, "text", keep_last=keep_last)
    notes += [*unknown_word_notes(text, tokenizer), *unknown_word_notes(target, tokenizer)]
    pieces = tokenizer.format_pieces(tokens)
    return ExplanationInput(
        inputs=(torch.tensor([tokens], device=task.device),),
        pieces={"decoder": (pieces, pieces)},
        prediction=Prediction(input=text, output=predictor.decode_continuation(prompt, generated)),
        notes=tuple(notes),
    )


def _translation_input(
    task: Translate, text: str, target: str, max_new_tokens: int, keep: Keep | None
) -> ExplanationInput:
    source_tokenizer, target_tokenizer = task.source_tokenizer, task.target_tokenizer
    max_len = task.config.data.max_len
    tokens = source_tokenizer.encode(text)
    special, keep_last = source_tokenizer.special_tokens, keep == "last"
    source, notes = truncate_with_notes(tokens, max_len, "text", special, keep_last=keep_last)
    notes = [*empty_text_notes(text, tokens, source_tokenizer), *notes]
    target_tokens = target_tokenizer.encode(target) if target else task.predictor.generate([source])[0]
    output = target or target_tokenizer.decode(target_tokens)
    special = target_tokenizer.special_tokens
    source_pieces = source_tokenizer.format_pieces(source)
    target_pieces = target_tokenizer.format_pieces([special.start_token, *target_tokens, special.end_token])
    # The start token takes one position.
    target_tokens, target_notes = truncate_with_notes(target_tokens, max_len - 1, "target")
    n_target = len(target_tokens) + 1
    inputs = ([source], [[special.start_token, *target_tokens]])
    return ExplanationInput(
        inputs=tuple(torch.tensor(tokens, device=task.device) for tokens in inputs),
        pieces={
            "encoder": (source_pieces, source_pieces),
            "decoder": (target_pieces[:n_target], target_pieces[:n_target]),
            "cross": (target_pieces[1 : n_target + 1], source_pieces),
        },
        prediction=Prediction(input=text, output=output),
        notes=(
            *notes,
            *target_notes,
            *unknown_word_notes(text, source_tokenizer),
            *unknown_word_notes(target, target_tokenizer),
            "each row of cross-attention is labelled with the token that is being generated",
        ),
    )


BUILDERS: dict[str, Callable[[Any, str, str, int, Keep | None], ExplanationInput]] = {
    "classify": _classification_input,
    "generate": _generation_input,
    "translate": _translation_input,
}
