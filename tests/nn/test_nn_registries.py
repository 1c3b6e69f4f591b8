"""A config's `Literal` and the dict that is asked for it name the same things."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from triform.config import (
    ActivationKind,
    HeadActivation,
    NormKind,
    NormPosition,
    PoolingKind,
    PositionKind,
    RecurrentKind,
    ScoreKind,
)
from triform.models.encoder import HEAD_ACTIVATIONS
from triform.nn.block import ACTIVATIONS, RESIDUALS
from triform.nn.embedding import POSITION_EMBEDDINGS
from triform.nn.layouts import POOLINGS
from triform.nn.norm import NORMS
from triform.nn.positions import RELATIVE_POSITIONS
from triform.nn.recurrent import CELLS
from triform.nn.scores import SCORES


@pytest.mark.parametrize(
    ("kind", "registry"),
    [
        (PositionKind, POSITION_EMBEDDINGS | RELATIVE_POSITIONS | {"none": None}),
        (ScoreKind, SCORES),
        (NormKind, NORMS),
        (NormPosition, RESIDUALS),
        (ActivationKind, ACTIVATIONS),
        (PoolingKind, POOLINGS),
        (HeadActivation, HEAD_ACTIVATIONS),
        (RecurrentKind, CELLS),
    ],
    ids=["positions", "scores", "norms", "residuals", "activations", "poolings", "head activations", "cells"],
)
def test_every_kind_a_config_may_name_is_registered_and_no_other(kind: Any, registry: dict[str, Any]) -> None:
    assert sorted(get_args(kind)) == sorted(registry)
