"""What a model is made of: parts with parameters, and one vector that holds the numbers of all of them.

Every part is called forward and answers with two things: its result, and a function that takes the gradient of the
loss by that result and gives the gradient by the input, adding those of its own parameters on the way. Nothing
else is needed to learn: going back through a model is calling these functions in reverse. Each is called once, and
may use up what it kept.

Shapes: B batch, T query positions, S key positions, D d_model, H heads, Dh head_dim, V vocab_size; N rows of any
kind. A line that changes a shape ends with the new one. `True` in a mask means "may be read".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Backward = Callable[[Array], Array]  # gradient by a result -> gradient by the input


class Parameter:
    """Numbers to be learned and, once something went back, the loss's gradient by each. `Weights` owns both."""

    value: Array
    grad: Array

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Module:
    """A piece of a model. Its parameters are named by the attributes that lead to them."""

    def named_children(self) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self).items():
            if isinstance(value, list):
                yield from ((f"{name}.{index}", item) for index, item in enumerate(value))
            else:
                yield name, value

    def named_parameters(self, prefix: str = "") -> dict[str, Parameter]:
        """By name; one that is tied to another appears once, under its first name."""
        parameters: dict[str, Parameter] = {}
        for name, value in self.named_children():
            nested = {prefix + name: value} if isinstance(value, Parameter) else {}
            nested = value.named_parameters(f"{prefix}{name}.") if isinstance(value, Module) else nested
            known_ids = {id(item) for item in parameters.values()}
            parameters |= {item: parameter for item, parameter in nested.items() if id(parameter) not in known_ids}
        return parameters

    def modules(self) -> Iterator[Module]:
        """This one, and all that it is made of."""
        yield self
        for _, value in self.named_children():
            if isinstance(value, Module):
                yield from value.modules()


class SharedInput:
    """States that several layers read: as with a parameter, their gradients add up."""

    def __init__(self, value: Array) -> None:
        self.value, self.grad = value, np.zeros_like(value)


class FlatParameters:
    """All parameters of a model end to end in one vector, and their gradients in another.

    Matrices come first: only they decay. A step of an optimizer is then a few operations, however many parts there
    are.
    """

    def __init__(self, model: Module, dtype: Any = np.float32) -> None:
        self.named = model.named_parameters()
        ordered = sorted(self.named.values(), key=lambda parameter: len(parameter.shape) < 2)
        sizes = [int(np.prod(parameter.shape)) for parameter in ordered]
        self.n_decaying = sum(size for size, param in zip(sizes, ordered, strict=True) if len(param.shape) > 1)
        self.value, self.grad = np.zeros(sum(sizes), dtype), np.zeros(sum(sizes), dtype)
        ends = np.cumsum(sizes)
        for parameter, size, end in zip(ordered, sizes, ends, strict=True):
            parameter.value = self.value[end - size : end].reshape(parameter.shape)
            parameter.grad = self.grad[end - size : end].reshape(parameter.shape)
