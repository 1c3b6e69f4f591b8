"""Record the attention weights of a model while it runs, without changing what it computes."""

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
from triform.models.ensemble import refuse_ensemble
from triform.nn.attention import AttentionKernel, ScoreFunction, attention_weights
from triform.nn.masks import AttentionMask

_KERNEL_LOCK = threading.Lock()  # held while kernels are wrapped or unwrapped


class AttentionLayer(Protocol):
    """An attention layer with a replaceable kernel."""

    kernel: AttentionKernel


@runtime_checkable
class AttentionModel(Protocol):
    """A model that lists its attention layers."""

    def attention_stacks(self) -> dict[str, list[AttentionLayer]]:
        """Return the attention layers of each stack: "encoder", "decoder" and "cross"."""


@dataclass
class AttentionRecord:
    """The attention weights of each stack and layer: one tensor (B, H, T, S) for each call."""

    calls: dict[str, list[list[Tensor]]] = field(default_factory=dict)

    def __getitem__(self, stack: str) -> Tensor:
        """Return the weights of all layers of a stack: (L, B, H, T, S).

        Decode steps are concatenated along T. Keys that did not exist yet at a step have the weight 0.

        Raises:
            ConfigError: Nothing was recorded for this stack, or the steps cannot be concatenated.
        """
        if stack not in self.stacks():
            raise ConfigError(
                f"no attention was recorded for {stack!r}; recorded stacks: {', '.join(self.stacks()) or 'none'}"
            )
        return torch.stack([_concatenate_steps(layer) for layer in self.calls[stack]])

    def stacks(self) -> tuple[str, ...]:
        """Return the names of the stacks that were recorded."""
        return tuple(name for name, layers in self.calls.items() if layers and all(layers))


def _concatenate_steps(steps: list[Tensor]) -> Tensor:
    lengths = [step.shape[-1] for step in steps]
    longest, remedy = max(lengths), "read the steps from .calls, or record one pass over the generated text"
    if len({step.shape[:2] for step in steps}) > 1:
        raise ConfigError(
            f"rows left the batch or were repeated between steps (beam search and end tokens do this); {remedy}"
        )
    if lengths != sorted(lengths):
        raise ConfigError(f"the context was full and was shortened between steps; {remedy}")
    return torch.cat([nn.functional.pad(step, (0, longest - step.shape[-1])) for step in steps], dim=-2)


def has_attention(model: nn.Module) -> bool:
    """Return whether a model has attention layers."""
    return isinstance(model, AttentionModel) and any(model.attention_stacks().values())


def require_attention_stacks(model: nn.Module) -> dict[str, list[AttentionLayer]]:
    """Return a model's attention layers by stack; raise `ConfigError` if it has none."""
    refuse_ensemble(model, "attention")
    if not isinstance(model, AttentionModel) or not has_attention(model):
        raise ConfigError("this model is recurrent and has no attention to show; use a Transformer")
    return model.attention_stacks()


class KernelCall(NamedTuple):
    """One call of the kernel of an attention layer: its arguments and its output."""

    stack: str
    layer: int
    arguments: tuple[Tensor, Tensor, Tensor, AttentionMask, ScoreFunction, float]
    output: Tensor


@contextmanager
def watch_attention(model: nn.Module, watcher: Callable[[KernelCall], None]) -> Iterator[None]:
    """Call `watcher` for every kernel call of every attention layer inside a `with` block.

    The output of the model does not change, because each layer still uses its own kernel. Only calls from the
    current thread are reported. Other threads may use and watch the same model.
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
    """A wrapper around a kernel that reports calls from one thread to a watcher."""

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
        """Return the kernel without this wrapper. Other threads may have added wrappers around it."""
        if kernel is self:
            return self.kernel
        if isinstance(kernel, RecordingKernel):
            kernel.kernel = self.unwrap(kernel.kernel)
        return kernel


@contextmanager
def record_attention(model: nn.Module) -> Iterator[AttentionRecord]:
    """Record the attention weights of a model inside a `with` block. The output of the model does not change.

    Several threads may record the same model; each records only its own calls.

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
