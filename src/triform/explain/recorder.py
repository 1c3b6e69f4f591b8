"""Attention weights watched from outside: the model computes as always, and what it attends to is written down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from triform.errors import ConfigError
from triform.nn.attention import AttentionKernel, ScoreFunction, attention_weights
from triform.nn.masks import AttentionMask

_KERNEL_LOCK = threading.Lock()  # while kernels are put around others, or taken away again


class AttentionLayer(Protocol):
    """A layer of attention: its kernel can be exchanged."""

    kernel: AttentionKernel


@runtime_checkable
class AttentionModel(Protocol):
    """A model that says where it attends."""

    def attention_stacks(self) -> dict[str, list[AttentionLayer]]:
        """Layers of attention by the name of their stack: encoder, decoder, cross."""


@dataclass
class AttentionRecord:
    """What each layer of each stack attended to, a tensor (B, H, T, S) a call."""

    calls: dict[str, list[list[Tensor]]] = field(default_factory=dict)

    def __getitem__(self, stack: str) -> Tensor:
        """All layers of a stack: (L, B, H, T, S). Decoded step by step, the steps follow one another in T.

        What a step could not yet read has no weight.
        """
        if stack not in self.stacks():
            raise ConfigError(
                f"nothing was recorded of {stack!r}; at work were: {', '.join(self.stacks()) or 'none'}"
            )
        return torch.stack([_concatenate_steps(layer) for layer in self.calls[stack]])

    def stacks(self) -> tuple[str, ...]:
        """The stacks that were at work."""
        return tuple(name for name, layers in self.calls.items() if layers and all(layers))


def _concatenate_steps(steps: list[Tensor]) -> Tensor:
    lengths = [step.shape[-1] for step in steps]
    longest, remedy = max(lengths), "read .calls step by step, or record one more pass over what was written"
    if len({step.shape[:2] for step in steps}) > 1:
        raise ConfigError(
            f"rows were dropped or repeated between these steps, as beams and early ends do: {remedy}"
        )
    if lengths != sorted(lengths):
        raise ConfigError(f"the context was full and began anew between these steps: {remedy}")
    return torch.cat([nn.functional.pad(step, (0, longest - step.shape[-1])) for step in steps], dim=-2)


def has_attention(model: nn.Module) -> bool:
    """Whether a model has any attention."""
    return isinstance(model, AttentionModel) and any(model.attention_stacks().values())


def require_attention_stacks(model: nn.Module) -> dict[str, list[AttentionLayer]]:
    """A model's layers of attention by stack; a model that has none is refused."""
    if not isinstance(model, AttentionModel) or not has_attention(model):
        raise ConfigError("this model has no attention to look at: it reads one token after the other")
    return model.attention_stacks()


class KernelCall(NamedTuple):
    """One use of one layer of attention: what its kernel was asked, and what it answered."""

    stack: str
    layer: int
    arguments: tuple[Tensor, Tensor, Tensor, AttentionMask, ScoreFunction, float]
    output: Tensor


@contextmanager
def watch_attention(model: nn.Module, watcher: Callable[[KernelCall], None]) -> Iterator[None]:
    """Within this, `watcher` sees every call of every layer; afterwards the kernels are what they were.

    Answers do not change: each layer's own kernel still computes them. Only calls of the thread that watches are
    seen; other threads may use the model, and watch it too.
    """
    wrapped_layers: list[tuple[AttentionLayer, RecordingKernel]] = []
    with _KERNEL_LOCK:
        for stack, layers in require_attention_stacks(model).items():
            for index, layer in enumerate(layers):
                layer.kernel = RecordingKernel(layer.kernel, partial(KernelCall, stack, index), watcher)
                wrapped_layers.append((layer, layer.kernel))
    try:
        yield
    finally:
        with _KERNEL_LOCK:
            for layer, kernel in wrapped_layers:
                layer.kernel = kernel.unwrap(layer.kernel)


class RecordingKernel:
    """A kernel that reports its calls from one thread to a watcher."""

    def __init__(
        self, kernel: AttentionKernel, make_call: Callable[..., KernelCall], watcher: Callable[[KernelCall], None]
    ) -> None:
        self.kernel, self.make_call, self.watcher = kernel, make_call, watcher
        self.thread_id = threading.get_ident()

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
    ) -> Tensor:
        output = self.kernel(q, k, v, mask, score_fn, dropout)
        if threading.get_ident() == self.thread_id:
            with torch.no_grad():
                self.watcher(self.make_call((q, k, v, mask, score_fn, dropout), output))
        return output

    def unwrap(self, kernel: AttentionKernel) -> AttentionKernel:
        """The kernel without this watcher; other threads may have put theirs around it meanwhile."""
        if kernel is self:
            return self.kernel
        if isinstance(kernel, RecordingKernel):
            kernel.kernel = self.unwrap(kernel.kernel)
        return kernel


@contextmanager
def record_attention(model: nn.Module) -> Iterator[AttentionRecord]:
    """Record the attention weights of a model inside a `with` block. The model's answers do not change.

    Several threads may record the same model: each sees its own calls.

    Args:
        model: A Transformer, such as `run.task.model`.

    Yields:
        The record: `record["encoder"]` is a tensor (layers, batch, heads, queries, keys).

    Raises:
        ConfigError: The model has no attention.

    Example:
        >>> import torch
        >>> from triform import record_attention
        >>> from triform.config import DataSizes, ModelConfig
        >>> from triform.models.decoder import Decoder
        >>> config = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2)
        >>> model = Decoder(config, DataSizes(vocab_size=10, max_len=6)).eval()
        >>> with record_attention(model) as record:
        ...     logits = model(torch.tensor([[1, 2, 3]]))
        >>> record["decoder"].shape
        torch.Size([2, 1, 2, 3, 3])
    """
    record = AttentionRecord(
        {name: [[] for _ in layers] for name, layers in require_attention_stacks(model).items()}
    )

    def write(call: KernelCall) -> None:
        q, k, _, mask, score_fn, _ = call.arguments
        record.calls[call.stack][call.layer].append(attention_weights(q, k, mask, score_fn).float().cpu())

    with watch_attention(model, write):
        yield record
