"""The error of baselines that cannot be fitted or evaluated."""

from __future__ import annotations

from triform.errors import DataError


class BaselineError(DataError):
    """Raised when a baseline cannot be fitted or evaluated on this data. The message contains the reason."""
