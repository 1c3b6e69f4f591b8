"""BlenderBot: an encoder-decoder with learned positions and pre-norm layers, like Triform's default."""

from __future__ import annotations

from typing import Any

from triform.config import Config, DataSizes
from triform.config.settings import Settings
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint
from triform.pretrained.family import ConfigKey, Family, ImportSpec, require_size
from triform.pretrained.marian import (
    CROSS_ATTN_NAMES,
    FFN_NAMES,
    MARIAN,
    SELF_ATTN_NAMES,
    activation_dropout_notices,
    require_joint_vocab,
    validate_symmetry,
)
from triform.pretrained.name_mapping import WEIGHT_ONLY, layer_patterns, name_pattern

PATTERNS = (
    name_pattern("encoder.embedding.token_embedding", "model.shared", suffixes=WEIGHT_ONLY),
    name_pattern(
        "encoder.embedding.position_embedding.table", "model.encoder.embed_positions", suffixes=WEIGHT_ONLY
    ),
    name_pattern("embedding.position_embedding.table", "model.decoder.embed_positions", suffixes=WEIGHT_ONLY),
    *layer_patterns("encoder.blocks", "model.encoder.layers", SELF_ATTN_NAMES | FFN_NAMES),
    *layer_patterns("blocks", "model.decoder.layers", SELF_ATTN_NAMES | CROSS_ATTN_NAMES | FFN_NAMES),
    name_pattern("encoder.final_norm", "model.encoder.layer_norm"),
    name_pattern("final_norm", "model.decoder.layer_norm"),
    name_pattern("lm_head", "lm_head", suffixes=WEIGHT_ONLY),
    name_pattern("lm_head", "final_logits_bias", "row", suffixes=((".bias", ""),)),
)


def _read_spec(checkpoint: PretrainedCheckpoint, settings: Settings) -> ImportSpec:
    validate_symmetry(checkpoint)
    return ImportSpec(
        model_settings=settings,
        vocab_size=require_size(checkpoint, "vocab_size", 8_008),
        max_len=require_size(checkpoint, "max_position_embeddings", 128),
        notices=activation_dropout_notices(checkpoint),
    )


def _write_config(config: Config, sizes: DataSizes) -> dict[str, Any]:
    model = config.model
    return {
        "architectures": ["BlenderbotForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_len,
        "tie_word_embeddings": True,
        "decoder_layers": model.n_layers,
        "decoder_ffn_dim": model.d_ff,
        "decoder_attention_heads": model.n_heads,
        # turn off BlenderBot's defaults for conversations, which do not suit translation
        "forced_eos_token_id": None,
        "encoder_no_repeat_ngram_size": 0,
    }


BLENDERBOT = Family(
    name="blenderbot",
    model_types=("blenderbot",),
    task="translate",
    prefix="model.",
    config_keys=(
        ConfigKey("d_model", "d_model", 2_560),
        ConfigKey("encoder_layers", "n_layers", 2),
        ConfigKey("encoder_ffn_dim", "d_ff", 10_240),
        ConfigKey("encoder_attention_heads", "n_heads", 32),
        ConfigKey("activation_function", "activation", "gelu"),
        ConfigKey("dropout", "dropout", 0.1),
        ConfigKey("attention_dropout", "attention_dropout", 0.0),
        ConfigKey("scale_embedding", "scale_embeddings", False),
    ),
    fixed_settings={**MARIAN.fixed_settings, "positions": "learned", "norm_position": "pre", "final_norm": True},
    patterns=PATTERNS,
    read_spec=_read_spec,
    write_config=_write_config,
    find_extra_mismatches=require_joint_vocab("blenderbot"),
    required_values={"tie_word_embeddings": True},
    ignored_settings=MARIAN.ignored_settings,
    tensor_aliases={"model.encoder.embed_tokens.weight": "model.shared.weight"},
    ignored_tensors=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
)
