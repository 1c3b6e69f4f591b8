"""nanoGPT's ckpt.pt: GPT-2's names, matrices as they are, exact GELU, biases or none. It is read, not written."""

from __future__ import annotations

from dataclasses import replace

from triform.pretrained.family import Family, Shape, Word, whole
from triform.pretrained.gpt2 import FIXED, GPT2
from triform.pretrained.read import Foreign
from triform.settings import Settings

# Of GPT-2's vocabulary nanoGPT rounds the size up to a multiple of 64: the rows beyond stand for nothing.
PADDED, TOKENS = 50_304, 50_257


def _read(foreign: Foreign, said: Settings) -> Shape:
    padded = foreign.config.get("vocab_size") == PADDED
    return Shape(
        model={
            **said,
            "bias": said["qkv_bias"],
            "head_bias": False,
            "attention_dropout": said["dropout"],
            "d_ff": 4 * int(str(said["d_model"])),
        },
        vocab_size=TOKENS if padded else whole(foreign, "vocab_size"),
        max_len=whole(foreign, "block_size"),
        padded=("transformer.wte.weight", "lm_head.weight") if padded else (),
        notices=(f"{PADDED - TOKENS} rows beyond GPT-2's {TOKENS} tokens are filling, and left out",) * padded,
    )


NANOGPT = Family(
    name="nanogpt",
    kinds=("nanogpt",),
    task="generate",
    prefix="transformer.",
    words=(
        Word("n_embd", "d_model", 768),
        Word("n_layer", "n_layers", 12),
        Word("n_head", "n_heads", 12),
        Word("dropout", "dropout", 0.0),
        Word("bias", "qkv_bias", True),
    ),
    fixed={**FIXED, "activation": "gelu", "tie_embeddings": True, "norm_eps": 1e-5},
    pairs=tuple(replace(pair, layout="plain") for pair in GPT2.pairs),
    read=_read,
    free=(*GPT2.free, "attention_dropout", "d_ff"),
    ignored=GPT2.ignored,
)
