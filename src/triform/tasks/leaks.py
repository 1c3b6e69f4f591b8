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

LEAK_PHRASE = "measures memorisation"  # part of every warning about a leak, by which reports recognise it


def leak_warnings(
    cache: TokenCache,
    name: str,
    valid: str,
    cache_key: object,
    train_texts: Iterator[str],
    valid_texts: Iterator[str],
) -> list[str]:
    """Return a warning if validation texts also occur in the training data.

    Only equal texts are found; `triform audit` also finds similar ones. The result for a large file is cached.

    Args:
        cache: The token cache of the training files.
        name: The training file in messages.
        valid: The validation file; empty if the validation texts are a part of the training file.
        cache_key: The values that determine the split.
        train_texts: The training texts.
        valid_texts: The validation texts.
    """

    def count_repeats() -> list[int]:
        is_repeated = find_leaked(train_texts, valid_texts)
        return [sum(is_repeated), len(is_repeated)]

    fingerprints = [fingerprint(name) for name in _split_file_names(valid)]
    n_repeated, total = cache.get_or_compute(["leak", cache_key, fingerprints], count_repeats)
    if not n_repeated:
        return []
    command = ["triform", "audit", "--train", name, *(["--valid", valid] if valid else [])]
    description = (
        "also occur in the training data" if valid else "held out for validation also occur in the training rows"
    )
    share = f"{n_repeated} of {total} rows ({100 * n_repeated / total:.1f} %)"
    return [
        WarningText(
            f"{valid or name}: {share} {description}; a metric on them {LEAK_PHRASE}: run `{shlex.join(command)}`"
        )
    ]


def same_text_warnings(train: str, valid: str) -> list[str]:
    """Return a warning if two plain texts are the same. Lines are not compared, because they often repeat."""
    if not valid or fingerprint(valid) != fingerprint(train):
        return []
    return [
        WarningText(f"{valid} is the training text; a metric on it {LEAK_PHRASE}: use another file for --valid")
    ]


def training_file_warnings(name: str, train_fingerprints: list[str]) -> list[str]:
    """Return a warning if a file to evaluate on has the content of the training data.

    Args:
        name: A file, or `source,target`.
        train_fingerprints: The fingerprints of the training files, in the same order.
    """
    with suppress(DataError):  # the reader reports files that cannot be read
        if train_fingerprints and [fingerprint(file) for file in _split_file_names(name)] == train_fingerprints:
            description = "has the same content as the training data; a metric on it"
            return [
                WarningText(
                    f"{name} {description} {LEAK_PHRASE} and says nothing about new text: evaluate on another file"
                )
            ]
    return []


def _split_file_names(names: str) -> list[str]:
    """Split `source,target` into two names, unless there is a file with this name."""
    return names.split(",") if "," in names and not Path(names).exists() else [names] if names else []
