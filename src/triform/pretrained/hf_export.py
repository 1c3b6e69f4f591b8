"""Export a run for Hugging Face's libraries: weights, config.json and generation_config.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from triform.config import Config, DataSizes
from triform.errors import ConfigError
from triform.pretrained.ctranslate2_export import find_unsupported_settings
from triform.pretrained.family import SPECIAL_TOKEN_KEYS
from triform.pretrained.model_export import find_matching_family, infer_sizes, to_hf
from triform.text import Tokenizer
from triform.training.tensors import save_tensors


def write_hf(model: nn.Module, config: Config, tokenizers: Sequence[Tokenizer], out: Path) -> dict[str, Any]:
    """Write the weights, and return the content of config.json and generation_config.json."""
    special = tokenizers[-1].special_tokens
    # Padding is masked, so the end token can be used for it.
    pad = special.eos_or_bos if special.pad is None else special.pad
    ids_by_key = dict(
        zip(SPECIAL_TOKEN_KEYS, (pad, special.bos, special.eos_or_bos, special.start_token), strict=True)
    )
    token_ids = {name: token_id for name, token_id in ids_by_key.items() if token_id is not None}
    hf_config, tensors = to_hf(model, config, token_ids)
    save_tensors(out / "model.safetensors", tensors, {"format": "pt"})
    files: dict[str, Any] = {"config.json": hf_config}
    if config.task != "classify":
        generation_ids = {name: token_id for name, token_id in token_ids.items() if name in hf_config}
        suppressed = {"suppress_tokens": list(tokenizers[-1].banned_tokens)} if tokenizers[-1].banned_tokens else {}
        files["generation_config.json"] = {
            **generation_ids,
            **suppressed,
            "max_length": config.data.max_len,
            "do_sample": False,
        }
    return files


def exported_family_name(model: nn.Module, config: Config) -> str:
    """Return the family that a run is exported as.

    Raises:
        ConfigError: No family fits. The message names another export format if one supports the settings.
    """
    sizes: DataSizes = infer_sizes(model, config)
    try:
        return find_matching_family(config, sizes).name
    except ConfigError as error:
        other_format = (
            "onnx" if config.task == "classify" else "" if find_unsupported_settings(config) else "ctranslate2"
        )
        hint = f"; --to {other_format} supports them" if other_format else ""
        raise ConfigError(f"{error}{hint}") from None
