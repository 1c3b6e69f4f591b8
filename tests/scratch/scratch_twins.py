"""A NumPy model and a torch model with the same random weights, and the same work for both."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from triform.config import ModelConfig, Sizes
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.vocabulary import cross_entropy
from triform.scratch import models, weights
from triform.scratch.part import Weights

V, LABELS, MAX_LEN = 11, 3, 7
FORMS: dict[str, tuple[Any, Any]] = {
    "encoder": (models.Classifier, Classifier),
    "decoder": (models.Decoder, Decoder),
    "seq2seq": (models.Seq2Seq, Seq2Seq),
}
GRID: dict[str, tuple[Any, ...]] = {
    "norm_position": ("pre", "post"),
    "final_norm": (True, False),
    "activation": ("gelu", "relu", "gelu_tanh"),
    "positions": ("learned", "sinusoidal", "none"),
    "bias": (True, False),
    "qkv_bias": (True, False),
    "tie_embeddings": (True, False),
    "scale_embeddings": (False, True),
    "head_bias": (True, False),
    "score": ("scaled_dot", "dot"),
    "head_hidden": (0, 5),  # of the encoder
    "reach": ("auto", "causal"),  # of the encoder, alone or in an encoder-decoder
    "target_vocab_size": (0, 8),  # of the encoder-decoder: two vocabularies
}
ALONE = {"head_hidden": ("encoder",), "reach": ("encoder", "seq2seq"), "target_vocab_size": ("seq2seq",)}
Case = tuple[str, dict[str, Any]]


def grid() -> list[Case]:
    """Every form with every combination of the settings that mean something for it."""
    cases: list[Case] = []
    for form in FORMS:
        names = [name for name in GRID if form in ALONE.get(name, FORMS)]
        cases += [(form, dict(zip(names, values, strict=True))) for values in product(*map(GRID.get, names))]
    return cases


def one_by_one() -> list[Case]:
    """Every form as it is by default, and with each setting changed by itself."""
    cases: list[Case] = [(form, {}) for form in FORMS]
    for name, (_, *others) in GRID.items():
        cases += [(form, {name: value}) for form in ALONE.get(name, tuple(FORMS)) for value in others]
    return cases


def named(case: Case) -> str:
    form, settings = case
    changed = [f"{name}={value}" for name, value in settings.items() if value != GRID[name][0]]
    return "-".join([form, *changed])


class Twins:
    """Both models in float64. Random biases and norms too: where they are 0 and 1, a mistake would not show."""

    def __init__(self, form: str, settings: dict[str, Any]) -> None:
        settings = dict(settings)
        other = settings.pop("target_vocab_size", 0)
        self.config = ModelConfig(d_model=8, d_ff=12, n_layers=2, n_heads=2, dropout=0.0, **settings)
        self.sizes = Sizes(vocab_size=V, max_len=MAX_LEN, n_labels=LABELS, target_vocab_size=other)
        self.form, (ours, theirs) = form, FORMS[form]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self.theirs = theirs(self.config, self.sizes).eval()
                for parameter in self.theirs.parameters():
                    nn.init.normal_(parameter, std=0.5)
        finally:
            torch.set_default_dtype(before)
        self.ours = ours(self.config, self.sizes)
        self.weights = Weights(self.ours, np.float64)
        weights.put(self.weights, {name: p.detach().numpy() for name, p in self.theirs.named_parameters()})
        rng = np.random.default_rng(1)
        n = other or V
        keep = np.arange(6) < np.array([6, 4, 1])[:, None]
        expected = rng.integers(0, n, (3, 5))
        expected[1, 3:] = expected[2, :1] = -100
        tokens, target = rng.integers(0, V, (3, 6)), rng.integers(0, n, (3, 5))
        self.inputs, self.targets = {
            "encoder": ({"tokens": tokens, "keep": keep}, {"labels": rng.integers(0, LABELS, 3)}),
            "decoder": ({"tokens": target}, {"expected": expected}),
            "seq2seq": ({"source": tokens, "target": target, "source_keep": keep}, {"expected": expected}),
        }[form]

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        given = {name: torch.from_numpy(each) for name, each in self.inputs.items()}
        return self.ours(**self.inputs)[0], self.theirs(**given).detach().numpy()

    def losses(self, smoothing: float) -> tuple[float, float]:
        """And the gradients, in `gradients`."""
        self.weights.grad.fill(0)
        loss, back = self.ours.loss(**self.inputs, **self.targets, smoothing=smoothing)
        back(0.25)
        given = {name: torch.from_numpy(each) for name, each in self.inputs.items()}
        (wanted,) = self.targets.values()
        theirs = cross_entropy(self.theirs(**given), torch.from_numpy(wanted), smoothing)
        self.theirs.zero_grad()
        (theirs * 0.25).backward()
        return loss, theirs.item()

    def gradients(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {
            name: (self.weights.named[name].grad, np.zeros(p.shape) if p.grad is None else p.grad.numpy())
            for name, p in self.theirs.named_parameters()
        }


def apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest number."""
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-3))
