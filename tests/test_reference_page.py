"""docs/reference.md lists every environment variable, event, file and field that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from reproduce.result_file import empty_result

from triform.experiments.study.plan import STUDY_KEYS
from triform.interrupts import EXIT_INTERRUPTED
from triform.io import run_layout
from triform.training.checkpoint_schema import PROGRESS_CHECKS, STATE_CHECKS, WINDOW_CHECKS
from triform.vectors.files import READ_FORMATS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "triform"
PAGE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")

NOT_IN_THE_FILE = {"extended", "seeds"}  # only callbacks receive the first, only the progress display the second


def section(heading: str) -> str:
    """Return the text below a heading, up to the next heading of the same or a higher level."""
    level = heading.partition(" ")[0]
    start = PAGE.index(f"\n{heading}\n") + len(heading) + 2
    following = re.search(rf"^#{{1,{len(level)}}} ", PAGE[start:], re.MULTILINE)
    return PAGE[start : start + following.start()] if following else PAGE[start:]


def code_words(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def first_cells(text: str) -> set[str]:
    """Return the code words in the first column of a table."""
    return {word for line in text.splitlines() if line.startswith("| ") for word in code_words(line.split("|")[1])}


def modules() -> Iterator[ast.Module]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def environment_variables(tree: ast.Module) -> set[str]:
    """Return what looks like a variable in a module that reads the environment."""
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") for node in nodes):
        return set()
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if re.fullmatch(r"[A-Z][A-Z_]{3,}", text)}


def emitted_events(tree: ast.Module) -> set[str]:
    """Return the names of events that a module emits."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "emit" in node.func.attr:
            names |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            names |= {
                value.value
                for key, value in pairs
                if isinstance(key, ast.Constant) and key.value == "event" and isinstance(value, ast.Constant)
            }
    return names


def test_every_environment_variable_is_listed() -> None:
    variables = set().union(*map(environment_variables, modules())) - {"RUNNING"}  # a status of MLflow
    assert "TRIFORM_CACHE" in variables
    assert first_cells(section("## Environment variables")) == variables


def test_every_event_is_listed() -> None:
    events = set().union(*map(emitted_events, modules()))
    text = section("### metrics.jsonl")
    assert events - NOT_IN_THE_FILE == first_cells(text)
    assert "`extended`" in text


def test_the_fields_of_events_are_those_that_a_run_writes(tmp_path: Path) -> None:
    import json

    import triform

    tiny = {"d_model": 8, "n_layers": 1, "n_heads": 2}
    (tmp_path / "rows.tsv").write_text("good film\tyes\nbad film\tno\n" * 20)
    run = triform.train(
        "classify", data=tmp_path / "rows.tsv", out=str(tmp_path / "run"), model=tiny, train={"max_steps": 2},
        device="cpu", quiet=True,
    )  # fmt: skip
    rows = {
        line.split("`")[1]: line for line in section("### metrics.jsonl").splitlines() if line.startswith("| `")
    }
    events = [json.loads(line) for line in (run.path / "metrics.jsonl").read_bytes().splitlines()]
    assert {"start", "train", "valid", "best", "end", "sample"} <= {event["event"] for event in events}
    for event in events:
        fields = event.keys() - {"event", "accuracy", "f1", "rows"}  # the metrics of the task
        assert fields <= code_words(rows[event["event"]]), event["event"]


def test_every_file_of_a_run_folder_is_listed() -> None:
    listed = first_cells(section("## The run folder"))
    for pattern in run_layout.RUN_FOLDER_PATTERNS:
        assert any(Path(name.rstrip("/")).match(pattern) for name in listed), pattern
    checkpoints = section("### Checkpoints")
    assert {run_layout.TENSORS_FILE, run_layout.STATE_FILE, run_layout.DIGESTS_FILE} <= code_words(checkpoints)
    fields = {*STATE_CHECKS, *PROGRESS_CHECKS, *WINDOW_CHECKS}
    assert fields <= code_words(checkpoints)
    assert first_cells(checkpoints) == set(STATE_CHECKS)


def test_the_formats_have_the_numbers_of_the_code() -> None:
    assert f"now {run_layout.RUN_FORMAT}" in section("### config.toml")


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("## Studies", STUDY_KEYS),
        ("## Results of reference systems", tuple(empty_result("name", smoke=False))),
        ("## Word vectors", tuple(READ_FORMATS)),
    ],
)
def test_every_key_of_a_file_is_listed(heading: str, names: tuple[str, ...]) -> None:
    assert set(names) <= code_words(section(heading))


def test_every_exit_code_is_listed() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section("## Exit codes"), re.MULTILINE)}
    assert codes == {0, 1, 2, EXIT_INTERRUPTED}
    calls = [node for tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    exits = [node for node in calls if ast.unparse(node.func) in ("typer.Exit", "sys.exit", "fail")]
    values = {arg.value for node in exits for arg in node.args if isinstance(arg, ast.Constant)}
    assert {value for value in values if isinstance(value, int)} <= codes
