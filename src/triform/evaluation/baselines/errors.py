"""What a baseline says when there is nothing it can be fitted on."""

from __future__ import annotations

from triform.errors import DataError


class BaselineError(DataError):
    """A baseline cannot be fitted on these data, or judged by them; the message is the reason."""
