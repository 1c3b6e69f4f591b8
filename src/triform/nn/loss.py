"""Cross-entropy over classes or a vocabulary. It is summed; the caller divides once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE_INDEX = -100  # a target that does not count
HeadLoss = Callable[[Tensor, nn.Linear, Tensor, float], Tensor]


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:  # (..., V), (...) -> ()
    """Return the cross-entropy summed over the targets, computed in float32 at least.

    Args:
        logits: Unnormalised outputs (..., V).
        targets: Class indices (...); those equal to `IGNORE_INDEX` do not count.
        smoothing: Label smoothing from 0 to 1.

    Example:
        >>> cross_entropy(torch.zeros(2, 4), torch.tensor([1, IGNORE_INDEX]), smoothing=0.0)
        tensor(1.3863)
    """
    rows = (logits if logits.dtype == torch.float64 else logits.float()).flatten(0, -2)
    return F.cross_entropy(
        rows, targets.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=smoothing, reduction="sum"
    )


def lm_head_loss(states: Tensor, head: nn.Linear, targets: Tensor, smoothing: float) -> Tensor:
    """Return the summed cross-entropy of the head's logits for states (B, T, D) and targets (B, T)."""
    return cross_entropy(head(states), targets, smoothing)
