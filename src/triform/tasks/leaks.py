"""What validation data shares with training data, said when training begins."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from triform.data.audit import seen
from triform.data.cache import TokenCache
from triform.data.readers import fingerprint
from triform.errors import WarningText

MEMORY = "is memory"  # what every line on a leak says, so that it is known again


def leak_notices(
    cache: TokenCache, valid: str, what: object, train: Iterator[str], held: Iterator[str]
) -> list[str]:
    """A line when held-out texts are training texts too; `valid` names their file, or nothing within the same one.

    Only equal texts are looked for, in one reading; near ones are left to `triform audit`. What was found in a
    large file is remembered, as its tokens are.
    """

    def count() -> list[int]:
        found = seen(train, held)
        return [sum(found), len(found)]

    marks = [fingerprint(name) for name in _files(valid)]
    n, total = cache.recall(["leak", what, marks], count)
    if not n:
        return []
    name = ",".join(cache.files)
    command = ["triform", "audit", "--train", name, *(["--valid", valid] if valid else [])]
    where = "are in the training data too" if valid else "held out for validation are repeats of rows trained on"
    share = f"{n} of {total} rows ({100 * n / total:.1f} %)"
    return [WarningText(f"{valid or name}: {share} {where}: what they score {MEMORY}; see {shlex.join(command)}")]


def same_text_notices(train: str, valid: str) -> list[str]:
    """Of running texts only a whole one is compared: its lines are no examples, and refrains and names recur."""
    if not valid or fingerprint(valid) != fingerprint(train):
        return []
    return [
        WarningText(f"{valid}: is the training text itself: what it scores {MEMORY}; give --valid another file")
    ]


def _files(valid: str) -> list[str]:
    """`source,target` is two files, unless one is called so."""
    return valid.split(",") if "," in valid and not Path(valid).exists() else [valid] if valid else []
