"""The examples of every command run, and a typing error names the help of the command."""

from __future__ import annotations

import gzip
import shlex
import shutil
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.models import OptionInfo

from triform.cli.help import split_help
from triform.cli.reference import iter_contexts, reference_page, root_context
from triform.config import TokenizerConfig
from triform.data.builtin_sets import load_text
from triform.text import train_tokenizer

CONTEXTS = {context.command_path: context for context in iter_contexts(root_context())}
COMMANDS = {path: context.command for path, context in CONTEXTS.items()}
EVERY_COMMAND = pytest.mark.parametrize("path", COMMANDS)
EXAMPLES = [(path, example) for path, command in COMMANDS.items() for example in split_help(command)[1]]
# Examples that need a network, an optional package, a published model, or minutes, or that run until they are
# interrupted; they are parsed and not run.
PARSED_ONLY = (
    *(
        "triform demo",
        "triform compare",
        "triform search",
        "triform convert",
        "triform data get",
    ),
    *("triform data check", "triform data verify", "triform tokenizer import"),
    "triform vectors evaluate",
    *("triform studio", "triform serve"),  # tests/serving runs them
)
SMALL = " --set model.d_model=16 --set model.n_layers=1 --set model.n_heads=2 --max-steps 2 --device cpu"


@EVERY_COMMAND
def test_an_option_that_is_named_like_its_value_has_an_explicit_name(path: str) -> None:
    # typer 0.27 would name `device` with the value DEVICE `--DEVICE`
    callback = COMMANDS[path].callback
    hints = get_type_hints(callback, include_extras=True) if callback else {}
    for name, hint in hints.items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo) and info.metavar == name.upper():
                names = (info.default, *(info.param_decls or ()))  # typer takes the first one for a default
                assert f"--{name}" in names, path


@pytest.fixture(scope="module")
def workspace(
    tmp_path_factory: pytest.TempPathFactory, files: Any, classifier: Path, writer: Path, translator: Path
) -> Path:
    """The files and runs that the examples name."""
    folder = tmp_path_factory.mktemp("workspace")
    seeds = {f"eight/seed-{seed}": classifier for seed in range(2)}
    for name, run in {"reviews": classifier, "story": writer, "translator": translator, **seeds}.items():
        shutil.copytree(run, folder / "runs" / name)
    (folder / "large.jsonl.gz").write_bytes(gzip.compress(b'{"text": "the soup was lovely"}\n'))
    for name in ("reviews.csv", "test.csv", "new.csv"):
        shutil.copy(files.csv, folder / name)
    (folder / "story.txt").write_text(load_text("builtin:stories")[:20_000])
    shutil.copy(files.source, folder / "train.en")
    shutil.copy(files.target, folder / "train.fr")
    byte_bpe = TokenizerConfig(kind="bpe", vocab_size=300)
    train_tokenizer(byte_bpe, [load_text("builtin:stories")[:20_000]]).save(folder / "tokenizer.json")
    (folder / "ids.txt").write_text("5 6 7\n8 9\n")
    words = ("king", "queen", "man", "woman", "house", "tree")
    rows = [
        " ".join([word, *(f"{(row * column) % 5 - 2}.5" for column in (1, 3))]) for row, word in enumerate(words)
    ]
    (folder / "vectors.txt").write_text(f"{len(words)} 2\n" + "\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_runs(
    triform: Any, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, example: str
) -> None:
    words = shlex.split(example)[1:]
    if example.startswith(PARSED_ONLY):
        command = COMMANDS["triform"]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        assert command.make_context(path, words, help_option_names=["-h", "--help"]).params
        return
    shutil.copytree(workspace, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    if words[0] in ("train", "pretrain"):
        words = [*shlex.split(example.replace("--epochs 3", ""))[1:], *shlex.split(SMALL), "--overwrite"]
    if "runs/story" in words:  # its vocabulary are the characters of another text
        words = ["birds sat in the tree" if word == "Once upon a time" else word for word in words]
    if words[:2] == ["tokenizer", "train"]:
        Path("tokenizer.json").unlink()
    result = triform(*words)
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict --lr 3", "no such option --lr; train.lr is a setting of `triform train`"),
        ("tokenizer train --x", "no such option --x"),
        ("predict run --inptu new.csv", "no such option --inptu; did you mean --input?"),
        ("tokenizer trian", "no such command trian; did you mean triform tokenizer train?"),
        ("help", "to read the help, write triform --help."),
        ("help train", "to read the help, write triform train --help."),
        ("version", "no such command version; did you mean triform --version?"),
        ("classify", "no such command classify; did you mean triform train classify?"),
        ("export", "no such command export; did you mean triform convert export?"),
        ("zzz", "no such command zzz."),
        ("--verison", "no such option --verison; did you mean --version?"),
        ("predict", "missing argument RUN: Folder of a trained run."),
        ("tokenizer train story.txt", "missing option --out: The tokenizer.json to write."),
        ("explain run text --max-new-tokens -1", "--max-new-tokens: must be at least 0."),
        ("vectors nearest vectors.txt king --top many", "--top: must be a whole number."),
        ("predict run text --json=yes", "--json takes no value."),
        ("predict run --input", "--input needs a value."),
    ],
)
def test_a_typing_error_is_one_line_that_names_the_help_of_the_command(
    triform: Any, words: str, message: str
) -> None:
    refusal = triform(*words.split()).refusal
    assert refusal.startswith(message)
    path = next(
        path for path in sorted(COMMANDS, key=len, reverse=True) if f"triform {words} ".startswith(f"{path} ")
    )
    assert refusal.endswith(f"See {path} --help")


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if hasattr(command, "commands")])
def test_a_command_without_its_subcommand_shows_its_help(triform: Any, path: str) -> None:
    result = triform(*path.split()[1:])
    assert (result.code, result.err) == (0, "")
    assert result.out == triform(*path.split()[1:], "-h").out


def test_the_reference_page_is_the_help_of_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == reference_page(), "run: python -m triform.cli.reference > docs/cli.md"
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(COMMANDS)
