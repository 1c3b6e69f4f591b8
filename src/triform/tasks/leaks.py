"""What validation and test data share with training data, said when training begins and when files are scored."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from triform.data.audit import find_leaked
from triform.data.readers import fingerprint
from triform.data.token_cache import TokenCache
from triform.errors import DataError, WarningText

LEAK_PHRASE = "is memory"  # what every line on a leak says, so that it is known again


def leak_warnings(
    cache: TokenCache, valid: str, cache_key: object, train_texts: Iterator[str], valid_texts: Iterator[str]
) -> list[str]:
    """A line when held-out texts are training texts too; `valid` names their file, or nothing within the same one.

    Only equal texts are looked for, in one reading; near ones are left to `triform audit`. What was found in a
    large file is remembered, as its tokens are.
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
    """Of running texts only a whole one is compared: its lines are no examples, and refrains and names recur."""
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
        trained_on: The fingerprints of the training files, in the same order.
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
    """`source,target` is two files, unless one is called so."""
    return names.split(",") if "," in names and not Path(names).exists() else [names] if names else []
