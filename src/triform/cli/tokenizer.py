"""`triform tokenizer`: train, use, import and export tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import JsonOption, print_json
from triform.cli.predict import read_text_lines
from triform.cli.shorthands import SHORTHANDS
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.text import Tokenizer
    from triform.text.exporting import Side

tokenizer = typer.Typer(help="Train, use, import and export tokenizers.", rich_markup_mode=None)
EXPORT_FORMATS = {"hf": "huggingface", "tiktoken": "tiktoken"}

TokenizerArgument = Annotated[
    Path, typer.Argument(metavar="TOKENIZER", help="A run, a tokenizer.json, or another library's file or folder.")
]
OutOption = Annotated[Path, typer.Option("--out", metavar="F", help="The tokenizer.json to write.")]
SideOption = Annotated[str, typer.Option(help="Which tokenizer of a folder that has two: source or target.")]
InputOption = Annotated[
    str, typer.Option("--input", metavar="F", help="Read lines from this file. Write - for standard input.")
]
EncodingOption = Annotated[
    str, typer.Option(metavar="NAME", help="The encoding of a tiktoken file, for example o200k_base.")
]


@tokenizer.command()
def train(
    out: OutOption,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="The files to train on.")] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", metavar="F", help="The same as FILE. Repeatable.")
    ] = None,
    kind: Annotated[str, typer.Option(help="The kind of tokenizer: bpe, word or char.")] = "bpe",
    vocab_size: Annotated[int, typer.Option(min=0, help="Number of tokens; 0 chooses it from the data.")] = 0,
    min_count: Annotated[int, typer.Option(min=1, help="For word: rarer words become <unk>.")] = 1,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Convert text to lower case.")] = False,
    text_column: Annotated[str, typer.Option(metavar="NAME", help=SHORTHANDS["--text-column"].help)] = "",
) -> None:
    """Train a tokenizer on text; use it with --set tokenizer.file=F."""
    from triform.config import DataConfig, TokenizerConfig
    from triform.config.settings import suggest_name
    from triform.data.readers import read_chunks
    from triform.errors import ConfigError
    from triform.text import TOKENIZERS, train_tokenizer

    if kind not in TOKENIZERS:
        raise ConfigError(f"--kind {kind}: {suggest_name(kind, TOKENIZERS)}")
    paths = [*(files or []), *(data or [])]
    if not paths:
        raise ConfigError("there is nothing to learn from: give one or more files")
    require_absent(out)
    data_config = DataConfig(text_column=text_column)
    tokenizer_config = TokenizerConfig(kind=kind, vocab_size=vocab_size, min_count=min_count, lowercase=lowercase)  # type: ignore[arg-type]
    n_characters = sum(len(piece.text) for path in paths for piece in read_chunks(path, data_config))
    texts = (piece.text for path in paths for piece in read_chunks(path, data_config))
    save_tokenizer(train_tokenizer(tokenizer_config, texts, name=", ".join(paths), n_characters=n_characters), out)


@tokenizer.command()
def encode(
    path: TokenizerArgument,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts.")] = None,
    input_: InputOption = "",
    side: SideOption = "source",
    encoding: EncodingOption = "",
    json_: JsonOption = False,
) -> None:
    """Encode texts as token ids, one line per text; --json also prints the tokens."""
    loaded_tokenizer = open_tokenizer(path, side, encoding)
    rows = loaded_tokenizer.encode_batch(collect_texts(texts, input_, "TEXT"))
    if json_:
        print_json([{"tokens": row, "pieces": loaded_tokenizer.format_pieces(row)} for row in rows])
        return
    for row in rows:
        echo(" ".join(map(str, row)))


@tokenizer.command()
def decode(
    path: TokenizerArgument,
    tokens: Annotated[list[str] | None, typer.Argument(metavar="N", help="Numbers of one text.")] = None,
    input_: InputOption = "",
    side: SideOption = "source",
    encoding: EncodingOption = "",
) -> None:
    """Decode token ids, separated by spaces or commas, to text."""
    loaded_tokenizer = open_tokenizer(path, side, encoding)
    for line in collect_texts([" ".join(tokens)] if tokens else None, input_, "N"):
        echo(loaded_tokenizer.decode(parse_token_ids(line, loaded_tokenizer.vocab_size)))


@tokenizer.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Another library's file or folder.")],
    out: OutOption,
    side: SideOption = "source",
    encoding: EncodingOption = "",
    pattern: Annotated[str, typer.Option(help="The split pattern of a tiktoken file without --encoding.")] = "",
    special: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="A special token and its id, with --pattern. Repeatable."),
    ] = None,
) -> None:
    """Convert another library's tokenizer to a tokenizer.json of Triform with the same ids."""
    require_absent(out)
    save_tokenizer(open_tokenizer(path, side, encoding, pattern, parse_special_tokens(special or [])), out)


@tokenizer.command()
def export(
    path: TokenizerArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to put the files.")],
    format_: Annotated[
        str, typer.Option("--format", help="The format: hf (includes vocab.json or vocab.txt) or tiktoken.")
    ] = "hf",
    side: SideOption = "source",
    encoding: EncodingOption = "",
) -> None:
    """Write the tokenizer in the format of another library, with the same ids."""
    from triform.config.settings import suggest_name
    from triform.errors import ConfigError
    from triform.text import write_tokenizer

    if format_ not in EXPORT_FORMATS:
        raise ConfigError(f"--format {format_}: {suggest_name(format_, EXPORT_FORMATS)}")
    loaded_tokenizer = open_tokenizer(path, side, encoding)
    for written_path in write_tokenizer(
        loaded_tokenizer,
        out,
        file_format=EXPORT_FORMATS[format_],  # type: ignore[arg-type]
        side=_validate_side(side),
    ):
        echo(str(written_path))


def open_tokenizer(
    path: Path, side: str, encoding: str, pattern: str = "", special: dict[str, int] | None = None
) -> Tokenizer:
    from triform.text import read_tokenizer

    return read_tokenizer(
        path, side=_validate_side(side), encoding=encoding, pattern=pattern, special_tokens=special
    )


def parse_special_tokens(assignments: list[str]) -> dict[str, int]:
    from triform.errors import ConfigError

    token_ids: dict[str, int] = {}
    for assignment in assignments:
        name, _, token_id = assignment.rpartition("=")
        if not name or not (token_id.isascii() and token_id.isdigit()):
            raise ConfigError(f"--special {assignment}: a name, = and its number are expected")
        token_ids[name] = int(token_id)
    return token_ids


def _validate_side(name: str) -> Side:
    from triform.errors import ConfigError

    if name not in ("source", "target"):
        raise ConfigError(f"--side {name}: known are source, target")
    return name  # type: ignore[return-value]


def require_absent(out: Path) -> None:
    from triform.errors import CheckpointError

    if out.exists():
        raise CheckpointError(f"{out}: already exists; choose another --out")


def save_tokenizer(trained_tokenizer: Tokenizer, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    trained_tokenizer.save(out)
    echo(f"{trained_tokenizer.kind}: {trained_tokenizer.vocab_size:,} tokens: {out}")


def collect_texts(texts: list[str] | None, input_path: str, argument_name: str) -> list[str]:
    from triform.errors import DataError

    collected = [*(texts or []), *read_text_lines(input_path)]
    if not collected:
        raise DataError(f"nothing to read: give {argument_name}, --input FILE, or --input - for standard input")
    return collected


def parse_token_ids(line: str, vocab_size: int) -> list[int]:
    from triform.errors import DataError

    words = line.replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise DataError(f"{word!r} is not a token id: ids are whole numbers")
        if int(word) >= vocab_size:
            raise DataError(f"{word} is not a token id: the ids of this vocabulary are 0 to {vocab_size - 1}")
    return [int(word) for word in words]
