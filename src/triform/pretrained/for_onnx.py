"""A classifier as an ONNX graph: its own forward pass, written down with attention by the plain formula."""

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
from triform.nn.attention import Attention
from triform.nn.kernels import Matching, spread
from triform.nn.masks import Rule
from triform.nn.rows import Padded

MODEL_FILE = "model.onnx"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "logits"


class Graph(nn.Module):
    """A classifier with the inputs that programs know it by; the mask is 1 where a token is real."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)  # sizes are symbols in here: what the model remembers stays clean
        for module in self.model.modules():
            if isinstance(module, Attention):
                module.kernel = formula

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # (B, T) each -> (B, labels)
        return self.model(input_ids, Padded(attention_mask != 0))


def formula(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
    """Self-attention written out, as `kernels.explicit` is, with nothing remembered from one size to another."""
    places = torch.arange(q.shape[-2], device=q.device)
    rows = torch.arange(q.shape[0], device=q.device)[:, None, None]
    keep = rule.allows(rows, places[:, None], places)[:, None]  # (B or 1, 1, T, T)
    distances = places - places[:, None]  # (T, T)
    shares = matching(q, k, distances).masked_fill(~keep, float("-inf")).softmax(dim=-1)
    shares = shares.masked_fill(~keep, 0.0)
    return shares @ spread(v, q) + matching.relation.values(shares, distances)  # (B, H, T, Dh)


def write_onnx(model: nn.Module, max_len: int, path: Path) -> None:
    """Write the graph for batches of any number of texts, up to `max_len` tokens each."""
    if not isinstance(model, Classifier):
        raise ConfigError("onnx is written for classifiers; export what writes text to hf or ctranslate2")
    _need_onnxscript()
    graph = Graph(model).eval()
    rows, length = torch.export.Dim("batch"), torch.export.Dim("tokens", max=max_len)
    sizes = {name: {0: rows, 1: length} for name in INPUTS}
    example = torch.zeros(2, 2, dtype=torch.long), torch.ones(2, 2, dtype=torch.long)
    with quiet():
        program = torch.onnx.export(
            graph, example, input_names=INPUTS, output_names=[OUTPUT], dynamic_shapes=sizes, dynamo=True,
            verbose=False,
        )  # fmt: skip
        assert program is not None
        program.save(path)


def _need_onnxscript() -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise CheckpointError(
            f"writing ONNX needs packages that are not installed; install them with {install_command('export')}"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch says of its own workings while a graph is written."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
