"""tiktoken's rank files: a piece in base64 and its rank on each line, nothing more.

Which pattern cuts the words and which special tokens there are is not in the file. It is known by the name of the
encoding, told by a file beside it (which `write_ranks` leaves there), or given.
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
from triform.text.bpe import byte_characters
from triform.text.imported import ImportedBpe
from triform.text.special import find_special, read_json, read_text
from triform.text.split import CL100K_PATTERN, GPT2_PATTERN
from triform.text.vocabularies import byte_core

_END = "<|endoftext|>"
_O200K_PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
_FILL_IN = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
# The pattern and the special tokens of each.
ENCODINGS: dict[str, tuple[str, dict[str, int]]] = {
    "r50k_base": (GPT2_PATTERN, {_END: 50256}),
    "p50k_base": (GPT2_PATTERN, {_END: 50256}),
    "cl100k_base": (CL100K_PATTERN, {_END: 100257, **_FILL_IN, "<|endofprompt|>": 100276}),
    "o200k_base": (_O200K_PATTERN, {_END: 199999, "<|endofprompt|>": 200018}),
}


def read_ranks(
    path: Path, encoding: str = "", pattern: str = "", special: Mapping[str, int] | None = None
) -> ImportedBpe:
    """A rank file whose encoding is named, or by its file's name known; or whose pattern is given."""
    ranks = _ranks(path)
    beside = path.with_name(f"{path.name}.json")
    name = encoding or path.stem
    if pattern:
        known = pattern, dict(special or {})
    elif name in ENCODINGS:
        known = ENCODINGS[name]
    elif beside.is_file():
        known = _told(beside)
    else:
        raise CheckpointError(
            f"{path}: the pattern that cuts words is not in a rank file: name the encoding "
            f"({', '.join(ENCODINGS)}), or give the pattern and the special tokens"
        )
    return _tokenizer(path, ranks, *known)


def _told(beside: Path) -> tuple[str, dict[str, int]]:
    """The pattern and the special tokens as `write_ranks` leaves them."""
    match read_json(beside):
        case {"pattern": str(pattern), "special_tokens": dict(special)} if all(
            type(token) is int and token >= 0 for token in special.values()
        ):
            return pattern, special
    raise CheckpointError(f"{beside}: a pattern, and special_tokens with their numbers are expected")


def _tokenizer(path: Path, ranks: dict[bytes, int], pattern: str, special: Mapping[str, int]) -> ImportedBpe:
    named = {token: name for name, token in special.items()}
    if taken := sorted(named.keys() & set(ranks.values())):
        raise CheckpointError(f"{path}: {named[taken[0]]} is to be {taken[0]}, which is the rank of a piece")
    last = max([*ranks.values(), *named])
    free = set(range(last + 1)) - set(ranks.values()) - named.keys()
    if free and min(free) < max(ranks.values()):
        raise CheckpointError(f"{path}: no piece has rank {min(free)}, and others have higher ones")
    for token in free:  # tiktoken leaves numbers unused between the special tokens
        named[token] = f"<|unused_{token}|>"
    shown = dict(enumerate(byte_characters()))
    spelled = {piece: piece.decode("latin-1").translate(shown) for piece in ranks}
    merges = [(spelled[left], spelled[right]) for left, right in merges_of(ranks)]
    ids = {spelled[piece]: rank for piece, rank in ranks.items()} | {name: token for token, name in named.items()}
    # A word that is a piece is taken whole, even one that merges do not lead to.
    taken_whole = len(merges) < len(ranks) - 256
    model = models.BPE(ids, merges, ignore_merges=taken_whole)
    core = byte_core(model, [named[token] for token in sorted(named)], "" if pattern == GPT2_PATTERN else pattern)
    for name in special:
        if taken_whole and len(core.pre_tokenizer.pre_tokenize_str(name)) == 1:
            raise CheckpointError(f"{path}: the special token {name!r} is a word, which texts can have in them")
    return ImportedBpe(core, find_special(ids, {}))


def merges_of(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The last merge of each piece, by rank.

    tiktoken joins the neighbours that make the piece of lowest rank. Inside a piece it does so in the same order
    wherever the piece stands (else something would have been joined across its edge), so each piece has one last
    merge, found by joining its bytes; a piece that joining does not lead to has none.
    """
    never = 1 + max(ranks.values())
    rank = ranks.get
    merges = []
    for piece in sorted(ranks, key=ranks.__getitem__):
        parts = [piece[place : place + 1] for place in range(len(piece))]
        joined = [rank(left + right, never) for left, right in pairwise(parts)]  # of each with its neighbour
        while len(parts) > 2 and (least := min(joined)) < never:
            place = joined.index(least)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
            del joined[place]
            if place:
                joined[place - 1] = rank(parts[place - 1] + parts[place], never)
            if place < len(joined):
                joined[place] = rank(parts[place] + parts[place + 1], never)
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    line_of: dict[int, int] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            piece, rank = line.split()
            spelled, token = b64decode(piece, validate=True), int(rank)
        except (ValueError, NotBase64):
            raise CheckpointError(
                f"{path}, line {number}: a piece in base64, a space and its rank are expected"
            ) from None
        if token < 0 or not spelled:
            raise CheckpointError(f"{path}, line {number}: an empty piece, or a rank below 0")
        if spelled in ranks or token in line_of:
            twice = "piece" if spelled in ranks else "rank"
            earlier = line_of[ranks.get(spelled, token)]
            raise CheckpointError(f"{path}, line {number}: the {twice} of line {earlier} again")
        ranks[spelled] = token
        line_of[token] = number
    if lacking := sum(bytes([byte]) not in ranks for byte in range(256)):
        raise CheckpointError(f"{path}: lacks {lacking} of the 256 bytes that every text is made of")
    return ranks


def write_ranks(path: Path, ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int]) -> None:
    """The file, and beside it the pattern and the special tokens."""
    lines = [f"{b64encode(piece).decode()} {rank}\n" for piece, rank in sorted(ranks.items(), key=lambda kv: kv[1])]
    path.write_text("".join(lines), encoding="ascii")
    beside = json.dumps({"pattern": pattern, "special_tokens": dict(special)}, ensure_ascii=False, indent=2)
    path.with_name(f"{path.name}.json").write_text(beside + "\n", encoding="utf-8")
