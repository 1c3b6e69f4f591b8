"""Tiny random models of every family, made with `transformers`, and ways to compare them with ours."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers.utils import logging

from triform.config import TaskName
from triform.decode.forms import DecoderForm, Seq2SeqForm
from triform.decode.stepper import Cached
from triform.nn.positions import Rotary
from triform.pretrained import Imported, open_folder
from triform.pretrained.families import FAMILIES
from triform.pretrained.importing import named
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
                parameter.copy_(middle + 0.4 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.copy_(0.2 * torch.randn_like(buffer))


CONFIGS = {"GPT2": "GPT2Config", "Llama": "LlamaConfig", "Bert": "BertConfig", "BertModel": "BertConfig"}
CONFIGS |= {"DistilBert": "DistilBertConfig", "MarianMTModel": "MarianConfig"}
CONFIGS |= {"MegatronBert": "MegatronBertConfig", "Blenderbot": "BlenderbotConfig"}
UNTIED = {"tie_word_embeddings": False}
GPT2 = {"vocab_size": VOCABULARY, "n_positions": LONGEST, "n_embd": 16, "n_layer": 3, "n_head": 4}
TIED = {"tie_word_embeddings": True}
LLAMA = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
    {
        "rope_type": "llama3",
        "rope_theta": 50.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
]
BERT = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_labels": 3,
}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST,
    "dim": 16,
    "hidden_dim": 24,
    "n_layers": 3,
    "n_heads": 4,
    "num_labels": 3,
}
MARIAN = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST,
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 1,
    "decoder_start_token_id": 1,
    "eos_token_id": 0,
    "forced_eos_token_id": None,
}
TWO_VOCABULARIES = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71}
EVERY_MODEL: dict[str, Published] = {
    "gpt2": Published("generate", "GPT2LMHeadModel", GPT2),
    "gpt2 relu": Published(
        "generate",
        "GPT2LMHeadModel",
        GPT2
        | {"activation_function": "relu", "n_inner": 40, "layer_norm_epsilon": 0.1, "tie_word_embeddings": False},
    ),
}
EVERY_MODEL |= {
    "llama": Published("generate", "LlamaForCausalLM", LLAMA),
    "llama tied": Published("generate", "LlamaForCausalLM", LLAMA | TIED | {"rms_norm_eps": 0.1}),
    "llama biased": Published("generate", "LlamaForCausalLM", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama half biased": Published("generate", "LlamaForCausalLM", LLAMA | {"attention_bias": True}),
    **{
        f"llama {scaling['rope_type']}": Published(
            "generate", "LlamaForCausalLM", LLAMA | {"rope_parameters": scaling}
        )
        for scaling in SCALINGS
    },
    "bert": Published("classify", "BertForSequenceClassification", BERT),
    "bert relu": Published(
        "classify", "BertForSequenceClassification", BERT | {"hidden_act": "relu", "layer_norm_eps": 0.1}
    ),
    "megatron-bert": Published("classify", "MegatronBertForSequenceClassification", BERT),
    "distilbert": Published("classify", "DistilBertForSequenceClassification", DISTILBERT),
    "marian": Published("translate", "MarianMTModel", MARIAN),
    "marian relu": Published(
        "translate", "MarianMTModel", MARIAN | {"activation_function": "relu", "scale_embedding": False}
    ),
    "blenderbot": Published(
        "translate",
        "BlenderbotForConditionalGeneration",
        MARIAN | {"activation_function": "gelu", "encoder_no_repeat_ngram_size": 0},
    ),
    "marian of two vocabularies": Published("translate", "MarianMTModel", MARIAN | TWO_VOCABULARIES),
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
        in_double(theirs)
        turned_alike(ours.model.double(), theirs)
    return theirs, ours


def in_double(model: Any) -> None:
    """Llama's norms and angles are float32 whatever they are given: here they get to be float64, too."""
    model.double()
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = partial(_rms, module)
        if type(module).__name__ == "LlamaRotaryEmbedding":
            module.forward = partial(_turned, module)


def _rms(module: Any, x: Tensor) -> Tensor:
    return module.weight * x * (x.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()


def _turned(module: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    angle = position_ids[..., None].double() * module.inv_freq.double()
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos() * module.attention_scaling, angle.sin() * module.attention_scaling


def turned_alike(ours: nn.Module, theirs: Any) -> None:
    """Llama's frequencies are rounded to float32, ours are not: they agree so far, and here ours become theirs."""
    for module in ours.modules():
        if isinstance(module, Rotary):
            angle = torch.arange(len(module.cos))[:, None].double() * theirs.model.rotary_emb.inv_freq.double()
            for name, table in (("cos", angle.cos()), ("sin", angle.sin())):
                table = table.repeat(1, 2)
                assert (getattr(module, name) - table).abs().max() < 1e-5
                setattr(module, name, table)


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
    fill(holder, table, named(family, found), place="gradients", ignored=family.ignored)
    return dict(holder.named_parameters())


def greedy(ours: Imported, prompts: list[list[int]], steps: int, start: int | None = None) -> list[list[int]]:
    """The best token each time, with keys and values kept; a translator takes none twice: it would repeat one."""
    form: Any = (
        DecoderForm(ours.model, ours.sizes.max_len)
        if start is None
        else Seq2SeqForm(ours.model, ours.sizes.max_len, bos=start)
    )
    stepper, written = Cached(form, prompts), torch.full((len(prompts), 0 if start is None else 1), start or 0)
    with torch.no_grad():
        scores = stepper.start()
        for _ in range(steps):
            barred = scores if start is None else scores.scatter(1, written, float("-inf"))
            written = torch.cat([written, barred.argmax(-1, keepdim=True)], dim=1)
            scores = stepper.step(written[:, -1])
    return written[:, -steps:].tolist()


def rewritten(folder: Path, change: Any) -> Path:
    """The folder with its tensors changed."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder


def told(folder: Path, **more: Any) -> Path:
    """The folder with its config.json changed; None takes a key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | more
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def run_readme(folder: Path) -> str:
    """What the Python of an exported README prints, run as it stands."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.S)
    assert code is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code[1], {})
    return printed.getvalue().removesuffix("\n")
