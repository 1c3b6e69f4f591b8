"""The commands and the Python of README and docs run, with small models on small data."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from reproduce.systems import WHY_TRANSFORMERS, match_systems

from triform.cli.main import app
from triform.config.presets import SIZE_PRESETS, SYSTEM_PRESETS
from triform.data import builtin_sets

Command = DataFiles = Any  # of conftest.py
ROOT = Path(__file__).parents[2]
# By name; in a folder of docs/ by path, for example tutorials/first-classifier.md.
PAGES = {page.name: page for page in sorted(ROOT.glob("*.md"))} | {
    page.relative_to(ROOT / "docs").as_posix(): page for page in sorted((ROOT / "docs").rglob("*.md"))
}
# Pages whose Python has a test of its own, with a smaller model or a server.
RUN_FROM_ELSEWHERE = ("scratch.md", "search.md", "serving.md", "sklearn.md", "transformer/")
TINY = "--set model.d_model=16 --set model.n_layers=1 --set model.n_heads=2 --device cpu"
BUILTIN_ROWS = 300  # of each built-in set

# Commands that are only parsed, and why. The others run.
NOT_RUN = {
    "triform data get": "downloads",
    "triform data check --data datasets": "needs downloaded data",
    "triform --install-completion": "changes the user's shell",
    "triform vectors evaluate vectors.safetensors --analogies": "needs files of questions; tests/vectors has them",
    "triform vectors evaluate vectors.safetensors": "needs the downloaded set word_eval",
    "triform convert export runs/reviews --to onnx": "takes ten seconds; tests/pretrained exports and compares",
    "triform tokenizer import cl100k_base.tiktoken": "needs a published vocabulary; tests/text reads one",
    "triform serve": "runs until it is interrupted; tests/serving starts it",
    "triform search space.toml --storage postgresql": "needs a server; tests/experiments/search starts one",
    "triform studio": "runs until it is interrupted; tests/serving starts it",
}
# What a page says, and what a small model needs instead.
SHORTER = {
    "train.max_steps=4000": "train.max_steps=6",
    "--max-steps 300": "--max-steps 3",
    "train.max_minutes=10": "train.max_steps=3",
    "--preset speeches-classifier --out": "--preset tiny --out",
    "--vocab-size 8000": "--vocab-size 280",
    "--preset small": "--preset tiny",
    "--seeds 8": "--seeds 2",
    "seed-3": "seed-1",
    '"Once upon"': '"3 birds"',
    '"My fellow"': '"3 birds"',
    "train.freeze_layers=2": "train.freeze_layers=1",
    "--max-len 256": "--max-len 64",
    "data.max_len=256": "data.max_len=64",
}


def find_blocks(page: Path, language: str) -> list[str]:
    """Return the contents of a page's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def find_commands(page: Path) -> list[str]:
    """Return the commands of a page's shell blocks, without files that their output is written to."""
    lines = "\n".join(find_blocks(page, "sh")).replace("\\\n", " ").splitlines()
    commands = [command for line in lines for command in line.split(" && ")]
    return [command.partition(" > ")[0] for command in commands if command.strip() and command[0] != "#"]


# tests/cli/test_tutorials.py runs these pages from top to bottom, in an empty folder.
TUTORIALS = [name for name in PAGES if name.startswith("tutorials/")]
COMMANDS = {name: commands for name, page in PAGES.items() if (commands := find_commands(page))}
SNIPPETS = {
    name: snippets
    for name, page in PAGES.items()
    if (snippets := find_blocks(page, "python")) and not name.startswith((*RUN_FROM_ELSEWHERE, *TUTORIALS))
}


@pytest.fixture(autouse=True)
def _small_builtin_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    load_pairs, load_text = builtin_sets.load_pairs, builtin_sets.load_text
    monkeypatch.setattr(builtin_sets, "load_pairs", lambda path: load_pairs(path)[:BUILTIN_ROWS])
    monkeypatch.setattr(builtin_sets, "load_text", lambda path: load_text(path)[:20_000])


@pytest.fixture
def _workspace(
    classifier: Path,
    writer: Path,
    translator: Path,
    files: DataFiles,
    published: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make the folder that the pages assume: data files of the usual names, and runs to use."""
    monkeypatch.chdir(tmp_path)
    for name, run in (("reviews", classifier), ("base", classifier), ("book", writer), ("enfr", translator)):
        shutil.copytree(run, f"runs/{name}")
    shutil.copytree(published, tmp_path, dirs_exist_ok=True)
    rows = files.csv.read_text()
    for name in ("reviews.csv", "few.csv", "test.csv"):
        Path(name).write_text(rows)
    for name in ("train.tsv", "dev.tsv", "test.tsv", "train_CLS.tsv", "test_CLS.tsv"):
        Path(name).write_text(rows.replace(",", "\t"))
    for name in ("a", "b"):
        Path(f"{name}.tsv").write_text(
            f"text\tlabel\nthe bridge of {name} is new\tgood\nthe road to {name} is old\tbad\n"
        )
    Path("new.csv").write_text("id,text,comment\n1,the soup was lovely,none\n")
    Path("lines.txt").write_text("the room was awful\n")
    Path("ids.txt").write_text("5 6 7\n")
    for name in ("book.txt", "texts.txt", "valid.txt", "a.txt", "b.txt"):
        Path(name).write_text(files.txt.read_text())
    Path("large.jsonl.gz").write_bytes(gzip.compress(b'{"text": "the soup was lovely"}\n'))
    Path("book.txt.gz").write_bytes(gzip.compress(files.txt.read_bytes()))
    shutil.copy(files.source, "back.en")
    for name in ("train", "dev", "test"):
        shutil.copy(files.source, f"{name}.en")
        shutil.copy(files.target, f"{name}.fr")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, triform: Command, files: DataFiles) -> Path:
    """Make folders as other libraries publish them: a vocabulary `gpt2/`, a decoder and an encoder in `models/`."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "models").mkdir()
    size = shlex.split(f"{TINY} --max-steps 2 --quiet")
    encoder = shlex.split("--set model.pooling=first --set model.head_activation=tanh --set model.head_hidden=16")
    steps = (
        ("tokenizer", "train", files.txt, "--out", folder / "models" / "tokenizer.json"),
        ("tokenizer", "export", folder / "models" / "tokenizer.json", "--out", folder / "gpt2"),
        ("train", "generate", "--data", files.txt, "--out", folder / "g", "--set", "tokenizer.kind=bpe", *size),
        ("convert", "export", folder / "g", "--to", "hf", "--out", folder / "models" / "gpt2"),
        ("train", "classify", "--data", files.csv, "--out", folder / "c", *size, *encoder),
        ("convert", "export", folder / "c", "--to", "hf", "--out", folder / "models" / "all-MiniLM-L6-v2"),
    )
    for step in steps:
        result = triform(*step)
        assert result.code == 0, f"{step}\n{result.err}"
    return folder


def shorten(command: str) -> list[str]:
    """Return the arguments of a documented `triform` command, with a model that takes a moment to train."""
    for old, new in SHORTER.items():
        command = command.replace(old, new)
    arguments = shlex.split(command, comments=True)[1:]
    if arguments[0] in ("train", "pretrain") and "--resume" not in arguments:
        steps = [] if "--max-steps" in arguments or "train.max_steps" in command else ["--max-steps", "3"]
        size = "--set model.n_layers=1 --device cpu"
        if "--embeddings" not in arguments:  # vectors decide the width
            size += " --set model.d_model=16" + ("" if "model.kind" in command else " --set model.n_heads=2")
        keeps_shape = "--from" in arguments or "--preset" in arguments
        arguments += [*([] if keeps_shape else size.split()), *steps]
        if "--epochs" in arguments:
            del arguments[arguments.index("--epochs") : arguments.index("--epochs") + 2]
        if "--out" in arguments:
            shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)
    return arguments


def parse(command: str) -> None:
    """Parse a `triform` command without running it; an unknown command, option or missing argument raises."""
    arguments = shlex.split(command, comments=True)[1:]
    click_command, name = typer.main.get_command(app), "triform"
    while hasattr(click_command, "commands") and arguments and arguments[0] in click_command.commands:
        name = arguments.pop(0)
        click_command = click_command.commands[name]
    if name != "triform":  # an option of `triform` itself would take effect at once
        # A command remembers the names of its help option, and other tests use the same object.
        click_command.make_context(name, arguments, help_option_names=["-h", "--help"])


def find_reason(command: str) -> str | None:
    """Return why a command is not run, or None."""
    return next((reason for prefix, reason in NOT_RUN.items() if command.startswith(prefix)), None)


@pytest.mark.usefixtures("_workspace")
@pytest.mark.parametrize("page", [page for page in COMMANDS if page not in TUTORIALS])
def test_the_commands_of_a_page_run(page: str, triform: Command) -> None:
    if page == "compare.md":
        study = find_blocks(PAGES[page], "toml")[0]
        short = study.replace("max_steps = 600", "max_steps = 2").replace("seeds = 8", "seeds = 2")
        Path("positions.toml").write_text(short.replace("eval_every = 100", "eval_every = 2"))
    if page == "search.md":
        space = find_blocks(PAGES[page], "toml")[0]
        short = space.replace("max_steps = 300, eval_every = 50", "max_steps = 2, eval_every = 2")
        small = short.replace("trials = 20", "trials = 2\nfinal_seeds = 1").replace("[32, 64, 128]", "[16]")
        Path("space.toml").write_text(small)
    for command in COMMANDS[page]:
        if not command.startswith("triform "):
            continue  # the next tests look at these
        if find_reason(command):
            parse(command)
            continue
        result = triform(*shorten(command))
        assert result.code == 0, f"{command}\n{result.err}"


@pytest.mark.parametrize("page", COMMANDS)
def test_the_other_commands_of_a_page_name_what_exists(page: str) -> None:
    """`make`, `pip install` and benchmarks take long or change the machine, so only what they name is looked up."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    for command in COMMANDS[page]:
        words = shlex.split(command, comments=True)
        match words:
            case ["triform", *_]:
                pass
            case ["make", target, *_]:
                assert f"\n{target}: " in makefile, command
            case ["python", "-m", "benchmarks", name, *_] if not name.startswith("-"):
                assert name == "all" or (ROOT / "benchmarks" / f"{name}.py").exists(), command
            case ["python", "-m", "benchmarks", *_] | ["python", "-m", "doctest", *_]:
                pass
            case ["python", "-m", "reproduce", name, *_]:  # tests/reproduce runs it with --smoke
                assert name in ("list", "tables", WHY_TRANSFORMERS) or match_systems(name), command
            case ["python", "-m", module, *_] if module.startswith("benchmarks."):
                assert (ROOT / f"{module.replace('.', '/')}.py").exists(), command
            case ["python", "-m", "pip", *_]:
                for named in re.findall(r"\.\[([\w,]+)\]", command):
                    assert set(named.split(",")) <= extras.keys(), command
            case [program, *_] if program == ".venv/bin/triform":
                parse(command)
            case ["torchrun", *_]:  # tests/distributed starts processes
                parse(command.partition(" -m ")[2])
            case ["sbatch", *_, command_of_a_job]:
                parse(command_of_a_job)
            case ["torchrun", *_]:  # tests/distributed runs such commands
                parse(f"triform {command.partition(' -m triform ')[2]}")
            case ["tail" | "curl" | "sha256sum", *_]:  # tests/serving sends the requests
                pass
            case ["python", "-m", ("venv" | "pytest"), *_] | ["python" | ".venv/bin/python", *_]:
                assert all((ROOT / word).exists() for word in words[1:] if word.endswith(".py")), command
            case _:
                pytest.fail(f"{page}: no rule for `{command}`")


@pytest.mark.usefixtures("_workspace")
@pytest.mark.parametrize("page", SNIPPETS)
def test_the_python_of_a_page_runs(page: str, triform: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "recurrent.md":
        options = "--data book.txt --set tokenizer.kind=char --set model.kind=gru --set model.d_model=16"
        assert triform(*shlex.split(f"train generate {options} --out runs/gru --max-steps 2 --quiet")).code == 0
    module = ModuleType(page)
    for snippet in SNIPPETS[page]:
        exec(compile(snippet, page, "exec"), module.__dict__)


def test_the_examples_of_the_reference_of_commands_parse() -> None:
    examples = [line for block in find_blocks(PAGES["cli.md"], "text") for line in block.splitlines()]
    commands = [line for line in examples if line.startswith("triform ")]
    assert len(commands) > 30
    for command in commands:
        parse(command)


def test_every_reason_not_to_run_a_command_is_in_use() -> None:
    commands = [command for page in COMMANDS.values() for command in page]
    unused = [prefix for prefix in NOT_RUN if not any(command.startswith(prefix) for command in commands)]
    assert not unused


def test_a_command_with_an_unknown_option_does_not_parse() -> None:
    with pytest.raises(Exception, match="--sede"):
        parse("triform compare study.toml --sede 3")


def test_the_page_about_training_names_every_preset() -> None:
    page = PAGES["training.md"].read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in (*SYSTEM_PRESETS, *SIZE_PRESETS))


def test_every_page_has_a_command_or_an_example() -> None:
    top = "CHANGELOG.md CODE_OF_CONDUCT.md SECURITY.md"
    without = f"{top} cli.md architecture.md glossary.md index.md many-gpus.md results.md versions.md"
    generated = {name for name in PAGES if name.startswith(("results/", *RUN_FROM_ELSEWHERE))}
    tested = {*COMMANDS, *SNIPPETS, *generated}
    assert set(PAGES) - {*without.split(), "tutorials/index.md"} <= tested
