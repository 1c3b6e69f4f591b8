"""A short training of small models of all three forms, to be run with and without the fast kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triform.config import DataSizes, ModelConfig
from triform.models.factory import build_classifier, build_decoder, build_seq2seq
from triform.nn.layouts import pad
from triform.nn.loss import cross_entropy

SIZES = DataSizes(vocab_size=20, max_len=80, n_labels=3)
MODEL_SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "window and rotary positions": {"window": 4, "positions": "rotary", "norm": "rms", "n_kv_heads": 1},
    "T5 biases": {"positions": "t5"},
    "additive score": {"attention_score": "additive", "norm_position": "post"},
    "recurrent": {"kind": "gru", "attention_score": "additive"},
}


def identity(model: Any) -> Any:
    return model


def train_models(prepare: Callable[[Any], Any] = identity) -> dict[str, Tensor]:
    """Train each model for two steps; returns every loss, gradient and final weight by name."""
    torch.set_default_dtype(torch.float64)
    results: dict[str, Tensor] = {}
    for name, settings in MODEL_SETTINGS.items():
        for build in (build_classifier, build_decoder, build_seq2seq):
            torch.manual_seed(0)
            sizes = {"d_model": 8, "n_layers": 2, "dropout": 0.0}
            sizes |= {} if "kind" in settings else {"d_ff": 16, "n_heads": 2}
            config = ModelConfig(**sizes | settings)
            model = prepare(build(config, SIZES))
            tokens, keep = pad([torch.randint(1, 20, (length,)).tolist() for length in (70, 5, 33)])
            for step in range(2):
                model.zero_grad()
                loss = training_loss(model, tokens, keep)
                loss.backward()
                results[f"{name} {build.__name__} loss {step}"] = loss.detach()
                with torch.no_grad():
                    for key, parameter in model.named_parameters():
                        results[f"{name} {build.__name__} {key} gradient {step}"] = parameter.grad.clone()
                        parameter -= 0.01 * parameter.grad
    return results


def training_loss(model: Any, tokens: Tensor, keep: Tensor | None) -> Tensor:
    if hasattr(model, "classification_head"):
        return cross_entropy(model(tokens, keep), torch.tensor([0, 1, 2]), 0.0)
    if hasattr(model, "encoder"):
        states = model.decoder_states(tokens[:, :9], model.encoder(tokens, keep), keep)
        return model.head_loss(states, model.lm_head, tokens[:, 1:10], 0.0)
    states = model.hidden_states(tokens[:, :-1], keep[:, :-1])
    return model.head_loss(states, model.lm_head, tokens[:, 1:], 0.0)


if __name__ == "__main__":
    torch.save(train_models(), Path(sys.argv[1]))
    assert not any(name.startswith("triform.nn.kernels") for name in sys.modules)
