"""A run as a Hugging Face folder of the family that its settings fit: config, weights, and how texts are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from triform.config import Config, Sizes
from triform.errors import ConfigError
from triform.pretrained.exporting import fitting, sizes_of, to_hf
from triform.pretrained.for_ctranslate2 import misfits
from triform.text import Tokenizer
from triform.training.folder import write_tensors

NAMES = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def write_hf(model: nn.Module, config: Config, tokenizers: Sequence[Tokenizer], out: Path) -> dict[str, Any]:
    """Write the weights, and say what belongs into config.json and generation_config.json."""
    special = tokenizers[-1].special
    pad = special.end if special.pad is None else special.pad  # filling is masked: the end token can stand there
    found = dict(zip(NAMES, (pad, special.bos, special.end, special.start), strict=True))
    numbers = {name: number for name, number in found.items() if number is not None}
    told, tensors = to_hf(model, config, numbers)
    write_tensors(out / "model.safetensors", tensors, {"format": "pt"})
    files: dict[str, Any] = {"config.json": told}
    if config.task != "classify":
        kept = {name: number for name, number in numbers.items() if name in told}
        never = {"suppress_tokens": list(tokenizers[-1].never_written)} if tokenizers[-1].never_written else {}
        files["generation_config.json"] = {**kept, **never, "max_length": config.data.max_len, "do_sample": False}
    return files


def family_name(model: nn.Module, config: Config) -> str:
    """The family that a run leaves as; where none fits, what stands in the way and where it can go instead."""
    sizes: Sizes = sizes_of(model, config)
    try:
        return fitting(config, sizes).name
    except ConfigError as error:
        elsewhere = "onnx" if config.task == "classify" else "" if misfits(config) else "ctranslate2"
        hint = f"; --to {elsewhere} can have them" if elsewhere else ""
        raise ConfigError(f"{error}{hint}") from None
