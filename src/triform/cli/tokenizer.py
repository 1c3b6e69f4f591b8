"""`triform tokenizer`: learn a vocabulary, use it, and carry it from and to other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import Json, print_json
from triform.cli.predict import lines_of
from triform.cli.shorthands import SHORTHANDS
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.text import Tokenizer
    from triform.text.written import Side

tokenizer = typer.Typer(
    help="Vocabularies: learn one, use it, take it from and to other libraries.", rich_markup_mode=None
)
LIKE = {"hf": "huggingface", "tiktoken": "tiktoken"}

Which = Annotated[
    Path, typer.Argument(metavar="TOKENIZER", help="A run, a tokenizer.json, or another library's file or folder.")
]
Out = Annotated[Path, typer.Option("--out", metavar="F", help="The tokenizer.json to write.")]
OneSide = Annotated[str, typer.Option(help="source or target, where a folder has two.")]
Input = Annotated[str, typer.Option("--input", metavar="F", help="A file, one text a line, or - .")]
Encoding = Annotated[str, typer.Option(metavar="NAME", help="Of a tiktoken file: cl100k_base, o200k_base, ...")]


@tokenizer.command()
def train(
    out: Out,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Text to learn from: one or more files.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", metavar="F", help="The same as FILE; repeatable.")
    ] = None,
    kind: Annotated[str, typer.Option(help="bpe, word or char.")] = "bpe",
    vocab_size: Annotated[int, typer.Option(min=0, help="Tokens; 0: as the data allows.")] = 0,
    min_count: Annotated[int, typer.Option(min=1, help="word: rarer ones become <unk>.")] = 1,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Read everything in lower case.")] = False,
    text_column: Annotated[str, typer.Option(metavar="NAME", help=SHORTHANDS["--text-column"].help)] = "",
) -> None:
    """Learn a vocabulary from text; use it with --set tokenizer.file=F."""
    from triform.config import DataConfig, TokenizerConfig
    from triform.data.readers import read_pieces
    from triform.errors import ConfigError
    from triform.settings import nearest
    from triform.text import TOKENIZERS, train_tokenizer

    if kind not in TOKENIZERS:
        raise ConfigError(f"--kind {kind}: {nearest(kind, TOKENIZERS)}")
    names = [*(files or []), *(data or [])]
    if not names:
        raise ConfigError("there is nothing to learn from: give one or more files")
    free_place(out)
    layout = DataConfig(text_column=text_column)
    asked = TokenizerConfig(kind=kind, vocab_size=vocab_size, min_count=min_count, lowercase=lowercase)  # type: ignore[arg-type]
    n_characters = sum(len(piece.text) for name in names for piece in read_pieces(name, layout))
    texts = (piece.text for name in names for piece in read_pieces(name, layout))
    saved(train_tokenizer(asked, texts, name=", ".join(names), n_characters=n_characters), out)


@tokenizer.command()
def encode(
    which: Which,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts.")] = None,
    input_: Input = "",
    side: OneSide = "source",
    encoding: Encoding = "",
    json_: Json = False,
) -> None:
    """Texts to tokens: a line of numbers each, or with --json the pieces too."""
    found = opened(which, side, encoding)
    rows = found.encode_batch(given(texts, input_, "TEXT"))
    if json_:
        print_json([{"tokens": row, "pieces": found.pieces(row)} for row in rows])
        return
    for row in rows:
        echo(" ".join(map(str, row)))


@tokenizer.command()
def decode(
    which: Which,
    tokens: Annotated[list[str] | None, typer.Argument(metavar="N", help="Numbers of one text.")] = None,
    input_: Input = "",
    side: OneSide = "source",
    encoding: Encoding = "",
) -> None:
    """Tokens to text: numbers with spaces or commas between them."""
    found = opened(which, side, encoding)
    for line in given([" ".join(tokens)] if tokens else None, input_, "N"):
        echo(found.decode(numbers(line, found.vocab_size)))


@tokenizer.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Another library's file or folder.")],
    out: Out,
    side: OneSide = "source",
    encoding: Encoding = "",
    pattern: Annotated[str, typer.Option(help="Of a tiktoken file without a known name: what cuts words.")] = "",
    special: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="With a pattern: a special token; repeatable.")
    ] = None,
) -> None:
    """Keep another library's vocabulary as a tokenizer.json of Triform's: same ids."""
    free_place(out)
    saved(opened(path, side, encoding, pattern, named_numbers(special or [])), out)


@tokenizer.command()
def export(
    which: Which,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to put the files.")],
    like: Annotated[str, typer.Option(help="hf (also vocab.json, vocab.txt), or tiktoken.")] = "hf",
    side: OneSide = "source",
    encoding: Encoding = "",
) -> None:
    """Write the files by which another library gives the same ids."""
    from triform.errors import ConfigError
    from triform.settings import nearest
    from triform.text import write_tokenizer

    if like not in LIKE:
        raise ConfigError(f"--like {like}: {nearest(like, LIKE)}")
    found = opened(which, side, encoding)
    for path in write_tokenizer(found, out, like=LIKE[like], side=_side(side)):  # type: ignore[arg-type]
        echo(str(path))


def opened(
    path: Path, side: str, encoding: str, pattern: str = "", special: dict[str, int] | None = None
) -> Tokenizer:
    from triform.text import read_tokenizer

    return read_tokenizer(path, side=_side(side), encoding=encoding, pattern=pattern, special=special)


def named_numbers(assignments: list[str]) -> dict[str, int]:
    from triform.errors import ConfigError

    found: dict[str, int] = {}
    for assignment in assignments:
        name, _, number = assignment.rpartition("=")
        if not name or not (number.isascii() and number.isdigit()):
            raise ConfigError(f"--special {assignment}: a name, = and its number are expected")
        found[name] = int(number)
    return found


def _side(name: str) -> Side:
    from triform.errors import ConfigError

    if name not in ("source", "target"):
        raise ConfigError(f"--side {name}: known are source, target")
    return name  # type: ignore[return-value]


def free_place(out: Path) -> None:
    from triform.errors import CheckpointError

    if out.exists():
        raise CheckpointError(f"{out}: is there already; choose another --out")


def saved(found: Tokenizer, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    found.save(out)
    echo(f"{found.kind}: {found.vocab_size:,} tokens: {out}")


def given(texts: list[str] | None, name: str, what: str) -> list[str]:
    from triform.errors import DataError

    found = [*(texts or []), *lines_of(name)]
    if not found:
        raise DataError(f"nothing to read: give {what}, --input FILE, or --input - for standard input")
    return found


def numbers(line: str, vocab_size: int) -> list[int]:
    from triform.errors import DataError

    found = line.replace(",", " ").split()
    for word in found:
        if not (word.isascii() and word.isdigit()):
            raise DataError(f"{word!r} is no token: tokens are whole numbers")
        if int(word) >= vocab_size:
            raise DataError(f"{word} is no token: this vocabulary has 0 to {vocab_size - 1}")
    return [int(word) for word in found]
