"""The languages of a translator, from its name or from the settings of its data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

UNKNOWN = "und"  # the code of ISO 639 for a language that is not known
NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "da": "Danish",
    "de": "German", "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian", "eu": "Basque",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician", "he": "Hebrew",
    "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "is": "Icelandic",
    "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh", "ko": "Korean", "la": "Latin",
    "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ms": "Malay", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian",
    "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "th": "Thai",
    "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese", UNKNOWN: "Undetermined",
}  # fmt: skip
CODES = {name.lower(): code for code, name in NAMES.items()} | {code: code for code in NAMES}
BUILTIN_LANGUAGES = {"builtin:numbers": ("en", "fr")}


def find_languages(name: str, data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the codes of source and target of a translator.

    They are found in the name of the model (`en-fr`), in the names of the files (`train.en`, `train.fr`) or in the
    names of the columns, in this order.

    Args:
        name: The name of the model.
        data: The settings `data.*` of its run.
    """
    train = str(data.get("train", ""))
    candidates = [
        tuple(PurePath(name).name.lower().split("-")),
        BUILTIN_LANGUAGES.get(train.partition("/")[0], ()),
        (_find_code(data.get("source", "")), _find_code(data.get("target", ""))),
        tuple(_find_code(file) for file in train.split(",")),
        (_find_code(data.get("source_column", "")), _find_code(data.get("target_column", ""))),
    ]
    for pair in candidates:
        if len(pair) == 2 and pair[0] != pair[1] and set(pair) <= NAMES.keys():
            return pair[0], pair[1]
    return UNKNOWN, UNKNOWN


def _find_code(text: object) -> str:
    """Return the code of the last language that a file name or a column name contains, or an empty string."""
    words = re.split(r"[._-]", PurePath(str(text)).name.lower())
    return next((CODES[word] for word in reversed(words) if word in CODES), "")
