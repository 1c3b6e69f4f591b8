"""Workflows, the citation and the hooks agree with the rest of the project."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import triform
from check_coverage import find_low_files

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_yaml(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    path = ROOT / name
    if not path.exists():
        pytest.skip("hidden files are not in the source archive")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_workflow_tests_every_python_that_the_package_names_and_both_ends_of_torch() -> None:
    jobs = read_yaml(".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]["include"]
    classifiers = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert sorted({job["python"] for job in jobs}) == classifiers
    [requirement] = [text for text in PROJECT["dependencies"] if text.startswith("torch")]
    lowest, above = (int(number) for number in re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", requirement).groups())  # type: ignore[union-attr]
    minors = {int(job["torch"].split(".")[1]) for job in jobs}
    assert (min(minors), max(minors)) == (lowest, above - 1)
    assert {job["os"].partition("-")[0] for job in jobs} == {"ubuntu", "macos", "windows"}


def test_the_release_is_published_without_a_password() -> None:
    publish = read_yaml(".github/workflows/release.yml")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert not any("password" in step.get("with", {}) for step in publish["steps"])


def test_the_citation_names_this_version_and_its_date() -> None:
    citation = read_yaml("CITATION.cff")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["version"] == triform.__version__
    assert f"## [{citation['version']}] - {citation['date-released']}" in changelog


def test_the_hooks_are_the_tools_of_make_lint() -> None:
    [repository] = read_yaml(".pre-commit-config.yaml")["repos"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(BIN)/", ".venv/bin/")
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        command = hook["entry"].removesuffix(" --force-exclude")
        assert command in makefile or f"{command.removeprefix('make ')}: $(VENV)" in makefile
        assert hook["language"] == "system"  # no network


def test_the_files_that_start_first_exist() -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    names = re.findall(r'^    "(.+\.py)",$', conftest, re.MULTILINE)
    assert names
    assert all((ROOT / "tests" / name).is_file() for name in names)


def test_files_with_few_tested_lines_are_found() -> None:
    summaries = {"a.py": 84.9, "b.py": 85.0, "c.py": 10.0}
    report = json.dumps(
        {"files": {f"/x/src/{name}": {"summary": {"percent_covered": n}} for name, n in summaries.items()}}
    )
    assert find_low_files(json.loads(report)) == [(10.0, "c.py"), (84.9, "a.py")]
