"""How far back a language model looks, measured by gradients: do they vanish with the distance?"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice

import torch
from torch import Tensor

from triform.explain.attribution import override_embeddings
from triform.models.factory import AnyDecoder
from triform.tasks.language_model_data import LanguageModelDataset

MAX_BATCHES = 8  # batches of the dataset that are used


@torch.inference_mode(False)
def gradient_norms(model: AnyDecoder, dataset: LanguageModelDataset) -> Tensor:  # -> (T)
    """Return the norm of the gradient of a prediction's loss with respect to the inputs before it, by distance.

    The loss is that of the last prediction of each window. Entry `d` of the result is the mean norm of its gradient
    with respect to the token embedding `d` tokens before the last input. All windows are full.

    Args:
        model: The language model.
        dataset: The text, in windows of the model's length.
    """
    model.eval()
    device = next(model.parameters()).device
    norm_sums, n_windows = torch.zeros(dataset.max_len, device=device), 0
    batches = (batch for batch in dataset.batches() if batch.tokens.shape[1] == dataset.max_len)
    for batch in islice(batches, MAX_BATCHES):
        tokens, targets = batch.tokens.to(device), batch.targets[:, -1].to(device)
        positions = torch.arange(tokens.shape[1], device=device)
        vectors = model.embedding.token_vectors(tokens, positions).detach().requires_grad_()  # (B, T, D)
        # cuDNN computes gradients of recurrent layers only in training mode; torch's own kernels always do.
        cudnn_disabled = torch.backends.cudnn.flags(enabled=False) if vectors.is_cuda else nullcontext()
        with torch.enable_grad(), override_embeddings(model.embedding, vectors), cudnn_disabled:
            loss = torch.nn.functional.cross_entropy(model(tokens)[:, -1].float(), targets, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, vectors)
        norm_sums += gradient.float().norm(dim=-1).sum(dim=0)  # windows do not share inputs
        n_windows += len(tokens)
    return norm_sums.flip(0) / max(1, n_windows)
