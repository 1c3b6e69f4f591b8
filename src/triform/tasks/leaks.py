"""What validation and test data share with training data, said when training begins and when files are scored."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from triform.data.audit import seen
from triform.data.cache import TokenCache
from triform.data.readers import fingerprint
from triform.errors import DataError, WarningText

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


def training_file_notices(name: str, trained_on: list[str]) -> list[str]:
    """Warn where a file to be scored has the content of the training data.

    Args:
        name: A file, or `source,target`.
        trained_on: The fingerprints of the training files, in the same order.
    """
    with suppress(DataError):  # what cannot be read is for the reader to refuse
        if trained_on and [fingerprint(file) for file in _files(name)] == trained_on:
            same = "has the same content as the training data: what it scores"
            return [WarningText(f"{name}: {same} {MEMORY} and says nothing about new text; score another file")]
    return []


def _files(valid: str) -> list[str]:
    """`source,target` is two files, unless one is called so."""
    return valid.split(",") if "," in valid and not Path(valid).exists() else [valid] if valid else []
