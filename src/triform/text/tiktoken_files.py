"""tiktoken's rank files: a piece in base64 and its rank on each line, nothing more.

The file holds neither the split pattern nor the special tokens. They follow from the name of the encoding, are read
from a JSON file beside it (which `write_ranks` writes), or are given as arguments.
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
# The pattern and the special tokens of each.
ENCODINGS: dict[str, tuple[str, dict[str, int]]] = {
    "r50k_base": (GPT2_PATTERN, {_END_OF_TEXT: 50256}),
    "p50k_base": (GPT2_PATTERN, {_END_OF_TEXT: 50256}),
    "cl100k_base": (CL100K_PATTERN, {_END_OF_TEXT: 100257, **_FILL_IN_MIDDLE, "<|endofprompt|>": 100276}),
    "o200k_base": (_O200K_PATTERN, {_END_OF_TEXT: 199999, "<|endofprompt|>": 200018}),
}


def read_ranks(
    path: Path, encoding: str = "", pattern: str = "", special_tokens: Mapping[str, int] | None = None
) -> ImportedBpe:
    """Read a rank file. The encoding is named, or known by the file's name, or defined by its pattern."""
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
            f"{path}: a rank file does not hold its split pattern: name the encoding "
            f"({', '.join(ENCODINGS)}), or give the pattern and the special tokens"
        )
    return _build_tokenizer(path, ranks, *definition)


def _read_sidecar(sidecar: Path) -> tuple[str, dict[str, int]]:
    """The pattern and the special tokens as `write_ranks` leaves them."""
    match read_json(sidecar):
        case {"pattern": str(pattern), "special_tokens": dict(special)} if all(
            type(token) is int and token >= 0 for token in special.values()
        ):
            return pattern, special
    raise CheckpointError(f"{sidecar}: a pattern, and special_tokens with their numbers are expected")


def _build_tokenizer(
    path: Path, ranks: dict[bytes, int], pattern: str, special_tokens: Mapping[str, int]
) -> ImportedBpe:
    special_names = {token: name for name, token in special_tokens.items()}
    if conflicts := sorted(special_names.keys() & set(ranks.values())):
        raise CheckpointError(
            f"{path}: {special_names[conflicts[0]]} is to be {conflicts[0]}, which is the rank of a piece"
        )
    max_id = max([*ranks.values(), *special_names])
    unused_ids = set(range(max_id + 1)) - set(ranks.values()) - special_names.keys()
    if unused_ids and min(unused_ids) < max(ranks.values()):
        raise CheckpointError(f"{path}: no piece has rank {min(unused_ids)}, and others have higher ones")
    for token in unused_ids:  # tiktoken leaves numbers unused between the special tokens
        special_names[token] = f"<|unused_{token}|>"
    byte_to_char = dict(enumerate(byte_characters()))
    symbols = {piece: piece.decode("latin-1").translate(byte_to_char) for piece in ranks}
    merges = [(symbols[left], symbols[right]) for left, right in derive_merges(ranks)]
    ids = {symbols[piece]: rank for piece, rank in ranks.items()} | {
        name: token for token, name in special_names.items()
    }
    # A word that is a piece is taken whole, even one that merges do not lead to.
    ignore_merges = len(merges) < len(ranks) - 256
    model = models.BPE(ids, merges, ignore_merges=ignore_merges)
    backend = build_byte_level_backend(
        model, [special_names[token] for token in sorted(special_names)], "" if pattern == GPT2_PATTERN else pattern
    )
    for name in special_tokens:
        if ignore_merges and len(backend.pre_tokenizer.pre_tokenize_str(name)) == 1:
            raise CheckpointError(f"{path}: the special token {name!r} is a word, which texts can have in them")
    return ImportedBpe(backend, find_special_tokens(ids, {}))


def derive_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The last merge of each piece, by rank.

    tiktoken joins the neighbours that make the piece of lowest rank. Inside a piece it does so in the same order
    wherever the piece stands (else something would have been joined across its edge), so each piece has one last
    merge, found by joining its bytes; a piece that joining does not lead to has none.
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
                f"{path}, line {line_number}: a piece in base64, a space and its rank are expected"
            ) from None
        if token < 0 or not piece_bytes:
            raise CheckpointError(f"{path}, line {line_number}: an empty piece, or a rank below 0")
        if piece_bytes in ranks or token in line_by_id:
            duplicate = "piece" if piece_bytes in ranks else "rank"
            earlier_line = line_by_id[ranks.get(piece_bytes, token)]
            raise CheckpointError(f"{path}, line {line_number}: the {duplicate} of line {earlier_line} again")
        ranks[piece_bytes] = token
        line_by_id[token] = line_number
    if n_missing := sum(bytes([byte]) not in ranks for byte in range(256)):
        raise CheckpointError(f"{path}: lacks {n_missing} of the 256 bytes that every text is made of")
    return ranks


def write_ranks(path: Path, ranks: Mapping[bytes, int], pattern: str, special_tokens: Mapping[str, int]) -> None:
    """The file, and beside it the pattern and the special tokens."""
    lines = [
        f"{b64encode(piece).decode()} {rank}\n" for piece, rank in sorted(ranks.items(), key=lambda item: item[1])
    ]
    path.write_text("".join(lines), encoding="ascii")
    sidecar = json.dumps({"pattern": pattern, "special_tokens": dict(special_tokens)}, ensure_ascii=False, indent=2)
    path.with_name(f"{path.name}.json").write_text(sidecar + "\n", encoding="utf-8")
