"""Collect examples of a trained model for the results page: generated text and an attention map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reproduce.smoke import SMOKE_NEW_TOKENS
from triform.run import Run

MAX_ATTENTION_HEADS = 4  # if a layer has more heads, their mean is recorded
STACK_BY_TASK = {"classify": "encoder", "generate": "decoder", "translate": "cross"}


def generate_samples(run: Run, prompts: Sequence[tuple[str, int]], *, smoke: bool) -> list[dict[str, str]]:
    """Return the text that the model generates for each pair of a prompt and a number of new tokens."""
    samples = []
    for prompt, length in prompts:
        max_new_tokens = min(SMOKE_NEW_TOKENS, length) if smoke else length
        output = run.predict([prompt], max_new_tokens=max_new_tokens)[0].output
        samples.append({"input": prompt, "output": output})
    return samples


def capture_attention(run: Run, text: str) -> dict[str, Any]:
    """Return the main attention map of a text for the task, with rounded weights of shape (L, H, T, S)."""
    attention_map = next(
        candidate for candidate in run.explain(text).maps if candidate.name == STACK_BY_TASK[run.config.task]
    )
    each_head = attention_map.n_heads <= MAX_ATTENTION_HEADS
    weights = attention_map.weights if each_head else attention_map.average()[:, None]
    return {
        "stack": attention_map.name,
        "heads": "each" if each_head else "mean",
        "queries": list(attention_map.queries),
        "keys": list(attention_map.keys),
        "weights": np.round(weights.astype(np.float64), 3).tolist(),
    }
