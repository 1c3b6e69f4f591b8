"""`triform tokenizer`: train, use, show, import and export tokenizers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from triform.cli.completion import complete_from, complete_run
from triform.cli.help import DATA, OUTPUT, HelpCommand, argument, flag, new_group, option
from triform.cli.options import JsonOption, print_json
from triform.cli.predict import read_text_lines
from triform.cli.shorthands import TextColumnOption
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.text import Tokenizer
    from triform.text.exporting import Side

tokenizer = new_group(
    "tokenizer",
    """
    Train, use, show, import and export tokenizers.

    Examples:
        triform tokenizer train story.txt --vocab-size 500 --out tokenizer.json
        triform tokenizer encode runs/reviews "A wonderful film."
    """,
)
EXPORT_FORMATS = {"hf": "huggingface", "tiktoken": "tiktoken"}
TOKENIZER = "Tokenizer"

TokenizerArgument = Annotated[
    Path,
    argument(
        "TOKENIZER", "Run folder, tokenizer.json, or file or folder of another library.", complete=complete_run
    ),
]
OutOption = Annotated[Path, option(OUTPUT, "FILE", "The tokenizer.json to write.", name="--out")]
SideOption = Annotated[
    str,
    option(
        TOKENIZER,
        "SIDE",
        "Tokenizer to use if a folder has two: source or target.",
        complete=complete_from(("source", "target")),
        name="--side",
    ),
]
InputOption = Annotated[
    str, option(DATA, "FILE", "Read lines from this file; - is standard input.", name="--input")
]
EncodingOption = Annotated[str, option(TOKENIZER, "NAME", "Encoding of a tiktoken file, for example o200k_base.")]


@tokenizer.command(cls=HelpCommand)
def train(
    out: OutOption,
    files: Annotated[list[str] | None, argument("FILE", "Text files or tables to train on.")] = None,
    data: Annotated[
        list[str] | None, option(DATA, "FILE", "Another way to give FILE. Repeatable.", name="--data")
    ] = None,
    text_column: TextColumnOption = "",
    kind: Annotated[
        str,
        option(
            TOKENIZER,
            "KIND",
            "Kind of tokenizer: bpe, wordpiece, word or char.",
            complete=complete_from(("bpe", "wordpiece", "word", "char")),
            name="--kind",
        ),
    ] = "bpe",
    vocab_size: Annotated[
        int,
        option(
            TOKENIZER,
            "N",
            "Number of tokens in the vocabulary. The default depends on the data.",
            minimum=0,
            show_default=False,
        ),
    ] = 0,
    min_count: Annotated[
        int, option(TOKENIZER, "N", "For word: words that occur less often become <unk>.", minimum=1)
    ] = 1,
    lowercase: Annotated[bool, flag(TOKENIZER, "--lowercase", "Convert text to lower case.")] = False,
) -> None:
    """Train a tokenizer on text and write it to a file.

    To train a model with it, use triform train with --set tokenizer.file=FILE.

    Examples:
        triform tokenizer train story.txt --vocab-size 500 --out tokenizer.json
        triform tokenizer train reviews.csv --kind word --out words.json
    """
    from triform.config import DataConfig, TokenizerConfig
    from triform.data.readers import read_chunks
    from triform.errors import ConfigError
    from triform.text import TOKENIZERS, train_tokenizer

    if kind not in TOKENIZERS:
        raise ConfigError(f"unknown --kind {kind!r}; choose from {', '.join(TOKENIZERS)}")
    paths = [*(files or []), *(data or [])]
    if not paths:
        raise ConfigError("there is no text to train on; give one or more files")
    require_absent(out)
    data_config = DataConfig(text_column=text_column)
    tokenizer_config = TokenizerConfig(kind=kind, vocab_size=vocab_size, min_count=min_count, lowercase=lowercase)  # type: ignore[arg-type]
    n_characters = sum(len(piece.text) for path in paths for piece in read_chunks(path, data_config))
    texts = (piece.text for path in paths for piece in read_chunks(path, data_config))
    save_tokenizer(train_tokenizer(tokenizer_config, texts, name=", ".join(paths), n_characters=n_characters), out)


@tokenizer.command(cls=HelpCommand)
def encode(
    path: TokenizerArgument,
    texts: Annotated[list[str] | None, argument("TEXT", "Texts to encode.")] = None,
    input_: InputOption = "",
    side: SideOption = "source",
    encoding: EncodingOption = "",
    explain: Annotated[
        bool, flag(OUTPUT, "--explain", "Show step by step how each word is split; a repeated word is shown once.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Encode texts as token ids.

    Prints one line for each text. With --json, the text of each token is printed too.

    Examples:
        triform tokenizer encode runs/reviews "A wonderful film."
        triform tokenizer encode tokenizer.json --input story.txt --json
        triform tokenizer encode tokenizer.json "A wonderful film." --explain
    """
    loaded_tokenizer = open_tokenizer(path, side, encoding)
    lines = collect_texts(texts, input_, "TEXT")
    if explain:
        explain_texts(loaded_tokenizer, lines, as_json=json_)
        return
    rows = loaded_tokenizer.encode_batch(lines)
    if json_:
        print_json([{"tokens": row, "pieces": loaded_tokenizer.format_pieces(row)} for row in rows])
        return
    for row in rows:
        echo(" ".join(map(str, row)))


@tokenizer.command(cls=HelpCommand)
def decode(
    path: TokenizerArgument,
    tokens: Annotated[list[str] | None, argument("ID", "Token ids of one text.")] = None,
    input_: InputOption = "",
    side: SideOption = "source",
    encoding: EncodingOption = "",
) -> None:
    """Decode token ids to text.

    Token ids are separated by spaces or commas. In a file, each line is one text.

    Examples:
        triform tokenizer decode runs/reviews 5 6 7
        triform tokenizer decode tokenizer.json --input ids.txt
    """
    loaded_tokenizer = open_tokenizer(path, side, encoding)
    for line in collect_texts([" ".join(tokens)] if tokens else None, input_, "ID"):
        echo(loaded_tokenizer.decode(parse_token_ids(line, loaded_tokenizer.vocab_size)))


@tokenizer.command(cls=HelpCommand)
def show(
    path: TokenizerArgument,
    limit: Annotated[
        int, option(OUTPUT, "N", "Show the first N tokens and merges; 0 shows all.", name="--limit", minimum=0)
    ] = 20,
    merges: Annotated[bool, flag(OUTPUT, "--merges", "Show only the merges of a BPE tokenizer.")] = False,
    side: SideOption = "source",
    encoding: EncodingOption = "",
    json_: JsonOption = False,
) -> None:
    """Show the vocabulary of a tokenizer.

    Prints the kind, the size, the special tokens, the vocabulary, and for BPE the merges in the order in which they
    were learned. A space in a piece is shown as ␣.

    Examples:
        triform tokenizer show runs/reviews
        triform tokenizer show tokenizer.json --merges --limit 0
    """
    from triform.cli.tokenizer_display import describe_tokenizer, find_merges, print_merges, print_tokenizer
    from triform.errors import ConfigError

    loaded_tokenizer = open_tokenizer(path, side, encoding)
    found_merges = find_merges(loaded_tokenizer) if merges else None
    if merges and found_merges is None:
        kind = loaded_tokenizer.kind
        raise ConfigError(
            f"--merges: {path} has no merges, because only byte-level BPE has them; its kind is {kind}"
        )
    if json_:
        content = describe_tokenizer(loaded_tokenizer, limit)
        print_json(content["merges"] if merges else content)
    elif found_merges is not None:
        print_merges(found_merges, limit)
    else:
        print_tokenizer(loaded_tokenizer, limit)


@tokenizer.command("import", cls=HelpCommand)
def import_(
    path: Annotated[Path, argument("PATH", "File or folder of another library.")],
    out: OutOption,
    side: SideOption = "source",
    encoding: EncodingOption = "",
    pattern: Annotated[
        str, option(TOKENIZER, "REGEX", "Split pattern of a tiktoken file, if --encoding does not name it.")
    ] = "",
    special: Annotated[
        list[str] | None,
        option(TOKENIZER, "TOKEN=ID", "Special token of a tiktoken file and its id; needs --pattern. Repeatable."),
    ] = None,
) -> None:
    """Convert a tokenizer of another library to a tokenizer.json.

    The token ids stay the same. Files of Hugging Face tokenizers, tiktoken and SentencePiece can be imported.

    Examples:
        triform tokenizer import gpt2/tokenizer.json --out tokenizer.json
        triform tokenizer import o200k.tiktoken --encoding o200k_base --out o200k.json
    """
    require_absent(out)
    save_tokenizer(open_tokenizer(path, side, encoding, pattern, parse_special_tokens(special or [])), out)


@tokenizer.command(cls=HelpCommand)
def export(
    path: TokenizerArgument,
    out: Annotated[Path, option(OUTPUT, "FOLDER", "Folder to write.", name="--out")],
    format_: Annotated[
        str,
        option(
            OUTPUT,
            "FORMAT",
            "Format: hf (with vocab.json or vocab.txt) or tiktoken.",
            name="--format",
            complete=complete_from(EXPORT_FORMATS),
        ),
    ] = "hf",
    side: SideOption = "source",
    encoding: EncodingOption = "",
) -> None:
    """Write a tokenizer in the format of another library.

    The token ids stay the same. The paths of the written files are printed.

    Examples:
        triform tokenizer export runs/reviews --out exported
        triform tokenizer export tokenizer.json --format tiktoken --out exported
    """
    from triform.errors import ConfigError
    from triform.text import write_tokenizer

    if format_ not in EXPORT_FORMATS:
        raise ConfigError(f"unknown --format {format_!r}; choose from {', '.join(EXPORT_FORMATS)}")
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
    """Open the tokenizer that the options of a command name."""
    from triform.text import read_tokenizer

    return read_tokenizer(
        path, side=_validate_side(side), encoding=encoding, pattern=pattern, special_tokens=special
    )


def explain_texts(loaded_tokenizer: Tokenizer, texts: list[str], *, as_json: bool) -> None:
    """Print how a tokenizer splits each word of texts."""
    from triform.cli.tokenizer_display import print_splits
    from triform.scratch.splits import explain_splits

    splits_by_text = [explain_splits(loaded_tokenizer, text) for text in texts]
    if as_json:
        print_json(
            [
                {
                    "tokens": [token for split in splits for token in split.tokens],
                    "words": [asdict(split) for split in splits],
                }
                for splits in splits_by_text
            ]
        )
    else:
        print_splits(split for splits in splits_by_text for split in splits)


def parse_special_tokens(assignments: list[str]) -> dict[str, int]:
    """Parse the values of `--special`, each TOKEN=ID."""
    from triform.errors import ConfigError

    token_ids: dict[str, int] = {}
    for assignment in assignments:
        name, _, token_id = assignment.rpartition("=")
        if not name or not (token_id.isascii() and token_id.isdigit()):
            raise ConfigError(f"--special {assignment}: write the token and its id as TOKEN=ID")
        token_ids[name] = int(token_id)
    return token_ids


def _validate_side(name: str) -> Side:
    from triform.errors import ConfigError

    if name not in ("source", "target"):
        raise ConfigError(f"--side {name}: must be source or target")
    return name  # type: ignore[return-value]


def require_absent(out: Path) -> None:
    """Raise a CheckpointError if the output file exists."""
    from triform.errors import CheckpointError

    if out.exists():
        raise CheckpointError(f"{out} already exists; choose another --out")


def save_tokenizer(trained_tokenizer: Tokenizer, out: Path) -> None:
    """Save a tokenizer and print a line about it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    trained_tokenizer.save(out)
    echo(f"{trained_tokenizer.kind} tokenizer with {trained_tokenizer.vocab_size:,} tokens: {out}")


def collect_texts(texts: list[str] | None, input_path: str, argument_name: str) -> list[str]:
    """Return the texts of the command line and of `--input`."""
    from triform.errors import DataError

    collected = [*(texts or []), *read_text_lines(input_path)]
    if not collected:
        raise DataError(
            f"there is nothing to read; give {argument_name}, --input FILE, or --input - for standard input"
        )
    return collected


def parse_token_ids(line: str, vocab_size: int) -> list[int]:
    """Parse token ids that are separated by spaces or commas."""
    from triform.errors import DataError

    words = line.replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise DataError(f"{word!r} is not a token id; ids are whole numbers")
        if int(word) >= vocab_size:
            raise DataError(f"{word} is not a token id; the ids of this vocabulary are 0 to {vocab_size - 1}")
    return [int(word) for word in words]
