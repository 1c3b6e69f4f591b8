"""Choose the shape of a language model with a given number of parameters."""

from __future__ import annotations

from math import log, sqrt

from triform.config import Config, DataSizes
from triform.config.settings import build_config
from triform.errors import ConfigError

WIDTH_PER_LAYER = 128  # d_model / n_layers of GPT-3 and of the smallest Llama models
HEAD_DIM = 64
MAX_LAYERS = 1_000


def build_config_of_size(n_params: int, vocab_size: int, max_len: int) -> tuple[Config, DataSizes]:
    """Return the settings of a decoder with about `n_params` parameters, and its sizes.

    The decoder has 12·L·d² parameters in L blocks of width d and V·d in its embedding. The number of layers is the
    one for which the width is closest to 128 times as large.

    Raises:
        ConfigError: The vocabulary alone has too many parameters.
    """
    widths = {
        n_layers: HEAD_DIM * round(_solve_width(n_params, n_layers, vocab_size) / HEAD_DIM)
        for n_layers in range(1, MAX_LAYERS)
    }
    shapes = [(n_layers, width) for n_layers, width in widths.items() if width]
    if not shapes:
        raise ConfigError(
            f"--params {n_params:,}: too few for a vocabulary of {vocab_size:,} tokens. Use a smaller --vocab-size."
        )
    n_layers, width = min(shapes, key=lambda shape: abs(log(shape[1] / (WIDTH_PER_LAYER * shape[0]))))
    config = build_config(
        {
            "task": "generate",
            "model.d_model": width,
            "model.d_ff": 4 * width,
            "model.n_layers": n_layers,
            "model.n_heads": width // HEAD_DIM,
            "model.positions": "rotary",
            "model.dropout": 0.0,
            "model.tie_embeddings": True,
            "data.max_len": max_len,
            "tokenizer.vocab_size": vocab_size,
        }
    )
    return config, DataSizes(vocab_size=vocab_size, max_len=max_len)


def _solve_width(n_params: int, n_layers: int, vocab_size: int) -> float:
    """Solve 12·L·d² + V·d = n for d."""
    return (sqrt(vocab_size**2 + 48 * n_layers * n_params) - vocab_size) / (24 * n_layers)
