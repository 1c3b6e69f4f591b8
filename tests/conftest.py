"""Hypothesis finds the same examples on every run and is not timed: these machines are shared."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("triform", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("triform")
