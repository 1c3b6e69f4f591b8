"""The Llama family: rotary positions, also scaled, RMSNorm, SwiGLU, grouped heads, no biases but where said."""

from __future__ import annotations

from typing import Any

from triform.config import Config, Sizes
from triform.errors import ConfigError
from triform.pretrained.family import FREE, Family, Shape, Word, real, whole
from triform.pretrained.gpt2 import CLASSIFIERS_OWN
from triform.pretrained.names import WEIGHT, pair
from triform.pretrained.read import Foreign
from triform.settings import Settings

SCALINGS = ("default", "linear", "llama3", "dynamic")
SCALED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
PAIRS = (
    pair("embedding.tokens", "model.embed_tokens", endings=WEIGHT),
    pair("blocks.*.attend.norm", "model.layers.*.input_layernorm", endings=WEIGHT),
    pair("blocks.*.attention.query", "model.layers.*.self_attn.q_proj"),
    pair("blocks.*.attention.key_value", "model.layers.*.self_attn.k_proj model.layers.*.self_attn.v_proj"),
    pair("blocks.*.attention.out", "model.layers.*.self_attn.o_proj"),
    pair("blocks.*.think.norm", "model.layers.*.post_attention_layernorm", endings=WEIGHT),
    pair("blocks.*.feedforward.up", "model.layers.*.mlp.gate_proj model.layers.*.mlp.up_proj"),
    pair("blocks.*.feedforward.down", "model.layers.*.mlp.down_proj"),
    pair("norm", "model.norm", endings=WEIGHT),
    pair("head", "lm_head", endings=WEIGHT),
)


def _read(foreign: Foreign, said: Settings) -> Shape:
    config, place = foreign.config, foreign.where
    base, scaling, notices = rotary(foreign)
    model = {
        **said,
        "n_kv_heads": said["n_kv_heads"] or said["n_heads"],
        "out_bias": "yes" if said["qkv_bias"] else "no",
        "dropout": 0.0,
        "rotary_base": base,
        "rotary_scaling": scaling,
    }
    usual = whole(foreign, "hidden_size", 4_096) // whole(foreign, "num_attention_heads", 32)
    if (config.get("head_dim") or usual) != usual:
        raise ConfigError(
            f"{place}: head_dim={config['head_dim']} is not done: here it is d_model / n_heads, {usual}"
        )
    return Shape(
        model=model,
        vocab_size=whole(foreign, "vocab_size", 32_000),
        max_len=whole(foreign, "max_position_embeddings", 2_048),
        notices=notices,
    )


def rotary(foreign: Foreign) -> tuple[float, tuple[float, ...], tuple[str, ...]]:
    """Base and scaling of rotary positions, as old and new files tell them, and what there is to say of it."""
    config, place = foreign.config, foreign.where
    told = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(told, dict):
        raise ConfigError(f"{place}: rotary scaling is {told!r}, where an object with rope_type is expected")
    kind = told.get("rope_type", told.get("type", "default"))
    if kind not in SCALINGS:
        raise ConfigError(
            f"{place}: rotary scaling of the kind {kind!r} is not done; known are {', '.join(SCALINGS)}"
        )
    if told.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"{place}: partial_rotary_factor is not done: heads turn whole")
    most = whole(foreign, "max_position_embeddings", 2_048)
    usual = {"rope_theta": config.get("rope_theta", 10_000.0), "original_max_position_embeddings": most}
    try:
        base, *scaling = (real(place, key, {**usual, **told}[key]) for key in ("rope_theta", *SCALED.get(kind, ())))
    except KeyError as error:
        raise ConfigError(f"{place}: rotary scaling of the kind {kind!r} lacks {error}") from None
    note = f"dynamic rotary scaling begins beyond {most} tokens, and no more are read here: it changes nothing"
    return base, tuple(scaling), (note,) if kind == "dynamic" else ()


def _write(config: Config, sizes: Sizes) -> dict[str, Any]:
    model = config.model
    turning: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rotary_base}
    if len(model.rotary_scaling) == 1:
        turning |= {"rope_type": "linear", "factor": model.rotary_scaling[0]}
    elif model.rotary_scaling:
        factor, low, high, original = model.rotary_scaling
        turning |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        turning |= {"original_max_position_embeddings": int(original)}
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_len,
        "head_dim": model.head_dim,
        "rope_parameters": turning,
        # as files of before 2026 tell it
        "rope_theta": model.rotary_base,
        "rope_scaling": {name: value for name, value in turning.items() if name != "rope_theta"}
        if model.rotary_scaling
        else None,
    }


def _unfit(config: Config, sizes: Sizes) -> list[str]:
    model = config.model
    if model.has_out_bias == model.qkv_bias:
        return []
    return [f"model.out_bias={model.out_bias} with model.qkv_bias={model.qkv_bias} (llama has both or neither)"]


LLAMA = Family(
    name="llama",
    kinds=("llama",),
    task="generate",
    prefix="model.",
    words=(
        Word("hidden_size", "d_model", 4_096),
        Word("intermediate_size", "d_ff", 11_008),
        Word("num_hidden_layers", "n_layers", 32),
        Word("num_attention_heads", "n_heads", 32),
        Word("num_key_value_heads", "n_kv_heads", 0),
        Word("rms_norm_eps", "norm_eps", 1e-6),
        Word("attention_dropout", "attention_dropout", 0.0),
        Word("attention_bias", "qkv_bias", False),
        Word("mlp_bias", "bias", False),
        Word("tie_word_embeddings", "tie_embeddings", False),
    ),
    fixed={
        "positions": "rotary",
        "norm": "rms",
        "norm_position": "pre",
        "final_norm": True,
        "embedding_norm": False,
        "segments": 0,
        "activation": "swiglu",
        "scale_embeddings": False,
        "head_bias": False,
    },
    pairs=PAIRS,
    read=_read,
    write=_write,
    unfit=_unfit,
    only={"hidden_act": "silu", "pretraining_tp": 1},
    free=(*FREE, *CLASSIFIERS_OWN, "dropout", "out_bias", "rotary_base", "rotary_scaling"),
    ignored=("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
    others=("score.*",),
    zeros=False,
)
