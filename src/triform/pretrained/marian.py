"""Marian (OPUS-MT): sinusoidal positions, post-norm layers, one token embedding for both languages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from triform.config import Config, DataSizes
from triform.config.settings import Settings
from triform.errors import ConfigError
from triform.nn.embedding import MarianPositionEmbedding
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint
from triform.pretrained.family import (
    IGNORED_WITHOUT_ROTARY,
    ConfigKey,
    Family,
    ImportSpec,
    require_size,
)
from triform.pretrained.name_mapping import WEIGHT_ONLY, layer_patterns, name_pattern

SELF_ATTN_NAMES = {
    "attn.q_proj": "self_attn.q_proj",
    "attn.kv_proj": "self_attn.k_proj self_attn.v_proj",
}
SELF_ATTN_NAMES |= {"attn.out_proj": "self_attn.out_proj", "attn_norm": "self_attn_layer_norm"}
CROSS_ATTN_NAMES = {
    "cross_attn.q_proj": "encoder_attn.q_proj",
    "cross_attn.kv_proj": "encoder_attn.k_proj encoder_attn.v_proj",
}
CROSS_ATTN_NAMES |= {"cross_attn.out_proj": "encoder_attn.out_proj", "cross_attn_norm": "encoder_attn_layer_norm"}
FFN_NAMES = {"ffn.up_proj": "fc1", "ffn.down_proj": "fc2", "ffn_norm": "final_layer_norm"}
PATTERNS = (
    name_pattern("encoder.embedding.token_embedding", "model.shared", suffixes=WEIGHT_ONLY),
    name_pattern("embedding.token_embedding", "model.decoder.embed_tokens", suffixes=WEIGHT_ONLY),
    *layer_patterns("encoder.blocks", "model.encoder.layers", SELF_ATTN_NAMES | FFN_NAMES),
    *layer_patterns("blocks", "model.decoder.layers", SELF_ATTN_NAMES | CROSS_ATTN_NAMES | FFN_NAMES),
    name_pattern("lm_head", "lm_head", suffixes=WEIGHT_ONLY),
    name_pattern("lm_head", "final_logits_bias", "row", suffixes=((".bias", ""),)),
)
SYMMETRIC_KEYS = ("layers", "ffn_dim", "attention_heads")  # must be equal in encoder and decoder


def validate_symmetry(checkpoint: PretrainedCheckpoint) -> None:
    """Raise `ConfigError` if encoder and decoder differ in size."""
    for key in SYMMETRIC_KEYS:
        values = checkpoint.config.get(f"encoder_{key}"), checkpoint.config.get(f"decoder_{key}")
        if values[0] != values[1]:
            raise ConfigError(
                f"{checkpoint.config_path}: encoder_{key}={values[0]} and decoder_{key}={values[1]} differ; "
                "Triform supports only encoders and decoders of the same size"
            )


def activation_dropout_notices(checkpoint: PretrainedCheckpoint) -> tuple[str, ...]:
    """Return a notice if a checkpoint was trained with dropout inside its feed-forward layers."""
    activation_dropout = checkpoint.config.get("activation_dropout") or 0
    return (
        (f"activation_dropout={activation_dropout} is ignored; Triform has no dropout inside feed-forward layers",)
        if activation_dropout
        else ()
    )


def _read_spec(checkpoint: PretrainedCheckpoint, settings: Settings) -> ImportSpec:
    config = checkpoint.config
    validate_symmetry(checkpoint)
    _validate_positions(checkpoint, int(str(settings["d_model"])))
    vocab_size = require_size(checkpoint, "vocab_size", 58_101)
    shared = config.get("share_encoder_decoder_embeddings", True)
    return ImportSpec(
        model_settings=settings,
        vocab_size=vocab_size,
        max_len=require_size(checkpoint, "max_position_embeddings", 1_024),
        target_vocab_size=0 if shared else require_size(checkpoint, "decoder_vocab_size", vocab_size),
        notices=activation_dropout_notices(checkpoint),
    )


def _validate_positions(checkpoint: PretrainedCheckpoint, d_model: int) -> None:
    """Raise `ConfigError` if a stored position table, which older files have, differs from the computed one."""
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        table = checkpoint.tensors.get(name)
        if table is None:
            continue
        computed = MarianPositionEmbedding((*table.shape, 1)[0], d_model).table
        if table.shape != computed.shape or not torch.allclose(table.to(computed), computed, atol=1e-3):
            raise ConfigError(
                f"{checkpoint.folder}: {name} differs from the sinusoidal positions that Marian computes"
            )


def _write_config(config: Config, sizes: DataSizes) -> dict[str, Any]:
    model = config.model
    decoder_sizes = {"layers": model.n_layers, "ffn_dim": model.d_ff, "attention_heads": model.n_heads}
    return {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "vocab_size": sizes.vocab_size,
        "decoder_vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_len,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "static_position_embeddings": True,
        "num_hidden_layers": model.n_layers,
        "forced_eos_token_id": None,
        **{f"decoder_{size}": number for size, number in decoder_sizes.items()},
    }


def require_joint_vocab(name: str) -> Callable[[Config, DataSizes], list[str]]:
    """Return a check that source and target share one vocabulary."""
    problem = f"two vocabularies ({name} requires tokenizer.joint_vocab=true)"
    return lambda config, sizes: [problem] if sizes.target_vocab_size else []


MARIAN = Family(
    name="marian",
    model_types=("marian",),
    task="translate",
    prefix="model.",
    config_keys=(
        ConfigKey("d_model", "d_model", 1_024),
        ConfigKey("encoder_layers", "n_layers", 12),
        ConfigKey("encoder_ffn_dim", "d_ff", 4_096),
        ConfigKey("encoder_attention_heads", "n_heads", 16),
        ConfigKey("activation_function", "activation", "gelu"),
        ConfigKey("dropout", "dropout", 0.1),
        ConfigKey("attention_dropout", "attention_dropout", 0.0),
        ConfigKey("scale_embedding", "scale_embeddings", False),
    ),
    fixed_settings={
        "positions": "sinusoidal_halves",
        "norm": "layer",
        "norm_position": "post",
        "norm_eps": 0.0,
        "final_norm": False,
        "embedding_norm": False,
        "n_segments": 0,
        "n_kv_heads": 0,
        "tie_embeddings": True,
        "rotary_scaling": (),
    },
    patterns=PATTERNS,
    read_spec=_read_spec,
    write_config=_write_config,
    find_extra_mismatches=require_joint_vocab("marian"),
    required_values={
        "tie_word_embeddings": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
    },
    ignored_settings=IGNORED_WITHOUT_ROTARY,
    tensor_aliases={"model.encoder.embed_tokens.weight": "model.shared.weight"},
    ignored_tensors=("model.encoder.embed_tokens.weight", "model.*.embed_positions.weight"),
)
