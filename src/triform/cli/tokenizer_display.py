"""How `triform tokenizer` shows a vocabulary, and how it shows the split of a word."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from triform.formatting import echo, print_table

if TYPE_CHECKING:
    from triform.scratch.splits import WordSplit
    from triform.text import Tokenizer

WIDTH = 80
MAX_SHOWN_WORD = 60  # characters of a word in its heading


def describe_tokenizer(tokenizer: Tokenizer, limit: int) -> dict[str, Any]:
    """Return what a tokenizer contains, for JSON. `limit` bounds the vocabulary and the merges; 0 means all."""
    special, merges = tokenizer.special_tokens, find_merges(tokenizer)
    names = {
        role: {"id": token, "piece": tokenizer.format_piece(token)}
        for role, token in zip(("pad", "unk", "bos", "eos"), special[:4], strict=True)
        if token is not None
    }
    n_shown = min(limit or tokenizer.vocab_size, tokenizer.vocab_size)
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": names,
        "before": list(special.before),
        "after": list(special.after),
        "vocabulary": [tokenizer.format_piece(token) for token in range(n_shown)],
        "merges": None if merges is None else merges[: limit or None],
    }


def find_merges(tokenizer: Tokenizer) -> list[dict[str, Any]] | None:
    """Return the merges in the order in which they were learned, or None if the tokenizer is not byte-level BPE."""
    from triform.text import BpeTokenizer

    if not isinstance(tokenizer, BpeTokenizer):
        return None
    ids, _ = tokenizer.ranks()
    return [
        {
            "merge": number,
            "left": tokenizer.format_piece(ids[left]),
            "right": tokenizer.format_piece(ids[right]),
            "piece": tokenizer.format_piece(ids[left + right]),
            "id": ids[left + right],
        }
        for number, (left, right) in enumerate(tokenizer.merges(), 1)
    ]


def print_tokenizer(tokenizer: Tokenizer, limit: int) -> None:
    """Print the kind, the size, the special tokens, the vocabulary and the merges of a tokenizer."""
    content, merges = describe_tokenizer(tokenizer, limit), find_merges(tokenizer)
    special = (f"{role} {token['piece']} ({token['id']})" for role, token in content["special_tokens"].items())
    echo(f"kind            {tokenizer.kind}")
    echo(f"vocabulary      {tokenizer.vocab_size:,} tokens")
    echo(f"special tokens  {', '.join(special) or 'none'}")
    if content["before"] or content["after"]:
        before, after = (" ".join(map(tokenizer.format_piece, content[side])) for side in ("before", "after"))
        echo(f"a text is read as  {before} TEXT {after}".rstrip())
    if merges is not None:
        echo(f"merges          {len(merges):,}")
    echo()
    pieces = [[str(token), show_spaces(piece)] for token, piece in enumerate(content["vocabulary"])]
    print_table([["id", "piece"], *pieces], align="rl")
    _print_rest(len(pieces), tokenizer.vocab_size, "tokens")
    if merges is not None:
        echo()
        print_merges(merges, limit)


def print_merges(merges: list[dict[str, Any]], limit: int) -> None:
    """Print the first merges as a table, and how many follow. With a limit of 0, all are printed."""
    first_merges = merges[: limit or None]
    rows = [
        [str(row["merge"]), *(show_spaces(row[name]) for name in ("left", "right", "piece")), str(row["id"])]
        for row in first_merges
    ]
    print_table([["merge", "left", "right", "piece", "id"], *rows], align="rlllr")
    _print_rest(len(first_merges), len(merges), "merges")


def print_splits(splits: Iterable[WordSplit]) -> None:
    """Print the steps in which each word is split. A word that occurs several times is printed once."""
    for split in {split.word: split for split in splits}.values():
        heading = show_spaces(split.word)
        echo(heading if len(heading) <= MAX_SHOWN_WORD else f"{heading[:MAX_SHOWN_WORD]}…")
        rows = [
            (step.name, [*map(show_spaces, step.pieces), *([f"({show_spaces(step.rest)})"] if step.rest else [])])
            for step in split.steps
        ]
        rows.append(("ids", list(map(str, split.tokens))))
        width = max(len(name) for name, _ in rows) + 4
        for name, pieces in rows:
            indent = " " * width
            lines = textwrap.wrap(
                " ".join(pieces),
                WIDTH,
                initial_indent=f"  {name}".ljust(width),
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
            echo("\n".join(lines) or f"  {name}")


def show_spaces(text: str) -> str:
    """Return a text in which spaces and characters that cannot be printed are visible."""
    visible = text.replace(" ", "␣")
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in visible
    )


def _print_rest(n_shown: int, n_all: int, unit: str) -> None:
    if n_shown < n_all:
        echo(f"{n_all - n_shown:,} more {unit}; --limit 0 shows all")
