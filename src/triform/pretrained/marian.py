"""Marian's translators (OPUS-MT): fixed positions, norms after each sublayer, one table of tokens for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from triform.config import Config, Sizes
from triform.errors import ConfigError
from triform.nn.positions import SinusoidalHalves
from triform.pretrained.family import FREE, Family, Shape, Word, whole
from triform.pretrained.gpt2 import CLASSIFIERS_OWN
from triform.pretrained.names import WEIGHT, layers, pair
from triform.pretrained.read import Foreign
from triform.settings import Settings

SELF = {"attention.query": "self_attn.q_proj", "attention.key_value": "self_attn.k_proj self_attn.v_proj"}
SELF |= {"attention.out": "self_attn.out_proj", "attend.norm": "self_attn_layer_norm"}
CROSS = {"cross.query": "encoder_attn.q_proj", "cross.key_value": "encoder_attn.k_proj encoder_attn.v_proj"}
CROSS |= {"cross.out": "encoder_attn.out_proj", "consult.norm": "encoder_attn_layer_norm"}
THINK = {"feedforward.up": "fc1", "feedforward.down": "fc2", "think.norm": "final_layer_norm"}
PAIRS = (
    pair("encoder.embedding.tokens", "model.shared", endings=WEIGHT),
    pair("embedding.tokens", "model.decoder.embed_tokens", endings=WEIGHT),
    *layers("encoder.blocks", "model.encoder.layers", SELF | THINK),
    *layers("blocks", "model.decoder.layers", SELF | CROSS | THINK),
    pair("head", "lm_head", endings=WEIGHT),
    pair("head", "final_logits_bias", "row", endings=((".bias", ""),)),
)
SIDES = ("layers", "ffn_dim", "attention_heads")  # which we have alike in encoder and decoder


def check_sides(foreign: Foreign) -> None:
    """Refuse an encoder and a decoder of different shape."""
    for size in SIDES:
        both = foreign.config.get(f"encoder_{size}"), foreign.config.get(f"decoder_{size}")
        if both[0] != both[1]:
            raise ConfigError(
                f"{foreign.where}: encoder_{size}={both[0]} and decoder_{size}={both[1]}: "
                "here an encoder and its decoder have the same shape"
            )


def dropout_notices(foreign: Foreign) -> tuple[str, ...]:
    inner = foreign.config.get("activation_dropout") or 0
    return (f"dropout inside feedforward ({inner}) is not done here",) if inner else ()


def _read(foreign: Foreign, said: Settings) -> Shape:
    config = foreign.config
    check_sides(foreign)
    _check_positions(foreign, int(str(said["d_model"])))
    vocab_size = whole(foreign, "vocab_size", 58_101)
    shared = config.get("share_encoder_decoder_embeddings", True)
    return Shape(
        model=said,
        vocab_size=vocab_size,
        max_len=whole(foreign, "max_position_embeddings", 1_024),
        target_vocab_size=0 if shared else whole(foreign, "decoder_vocab_size", vocab_size),
        notices=dropout_notices(foreign),
    )


def _check_positions(foreign: Foreign, d_model: int) -> None:
    """Older files carry the table of positions along; it must be the one that is computed."""
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        table = foreign.tensors.get(name)
        if table is None:
            continue
        computed = SinusoidalHalves((*table.shape, 1)[0], d_model).table
        if table.shape != computed.shape or not torch.allclose(table.to(computed), computed, atol=1e-3):
            raise ConfigError(f"{foreign.place}: {name} is not the sinusoids that Marian computes")


def _write(config: Config, sizes: Sizes) -> dict[str, Any]:
    model = config.model
    alike = {"layers": model.n_layers, "ffn_dim": model.d_ff, "attention_heads": model.n_heads}
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
        **{f"decoder_{size}": number for size, number in alike.items()},
    }


def one_vocabulary(name: str) -> Callable[[Config, Sizes], list[str]]:
    problem = f"two vocabularies ({name} has one: tokenizer.shared=true)"
    return lambda config, sizes: [problem] if sizes.target_vocab_size else []


MARIAN = Family(
    name="marian",
    kinds=("marian",),
    task="translate",
    prefix="model.",
    words=(
        Word("d_model", "d_model", 1_024),
        Word("encoder_layers", "n_layers", 12),
        Word("encoder_ffn_dim", "d_ff", 4_096),
        Word("encoder_attention_heads", "n_heads", 16),
        Word("activation_function", "activation", "gelu"),
        Word("dropout", "dropout", 0.1),
        Word("attention_dropout", "attention_dropout", 0.0),
        Word("scale_embedding", "scale_embeddings", False),
    ),
    fixed={
        "positions": "sinusoidal_halves",
        "norm": "layer",
        "norm_position": "post",
        "norm_eps": 0.0,
        "final_norm": False,
        "embedding_norm": False,
        "segments": 0,
        "n_kv_heads": 0,
        "tie_embeddings": True,
        "rotary_scaling": (),
    },
    pairs=PAIRS,
    read=_read,
    write=_write,
    unfit=one_vocabulary("marian"),
    only={
        "tie_word_embeddings": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
    },
    free=(*FREE, *CLASSIFIERS_OWN, "rotary_base", "bias", "qkv_bias", "out_bias", "head_bias"),
    aliases={"model.encoder.embed_tokens.weight": "model.shared.weight"},
    ignored=("model.encoder.embed_tokens.weight", "model.*.embed_positions.weight"),
)
