"""Llama: rotary positions with optional scaling, RMSNorm, SwiGLU, grouped-query attention, optional biases."""

from __future__ import annotations

from typing import Any

from triform.config import Config, DataSizes
from triform.config.settings import Settings
from triform.errors import ConfigError
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint
from triform.pretrained.family import (
    CLASSIFIER_SETTINGS,
    IGNORED_SETTINGS,
    ConfigKey,
    Family,
    ImportSpec,
    require_float,
    require_size,
)
from triform.pretrained.name_mapping import WEIGHT_ONLY, name_pattern

ROPE_TYPES = ("default", "linear", "llama3", "dynamic")
ROPE_SCALING_KEYS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
PATTERNS = (
    name_pattern("embedding.token_embedding", "model.embed_tokens", suffixes=WEIGHT_ONLY),
    name_pattern("blocks.*.attn_norm", "model.layers.*.input_layernorm", suffixes=WEIGHT_ONLY),
    name_pattern("blocks.*.attn.q_proj", "model.layers.*.self_attn.q_proj"),
    name_pattern("blocks.*.attn.kv_proj", "model.layers.*.self_attn.k_proj model.layers.*.self_attn.v_proj"),
    name_pattern("blocks.*.attn.out_proj", "model.layers.*.self_attn.o_proj"),
    name_pattern("blocks.*.ffn_norm", "model.layers.*.post_attention_layernorm", suffixes=WEIGHT_ONLY),
    name_pattern("blocks.*.ffn.up_proj", "model.layers.*.mlp.gate_proj model.layers.*.mlp.up_proj"),
    name_pattern("blocks.*.ffn.down_proj", "model.layers.*.mlp.down_proj"),
    name_pattern("final_norm", "model.norm", suffixes=WEIGHT_ONLY),
    name_pattern("lm_head", "lm_head", suffixes=WEIGHT_ONLY),
)


def _read_spec(checkpoint: PretrainedCheckpoint, settings: Settings) -> ImportSpec:
    config, path = checkpoint.config, checkpoint.config_path
    base, scaling, notices = read_rope_settings(checkpoint)
    model = {
        **settings,
        "n_kv_heads": settings["n_kv_heads"] or settings["n_heads"],
        "out_bias": "yes" if settings["qkv_bias"] else "no",
        "dropout": 0.0,
        "rotary_base": base,
        "rotary_scaling": scaling,
    }
    expected_head_dim = require_size(checkpoint, "hidden_size", 4_096) // require_size(
        checkpoint, "num_attention_heads", 32
    )
    if (config.get("head_dim") or expected_head_dim) != expected_head_dim:
        raise ConfigError(
            f"{path}: head_dim={config['head_dim']} is not supported; "
            f"it must be hidden_size / num_attention_heads ({expected_head_dim})"
        )
    return ImportSpec(
        model_settings=model,
        vocab_size=require_size(checkpoint, "vocab_size", 32_000),
        max_len=require_size(checkpoint, "max_position_embeddings", 2_048),
        notices=notices,
    )


def read_rope_settings(checkpoint: PretrainedCheckpoint) -> tuple[float, tuple[float, ...], tuple[str, ...]]:
    """Return the base and the scaling of rotary positions, and notices. Old and new key names are supported."""
    config, path = checkpoint.config, checkpoint.config_path
    rope_config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope_config, dict):
        raise ConfigError(f"{path}: rope_scaling must be an object with rope_type, found {rope_config!r}")
    rope_type = rope_config.get("rope_type", rope_config.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ConfigError(
            f"{path}: rope_type={rope_type!r} is not supported; it must be one of {', '.join(ROPE_TYPES)}"
        )
    if rope_config.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            f"{path}: partial_rotary_factor is not supported; Triform rotates all dimensions of a head"
        )
    max_positions = require_size(checkpoint, "max_position_embeddings", 2_048)
    defaults = {"rope_theta": config.get("rope_theta", 10_000.0), "original_max_position_embeddings": max_positions}
    try:
        base, *scaling = (
            require_float(path, key, {**defaults, **rope_config}[key])
            for key in ("rope_theta", *ROPE_SCALING_KEYS.get(rope_type, ()))
        )
    except KeyError as error:
        raise ConfigError(f"{path}: rope_type={rope_type!r} requires the key {error}, which is missing") from None
    notice = (
        f"dynamic rotary scaling has no effect: it starts beyond {max_positions} tokens, the maximum length here"
    )
    return base, tuple(scaling), (notice,) if rope_type == "dynamic" else ()


def _write_config(config: Config, sizes: DataSizes) -> dict[str, Any]:
    model = config.model
    rope_config: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rotary_base}
    if len(model.rotary_scaling) == 1:
        rope_config |= {"rope_type": "linear", "factor": model.rotary_scaling[0]}
    elif model.rotary_scaling:
        factor, low, high, original = model.rotary_scaling
        rope_config |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        rope_config |= {"original_max_position_embeddings": int(original)}
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_len,
        "head_dim": model.head_dim,
        "rope_parameters": rope_config,
        # keys that older versions of transformers read
        "rope_theta": model.rotary_base,
        "rope_scaling": {name: value for name, value in rope_config.items() if name != "rope_theta"}
        if model.rotary_scaling
        else None,
    }


def _find_mismatches(config: Config, sizes: DataSizes) -> list[str]:
    model = config.model
    if model.has_out_bias == model.qkv_bias:
        return []
    return [
        f"model.out_bias={model.out_bias} with model.qkv_bias={model.qkv_bias} (llama requires both or neither)"
    ]


LLAMA = Family(
    name="llama",
    model_types=("llama",),
    task="generate",
    prefix="model.",
    config_keys=(
        ConfigKey("hidden_size", "d_model", 4_096),
        ConfigKey("intermediate_size", "d_ff", 11_008),
        ConfigKey("num_hidden_layers", "n_layers", 32),
        ConfigKey("num_attention_heads", "n_heads", 32),
        ConfigKey("num_key_value_heads", "n_kv_heads", 0),
        ConfigKey("rms_norm_eps", "norm_eps", 1e-6),
        ConfigKey("attention_dropout", "attention_dropout", 0.0),
        ConfigKey("attention_bias", "qkv_bias", False),
        ConfigKey("mlp_bias", "bias", False),
        ConfigKey("tie_word_embeddings", "tie_embeddings", False),
    ),
    fixed_settings={
        "positions": "rotary",
        "norm": "rms",
        "norm_position": "pre",
        "final_norm": True,
        "embedding_norm": False,
        "n_segments": 0,
        "activation": "swiglu",
        "scale_embeddings": False,
        "head_bias": False,
    },
    patterns=PATTERNS,
    read_spec=_read_spec,
    write_config=_write_config,
    find_extra_mismatches=_find_mismatches,
    required_values={"hidden_act": "silu", "pretraining_tp": 1},
    ignored_settings=(
        *IGNORED_SETTINGS,
        *CLASSIFIER_SETTINGS,
        "dropout",
        "out_bias",
        "rotary_base",
        "rotary_scaling",
    ),
    ignored_tensors=("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
    other_heads=("score.*",),
    write_zero_biases=False,
)
