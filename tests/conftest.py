"""Hypothesis finds the same examples on every run and is not timed: these machines are shared.

No test writes to the user's own token cache.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("triform", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("triform")


@pytest.fixture(scope="session", autouse=True)
def _token_cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For child processes too; the folder lives as long as the tests do."""
    os.environ["TRIFORM_CACHE"] = str(tmp_path_factory.mktemp("token-cache"))
