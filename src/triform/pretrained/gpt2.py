"""GPT-2: learned positions, norms before each sublayer, matrices that lie transposed, a tied head."""

from __future__ import annotations

from typing import Any

from triform.config import Config, Sizes
from triform.pretrained.family import FREE, Family, Shape, Word, whole
from triform.pretrained.head_bias import carried_by_last_norm
from triform.pretrained.names import WEIGHT, pair
from triform.pretrained.read import Foreign
from triform.settings import Settings

FIXED: Settings = {
    "positions": "learned",
    "norm": "layer",
    "norm_position": "pre",
    "final_norm": True,
    "embedding_norm": False,
    "segments": 0,
    "n_kv_heads": 0,
    "scale_embeddings": False,
    "rotary_scaling": (),
}
CLASSIFIERS_OWN = ("pooling", "head_hidden", "head_activation")
# The weights of a linear layer lie transposed in GPT-2: layers of convolution over one token, historically.
PAIRS = (
    pair("embedding.tokens", "transformer.wte", endings=WEIGHT),
    pair("embedding.positions.table", "transformer.wpe", endings=WEIGHT),
    pair("blocks.*.attend.norm", "transformer.h.*.ln_1"),
    pair("blocks.*.attention.query blocks.*.attention.key_value", "transformer.h.*.attn.c_attn", "turned"),
    pair("blocks.*.attention.out", "transformer.h.*.attn.c_proj", "turned"),
    pair("blocks.*.think.norm", "transformer.h.*.ln_2"),
    pair("blocks.*.feedforward.up", "transformer.h.*.mlp.c_fc", "turned"),
    pair("blocks.*.feedforward.down", "transformer.h.*.mlp.c_proj", "turned"),
    pair("norm", "transformer.ln_f"),
    pair("head", "lm_head", endings=WEIGHT),
)


def _read(foreign: Foreign, said: Settings) -> Shape:
    model = {"bias": True, "qkv_bias": True, "head_bias": False, **said}
    model["d_ff"] = model["d_ff"] or 4 * int(str(model["d_model"]))
    inner, outer = (foreign.config.get(key, 0.1) for key in ("resid_pdrop", "embd_pdrop"))
    return Shape(
        model=model,
        vocab_size=whole(foreign, "vocab_size", 50_257),
        max_len=whole(foreign, "n_positions", 1_024),
        notices=(f"dropout is one setting here: {inner} for embeddings too",) if inner != outer else (),
    )


def _write(config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": sizes.vocab_size,
        "n_positions": sizes.max_len,
        "n_ctx": sizes.max_len,
        "embd_pdrop": config.model.dropout,
    }


GPT2 = Family(
    name="gpt2",
    kinds=("gpt2",),
    task="generate",
    prefix="transformer.",
    words=(
        Word("n_embd", "d_model", 768),
        Word("n_layer", "n_layers", 12),
        Word("n_head", "n_heads", 12),
        Word("n_inner", "d_ff", 0),
        Word("activation_function", "activation", "gelu_new"),
        Word("layer_norm_epsilon", "norm_eps", 1e-5),
        Word("resid_pdrop", "dropout", 0.1),
        Word("attn_pdrop", "attention_dropout", 0.1),
        Word("tie_word_embeddings", "tie_embeddings", True),
    ),
    fixed=FIXED,
    pairs=PAIRS,
    read=_read,
    write=_write,
    only={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    free=(*FREE, *CLASSIFIERS_OWN, "rotary_base", "bias", "qkv_bias", "out_bias", "head_bias"),
    adapt=carried_by_last_norm,
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    others=("score.*", "classifier.*"),
)
