"""nanoGPT's ckpt.pt: GPT-2's tensor names without transposed matrices, exact GELU, optional biases. Import only."""

from __future__ import annotations

from dataclasses import replace

from triform.config.settings import Settings
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint
from triform.pretrained.family import ConfigKey, Family, ImportSpec, require_size
from triform.pretrained.gpt2 import FIXED_SETTINGS, GPT2

# nanoGPT rounds the size of GPT-2's vocabulary up to a multiple of 64; the additional rows are never used.
PADDED_VOCAB_SIZE, GPT2_VOCAB_SIZE = 50_304, 50_257
PADDING_NOTICE = (
    f"{PADDED_VOCAB_SIZE - GPT2_VOCAB_SIZE} padding rows beyond GPT-2's {GPT2_VOCAB_SIZE} tokens were removed"
)


def _read_spec(checkpoint: PretrainedCheckpoint, settings: Settings) -> ImportSpec:
    is_padded = checkpoint.config.get("vocab_size") == PADDED_VOCAB_SIZE
    return ImportSpec(
        model_settings={
            **settings,
            "bias": settings["qkv_bias"],
            "head_bias": False,
            "attention_dropout": settings["dropout"],
            "d_ff": 4 * int(str(settings["d_model"])),
        },
        vocab_size=GPT2_VOCAB_SIZE if is_padded else require_size(checkpoint, "vocab_size"),
        max_len=require_size(checkpoint, "block_size"),
        padded_tensors=("transformer.wte.weight", "lm_head.weight") if is_padded else (),
        notices=(PADDING_NOTICE,) if is_padded else (),
    )


NANOGPT = Family(
    name="nanogpt",
    model_types=("nanogpt",),
    task="generate",
    prefix="transformer.",
    config_keys=(
        ConfigKey("n_embd", "d_model", 768),
        ConfigKey("n_layer", "n_layers", 12),
        ConfigKey("n_head", "n_heads", 12),
        ConfigKey("dropout", "dropout", 0.0),
        ConfigKey("bias", "qkv_bias", True),
    ),
    fixed_settings={**FIXED_SETTINGS, "activation": "gelu", "tie_embeddings": True, "norm_eps": 1e-5},
    patterns=tuple(replace(pair, layout="plain") for pair in GPT2.patterns),
    read_spec=_read_spec,
    ignored_settings=(*GPT2.ignored_settings, "attention_dropout", "d_ff"),
    ignored_tensors=GPT2.ignored_tensors,
)
