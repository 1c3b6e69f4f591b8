"""The structure of the source: imports point one way, and importing does no work."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import triform

SOURCE = Path(triform.__file__).parent

# A package imports only packages that stand before it in this list. A new package is a decision: it is added here.
PACKAGES = (
    *(
        "errors",
        "notebook",
        "formatting",
        "progress",
        "interrupts",
        "html",
        "config",
        "io",
        "text",
        "scratch",
        "world",
        "device",
        "nn",
        "data",
    ),
    "vectors",
    *("models", "analysis", "generation", "evaluation", "tasks", "training", "pretrained", "explain", "reporting"),
    *("run", "run_log", "launch", "experiments", "sklearn", "serving", "cli"),
)
WITHOUT_TORCH = (
    *("errors", "notebook", "formatting", "html", "io", "config", "text", "scratch", "data", "vectors", "analysis"),
    *("evaluation", "reporting"),
)
# A guard for forked children, the user's cache folder, and the rank of a process; beside cli/.
READS_ENVIRONMENT = ("text/base.py", "io/cache.py", "world.py", "training/trackers.py")


@dataclass(frozen=True)
class Import:
    """One imported module; `later` when inside a function, `types` when only a type checker sees it."""

    module: str
    line: int
    deferred: bool
    type_checking: bool


def relative_path(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


FILES = sorted(SOURCE.rglob("*.py"))


@cache
def parse_module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    parts = ("triform", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def package_of(module: str) -> str:
    """`text` for triform.text.bpe; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    return tuple(_iter_imports(parse_module(path), deferred=False, type_checking=False))


def _iter_imports(node: ast.AST, *, deferred: bool, type_checking: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, deferred, type_checking) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, f"line {child.lineno}: imports name the whole path"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                yield Import(
                    inner if inner in MODULES else str(child.module), child.lineno, deferred, type_checking
                )
        else:
            inside_function = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            inside_type_checking = type_checking or (
                isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            )
            yield from _iter_imports(child, deferred=inside_function, type_checking=inside_type_checking)


FILES_BY_PACKAGE: dict[str, list[Path]] = {}
for name, path in MODULES.items():
    FILES_BY_PACKAGE.setdefault(package_of(name) or "triform", []).append(path)


def for_every_file(check: Callable[[Path], None]) -> Callable[[str], None]:
    """Return a test of each package, which applies a check to all its files."""

    def test(package: str) -> None:
        for path in FILES_BY_PACKAGE[package]:
            check(path)

    test.__name__ = check.__name__
    return pytest.mark.parametrize("package", FILES_BY_PACKAGE)(test)


def test_every_package_is_in_the_list() -> None:
    assert {package_of(module) for module in MODULES} - {"", "__main__"} == set(PACKAGES)


@for_every_file
def test_imports_point_down_only(path: Path) -> None:
    package = package_of(module_name(path))
    if not package or package == "__main__":
        return  # the package itself stands above all packages
    allowed = ("", *PACKAGES[: PACKAGES.index(package) + 1])
    violations = [
        f"{relative_path(path)}:{imported.line} imports {imported.module}"
        for imported in imports_of(path)
        if imported.module.split(".")[0] == "triform" and package_of(imported.module) not in allowed
    ]
    assert not violations


def test_no_two_modules_need_each_other() -> None:
    dependencies = {
        module: {
            imported.module
            for imported in imports_of(path)
            if not imported.type_checking and imported.module in MODULES
        }
        - {module}
        for module, path in MODULES.items()
        if module != "triform"  # everyone may ask the package for its version
    }
    while independent := [module for module, others in dependencies.items() if not others & dependencies.keys()]:
        for module in independent:
            del dependencies[module]
    assert not dependencies, f"a cycle among {sorted(dependencies)}"


def test_the_package_itself_needs_only_the_errors_until_it_is_used() -> None:
    eager = {
        imported.module
        for imported in imports_of(MODULES["triform"])
        if not imported.deferred and not imported.type_checking
    }
    assert {module for module in eager if module.startswith("triform")} == {"triform.errors"}
    for_types = {imported.module for imported in imports_of(MODULES["triform"]) if imported.type_checking}
    assert for_types == set(triform._LAZY_IMPORTS.values())
    for name in triform.__all__:
        assert getattr(triform, name) is not None
    with pytest.raises(AttributeError, match="module 'triform' has no attribute 'wings'"):
        _ = triform.wings


@for_every_file
def test_torch_stays_out_of_packages_that_handle_text_and_settings(path: Path) -> None:
    if package_of(module_name(path)) in ("", *WITHOUT_TORCH):
        assert "torch" not in {imported.module.split(".")[0] for imported in imports_of(path)}


@for_every_file
def test_a_command_imports_what_is_heavy_only_when_it_runs(path: Path) -> None:
    if package_of(module_name(path)) != "cli":
        return
    eager = {
        imported.module for imported in imports_of(path) if not imported.deferred and not imported.type_checking
    }
    outside = {module.split(".")[0] for module in eager} - set(sys.stdlib_module_names)
    assert outside <= {"triform", "typer"}
    inside = {module for module in eager if module.startswith("triform")}
    assert {package_of(module) for module in inside} <= {"", "cli", "errors", "formatting", "interrupts"}


def packages_loaded_by(code: str) -> set[str]:
    """The top-level packages that a fresh Python has loaded after running the code."""
    probe = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    completed = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(completed.stdout.split())


@pytest.mark.parametrize("module", ["triform", "triform.cli.main"])
def test_importing_the_package_or_its_commands_loads_nothing_heavy(module: str) -> None:
    heavy = {"torch", "numpy", "rich", "sacrebleu", "tokenizers", "safetensors", "matplotlib", "sklearn", "gensim"}
    heavy |= {"scipy", "huggingface_hub"}
    loaded = packages_loaded_by(f"import {module}")
    assert "triform" in loaded
    assert not loaded & heavy


@for_every_file
def test_the_environment_is_read_only_where_it_may_be(path: Path) -> None:
    if package_of(module_name(path)) == "cli" or relative_path(path) in (*READS_ENVIRONMENT,):
        return
    names = {node.attr for node in ast.walk(parse_module(path)) if isinstance(node, ast.Attribute)}
    names |= {
        alias.name
        for node in ast.walk(parse_module(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert not names & {"environ", "environb", "getenv", "putenv"}


@for_every_file
def test_nothing_is_called_for_its_effect_at_import(path: Path) -> None:
    calls = [
        f"{relative_path(path)}:{node.lineno} {ast.unparse(node)[:60]}"
        for node in parse_module(path).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    assert not calls


def test_exceptions_to_these_rules_are_still_needed() -> None:
    assert not [name for name in READS_ENVIRONMENT if not (SOURCE / name).exists()]
