"""A NumPy model and a torch model with the same random weights, and the same work for both."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.loss import cross_entropy
from triform.scratch import models, weights
from triform.scratch.module import FlatParameters

V, LABELS, MAX_LEN = 11, 3, 7
MODEL_CLASSES: dict[str, tuple[Any, Any]] = {
    "encoder": (models.EncoderClassifier, Classifier),
    "decoder": (models.TransformerDecoder, Decoder),
    "seq2seq": (models.EncoderDecoder, Seq2Seq),
}
SETTING_VALUES: dict[str, tuple[Any, ...]] = {
    "norm_position": ("pre", "post"),
    "final_norm": (True, False),
    "activation": ("gelu", "relu", "gelu_tanh"),
    "positions": ("learned", "sinusoidal", "none"),
    "bias": (True, False),
    "qkv_bias": (True, False),
    "tie_embeddings": (True, False),
    "scale_embeddings": (False, True),
    "head_bias": (True, False),
    "attention_score": ("scaled_dot", "dot"),
    "head_hidden": (0, 5),  # of the encoder
    "attention_direction": ("auto", "causal"),  # of the encoder, alone or in an encoder-decoder
    "target_vocab_size": (0, 8),  # of the encoder-decoder: two vocabularies
}
APPLICABLE_ARCHITECTURES = {
    "head_hidden": ("encoder",),
    "attention_direction": ("encoder", "seq2seq"),
    "target_vocab_size": ("seq2seq",),
}
Case = tuple[str, dict[str, Any]]


def all_cases() -> list[Case]:
    """Every form with every combination of the settings that mean something for it."""
    cases: list[Case] = []
    for architecture in MODEL_CLASSES:
        names = [
            name for name in SETTING_VALUES if architecture in APPLICABLE_ARCHITECTURES.get(name, MODEL_CLASSES)
        ]
        cases += [
            (architecture, dict(zip(names, values, strict=True)))
            for values in product(*map(SETTING_VALUES.get, names))
        ]
    return cases


def single_change_cases() -> list[Case]:
    """Every form as it is by default, and with each setting changed by itself."""
    cases: list[Case] = [(architecture, {}) for architecture in MODEL_CLASSES]
    for name, (_, *others) in SETTING_VALUES.items():
        cases += [
            (architecture, {name: value})
            for architecture in APPLICABLE_ARCHITECTURES.get(name, tuple(MODEL_CLASSES))
            for value in others
        ]
    return cases


def case_id(case: Case) -> str:
    architecture, settings = case
    changed = [
        f"{name}={value}" for name, value in settings.items() if value != SETTING_VALUES.get(name, (None,))[0]
    ]
    return "-".join([architecture, *changed])


class Twins:
    """Both models in float64. Random biases and norms too: where they are 0 and 1, a mistake would not show."""

    def __init__(self, architecture: str, settings: dict[str, Any]) -> None:
        settings = dict(settings)
        target_vocab_size = settings.pop("target_vocab_size", 0)
        self.config = ModelConfig(d_model=8, d_ff=12, n_layers=2, n_heads=2, dropout=0.0, **settings)
        self.sizes = DataSizes(vocab_size=V, max_len=MAX_LEN, n_labels=LABELS, target_vocab_size=target_vocab_size)
        self.architecture, (ours, theirs) = architecture, MODEL_CLASSES[architecture]
        previous_dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self.theirs = theirs(self.config, self.sizes).eval()
                for parameter in self.theirs.parameters():
                    nn.init.normal_(parameter, std=0.5)
        finally:
            torch.set_default_dtype(previous_dtype)
        self.ours = ours(self.config, self.sizes)
        self.weights = FlatParameters(self.ours, np.float64)
        weights.load_state_dict(
            self.weights, {name: p.detach().numpy() for name, p in self.theirs.named_parameters()}
        )
        rng = np.random.default_rng(1)
        output_size = target_vocab_size or V
        keep = np.arange(6) < np.array([6, 4, 1])[:, None]
        expected = rng.integers(0, output_size, (3, 5))
        expected[1, 3:] = expected[2, :1] = -100
        tokens, target = rng.integers(0, V, (3, 6)), rng.integers(0, output_size, (3, 5))
        self.inputs, self.targets = {
            "encoder": ({"tokens": tokens, "keep": keep}, {"labels": rng.integers(0, LABELS, 3)}),
            "decoder": ({"tokens": target}, {"expected": expected}),
            "seq2seq": ({"source": tokens, "target": target, "source_keep": keep}, {"expected": expected}),
        }[architecture]

    def logits(self) -> tuple[np.ndarray, np.ndarray]:
        torch_inputs = {name: torch.from_numpy(array) for name, array in self.inputs.items()}
        return self.ours(**self.inputs)[0], self.theirs(**torch_inputs).detach().numpy()

    def losses(self, smoothing: float) -> tuple[float, float]:
        """And the gradients, in `gradients`."""
        self.weights.grad.fill(0)
        loss, backward = self.ours.loss(**self.inputs, **self.targets, smoothing=smoothing)
        backward(0.25)
        torch_inputs = {name: torch.from_numpy(array) for name, array in self.inputs.items()}
        (expected,) = self.targets.values()
        torch_loss = cross_entropy(self.theirs(**torch_inputs), torch.from_numpy(expected), smoothing)
        self.theirs.zero_grad()
        (torch_loss * 0.25).backward()
        return loss, torch_loss.item()

    def gradients(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {
            name: (self.weights.named[name].grad, np.zeros(p.shape) if p.grad is None else p.grad.numpy())
            for name, p in self.theirs.named_parameters()
        }


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest number."""
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-3))
