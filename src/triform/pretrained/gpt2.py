"""GPT-2: learned positions, pre-norm layers, transposed matrices, tied output embeddings."""

from __future__ import annotations

from typing import Any

from triform.config import Config, DataSizes
from triform.config.settings import Settings
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint
from triform.pretrained.family import (
    IGNORED_WITHOUT_ROTARY,
    ConfigKey,
    Family,
    ImportSpec,
    require_size,
)
from triform.pretrained.head_bias import fold_head_bias
from triform.pretrained.name_mapping import WEIGHT_ONLY, name_pattern

FIXED_SETTINGS: Settings = {
    "positions": "learned",
    "norm": "layer",
    "norm_position": "pre",
    "final_norm": True,
    "embedding_norm": False,
    "n_segments": 0,
    "n_kv_heads": 0,
    "scale_embeddings": False,
    "rotary_scaling": (),
}
# GPT-2 stores the weights of its linear layers transposed, because they are 1-D convolutions.
PATTERNS = (
    name_pattern("embedding.token_embedding", "transformer.wte", suffixes=WEIGHT_ONLY),
    name_pattern("embedding.position_embedding.table", "transformer.wpe", suffixes=WEIGHT_ONLY),
    name_pattern("blocks.*.attn_norm", "transformer.h.*.ln_1"),
    name_pattern("blocks.*.attn.q_proj blocks.*.attn.kv_proj", "transformer.h.*.attn.c_attn", "transposed"),
    name_pattern("blocks.*.attn.out_proj", "transformer.h.*.attn.c_proj", "transposed"),
    name_pattern("blocks.*.ffn_norm", "transformer.h.*.ln_2"),
    name_pattern("blocks.*.ffn.up_proj", "transformer.h.*.mlp.c_fc", "transposed"),
    name_pattern("blocks.*.ffn.down_proj", "transformer.h.*.mlp.c_proj", "transposed"),
    name_pattern("final_norm", "transformer.ln_f"),
    name_pattern("lm_head", "lm_head", suffixes=WEIGHT_ONLY),
)


def _read_spec(checkpoint: PretrainedCheckpoint, settings: Settings) -> ImportSpec:
    model = {"bias": True, "qkv_bias": True, "head_bias": False, **settings}
    model["d_ff"] = model["d_ff"] or 4 * int(str(model["d_model"]))
    residual_dropout, embedding_dropout = (checkpoint.config.get(key, 0.1) for key in ("resid_pdrop", "embd_pdrop"))
    return ImportSpec(
        model_settings=model,
        vocab_size=require_size(checkpoint, "vocab_size", 50_257),
        max_len=require_size(checkpoint, "n_positions", 1_024),
        notices=(f"embd_pdrop is ignored; embeddings use the dropout of the residual stream ({residual_dropout})",)
        if residual_dropout != embedding_dropout
        else (),
    )


def _write_config(config: Config, sizes: DataSizes) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": sizes.vocab_size,
        "n_positions": sizes.max_len,
        "n_ctx": sizes.max_len,
        "embd_pdrop": config.model.dropout,
    }


GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    task="generate",
    prefix="transformer.",
    config_keys=(
        ConfigKey("n_embd", "d_model", 768),
        ConfigKey("n_layer", "n_layers", 12),
        ConfigKey("n_head", "n_heads", 12),
        ConfigKey("n_inner", "d_ff", 0),
        ConfigKey("activation_function", "activation", "gelu_new"),
        ConfigKey("layer_norm_epsilon", "norm_eps", 1e-5),
        ConfigKey("resid_pdrop", "dropout", 0.1),
        ConfigKey("attn_pdrop", "attention_dropout", 0.1),
        ConfigKey("tie_word_embeddings", "tie_embeddings", True),
    ),
    fixed_settings=FIXED_SETTINGS,
    patterns=PATTERNS,
    read_spec=_read_spec,
    write_config=_write_config,
    required_values={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    ignored_settings=IGNORED_WITHOUT_ROTARY,
    adapt_model=fold_head_bias,
    ignored_tensors=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    other_heads=("score.*", "classifier.*"),
)
