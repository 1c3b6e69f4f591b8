"""Hypothesis finds the same examples on every run and is not timed, because machines are shared.

No test writes to the user's own token cache.
"""

from __future__ import annotations

import os

import pytest

try:
    from hypothesis import settings
except (
    ImportError
):  # a GPU machine may have pytest and little else; the files that need hypothesis do not run there
    pass
else:
    settings.register_profile("triform", deadline=None, derandomize=True, database=None, max_examples=60)
    settings.load_profile("triform")


@pytest.fixture(scope="session", autouse=True)
def _temporary_token_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For child processes too; the folder lives as long as the tests do."""
    os.environ["TRIFORM_CACHE"] = str(tmp_path_factory.mktemp("token-cache"))
