"""Attribute the logit of a label to the tokens of a text, by gradients with respect to the token embeddings.

Integrated gradients average the gradient along a straight line from a baseline, in which every token is unknown, to
the embeddings of the text. The attributions add up to the difference between the logits of the text and of the
baseline. The number of steps is doubled until they do. What a token contributes through the linear part of a model,
which has no embeddings, is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from triform.explain.attention_maps import Attribution
from triform.models.factory import AnyClassifier
from triform.models.wide import TermClassifier
from triform.nn.embedding import InputEmbedding
from triform.nn.layouts import as_layout

MIN_STEPS, MAX_STEPS = 32, 1024
COMPLETENESS_TOLERANCE = 0.01  # relative to the difference of the logits, or to 0.1 if that is larger
MAX_TOKENS_PER_CHUNK = 4_096


@torch.inference_mode(False)
def compute_attributions(
    model: AnyClassifier, tokens: Tensor, label: int, *, unknown_token: int, pieces: list[str], label_name: str
) -> tuple[Attribution, ...]:  # (1, T)
    """Return integrated gradients and gradient × input for the logit of one label."""
    embedding, tokens = (
        model.encoder.embedding,
        tokens.clone(),
    )  # cloned, because tensors created in inference mode have no gradients
    with torch.no_grad():
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embeddings = embedding.token_vectors(tokens, positions)  # (1, T, D)
        unknown = torch.full_like(tokens, unknown_token)
        baseline = embedding.token_vectors(unknown, positions)
        of_terms = _term_contributions(model, tokens, label) - _term_contributions(model, unknown, label)  # (T)

    def compute_gradient(points: Tensor) -> tuple[Tensor, Tensor]:  # (N, T, D) -> (N), (N, T, D)
        """Return the logits at these embeddings, and their gradients."""
        points = points.detach().requires_grad_()
        # cuDNN computes gradients of recurrent layers only in training mode; torch's own kernels always do.
        cudnn_disabled = torch.backends.cudnn.flags(enabled=False) if points.is_cuda else nullcontext()
        with torch.enable_grad(), override_embeddings(embedding, points), cudnn_disabled:
            logits = model(tokens.expand(len(points), -1))[:, label]
            return logits.detach(), torch.autograd.grad(logits.sum(), points)[0]

    logit, gradient = compute_gradient(embeddings)
    logit_gain = (logit - compute_gradient(baseline)[0]).item()
    gradient_times_input = ((gradient * embeddings).sum(-1)[0] + of_terms).tolist()
    integrated_gradients = _integrate_gradients(compute_gradient, baseline, embeddings, logit_gain)
    integrated_gradients = tuple((torch.tensor(integrated_gradients) + of_terms.cpu()).tolist())
    labels = tuple(pieces)
    return (
        Attribution(
            method="integrated gradients",
            label=label_name,
            pieces=labels,
            values=integrated_gradients,
            total=logit_gain + of_terms.sum().item(),
        ),
        Attribution(method="gradient × input", label=label_name, pieces=labels, values=tuple(gradient_times_input)),
    )


def _term_contributions(model: AnyClassifier, tokens: Tensor, label: int) -> Tensor:  # (1, T) -> (T)
    """Return what the tokens contribute to a logit through the linear part, which has no embeddings."""
    part = getattr(model, "linear_part", None)
    if not isinstance(part, TermClassifier):
        return torch.zeros(tokens.shape[1], device=tokens.device)
    return part.contributions(tokens, as_layout(None))[0, :, label]


def _integrate_gradients(
    compute_gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
    baseline: Tensor,
    embeddings: Tensor,
    logit_gain: float,
) -> tuple[float, ...]:
    """Return the mean gradient along the path times its length, computed with the midpoint rule."""
    n_steps = MIN_STEPS
    while True:
        fractions = (torch.arange(n_steps, device=embeddings.device, dtype=embeddings.dtype) + 0.5) / n_steps
        gradient_sum = torch.zeros_like(embeddings)
        for chunk in torch.split(fractions, max(1, MAX_TOKENS_PER_CHUNK // embeddings.shape[1])):
            gradient_sum += compute_gradient(baseline + chunk[:, None, None] * (embeddings - baseline))[1].sum(
                0, keepdim=True
            )
        values = (gradient_sum / n_steps * (embeddings - baseline)).sum(-1)[0]  # (T)
        if (
            abs(values.sum().item() - logit_gain) <= COMPLETENESS_TOLERANCE * max(0.1, abs(logit_gain))
            or n_steps >= MAX_STEPS
        ):
            return tuple(values.tolist())
        n_steps *= 2


@contextmanager
def override_embeddings(embedding: InputEmbedding, vectors: Tensor) -> Iterator[None]:
    """Make the embedding return `vectors` for any tokens inside a `with` block."""
    object.__setattr__(embedding, "token_vectors", lambda tokens, positions: vectors)
    try:
        yield
    finally:
        object.__delattr__(embedding, "token_vectors")
