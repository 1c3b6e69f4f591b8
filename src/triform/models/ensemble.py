"""Ensembles: several trained models that answer as one, with the mean of their probabilities.

An ensemble has the methods of its members. Its outputs are log probabilities, which every caller may use as logits,
because their softmax is the mean of the members' probabilities. Its hidden states are those of all members side by
side, so that a caller can still apply the head to a part of the positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from triform.errors import ConfigError
from triform.nn.layouts import LayoutLike


def average_log_probs(member_logits: Iterable[Tensor]) -> Tensor:
    """Return the log of the mean probabilities of several logits (..., V).

    The logits of one model are returned as they are.

    Example:
        >>> a, b = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
        >>> average_log_probs([a, b]).exp()
        tensor([0.7000, 0.3000])
    """
    logits = iter(member_logits)
    first = next(logits)
    total, n_members = _log_probs(first), 1
    for other in logits:
        total, n_members = torch.logaddexp(total, _log_probs(other)), n_members + 1
    return first if n_members == 1 else total - math.log(n_members)


def _log_probs(logits: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class AveragingHead(nn.Module):
    """The heads of all members: states (..., D of all members) -> log of the mean probabilities (..., V)."""

    def __init__(self, heads: Iterable[nn.Module], widths: Sequence[int]) -> None:
        super().__init__()
        self.heads, self.widths = nn.ModuleList(heads), list(widths)

    def forward(self, states: Tensor) -> Tensor:
        parts = torch.split(states, self.widths, dim=-1)
        return average_log_probs(head(part) for head, part in zip(self.heads, parts, strict=True))


class EnsembleModel(nn.Module):
    """Base class of ensembles.

    Args:
        members: The models.
        widths: The `d_model` of each.
    """

    def __init__(self, members: Sequence[nn.Module], widths: Sequence[int]) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)


class EnsembleClassifier(EnsembleModel):
    """Several classifiers."""

    def forward(self, tokens: Tensor, keep: LayoutLike = None) -> Tensor:
        """Return the log of the mean probabilities (B, labels)."""
        return average_log_probs(member(tokens, keep) for member in self.members)


class EnsembleDecoder(EnsembleModel):
    """Several language models."""

    def __init__(self, members: Sequence[nn.Module], widths: Sequence[int]) -> None:
        super().__init__(members, widths)
        self.lm_head = AveragingHead((member.lm_head for member in self.members), widths)

    def forward(self, tokens: Tensor, keep: LayoutLike = None) -> Tensor:
        """Return the log of the mean probabilities (B, T, V) of the token after each position."""
        return self.lm_head(self.hidden_states(tokens, keep))

    def hidden_states(self, tokens: Tensor, keep: LayoutLike = None) -> Tensor:
        """Return the states that the head reads, those of all members side by side."""
        return torch.cat([member.hidden_states(tokens, keep) for member in self.members], dim=-1)


class EnsembleSeq2Seq(EnsembleModel):
    """Several translators."""

    def __init__(self, members: Sequence[nn.Module], widths: Sequence[int]) -> None:
        super().__init__(members, widths)
        self.lm_head = AveragingHead((member.lm_head for member in self.members), widths)

    def forward(self, source: Tensor, target: Tensor, source_keep: LayoutLike = None) -> Tensor:
        """Return the log of the mean probabilities (B, T, V) of the token after each position of the target."""
        return self.lm_head(self.decoder_states(target, self.encoder(source, source_keep), source_keep))

    def encoder(self, source: Tensor, keep: LayoutLike = None) -> list[Tensor]:
        """Return the encoder states of each member."""
        return [member.encoder(source, keep) for member in self.members]

    def decoder_states(
        self, target: Tensor, encoder_states: Sequence[Tensor], source_keep: LayoutLike = None
    ) -> Tensor:
        """Return the states that the head reads, those of all members side by side."""
        pairs = zip(self.members, encoder_states, strict=True)
        return torch.cat([member.decoder_states(target, states, source_keep) for member, states in pairs], dim=-1)


ENSEMBLES: dict[str, Callable[[Sequence[nn.Module], Sequence[int]], EnsembleModel]] = {
    "classify": EnsembleClassifier,
    "generate": EnsembleDecoder,
    "translate": EnsembleSeq2Seq,
}


def refuse_ensemble(model: nn.Module, purpose: str) -> None:
    """Raise `ConfigError` if a model is an ensemble. `purpose` says what is possible only with a single model."""
    if isinstance(model, EnsembleModel):
        raise ConfigError(
            f"this is an ensemble of {len(model.members)} models, and {purpose} needs a single one; "
            "choose one of its runs, or train one model on its outputs with `triform distill`"
        )
