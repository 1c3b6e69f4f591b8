"""Modules, parameters, and one flat vector that holds the values of all parameters.

Calling a module returns its output `y` and a function `backward`. Given the gradient of the loss with respect to
`y`, `backward` adds the gradients of the module's parameters to their `grad` and returns the gradient with respect
to the input. Backpropagation through a model calls these functions in reverse order. Each of them is called once
and may overwrite the arrays that it saved.

Shapes: B batch, T query positions, S key positions, D d_model, H heads, Dh head_dim, V vocab_size; N rows of any
kind. A comment at the end of a line gives the shape of its result. `True` in a mask means that a position may be
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Backward = Callable[[Array], Array]  # gradient of the output -> gradient of the input


class Parameter:
    """A trainable array and its gradient. `FlatParameters` allocates both."""

    value: Array
    grad: Array

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Module:
    """Base class of all layers and models. The names of parameters are the paths of attributes to them."""

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """Yield the modules and parameters that are attributes of this module, by name."""
        for name, value in vars(self).items():
            if isinstance(value, list):
                yield from ((f"{name}.{index}", item) for index, item in enumerate(value))
            else:
                yield name, value

    def named_parameters(self, prefix: str = "") -> dict[str, Parameter]:
        """Return the parameters by name. A parameter shared by two modules appears once, under its first name."""
        parameters: dict[str, Parameter] = {}
        for name, value in self.named_children():
            nested = {prefix + name: value} if isinstance(value, Parameter) else {}
            nested = value.named_parameters(f"{prefix}{name}.") if isinstance(value, Module) else nested
            known_ids = {id(item) for item in parameters.values()}
            parameters |= {item: parameter for item, parameter in nested.items() if id(parameter) not in known_ids}
        return parameters

    def modules(self) -> Iterator[Module]:
        """Yield this module and all modules inside it."""
        yield self
        for _, value in self.named_children():
            if isinstance(value, Module):
                yield from value.modules()


class SharedInput:
    """An input that several layers read, such as the encoder output. Its gradients add up in `grad`."""

    def __init__(self, value: Array) -> None:
        self.value, self.grad = value, np.zeros_like(value)


class FlatParameters:
    """All parameters of a model in one vector, and all gradients in another.

    An optimizer step is then a few operations on two vectors for any number of layers. Matrices come first, because
    weight decay applies only to them.

    Args:
        model: The module whose parameters are allocated.
        dtype: The data type of values and gradients.
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
