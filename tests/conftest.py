"""Hypothesis finds the same examples on every run and is not timed, because machines are shared.

No test writes to the user's own token cache.
"""

from __future__ import annotations

import gc
import os
from functools import cache
from pathlib import Path

import pytest
import typer.main

# As in `triform.cli.main`: torch and thousands of tests are objects that are never freed, and searching them for
# garbage takes a third of the time in which the tests are collected.
gc.set_threshold(50_000)

# A process builds the tree of commands once, which takes 0.1 seconds; the tests run hundreds of commands in one.
typer.main.get_command = cache(typer.main.get_command)

# The files that take longest. They are started first, so that no worker is left alone with one of them at the end.
LONG_FILES = (
    "cli/test_docs_commands.py",
    "reproduce/test_systems.py",
    "test_benchmarks.py",
    "distributed/test_sharded_runs.py",
    "distributed/test_faults.py",
    "training/test_resume.py",
    "distributed/test_same_weights.py",
    "sklearn_/test_estimator_checks.py",
    "scratch/test_scratch_training.py",
    "generation/test_continuous_batching.py",
    "experiments/search/test_search_workers.py",
    "serving/browser/test_runs_tabs.py",
    "test_packaging.py",
    "fuzz/test_fuzz.py",
)

try:
    from hypothesis import settings
except (
    ImportError
):  # a GPU machine may have pytest and little else; the files that need hypothesis do not run there
    pass
else:
    settings.register_profile("triform", deadline=None, derandomize=True, database=None, max_examples=60)
    settings.load_profile("triform")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the long files; the others keep their order (`--no-loadscope-reorder` preserves it)."""
    folder = Path(__file__).parent
    ranks = {folder / name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def _temporary_token_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For child processes too; the folder lives as long as the tests do."""
    os.environ["TRIFORM_CACHE"] = str(tmp_path_factory.mktemp("token-cache"))
