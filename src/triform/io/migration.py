"""Read run folders of format 1 as format 2, with one table of the names that changed.

Format 2 renamed settings, state-dict keys and some keys of checkpoints; the values are the same. Names of format 2
pass through every function here unchanged, so a folder whose migration was interrupted can still be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from triform.config.settings import RENAMED_SETTINGS

TensorT = TypeVar("TensorT")  # a torch tensor, a NumPy array, or a shape

# Parts of state-dict keys, between dots.
KEY_PARTS = {
    "attend.norm": "attn_norm",
    "consult.norm": "cross_attn_norm",
    "think.norm": "ffn_norm",
    "attention": "attn",
    "cross": "cross_attn",
    "feedforward": "ffn",
    "query": "q_proj",
    "key_value": "kv_proj",
    "out": "out_proj",
    "up": "up_proj",
    "down": "down_proj",
    "matching": "score_fn",
    "relation": "relative_position",
    "tokens": "token_embedding",
    "positions": "position_embedding",
    "pairs": "bigram_embedding",
    "segments": "segment_embedding",
    "ahead": "forward_cell",
    "back": "backward_cell",
    "cell": "rnn",
    "begin": "initial_state_proj",
    "mix": "state_proj",
}
LM_HEAD, CLASSIFICATION_HEAD = "lm_head", "classification_head"
# Parts of a checkpoint's tensors.safetensors, before the first dot, and keys of its state.json.
CHECKPOINT_PARTS = {"average": "ema"}
STATE_KEYS = {"listeners": "callbacks", "marks": "metadata"}


def _part_pattern(parts: Mapping[str, str]) -> re.Pattern[str]:
    """Return a pattern that matches any of these parts between dots or at either end of a key."""
    return re.compile(rf"(?<![^.])(?:{'|'.join(map(re.escape, parts))})(?![^.])")


_NEW_KEY_PARTS = {new: old for old, new in KEY_PARTS.items()}
_OLD_PART, _NEW_PART = _part_pattern(KEY_PARTS), _part_pattern(_NEW_KEY_PARTS)


def migrate_settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `config.toml` under the setting names of format 2."""
    migrated = {name: dict(value) if isinstance(value, Mapping) else value for name, value in document.items()}
    for old_name, new_name in RENAMED_SETTINGS.items():
        section, _, old_key = old_name.partition(".")
        values = migrated.get(section)
        if isinstance(values, dict) and old_key in values:
            values[new_name.partition(".")[2]] = values.pop(old_key)
    return migrated


def migrate_tensors(tensors: Mapping[str, TensorT]) -> dict[str, TensorT]:
    """Return the tensors of a model or an adapter under the state-dict keys of format 2."""
    # In a classifier the encoder holds the blocks; in every other model they are at the top level.
    head = LM_HEAD if any(key.startswith("blocks.") for key in tensors) else CLASSIFICATION_HEAD
    return {_migrate_key(key, head): tensor for key, tensor in tensors.items()}


def _migrate_key(key: str, head: str) -> str:
    key = re.sub(r"^(encoder\.)?norm(?=\.)", r"\1final_norm", key)
    key = re.sub(r"^head(?=\.)", head, key)
    return _OLD_PART.sub(lambda match: KEY_PARTS[match[0]], key)


def format1_key(key: str) -> str:
    """Return the state-dict key that a parameter had in format 1."""
    key = re.sub(r"^(encoder\.)?final_norm(?=\.)", r"\1norm", key)
    key = re.sub(rf"^(?:{LM_HEAD}|{CLASSIFICATION_HEAD})(?=\.)", "head", key)
    return _NEW_PART.sub(lambda match: _NEW_KEY_PARTS[match[0]], key)


def migrate_checkpoint_tensors(tensors: Mapping[str, TensorT]) -> dict[str, TensorT]:
    """Return the tensors of a checkpoint under the names of format 2."""
    prefix = "model."
    model = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    migrated = {prefix + key: tensor for key, tensor in migrate_tensors(model).items()}
    for key, tensor in tensors.items():
        if not key.startswith(prefix):
            part, dot, rest = key.partition(".")
            migrated[CHECKPOINT_PARTS.get(part, part) + dot + rest] = tensor
    return migrated


def migrate_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint's `state.json` under the keys of format 2."""
    return {STATE_KEYS.get(key, key): value for key, value in state.items()}
