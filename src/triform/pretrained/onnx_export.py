"""Export a classifier as an ONNX graph of its forward pass, with the reference implementation of attention."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from triform.errors import CheckpointError, ConfigError, install_command
from triform.models.encoder import Classifier
from triform.models.ensemble import EnsembleClassifier
from triform.nn.attention import Attention, ScoreFunction, repeat_kv
from triform.nn.layouts import PaddedLayout
from triform.nn.masks import AttentionMask

MODEL_FILE = "model.onnx"
INPUT_NAMES, OUTPUT_NAME = ("input_ids", "attention_mask"), "logits"


class OnnxClassifier(nn.Module):
    """A classifier with the usual ONNX inputs. The attention mask is 1 for a token and 0 for padding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)  # sizes are symbolic here and must not enter the model's caches
        for module in self.model.modules():
            if isinstance(module, Attention):
                module.kernel = reference_attention

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # (B, T) each -> (B, labels)
        return self.model(input_ids, PaddedLayout(attention_mask != 0))


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Compute self-attention with the reference formula, without caches that depend on sizes."""
    positions = torch.arange(q.shape[-2], device=q.device)
    batch_index = torch.arange(q.shape[0], device=q.device)[:, None, None]
    keep = mask.allows(batch_index, positions[:, None], positions)[:, None]  # (B or 1, 1, T, T)
    distances = positions - positions[:, None]  # (T, T)
    weights = score_fn(q, k, distances).masked_fill(~keep, float("-inf")).softmax(dim=-1)
    weights = weights.masked_fill(~keep, 0.0)
    return weights @ repeat_kv(v, q) + score_fn.relative_position.value_bias(weights, distances)  # (B, H, T, Dh)


def write_onnx(model: nn.Module, max_len: int, path: Path) -> None:
    """Write the graph for batches of any size and up to `max_len` tokens for each text.

    Raises:
        ConfigError: The model is not a classifier.
        CheckpointError: The packages for the export are not installed.
    """
    members = model.members if isinstance(model, EnsembleClassifier) else [model]
    if not all(isinstance(member, Classifier) for member in members):
        raise ConfigError("onnx supports only classifiers; use --to hf or --to ctranslate2")
    _require_onnxscript()
    graph = OnnxClassifier(model).eval()
    batch_dim, length_dim = torch.export.Dim("batch"), torch.export.Dim("tokens", max=max_len)
    dynamic_shapes = {name: {0: batch_dim, 1: length_dim} for name in INPUT_NAMES}
    example = torch.zeros(2, 2, dtype=torch.long), torch.ones(2, 2, dtype=torch.long)
    with suppress_export_logs():
        program = torch.onnx.export(
            graph,
            example,
            input_names=INPUT_NAMES,
            output_names=[OUTPUT_NAME],
            dynamic_shapes=dynamic_shapes,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(path)


def _require_onnxscript() -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise CheckpointError(
            f"--to onnx needs packages that are not installed; install them with {install_command('export')}"
        ) from None


@contextmanager
def suppress_export_logs() -> Iterator[None]:
    """Suppress torch's warnings and log messages about the export."""
    logger = logging.getLogger("torch.onnx")
    old_level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(old_level)
