"""The error of baselines that cannot be fitted or evaluated."""

from __future__ import annotations

from triform.errors import DataError


class BaselineError(DataError):
    """A baseline cannot be fitted or evaluated on this data; the message says why."""
