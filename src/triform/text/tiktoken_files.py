"""tiktoken's rank files: each line has a piece in base64 and its rank.

The file contains neither the split pattern nor the special tokens. They follow from the name of the encoding, are
read from a JSON file next to it (written by `write_ranks`), or are arguments.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from tokenizers import models

from triform.errors import CheckpointError
from triform.io.files import read_json, read_text
from triform.text.bpe import byte_characters
from triform.text.imported_tokenizers import ImportedBpe
from triform.text.special_tokens import find_special_tokens
from triform.text.split_patterns import CL100K_PATTERN, GPT2_PATTERN
from triform.text.vocabulary_files import build_byte_level_backend

_END_OF_TEXT = "<|endoftext|>"
_O200K_PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
_FILL_IN_MIDDLE = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
# The pattern and the special tokens of each encoding.
ENCODINGS: dict[str, tuple[str, dict[str, int]]] = {
    "r50k_base": (GPT2_PATTERN, {_END_OF_TEXT: 50256}),
    "p50k_base": (GPT2_PATTERN, {_END_OF_TEXT: 50256}),
    "cl100k_base": (CL100K_PATTERN, {_END_OF_TEXT: 100257, **_FILL_IN_MIDDLE, "<|endofprompt|>": 100276}),
    "o200k_base": (_O200K_PATTERN, {_END_OF_TEXT: 199999, "<|endofprompt|>": 200018}),
}


def read_ranks(
    path: Path, encoding: str = "", pattern: str = "", special_tokens: Mapping[str, int] | None = None
) -> ImportedBpe:
    """Read a rank file.

    Args:
        path: The rank file.
        encoding: The name of the encoding. The default is the file's name.
        pattern: The split pattern of an unknown encoding.
        special_tokens: The special tokens of an unknown encoding, with their ids.

    Raises:
        CheckpointError: The file cannot be used, or its encoding is unknown.
    """
    ranks = _read_rank_file(path)
    sidecar = path.with_name(f"{path.name}.json")
    name = encoding or path.stem
    if pattern:
        definition = pattern, dict(special_tokens or {})
    elif name in ENCODINGS:
        definition = ENCODINGS[name]
    elif sidecar.is_file():
        definition = _read_sidecar(sidecar)
    else:
        raise CheckpointError(
            f"{path}: a rank file does not contain its split pattern; name the encoding "
            f"({', '.join(ENCODINGS)}), or specify the pattern and the special tokens"
        )
    return _build_tokenizer(path, ranks, *definition)


def _read_sidecar(sidecar: Path) -> tuple[str, dict[str, int]]:
    """Read the pattern and the special tokens that `write_ranks` wrote."""
    match read_json(sidecar):
        case {"pattern": str(pattern), "special_tokens": dict(special)} if all(
            type(token) is int and token >= 0 for token in special.values()
        ):
            return pattern, special
    raise CheckpointError(f"{sidecar}: expected a pattern, and special_tokens with their ids")


def _build_tokenizer(
    path: Path, ranks: dict[bytes, int], pattern: str, special_tokens: Mapping[str, int]
) -> ImportedBpe:
    special_names = {token: name for name, token in special_tokens.items()}
    if conflicts := sorted(special_names.keys() & set(ranks.values())):
        raise CheckpointError(
            f"{path}: the id of {special_names[conflicts[0]]}, {conflicts[0]}, is already the rank of a piece"
        )
    max_id = max([*ranks.values(), *special_names])
    unused_ids = set(range(max_id + 1)) - set(ranks.values()) - special_names.keys()
    if unused_ids and min(unused_ids) < max(ranks.values()):
        raise CheckpointError(f"{path}: no piece has rank {min(unused_ids)}, although higher ranks exist")
    for token in unused_ids:  # tiktoken leaves some ids between the special tokens unused
        special_names[token] = f"<|unused_{token}|>"
    byte_to_char = dict(enumerate(byte_characters()))
    symbols = {piece: piece.decode("latin-1").translate(byte_to_char) for piece in ranks}
    merges = [(symbols[left], symbols[right]) for left, right in derive_merges(ranks)]
    ids = {symbols[piece]: rank for piece, rank in ranks.items()} | {
        name: token for token, name in special_names.items()
    }
    # A word that is a piece becomes one token, even if no merges lead to it.
    ignore_merges = len(merges) < len(ranks) - 256
    model = models.BPE(ids, merges, ignore_merges=ignore_merges)
    backend = build_byte_level_backend(
        model, [special_names[token] for token in sorted(special_names)], "" if pattern == GPT2_PATTERN else pattern
    )
    for name in special_tokens:
        if ignore_merges and len(backend.pre_tokenizer.pre_tokenize_str(name)) == 1:
            raise CheckpointError(
                f"{path}: the special token {name!r} is an ordinary word, which texts may contain"
            )
    return ImportedBpe(backend, find_special_tokens(ids, {}))


def derive_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the last merge of each piece, ordered by rank.

    tiktoken merges the neighbours that form the piece with the lowest rank. Inside a piece the order of merges is
    always the same (otherwise a merge across its edge would have come first), so each piece has one last merge,
    which is found by merging its bytes. A piece that no merges lead to has none.
    """
    no_rank = 1 + max(ranks.values())
    get_rank = ranks.get
    merges = []
    for piece in sorted(ranks, key=ranks.__getitem__):
        parts = [piece[index : index + 1] for index in range(len(piece))]
        # The rank of each part merged with its right neighbour.
        pair_ranks = [get_rank(left + right, no_rank) for left, right in pairwise(parts)]
        while len(parts) > 2 and (lowest := min(pair_ranks)) < no_rank:
            index = pair_ranks.index(lowest)
            parts[index : index + 2] = [parts[index] + parts[index + 1]]
            del pair_ranks[index]
            if index:
                pair_ranks[index - 1] = get_rank(parts[index - 1] + parts[index], no_rank)
            if index < len(pair_ranks):
                pair_ranks[index] = get_rank(parts[index] + parts[index + 1], no_rank)
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _read_rank_file(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    line_by_id: dict[int, int] = {}
    for line_number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            piece, rank = line.split()
            piece_bytes, token = b64decode(piece, validate=True), int(rank)
        except (ValueError, NotBase64):
            raise CheckpointError(
                f"{path}, line {line_number}: expected a piece in base64, a space and its rank"
            ) from None
        if token < 0 or not piece_bytes:
            raise CheckpointError(f"{path}, line {line_number}: the piece is empty, or its rank is below 0")
        if piece_bytes in ranks or token in line_by_id:
            duplicate = "piece" if piece_bytes in ranks else "rank"
            earlier_line = line_by_id[ranks.get(piece_bytes, token)]
            raise CheckpointError(f"{path}, line {line_number}: the same {duplicate} as in line {earlier_line}")
        ranks[piece_bytes] = token
        line_by_id[token] = line_number
    if n_missing := sum(bytes([byte]) not in ranks for byte in range(256)):
        raise CheckpointError(f"{path} lacks {n_missing} of the 256 bytes that every text is made of")
    return ranks


def write_ranks(path: Path, ranks: Mapping[bytes, int], pattern: str, special_tokens: Mapping[str, int]) -> None:
    """Write a rank file and, next to it, a JSON file with the pattern and the special tokens."""
    lines = [
        f"{b64encode(piece).decode()} {rank}\n" for piece, rank in sorted(ranks.items(), key=lambda item: item[1])
    ]
    path.write_text("".join(lines), encoding="ascii")
    sidecar = json.dumps({"pattern": pattern, "special_tokens": dict(special_tokens)}, ensure_ascii=False, indent=2)
    path.with_name(f"{path.name}.json").write_text(sidecar + "\n", encoding="utf-8")
