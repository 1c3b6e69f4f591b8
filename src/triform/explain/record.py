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
from triform.nn.kernels import Kernel, Matching, weights
from triform.nn.masks import Rule

_EXCHANGING = threading.Lock()  # while kernels are put around others, or taken away again


class Attends(Protocol):
    """A layer of attention: its kernel can be exchanged."""

    kernel: Kernel


@runtime_checkable
class Attentive(Protocol):
    """A model that says where it attends."""

    def attention_stacks(self) -> dict[str, list[Attends]]:
        """Layers of attention by the name of their stack: encoder, decoder, cross."""


@dataclass
class Recording:
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
        return torch.stack([_joined(layer) for layer in self.calls[stack]])

    def stacks(self) -> tuple[str, ...]:
        """The stacks that were at work."""
        return tuple(name for name, layers in self.calls.items() if layers and all(layers))


def _joined(steps: list[Tensor]) -> Tensor:
    lengths = [step.shape[-1] for step in steps]
    longest, way_out = max(lengths), "read .calls step by step, or record one more pass over what was written"
    if len({step.shape[:2] for step in steps}) > 1:
        raise ConfigError(
            f"rows were dropped or repeated between these steps, as beams and early ends do: {way_out}"
        )
    if lengths != sorted(lengths):
        raise ConfigError(f"the context was full and began anew between these steps: {way_out}")
    return torch.cat([nn.functional.pad(step, (0, longest - step.shape[-1])) for step in steps], dim=-2)


def attends(model: nn.Module) -> bool:
    """Whether a model has any attention."""
    return isinstance(model, Attentive) and any(model.attention_stacks().values())


def layers_of(model: nn.Module) -> dict[str, list[Attends]]:
    """A model's layers of attention by stack; a model that has none is refused."""
    if not isinstance(model, Attentive) or not attends(model):
        raise ConfigError("this model has no attention to look at: it reads one token after the other")
    return model.attention_stacks()


class Call(NamedTuple):
    """One use of one layer of attention: what its kernel was asked, and what it answered."""

    stack: str
    layer: int
    asked: tuple[Tensor, Tensor, Tensor, Rule, Matching, float]
    answer: Tensor


@contextmanager
def watch_attention(model: nn.Module, watcher: Callable[[Call], None]) -> Iterator[None]:
    """Within this, `watcher` sees every call of every layer; afterwards the kernels are what they were.

    Answers do not change: each layer's own kernel still computes them. Only calls of the thread that watches are
    seen; other threads may use the model, and watch it too.
    """
    watched: list[tuple[Attends, Watched]] = []
    with _EXCHANGING:
        for stack, layers in layers_of(model).items():
            for place, layer in enumerate(layers):
                layer.kernel = Watched(layer.kernel, partial(Call, stack, place), watcher)
                watched.append((layer, layer.kernel))
    try:
        yield
    finally:
        with _EXCHANGING:
            for layer, kernel in watched:
                layer.kernel = kernel.removed_from(layer.kernel)


class Watched:
    """A kernel whose calls from one thread are shown to a watcher."""

    def __init__(self, kernel: Kernel, call: Callable[..., Call], watcher: Callable[[Call], None]) -> None:
        self.kernel, self.call, self.watcher = kernel, call, watcher
        self.thread = threading.get_ident()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
        answer = self.kernel(q, k, v, rule, matching, dropout)
        if threading.get_ident() == self.thread:
            with torch.no_grad():
                self.watcher(self.call((q, k, v, rule, matching, dropout), answer))
        return answer

    def removed_from(self, kernel: Kernel) -> Kernel:
        """The kernel without this watcher; other threads may have put theirs around it meanwhile."""
        if kernel is self:
            return self.kernel
        if isinstance(kernel, Watched):
            kernel.kernel = self.removed_from(kernel.kernel)
        return kernel


@contextmanager
def record_attention(model: nn.Module) -> Iterator[Recording]:
    """Within this, attention weights are written down as the model runs, computed beside its own kernels."""
    recording = Recording({name: [[] for _ in layers] for name, layers in layers_of(model).items()})

    def write(call: Call) -> None:
        q, k, _, rule, matching, _ = call.asked
        recording.calls[call.stack][call.layer].append(weights(q, k, rule, matching).float().cpu())

    with watch_attention(model, write):
        yield recording
