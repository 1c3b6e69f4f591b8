"""Find the special tokens of an imported vocabulary in the files next to it or by well-known names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Core

from triform.errors import CheckpointError
from triform.io.files import read_json
from triform.text.tokens import SpecialTokens

# In order of preference. If a vocabulary has only [CLS] and [SEP], they start and end its texts.
CONFIG_KEYS = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
}
COMMON_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<PAD>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>", "<UNK>"),
    "bos": ("<s>", "<bos>", "[CLS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
}


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read the settings in the JSON files next to a vocabulary. Later files override earlier ones."""
    settings: dict[str, Any] = {}
    for name in ("config.json", "special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            content = read_json(path)
            if not isinstance(content, dict):
                raise CheckpointError(f"{path}: expected a JSON object")
            settings |= {key: value for key, value in content.items() if value is not None}
    return settings


def find_special_tokens(
    ids: Mapping[str, int], settings: Mapping[str, Any], *, guess_names: bool = True
) -> SpecialTokens:
    """Find the special tokens of a vocabulary in its settings, else by well-known names. Absent ones are None."""
    token_ids: dict[str, int | None] = {}
    for role, keys in CONFIG_KEYS.items():
        names = [_token_name(settings[key]) for key in keys if key in settings]
        names += COMMON_NAMES[role] if guess_names and not names else ()
        configured_id = _token_id(settings.get(f"{role}_token_id"), len(ids))
        token_ids[role] = next((ids[name] for name in names if name in ids), configured_id)
    if settings.get("is_encoder_decoder"):
        start_id = _token_id(settings.get("decoder_start_token_id"), len(ids))
        token_ids["bos"] = token_ids["bos"] if start_id is None else start_id
    if token_ids["unk"] in (token_ids["bos"], token_ids["eos"]):  # GPT-2's way to declare that there is none
        token_ids["unk"] = None
    return SpecialTokens(**token_ids)  # type: ignore[arg-type]


def adds_bos(settings: Mapping[str, Any]) -> bool:
    """Return whether texts start with the BOS token.

    Those of Llama do, unless a file says otherwise or names another class.
    """
    family = str(settings.get("tokenizer_class") or settings.get("model_type", ""))
    return bool(settings.get("add_bos_token", "llama" in family.lower()))


def find_template_tokens(backend: Core) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that a tokenizer.json adds before and after a text, found by encoding a short text."""
    for text in ("a", "1", ".", "\n"):
        plain_ids = backend.encode(text, add_special_tokens=False).ids
        wrapped_ids = backend.encode(text).ids
        if not plain_ids:
            continue
        for start in range(len(wrapped_ids) - len(plain_ids) + 1):
            if wrapped_ids[start : start + len(plain_ids)] == plain_ids:
                return tuple(wrapped_ids[:start]), tuple(wrapped_ids[start + len(plain_ids) :])
    return (), ()


def _token_name(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)


def _token_id(value: Any, vocab_size: int) -> int | None:
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, int) and 0 <= first < vocab_size else None
