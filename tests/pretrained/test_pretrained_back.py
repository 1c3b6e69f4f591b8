"""The way back: what was read is written as it was, and what Triform made itself loads in `transformers`."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from published import TINY_MODELS, random_tokens, relative_difference, save_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from triform.config import Config, DataConfig, DataSizes, ModelConfig
from triform.errors import CheckpointError, ConfigError
from triform.pretrained import load_pretrained, to_hf
from triform.pretrained.families import FAMILIES
from triform.pretrained.family import COMMON_SETTINGS, Family
from triform.pretrained.model_export import find_matching_family
from triform.pretrained.model_import import MODEL_CLASSES

AUTO_CLASSES = {"generate": "AutoModelForCausalLM", "classify": "AutoModelForSequenceClassification"}
AUTO_CLASSES["translate"] = "AutoModelForSeq2SeqLM"
SIZES = DataSizes(vocab_size=61, max_len=24, n_labels=3)
JOINT_VOCAB_MODELS = [name for name in TINY_MODELS if name != "marian of two vocabularies"]

# What is told in other words: a width left open, a dropout of its own, a synonym, a scaling without effect.
DIFFERING_KEYS = {"gpt2": "n_inner", "distilbert": "seq_classif_dropout", "marian": "activation_function"}
DIFFERING_KEYS["llama dynamic"] = "rope_parameters"


def load_in_transformers(
    model: nn.Module, config: Config, folder: Path, special_tokens: dict[str, int] | None = None
) -> Any:
    """The model written down as others keep theirs, and read by `transformers`."""
    hf_config, tensors = to_hf(model, config, special_tokens)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    pools_token_logits = config.task == "classify" and config.model.pooling == "mean"
    auto_class = "AutoModelForTokenClassification" if pools_token_logits else AUTO_CLASSES[config.task]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded_model, loading_info = getattr(transformers, auto_class).from_pretrained(
            folder, output_loading_info=True
        )
    missing = {name for name in loading_info["missing_keys"] if "embed_positions" not in name}
    assert not missing
    assert not loading_info["unexpected_keys"]
    assert not loading_info["mismatched_keys"]
    return loaded_model.eval()


def compare_logits(reference: Any, model: nn.Module, task: str) -> float:
    model.eval()
    with torch.no_grad():
        if task == "translate":
            target = random_tokens(length=6, seed=6)
            return relative_difference(
                model(random_tokens(), target),
                reference(input_ids=random_tokens(), decoder_input_ids=target).logits,
            )
        logits = reference(input_ids=random_tokens()).logits
        pools_token_logits = task == "classify" and logits.ndim == 3
        return relative_difference(model(random_tokens()), logits.mean(1) if pools_token_logits else logits)


@pytest.mark.parametrize("name", JOINT_VOCAB_MODELS)
def test_what_was_read_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    case = TINY_MODELS[name]
    folder = save_model(case.build(), tmp_path / "theirs")
    imported = load_pretrained(folder, case.task)
    hf_config, tensors = to_hf(imported.model, imported.config, imported.special_tokens)
    original_tensors: dict[str, Tensor] = load_file(folder / "model.safetensors")
    # Which it computes.
    positions = {
        tensor_name for tensor_name in original_tensors if "embed_positions" in tensor_name and "marian" in name
    }
    assert tensors.keys() == original_tensors.keys() - positions
    assert all(torch.equal(tensors[tensor_name], original_tensors[tensor_name]) for tensor_name in tensors)
    original_config = json.loads((folder / "config.json").read_text())
    differing = {key for key in hf_config if key in original_config and hf_config[key] != original_config[key]}
    assert differing == ({DIFFERING_KEYS[name]} if name in DIFFERING_KEYS else set())
    assert hf_config["architectures"] == original_config["architectures"]


@pytest.mark.parametrize("name", JOINT_VOCAB_MODELS)
def test_transformers_reads_what_was_written_with_equal_logits(name: str, tmp_path: Path) -> None:
    case = TINY_MODELS[name]
    imported = load_pretrained(save_model(case.build(), tmp_path / "theirs"), case.task)
    reference = load_in_transformers(imported.model, imported.config, tmp_path / "back", imported.special_tokens)
    assert compare_logits(reference, imported.model, case.task) < 1e-5


BASE_SETTINGS = {"d_model": 16, "d_ff": 24, "n_layers": 2, "n_heads": 4, "dropout": 0.0}
MARIAN_SETTINGS = {"positions": "sinusoidal_halves", "norm_position": "post", "final_norm": False}
BERT_SETTINGS = {
    "norm_position": "post",
    "final_norm": False,
    "embedding_norm": True,
    "pooling": "first",
    "head_hidden": 16,
}
NO_BIAS_SETTINGS = {"bias": False, "qkv_bias": False, "head_bias": False}
TRIFORM_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("generate", {"head_bias": False}),
    "gpt2 without biases": (
        "generate",
        {"head_bias": False, "bias": False, "qkv_bias": False, "activation": "relu"},
    ),
    "gpt2 untied, half of its biases": (
        "generate",
        {"head_bias": False, "tie_embeddings": False, "out_bias": "no"},
    ),
    "llama": (
        "generate",
        {
            "positions": "rotary",
            "norm": "rms",
            "activation": "swiglu",
            "bias": False,
            "qkv_bias": False,
            "head_bias": False,
            "n_kv_heads": 2,
            "rotary_scaling": (2.0,),
        },
    ),
    "bert": ("classify", BERT_SETTINGS | {"head_activation": "tanh", "n_segments": 1}),
    "distilbert": ("classify", BERT_SETTINGS | {"norm_eps": 1e-12, "qkv_bias": False, "head_bias": False}),
    "gpt2 with a bias in its head": ("generate", {}),
    "gpt2 with a bias in its head alone": (
        "generate",
        NO_BIAS_SETTINGS | {"head_bias": True, "tie_embeddings": False},
    ),
    "bert of one kind of text": ("classify", BERT_SETTINGS | {"head_activation": "tanh"}),
    "bert by the mean": ("classify", BERT_SETTINGS | {"pooling": "mean", "head_hidden": 0}),
    "megatron-bert by the mean": ("classify", {}),
    "megatron-bert": ("classify", {"pooling": "first", "head_hidden": 16, "head_activation": "tanh"}),
    "blenderbot": ("translate", {}),
    "blenderbot without biases": ("translate", NO_BIAS_SETTINGS),
    "marian": ("translate", MARIAN_SETTINGS | {"scale_embeddings": True}),
    "marian without biases": ("translate", MARIAN_SETTINGS | NO_BIAS_SETTINGS),
}


@pytest.mark.parametrize("name", TRIFORM_MODELS)
def test_a_model_of_our_own_loads_in_transformers_with_equal_logits(name: str, tmp_path: Path) -> None:
    task, settings = TRIFORM_MODELS[name]
    data = DataConfig(max_len=24, labels=("a", "b", "c") if task == "classify" else ())
    config = Config(task=task, model=ModelConfig(**BASE_SETTINGS | settings), data=data)
    model = MODEL_CLASSES[task](config.model, SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    reference = load_in_transformers(model, config, tmp_path)
    assert reference.config.model_type == name.split()[0]
    assert compare_logits(reference, model, task) < 1e-5
    if task == "classify":
        assert reference.config.id2label == {0: "a", 1: "b", 2: "c"}
    reimported = load_pretrained(tmp_path, task)
    assert reimported.sizes == (SIZES if task == "classify" else DataSizes(vocab_size=61, max_len=24))
    assert compare_logits(reference, reimported.model, task) < 1e-5


@pytest.mark.parametrize(
    ("task", "settings", "unsupported_setting"),
    [
        ("generate", {"head_bias": False, "positions": "alibi"}, "model.positions=alibi (gpt2 requires learned)"),
        ("generate", {"head_bias": False, "window": 8}, "model.window=8 (gpt2 requires -1)"),
        (
            "generate",
            {"head_bias": False, "attention_score": "cosine"},
            "model.attention_score=cosine (gpt2 requires scaled_dot)",
        ),
        (
            "generate",
            TRIFORM_MODELS["llama"][1] | {"qkv_bias": True},
            "model.out_bias=auto with model.qkv_bias=True",
        ),
        (
            "generate",
            {"head_bias": False, "activation": "swiglu"},
            "model.activation=swiglu (gpt2 requires one of gelu_new",
        ),
        (
            "classify",
            TRIFORM_MODELS["bert"][1] | {"pooling": "mean"},
            "model.head_hidden=16 (bert requires 0 with model.pooling=mean)",
        ),
        ("classify", TRIFORM_MODELS["bert"][1] | {"pooling": "last"}, "model.pooling=last (bert requires first)"),
        ("classify", TRIFORM_MODELS["bert"][1] | {"n_segments": 0, "head_hidden": 7}, "model.head_hidden=7"),
        (
            "classify",
            TRIFORM_MODELS["bert"][1] | {"attention_direction": "causal"},
            "model.attention_direction=causal (bert is bidirectional)",
        ),
        (
            "translate",
            MARIAN_SETTINGS | {"attention_direction": "causal"},
            "model.attention_direction=causal (marian is bidirectional)",
        ),
        (
            "translate",
            MARIAN_SETTINGS | {"positions": "learned"},
            "model.positions=learned (marian requires sinusoidal_halves)",
        ),
        (
            "translate",
            MARIAN_SETTINGS | {"tie_embeddings": False},
            "model.tie_embeddings=False (marian requires True)",
        ),
    ],
)
def test_where_nothing_fits_the_setting_in_the_way_is_named(
    task: Any, settings: Any, unsupported_setting: str
) -> None:
    config = Config(task=task, model=ModelConfig(**BASE_SETTINGS | settings), data=DataConfig(max_len=24))
    with pytest.raises(ConfigError) as caught:
        to_hf(MODEL_CLASSES[task](config.model, SIZES), config)
    message = str(caught.value)
    assert message.startswith("no model of transformers supports these settings: ")
    assert unsupported_setting in message
    assert "\n" not in message


def test_a_parameter_without_a_place_is_not_lost_silently(tmp_path: Path) -> None:
    imported = load_pretrained(save_model(TINY_MODELS["gpt2"].build(), tmp_path), "generate")
    imported.model.blocks[0].attn.q_proj.register_parameter("down", nn.Parameter(torch.zeros(2)))
    with pytest.raises(CheckpointError, match=r"blocks\.0\.attn\.q_proj\.down does not exist in this family"):
        to_hf(imported.model, imported.config)


def test_two_vocabularies_cannot_be_exported() -> None:
    config = Config(
        task="translate", model=ModelConfig(**BASE_SETTINGS | MARIAN_SETTINGS), data=DataConfig(max_len=24)
    )
    with pytest.raises(ConfigError, match=r"two vocabularies \(marian requires tokenizer\.joint_vocab=true\)"):
        find_matching_family(config, DataSizes(vocab_size=61, max_len=24, target_vocab_size=71))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_setting_of_a_model_is_told_fixed_or_known_to_be_free(family: Family) -> None:
    """A new setting is put into one of these, or a model that has it would be written as one that does not."""
    mapped = {config_key.setting for config_key in family.config_keys}
    all_settings = {field.name for field in fields(ModelConfig)}
    assert (
        mapped | family.fixed_settings.keys() | COMMON_SETTINGS.keys() | set(family.ignored_settings)
        == all_settings
    )
    assert not mapped & family.fixed_settings.keys()
