"""Warnings about validation and test data that is also in the training data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from triform.data.audit import find_leaked
from triform.data.readers import fingerprint
from triform.data.token_cache import TokenCache
from triform.errors import DataError, WarningText

LEAK_PHRASE = "is memory"  # part of every warning about a leak, by which others recognise it


def leak_warnings(
    cache: TokenCache, valid: str, cache_key: object, train_texts: Iterator[str], valid_texts: Iterator[str]
) -> list[str]:
    """Warn if validation texts are also training texts. `valid` is their file, if they have one of their own.

    Only equal texts are found; `triform audit` finds similar ones. The result for a large file is cached.
    """

    def count_repeats() -> list[int]:
        is_repeated = find_leaked(train_texts, valid_texts)
        return [sum(is_repeated), len(is_repeated)]

    fingerprints = [fingerprint(name) for name in _split_file_names(valid)]
    n_repeated, total = cache.get_or_compute(["leak", cache_key, fingerprints], count_repeats)
    if not n_repeated:
        return []
    name = ",".join(cache.files)
    command = ["triform", "audit", "--train", name, *(["--valid", valid] if valid else [])]
    description = (
        "are in the training data too" if valid else "held out for validation are repeats of rows trained on"
    )
    share = f"{n_repeated} of {total} rows ({100 * n_repeated / total:.1f} %)"
    return [
        WarningText(
            f"{valid or name}: {share} {description}: what they score {LEAK_PHRASE}; see {shlex.join(command)}"
        )
    ]


def same_text_warnings(train: str, valid: str) -> list[str]:
    """Warn if two running texts are the same file. Their lines are not compared, because lines often repeat."""
    if not valid or fingerprint(valid) != fingerprint(train):
        return []
    return [
        WarningText(
            f"{valid}: is the training text itself: what it scores {LEAK_PHRASE}; give --valid another file"
        )
    ]


def training_file_warnings(name: str, train_fingerprints: list[str]) -> list[str]:
    """Warn where a file to be scored has the content of the training data.

    Args:
        name: A file, or `source,target`.
        train_fingerprints: The fingerprints of the training files, in the same order.
    """
    with suppress(DataError):  # what cannot be read is for the reader to refuse
        if train_fingerprints and [fingerprint(file) for file in _split_file_names(name)] == train_fingerprints:
            description = "has the same content as the training data: what it scores"
            return [
                WarningText(
                    f"{name}: {description} {LEAK_PHRASE} and says nothing about new text; score another file"
                )
            ]
    return []


def _split_file_names(names: str) -> list[str]:
    """Split `source,target` into two names, unless there is a file of this name."""
    return names.split(",") if "," in names and not Path(names).exists() else [names] if names else []
