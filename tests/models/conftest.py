"""Models are tested with their fast kernels, in float64, so that a difference is a mistake and not rounding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from triform.nn import attention
from triform.nn.kernels.dispatch import dispatch_attention


@pytest.fixture(autouse=True)
def _fast_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "naive_attention", dispatch_attention)


@pytest.fixture(autouse=True)
def _float64_and_one_seed() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
