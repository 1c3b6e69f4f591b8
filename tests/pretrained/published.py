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
from triform.generation.adapters import DecoderAdapter, Seq2SeqAdapter
from triform.nn.positions import RotaryPosition
from triform.pretrained import ImportedModel, load_pretrained
from triform.pretrained.families import FAMILIES
from triform.pretrained.model_import import add_prefix_and_aliases
from triform.pretrained.name_mapping import expand_patterns, load_published_tensors

logging.set_verbosity_error()
logging.disable_progress_bar()

VOCAB_SIZE, MAX_LEN = 61, 24


@dataclass(frozen=True)
class TinyModel:
    """A family's tiny model: its class in `transformers`, its settings there, and what it is used for here."""

    task: TaskName
    class_name: str
    hf_settings: dict[str, Any]

    def build(self) -> Any:
        """Random weights, biases and norms too, so that every tensor has a say."""
        config_class = getattr(
            transformers, CONFIG_CLASSES[self.class_name.partition("For")[0].removesuffix("LMHeadModel")]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = getattr(transformers, self.class_name)(config_class(**self.hf_settings)).eval()
        randomise_weights(model)
        return model


def randomise_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                mean = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
                parameter.copy_(mean + 0.4 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.copy_(0.2 * torch.randn_like(buffer))


CONFIG_CLASSES = {"GPT2": "GPT2Config", "Llama": "LlamaConfig", "Bert": "BertConfig", "BertModel": "BertConfig"}
CONFIG_CLASSES |= {"DistilBert": "DistilBertConfig", "MarianMTModel": "MarianConfig"}
CONFIG_CLASSES |= {"MegatronBert": "MegatronBertConfig", "Blenderbot": "BlenderbotConfig"}
UNTIED_SETTINGS = {"tie_word_embeddings": False}
GPT2_SETTINGS = {"vocab_size": VOCAB_SIZE, "n_positions": MAX_LEN, "n_embd": 16, "n_layer": 3, "n_head": 4}
TIED_SETTINGS = {"tie_word_embeddings": True}
LLAMA_SETTINGS = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_LEN,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
ROPE_SCALINGS: list[dict[str, Any]] = [
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
BERT_SETTINGS = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_LEN,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_labels": 3,
}
DISTILBERT_SETTINGS = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_LEN,
    "dim": 16,
    "hidden_dim": 24,
    "n_layers": 3,
    "n_heads": 4,
    "num_labels": 3,
}
MARIAN_SETTINGS = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_LEN,
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
TWO_VOCABULARY_SETTINGS = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71}
TINY_MODELS: dict[str, TinyModel] = {
    "gpt2": TinyModel("generate", "GPT2LMHeadModel", GPT2_SETTINGS),
    "gpt2 relu": TinyModel(
        "generate",
        "GPT2LMHeadModel",
        GPT2_SETTINGS
        | {"activation_function": "relu", "n_inner": 40, "layer_norm_epsilon": 0.1, "tie_word_embeddings": False},
    ),
}
TINY_MODELS |= {
    "llama": TinyModel("generate", "LlamaForCausalLM", LLAMA_SETTINGS),
    "llama tied": TinyModel("generate", "LlamaForCausalLM", LLAMA_SETTINGS | TIED_SETTINGS | {"rms_norm_eps": 0.1}),
    "llama biased": TinyModel(
        "generate", "LlamaForCausalLM", LLAMA_SETTINGS | {"attention_bias": True, "mlp_bias": True}
    ),
    "llama half biased": TinyModel("generate", "LlamaForCausalLM", LLAMA_SETTINGS | {"attention_bias": True}),
    **{
        f"llama {scaling['rope_type']}": TinyModel(
            "generate", "LlamaForCausalLM", LLAMA_SETTINGS | {"rope_parameters": scaling}
        )
        for scaling in ROPE_SCALINGS
    },
    "bert": TinyModel("classify", "BertForSequenceClassification", BERT_SETTINGS),
    "bert relu": TinyModel(
        "classify", "BertForSequenceClassification", BERT_SETTINGS | {"hidden_act": "relu", "layer_norm_eps": 0.1}
    ),
    "megatron-bert": TinyModel("classify", "MegatronBertForSequenceClassification", BERT_SETTINGS),
    "distilbert": TinyModel("classify", "DistilBertForSequenceClassification", DISTILBERT_SETTINGS),
    "marian": TinyModel("translate", "MarianMTModel", MARIAN_SETTINGS),
    "marian relu": TinyModel(
        "translate", "MarianMTModel", MARIAN_SETTINGS | {"activation_function": "relu", "scale_embedding": False}
    ),
    "blenderbot": TinyModel(
        "translate",
        "BlenderbotForConditionalGeneration",
        MARIAN_SETTINGS | {"activation_function": "gelu", "encoder_no_repeat_ngram_size": 0},
    ),
    "marian of two vocabularies": TinyModel(
        "translate", "MarianMTModel", MARIAN_SETTINGS | TWO_VOCABULARY_SETTINGS
    ),
}


def save_model(model: Any, folder: Path, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, **options)
    return folder


def build_and_import(name: str, folder: Path, *, double: bool = False) -> tuple[Any, ImportedModel]:
    """The same model theirs and ours; in float64, where wanted, each from the float32 that was saved."""
    case = TINY_MODELS[name]
    reference = case.build()
    imported = load_pretrained(save_model(reference, folder), case.task)
    imported.model.eval()
    if double:
        convert_to_double(reference)
        copy_rotary_tables(imported.model.double(), reference)
    return reference, imported


def convert_to_double(model: Any) -> None:
    """Llama's norms and angles are float32 whatever they are given: here they get to be float64, too."""
    model.double()
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = partial(_rms_norm, module)
        if type(module).__name__ == "LlamaRotaryEmbedding":
            module.forward = partial(_rotary_tables, module)


def _rms_norm(module: Any, x: Tensor) -> Tensor:
    return module.weight * x * (x.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()


def _rotary_tables(module: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    angle = position_ids[..., None].double() * module.inv_freq.double()
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos() * module.attention_scaling, angle.sin() * module.attention_scaling


def copy_rotary_tables(model: nn.Module, reference: Any) -> None:
    """Llama's frequencies are rounded to float32, ours are not: they agree so far, and here ours become theirs."""
    for module in model.modules():
        if isinstance(module, RotaryPosition):
            angle = torch.arange(len(module.cos))[:, None].double() * reference.model.rotary_emb.inv_freq.double()
            for name, table in (("cos", angle.cos()), ("sin", angle.sin())):
                table = table.repeat(1, 2)
                assert (getattr(module, name) - table).abs().max() < 1e-5
                setattr(module, name, table)


def random_tokens(rows: int = 2, length: int = 11, low: int = 3, seed: int = 5) -> Tensor:
    """Token numbers that mean nothing special anywhere."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, VOCAB_SIZE, (rows, length), generator=generator)


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    assert actual.shape == expected.shape
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-12)).item()


@contextmanager
def record_outputs(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """What each module answers, in the order of their calls."""
    outputs: list[Tensor] = []
    handles = [module.register_forward_hook(lambda _m, _i, y: outputs.append(y)) for module in modules]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def map_gradients(reference: Any, imported: ImportedModel) -> dict[str, Tensor]:
    """The gradients of their tensors under our names: the table of names carries them, too."""
    family = next(candidate for candidate in FAMILIES if candidate.name == imported.family)
    tensors = {
        name: parameter.grad for name, parameter in reference.named_parameters() if parameter.grad is not None
    }
    tensors |= {
        name: torch.zeros_like(buffer) for name, buffer in reference.named_buffers() if name == "final_logits_bias"
    }
    gradient_model = copy.deepcopy(imported.model)
    mappings = expand_patterns(family.patterns, imported.config.model.n_layers)
    load_published_tensors(
        gradient_model,
        mappings,
        add_prefix_and_aliases(family, tensors),
        path="gradients",
        ignored_patterns=family.ignored_tensors,
    )
    return dict(gradient_model.named_parameters())


def decode_greedy(
    imported: ImportedModel, prompts: list[list[int]], steps: int, start: int | None = None
) -> list[list[int]]:
    """The best token each time, with keys and values kept; a translator takes none twice: it would repeat one."""
    adapter: Any = (
        DecoderAdapter(imported.model, imported.sizes.max_len)
        if start is None
        else Seq2SeqAdapter(imported.model, imported.sizes.max_len, bos=start)
    )
    stepper = adapter.build_stepper()
    generated = torch.full((len(prompts), 0 if start is None else 1), start or 0)
    with torch.no_grad():
        logits = stepper.append_rows(prompts)
        for _ in range(steps):
            allowed_logits = logits if start is None else logits.scatter(1, generated, float("-inf"))
            generated = torch.cat([generated, allowed_logits.argmax(-1, keepdim=True)], dim=1)
            logits = stepper.step(generated[:, -1:])[:, 0]
    return generated[:, -steps:].tolist()


def rewrite_tensors(folder: Path, change: Any) -> Path:
    """The folder with its tensors changed."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder


def edit_config(folder: Path, **changes: Any) -> Path:
    """The folder with its config.json changed; None takes a key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def run_readme(folder: Path) -> str:
    """What the Python of an exported README prints, run as it stands."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.S)
    assert code is not None
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code[1], {})
    return stdout.getvalue().removesuffix("\n")
