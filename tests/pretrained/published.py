"""Tiny random models of every family, made with `transformers`, and ways to compare them with ours."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers.utils import logging

from triform.config import TaskName
from triform.pretrained import Imported, open_folder
from triform.pretrained.families import FAMILIES
from triform.pretrained.names import fill, sames

logging.set_verbosity_error()
logging.disable_progress_bar()

VOCABULARY, LONGEST = 61, 24


@dataclass(frozen=True)
class Published:
    """A family's tiny model: its class in `transformers`, its settings there, and what it is used for here."""

    task: TaskName
    kind: str
    settings: dict[str, Any]

    def make(self) -> Any:
        """Random weights, biases and norms too, so that every tensor has a say."""
        config_class = getattr(transformers, CONFIGS[self.kind.partition("For")[0].removesuffix("LMHeadModel")])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = getattr(transformers, self.kind)(config_class(**self.settings)).eval()
        stir(model)
        return model


def stir(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                middle = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
                parameter.copy_(middle + 0.3 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.copy_(torch.randn_like(buffer))


CONFIGS = {"GPT2": "GPT2Config", "Llama": "LlamaConfig", "Bert": "BertConfig", "BertModel": "BertConfig"}
CONFIGS |= {"DistilBert": "DistilBertConfig", "MarianMTModel": "MarianConfig"}
UNTIED = {"tie_word_embeddings": False}
GPT2 = {"vocab_size": VOCABULARY, "n_positions": LONGEST, "n_embd": 16, "n_layer": 3, "n_head": 4}
EVERY_MODEL: dict[str, Published] = {
    "gpt2": Published("generate", "GPT2LMHeadModel", GPT2),
    "gpt2 relu": Published(
        "generate",
        "GPT2LMHeadModel",
        GPT2
        | {"activation_function": "relu", "n_inner": 40, "layer_norm_epsilon": 0.1, "tie_word_embeddings": False},
    ),
}


def saved(model: Any, folder: Path, **more: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, **more)
    return folder


def both(name: str, folder: Path, *, double: bool = False) -> tuple[Any, Imported]:
    """The same model theirs and ours; in float64, where wanted, each from the float32 that was saved."""
    case = EVERY_MODEL[name]
    theirs = case.make()
    ours = open_folder(saved(theirs, folder), case.task)
    ours.model.eval()
    if double:
        theirs.double()
        ours.model.double()
    return theirs, ours


def tokens(rows: int = 2, length: int = 11, first: int = 3, seed: int = 5) -> Tensor:
    """Token numbers that mean nothing special anywhere."""
    numbers = torch.Generator().manual_seed(seed)
    return torch.randint(first, VOCABULARY, (rows, length), generator=numbers)


def apart(mine: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    assert mine.shape == other.shape
    return ((mine - other).abs().max() / other.abs().max().clamp(min=1e-12)).item()


@contextmanager
def watched(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """What each module answers, in the order of their calls."""
    seen: list[Tensor] = []
    handles = [module.register_forward_hook(lambda _m, _i, y: seen.append(y)) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def gradients(theirs: Any, ours: Imported) -> dict[str, Tensor]:
    """The gradients of their tensors under our names: the table of names carries them, too."""
    family = next(each for each in FAMILIES if each.name == ours.family)
    found = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    found |= {
        name: torch.zeros_like(buffer) for name, buffer in theirs.named_buffers() if name == "final_logits_bias"
    }
    holder = copy.deepcopy(ours.model)
    table = sames(family.pairs, ours.config.model.n_layers)
    fill(holder, table, found, place="gradients", ignored=family.ignored)
    return dict(holder.named_parameters())


Call = Callable[[Any], Tensor]
