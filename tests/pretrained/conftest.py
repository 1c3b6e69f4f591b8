"""One seed for every test, and no word from `transformers` but errors."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)
