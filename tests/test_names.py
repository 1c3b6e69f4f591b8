"""Identifiers use the words of PyTorch, transformers and scikit-learn, and the glossary is true."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks")
STORIES = ROOT / "src" / "triform" / "data" / "builtin"  # its names are those of people, places and things
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")  # of snake_case, CamelCase and UPPER_CASE
# Words of everyday speech that name nothing: not allowed in any identifier, alone or as a part of it.
WORDS = """
    alike among apart around ask asked asks bare beat began begun beside board carry chance chorus consult
    crew drawn ear ears fact folded given halves hear heard here inward judge judged lacking learner learners
    least lesson lessons listener listeners look looked maker mine most never our outward pace place places
    population put puts resident room rowwise rung said say says seal settle settled sight some spelled spoken
    straight stretches stuff take taken takes tall tallies tally tell tells these thing things those together
    told tried trouble truth turned undisturbed unfit usual voice watched way ways where whereabouts which who
    whole whom whose wild worth wrote
"""
# Words that say nothing by themselves, though they may be a part of a name, as in `n_found` or `kept_tokens`.
NAMES = """
    again answered back chosen each ending endings found got held how kept made meant odd off once opened shown so
    wanted what
"""
BANNED_WORDS, BANNED_NAMES = frozenset(WORDS.split()), frozenset(NAMES.split())


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of all that a module defines, but tests, which are named as sentences."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
                if not name.startswith("test_"):
                    yield line, name
            case ast.ClassDef(name=name, lineno=line) | ast.arg(arg=name, lineno=line):
                yield line, name
            case (
                ast.Name(id=name, ctx=ast.Store(), lineno=line)
                | ast.Attribute(attr=name, ctx=ast.Store(), lineno=line)
            ):
                yield line, name
            case ast.MatchAs(name=str(name), lineno=line) | ast.MatchStar(name=str(name), lineno=line):
                yield line, name


def find_banned(name: str) -> set[str]:
    """Return the banned words in an identifier.

    >>> find_banned("whereabouts_of_rows"), find_banned("kept"), find_banned("kept_tokens")
    ({'whereabouts'}, {'kept'}, set())
    """
    words = {word.lower() for word in WORD.findall(name)}
    return (words & BANNED_WORDS) | ({name.lower().strip("_")} & BANNED_NAMES)


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_plain(folder: str) -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line}: {name} ({', '.join(sorted(banned))})"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if STORIES not in path.parents
        for line, name in identifiers(ast.parse(path.read_text(encoding="utf-8")))
        if (banned := find_banned(name))
    ]
    assert not problems, "names that say nothing:\n" + "\n".join(problems)


def test_no_two_test_files_have_one_name() -> None:
    """They are not in packages, so pytest would refuse to import the second one."""
    counts = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert not [name for name, count in counts.items() if count > 1]


def test_the_glossary_names_classes_and_packages_that_exist() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = [line.strip("|").rpartition("|")[2] for line in page.splitlines() if line.startswith("| ")]
    terms = {term for cell in cells for term in re.findall(r"`([\w.]+)`", cell)}
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "src").rglob("*.py")
    }
    classes = {
        node.name
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert len(terms) > 40
    assert not terms - modules - classes, "the glossary names what does not exist"


def test_the_words_of_the_glossary_are_settings_that_exist() -> None:
    from triform.config.settings import SETTING_TYPES

    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    settings = set(re.findall(r"`((?:model|train|decode|data|tokenizer)\.\w+)`", page))
    assert len(settings) >= 8
    assert not settings - SETTING_TYPES.keys()


def test_documented_arguments_exist() -> None:
    unknown = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            section = re.search(r"^Args:\n((?: +.*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
            documented = re.findall(r"^    \**(\w+):", section[1], re.MULTILINE) if section else []
            parameters = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
            unknown += [f"{path.name}: {node.name}: {name}" for name in documented if name not in parameters]
    assert not unknown, unknown


def test_every_public_class_and_function_has_a_summary_line() -> None:
    """The first line of its docstring is a sentence that fits on the line."""
    problems = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        named = [node for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        for name, node in [("module", module), *((node.name, node) for node in named if node.name[0] != "_")]:
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            if not summary.endswith((".", "?")) and path.name != "__main__.py":
                problems.append(f"{path.relative_to(ROOT)}: {name}: {summary!r}")
    assert not problems, "no summary line:\n" + "\n".join(problems)
