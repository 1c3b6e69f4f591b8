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

# Tests that start browsers, servers, databases or groups of processes, and others that take long. `make test-fast`
# leaves them out (`-m "not slow"`). They are started first, so that no worker is left alone with one at the end.
SLOW = (
    "cli/test_docs_commands.py",
    "reproduce/test_systems.py",
    "test_benchmarks.py",
    "distributed",
    "training/test_resume.py",
    "sklearn_/test_estimator_checks.py",
    "scratch/test_scratch_training.py",
    "generation/test_continuous_batching.py",
    "experiments/search/test_search_workers.py",
    "serving/browser",
    "explain/test_page_browser.py",
    "test_transformer_figures.py",
    "test_packaging.py",
    "test_site.py",
    "fuzz",
    "notebooks",
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
    """Mark the slow tests and start with them. `--no-loadscope-reorder` preserves this order."""
    folder = Path(__file__).parent
    ranks = {folder / name: rank for rank, name in enumerate(SLOW)}

    def rank(item: pytest.Item) -> int:
        return next((ranks[path] for path in (item.path, *item.path.parents) if path in ranks), len(ranks))

    for item in items:
        if rank(item) < len(ranks):
            item.add_marker("slow")
    items.sort(key=rank)


@pytest.fixture(scope="session", autouse=True)
def _temporary_token_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For child processes too; the folder lives as long as the tests do."""
    os.environ["TRIFORM_CACHE"] = str(tmp_path_factory.mktemp("token-cache"))
