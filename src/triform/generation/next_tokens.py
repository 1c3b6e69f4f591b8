"""The most probable next tokens of prompts, from one prefill of each and no decode step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from triform.generation.adapters import GenerationAdapter, TokenIds
from triform.generation.backend import check_finite

MAX_PREFILL_ROWS = 64  # prompts that are read at once


class NextToken(NamedTuple):
    """A token that may follow a prompt, and its probability."""

    token: int
    probability: float


@torch.inference_mode()
def top_next_tokens(
    adapter: GenerationAdapter, prompts: Sequence[TokenIds], n: int, banned: Sequence[int] = ()
) -> list[list[NextToken]]:
    """Return the n most probable next tokens of each prompt, the most probable first.

    Probabilities are the softmax of the logits over the whole vocabulary, without temperature. Banned tokens are
    left out of the list, because they are never generated.
    """
    result: list[list[NextToken]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    for start in range(0, len(order), MAX_PREFILL_ROWS):
        indices = order[start : start + MAX_PREFILL_ROWS]
        logits = adapter.build_stepper().append_rows([prompts[index] for index in indices])  # (N, V)
        check_finite(logits)
        probabilities = logits.double().softmax(dim=-1)
        probabilities[:, list(banned)] = -1.0  # ranks below every other token
        top = probabilities.topk(min(n, logits.shape[-1] - len(banned)))
        for index, values, tokens in zip(indices, top.values.tolist(), top.indices.tolist(), strict=True):
            result[index] = [NextToken(*fields) for fields in zip(tokens, values, strict=True)]
    return result
