"""BlenderBot's encoder-decoder: learned positions and norms before each sublayer. A default translator is one."""

from __future__ import annotations

from typing import Any

from triform.config import Config, Sizes
from triform.pretrained.family import Family, Shape, Word, whole
from triform.pretrained.marian import CROSS, MARIAN, SELF, THINK, check_sides, dropout_notices, one_vocabulary
from triform.pretrained.names import WEIGHT, layers, pair
from triform.pretrained.read import Foreign
from triform.settings import Settings

PAIRS = (
    pair("encoder.embedding.tokens", "model.shared", endings=WEIGHT),
    pair("encoder.embedding.positions.table", "model.encoder.embed_positions", endings=WEIGHT),
    pair("embedding.positions.table", "model.decoder.embed_positions", endings=WEIGHT),
    *layers("encoder.blocks", "model.encoder.layers", SELF | THINK),
    *layers("blocks", "model.decoder.layers", SELF | CROSS | THINK),
    pair("encoder.norm", "model.encoder.layer_norm"),
    pair("norm", "model.decoder.layer_norm"),
    pair("head", "lm_head", endings=WEIGHT),
    pair("head", "final_logits_bias", "row", endings=((".bias", ""),)),
)


def _read(foreign: Foreign, said: Settings) -> Shape:
    check_sides(foreign)
    return Shape(
        model=said,
        vocab_size=whole(foreign, "vocab_size", 8_008),
        max_len=whole(foreign, "max_position_embeddings", 128),
        notices=dropout_notices(foreign),
    )


def _write(config: Config, sizes: Sizes) -> dict[str, Any]:
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
        # BlenderBot's own habits in a conversation, which a translator does not have
        "forced_eos_token_id": None,
        "encoder_no_repeat_ngram_size": 0,
    }


BLENDERBOT = Family(
    name="blenderbot",
    kinds=("blenderbot",),
    task="translate",
    prefix="model.",
    words=(
        Word("d_model", "d_model", 2_560),
        Word("encoder_layers", "n_layers", 2),
        Word("encoder_ffn_dim", "d_ff", 10_240),
        Word("encoder_attention_heads", "n_heads", 32),
        Word("activation_function", "activation", "gelu"),
        Word("dropout", "dropout", 0.1),
        Word("attention_dropout", "attention_dropout", 0.0),
        Word("scale_embedding", "scale_embeddings", False),
    ),
    fixed={**MARIAN.fixed, "positions": "learned", "norm_position": "pre", "final_norm": True},
    pairs=PAIRS,
    read=_read,
    write=_write,
    unfit=one_vocabulary("blenderbot"),
    only={"tie_word_embeddings": True},
    free=MARIAN.free,
    aliases={"model.encoder.embed_tokens.weight": "model.shared.weight"},
    ignored=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
)
