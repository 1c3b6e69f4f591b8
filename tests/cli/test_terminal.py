"""Labels, texts and paths come from files that others made: their control characters never reach a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

import triform as package
from triform.cli.main import main
from triform.formatting import echo, escape_control_characters

RED_LABEL, TITLE_ESCAPE = "\x1b[31mred", "\x1b]0;title\x07"
COMMANDS = sorted((Path(package.__file__).parent / "cli").glob("*.py"))


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def run_with_escape_label(train: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier one of whose labels would change a terminal's colour."""
    folder = tmp_path_factory.mktemp("coloured")
    data = folder / "rows.csv"
    data.write_text("text,label\n" + f"a fine day,good\na grey day,{RED_LABEL}\n" * 12)
    result = train("classify", "--data", data, "--out", folder / "run")
    assert result.code == 0, result.err
    return folder / "run"


@pytest.mark.parametrize("code", [*range(32), *range(127, 160), 0xD800, 0xDCFF])
def test_every_control_character_is_shown_as_an_escape(code: int) -> None:
    escaped = escape_control_characters(f"a{chr(code)}b")
    if chr(code) in "\t\n":
        assert escaped == f"a{chr(code)}b"
    else:
        assert escaped == f"a{repr(chr(code))[1:-1]}b"
    assert escape_control_characters("naïve 日本 😀\t|") == "naïve 日本 😀\t|"


def test_a_terminal_gets_escapes_and_a_pipe_the_exact_text(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"{RED_LABEL} {TITLE_ESCAPE}")
    echo(f"{RED_LABEL} {TITLE_ESCAPE}", err=True)
    captured = capsys.readouterr()
    assert captured.out == f"{RED_LABEL} {TITLE_ESCAPE}\n"
    assert captured.err == "\\x1b[31mred \\x1b]0;title\\x07\n"


def test_predictions_are_exact_in_a_pipe_and_harmless_on_a_terminal(
    triform: Any, run_with_escape_label: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("predict", str(run_with_escape_label), "a grey day", "--device", "cpu")
    assert RED_LABEL in triform(*arguments).out
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "argv", ["triform", *arguments])
    monkeypatch.setattr(sys, "stdout", screen)
    with pytest.raises(SystemExit):
        main()
    assert "\\x1b[31mred" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()


def test_an_error_names_a_path_without_letting_it_act(triform: Any, tmp_path: Path, classifier: Path) -> None:
    refusal = triform("predict", classifier, "--input", tmp_path / f"{TITLE_ESCAPE}\n.txt").refusal
    assert "\\x1b]0;title\\x07 .txt: no such file" in refusal
    assert "\x1b" not in refusal


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_every_command_prints_through_one_function(path: Path) -> None:
    assert "typer.echo(" not in path.read_text(encoding="utf-8")
