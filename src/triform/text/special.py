"""Which tokens of a foreign vocabulary pad, begin and end texts: told by files beside it, or by their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Core

from triform.errors import CheckpointError
from triform.text.base import Special

# In order of preference; where a vocabulary has only a [CLS] and a [SEP], these begin and end its texts.
SETTINGS = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
}
NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<PAD>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>", "<UNK>"),
    "bos": ("<s>", "<bos>", "[CLS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
}


def read_settings(folder: Path) -> dict[str, Any]:
    """What the files beside a vocabulary say: names of tokens first, then the model's ids for them."""
    found: dict[str, Any] = {}
    for name in ("config.json", "special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            content = read_json(path)
            if not isinstance(content, dict):
                raise CheckpointError(f"{path}: not a JSON object")
            found |= {key: value for key, value in content.items() if value is not None}
    return found


def find_special(ids: Mapping[str, int], settings: Mapping[str, Any], *, guess: bool = True) -> Special:
    """The special tokens of a vocabulary; what is neither told nor known by name is absent."""
    found: dict[str, int | None] = {}
    for role, keys in SETTINGS.items():
        names = [_name(settings[key]) for key in keys if key in settings]
        names += NAMES[role] if guess and not names else ()
        told = _number(settings.get(f"{role}_token_id"), len(ids))
        found[role] = next((ids[name] for name in names if name in ids), told)
    if settings.get("is_encoder_decoder"):
        start = _number(settings.get("decoder_start_token_id"), len(ids))
        found["bos"] = found["bos"] if start is None else start
    if found["unk"] in (found["bos"], found["eos"]):  # as GPT-2 says it: there is none
        found["unk"] = None
    return Special(**found)  # type: ignore[arg-type]


def adds_bos(settings: Mapping[str, Any]) -> bool:
    """Whether texts begin with the BOS token. Llama's do, unless a file says otherwise or names another class."""
    family = str(settings.get("tokenizer_class") or settings.get("model_type", ""))
    return bool(settings.get("add_bos_token", "llama" in family.lower()))


def frame(core: Core) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a tokenizer.json puts before and after a text, found by letting it."""
    for text in ("a", "1", ".", "\n"):
        bare = core.encode(text, add_special_tokens=False).ids
        whole = core.encode(text).ids
        if not bare:
            continue
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    return (), ()


def read_json(path: Path) -> Any:
    """A JSON file, in which no name may stand twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise CheckpointError(f"{path}: {twice!r} stands in it twice")
        return made

    try:
        return json.loads(read_text(path), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON, or a damaged file ({error})") from None


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise CheckpointError(f"{path}, line {line}: not UTF-8") from None


def _name(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)


def _number(value: Any, size: int) -> int | None:
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, int) and 0 <= first < size else None
