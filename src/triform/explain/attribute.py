"""Which tokens moved a classifier's score: gradients by the token embeddings, at one point or on a way.

Integrated gradients go from a text of unknown tokens to the text itself, in a straight line between embeddings;
the values add up to what the score gained on that way, and the number of steps grows until they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from triform.explain.maps import Attribution
from triform.models.kinds import AnyClassifier
from triform.nn.embedding import Embedding

FIRST_STEPS, MOST_STEPS = 32, 1024
CLOSE_ENOUGH = 0.01  # of the score's gain, or of 0.1 where that is less
TOKENS_AT_ONCE = 4_096


@torch.inference_mode(False)
def attributions(
    model: AnyClassifier, tokens: Tensor, label: int, *, unknown: int, pieces: list[str], name: str
) -> tuple[Attribution, ...]:  # (1, T)
    """Both kinds for the score (before the softmax) of one label."""
    embed, tokens = model.encoder.embedding, tokens.clone()  # made in inference mode, they take no gradients
    with torch.no_grad():
        places = torch.arange(tokens.shape[1], device=tokens.device)
        end = embed.vectors(tokens, places)  # (1, T, D)
        start = embed.vectors(torch.full_like(tokens, unknown), places)

    def slope(points: Tensor) -> tuple[Tensor, Tensor]:  # (N, T, D) -> (N), (N, T, D)
        points = points.detach().requires_grad_()
        # cuDNN differentiates a recurrent layer only where it trains; torch's own layers do it here too
        switched_off = torch.backends.cudnn.flags(enabled=False) if points.is_cuda else nullcontext()
        with torch.enable_grad(), _given(embed, points), switched_off:
            scores = model(tokens.expand(len(points), -1))[:, label]
            return scores.detach(), torch.autograd.grad(scores.sum(), points)[0]

    score, gradient = slope(end)
    gain = (score - slope(start)[0]).item()
    by_input = (gradient * end).sum(-1)[0].tolist()
    on_the_way = _integrated(slope, start, end, gain)
    shown = tuple(pieces)
    return (
        Attribution(method="integrated gradients", label=name, pieces=shown, values=on_the_way, total=gain),
        Attribution(method="gradient × input", label=name, pieces=shown, values=tuple(by_input)),
    )


def _integrated(
    slope: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, end: Tensor, gain: float
) -> tuple[float, ...]:
    """Mean slope on the way times the way, by the midpoint rule."""
    steps = FIRST_STEPS
    while True:
        shares = (torch.arange(steps, device=end.device, dtype=end.dtype) + 0.5) / steps
        total = torch.zeros_like(end)
        for part in torch.split(shares, max(1, TOKENS_AT_ONCE // end.shape[1])):
            total += slope(start + part[:, None, None] * (end - start))[1].sum(0, keepdim=True)
        values = (total / steps * (end - start)).sum(-1)[0]  # (T)
        if abs(values.sum().item() - gain) <= CLOSE_ENOUGH * max(0.1, abs(gain)) or steps >= MOST_STEPS:
            return tuple(values.tolist())
        steps *= 2


@contextmanager
def _given(embed: Embedding, vectors: Tensor) -> Iterator[None]:
    """Within this, the embedding answers with `vectors`, whatever it is asked for."""
    object.__setattr__(embed, "vectors", lambda tokens, positions: vectors)
    try:
        yield
    finally:
        object.__delattr__(embed, "vectors")
