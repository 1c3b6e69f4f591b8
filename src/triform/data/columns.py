"""Which column holds the text and which the label, and whether the first row names them.

With `header = "auto"`, looking at the first rows of a table:

1. A column asked for by name means a header. So do a known text name and a known label name in the first
   row. One known name alone means a header when no cell of the first row occurs again below it (a phrase
   of a headerless set may be the word "content").
2. Otherwise the label column is the first or the last one, whichever has fewer distinct values (on a tie:
   shorter values); the text column is, of the others, the longest on average.
3. The first row is then still a header when its label never occurs again although labels repeat, and its
   text is a single short word.

A label column that was guessed and never repeats is refused: it is more likely an identifier. Pairs are
simpler: source and target names, or two languages, make a header; otherwise the first two columns are meant.

Tables to predict need neither a label nor a target (`triform.data.inputs`). In them a column of numbers below a
word also makes a header.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from triform.config import DataConfig
from triform.errors import ConfigError, DataError

Rows = Sequence[Sequence[str]]

TEXT_NAMES = (
    *("text", "sentence", "review", "content", "document", "body", "comment", "message"),
    *("tweet", "utterance", "description"),
)
LABEL_NAMES = (
    *("label", "labels", "class", "category", "sentiment", "target", "rating", "stars", "score"),
    *("polarity", "topic", "intent", "y"),
)
SOURCE_NAMES = ("source", "src", "source_text", "input")
TARGET_NAMES = ("target", "tgt", "target_text", "translation", "reference", "output")
_LANGUAGES = (
    "ar bg bn ca cs da de el en es et eu fa fi fr ga gl he hi hr hu hy is it ja ka kk ko lt lv mk ms nl "
    "no pl pt ro ru sk sl sq sr sv sw ta th tr uk ur vi zh arabic bulgarian chinese croatian czech danish "
    "dutch english estonian finnish french german greek hebrew hindi hungarian indonesian irish italian "
    "japanese korean latin latvian lithuanian norwegian persian polish portuguese romanian russian serbian "
    "slovak slovenian spanish swedish turkish ukrainian vietnamese"
)
LANGUAGES = frozenset(_LANGUAGES.split())
MAX_LISTED_NAMES = 50  # of columns that a message lists
SUSPICIOUS = 20  # rows without one repeated label before a guessed label column is refused
ONE_COLUMN = "has only one column; {} are needed, separated by commas in a .csv and by tabs in a .tsv"
WORD = re.compile(r"[^\W\d][\w.-]{0,29}")


@dataclass(frozen=True, slots=True)
class Columns:
    """Where to look in a row: text and label, or source and target."""

    header: bool
    first: int
    second: int | None


def _fold(name: str) -> str:
    return name.strip().casefold()


def known_name(names: Sequence[str], known: Sequence[str], *, but: int | None = None) -> int | None:
    """The place of the most telling of the known names; never the place `but`, which is taken."""
    folded = ["" if place == but else _fold(name) for place, name in enumerate(names)]
    return next((folded.index(name) for name in known if name in folded), None)


def listed(names: Sequence[str]) -> str:
    """The names for a message: the first of very many, and the beginning of very long ones."""
    shown = [repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:MAX_LISTED_NAMES]]
    return ", ".join([*shown, *["..."] * (len(names) > MAX_LISTED_NAMES)])


def named(path: str, setting: str, name: str, names: Sequence[str], *, what: str = "column") -> int:
    """The place of the name the user asked for."""
    folded = [_fold(each) for each in names]
    if _fold(name) in folded:
        return folded.index(_fold(name))
    some = names[:MAX_LISTED_NAMES]
    closest = sorted(some, key=lambda each: -difflib.SequenceMatcher(None, _fold(name), _fold(each[:99])).ratio())
    there = listed(closest) + ", ..." * (len(names) > MAX_LISTED_NAMES)
    raise DataError(f"has no {what} {name!r}; there are {there}: set data.{setting} to one of them", path=path)


def _asked(path: str, setting: str, value: str, names: Sequence[str] | None, width: int) -> int | None:
    """The place of a column given as a name or as a number from 1."""
    if not value:
        return None
    if not value.isdecimal():
        return named(path, setting, value, names or ())
    if not 1 <= _as_number(value) <= width:
        there = f" ({listed(names)})" if names else ""
        raise DataError(
            f"has no column {value[:40]}; there are {width}{there}: set data.{setting} from 1 to {width}",
            path=path,
        )
    return _as_number(value) - 1


def _as_number(column: str) -> int:
    """A column's number; one of very many digits is none that any table has."""
    return int(column) if len(column) < 10 else 10**9


def _cells(rows: Rows, column: int) -> list[str]:
    return [row[column] if column < len(row) else "" for row in rows]


def _mean_length(rows: Rows, column: int) -> float:
    return sum(map(len, _cells(rows, column))) / max(len(rows), 1)


def _guess_label(rows: Rows, width: int, text: int | None) -> int | None:
    ends = [column for column in dict.fromkeys((0, width - 1)) if column != text]
    if text is None and len(ends) == 1:
        return None  # a single column is the text
    return min(ends, key=lambda column: (len(set(_cells(rows, column))), _mean_length(rows, column)), default=None)


def _guess_text(rows: Rows, width: int, label: int | None) -> int:
    rest = [column for column in range(width) if column != label] or [0]
    return max(rest, key=lambda column: _mean_length(rows, column))


def _recurs(rows: Rows, column: int) -> bool:
    return rows[0][column] in _cells(rows[1:], column)


def _rows_headed(rows: Rows) -> bool:
    first, rest = rows[0], rows[1:]
    found = [known_name(first, TEXT_NAMES), known_name(first, LABEL_NAMES)]
    if None not in found:
        return True
    if any(place is not None for place in found):
        return not any(_recurs(rows, column) for column in range(len(first)))
    label = _guess_label(rest, len(first), None)
    if label is None or _recurs(rows, label):
        return False
    labels = _cells(rest, label)
    text = _guess_text(rest, len(first), label)
    return len(set(labels)) < len(labels) and WORD.fullmatch(first[text].strip()) is not None


def _languages(names: Sequence[str]) -> list[int]:
    """Places of names like "en", "en-US" or "English"."""
    return [place for place, name in enumerate(names) if re.split("[-_]", _fold(name))[0] in LANGUAGES]


def _pairs_headed(rows: Rows) -> bool:
    first = rows[0]
    if known_name(first, SOURCE_NAMES) is not None and known_name(first, TARGET_NAMES) is not None:
        return True
    places = _languages(first)
    return len({_fold(first[place]) for place in places}) >= 2 and not any(_recurs(rows, place) for place in places)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _inputs_headed(rows: Rows) -> bool:
    """Whether the first row of a table without labels or targets holds names."""
    first, rest = rows[0], rows[1:]
    if known_name(first, (*SOURCE_NAMES, *TEXT_NAMES)) is not None and not any(
        _recurs(rows, column) for column in range(len(first))
    ):
        return True
    return bool(rest) and any(
        WORD.fullmatch(first[column].strip()) and all(map(_is_number, _cells(rest, column)))
        for column in range(len(first))
    )


def _headed(rows: Rows, layout: DataConfig, asked: dict[str, str], looks: Callable[[Rows], bool]) -> bool:
    names = {setting: value for setting, value in asked.items() if value and not value.isdecimal()}
    if layout.header == "no" and names:
        setting, value = next(iter(names.items()))
        raise ConfigError(
            f"data.{setting}={value} is a name but data.header=no: give the column's number, counted from 1"
        )
    return layout.header == "yes" or (layout.header == "auto" and (bool(names) or looks(rows)))


def row_columns(path: str, rows: Rows, layout: DataConfig, *, labelled: bool) -> Columns:
    """Text and label of a table, told by its first rows; a label not asked for is never guessed."""
    asked = {"text_column": layout.text_column, "label_column": layout.label_column}
    if not labelled and _absent(layout.label_column, rows[0]):
        asked["label_column"] = ""
    header = _headed(rows, layout, asked, _rows_headed)
    names, width = (rows[0] if header else None), len(rows[0])
    body = rows[1:] if header and len(rows) > 1 else rows
    text = _asked(path, "text_column", asked["text_column"], names, width)
    label = _asked(path, "label_column", asked["label_column"], names, width)
    if names is not None:
        text = known_name(names, TEXT_NAMES, but=label) if text is None else text
        label = known_name(names, LABEL_NAMES, but=text) if label is None else label
    sure = label
    label = _guess_label(body, width, text) if label is None else label
    text = _guess_text(body, width, label) if text is None else text
    if labelled:
        _check_label(path, body, label=label, sure=sure is not None, text=text)
        return Columns(header, text, label)
    return Columns(header, text, None if sure == text else sure)


def _absent(column: str, first: Sequence[str]) -> bool:
    if column.isdecimal():
        return _as_number(column) > len(first)
    return _fold(column) not in map(_fold, first)


def _check_label(path: str, body: Rows, *, label: int | None, sure: bool, text: int) -> None:
    if label is None:
        raise DataError(ONE_COLUMN.format("a text and a label"), path=path)
    if label == text:
        raise DataError(
            f"column {text + 1} cannot be both text and label: set data.text_column and data.label_column",
            path=path,
        )
    if not sure and len(body) >= SUSPICIOUS and len(set(_cells(body, label))) == len(body):
        raise DataError(
            f"no column looks like a label (column {label + 1} never repeats a value): set data.label_column",
            path=path,
        )


def pair_columns(path: str, rows: Rows, layout: DataConfig) -> Columns:
    """Source and target of a table, told by its first rows."""
    asked = {"source_column": layout.source_column, "target_column": layout.target_column}
    header = _headed(rows, layout, asked, _pairs_headed)
    names, width = (rows[0] if header else None), len(rows[0])
    if width < 2:
        raise DataError(ONE_COLUMN.format("a source and a target"), path=path)
    source = _asked(path, "source_column", asked["source_column"], names, width)
    target = _asked(path, "target_column", asked["target_column"], names, width)
    source, target = pair_places(names or ("",) * width, source, target)
    if source == target:
        raise DataError(
            f"column {source + 1} cannot be both source and target: set data.source_column and data.target_column",
            path=path,
        )
    return Columns(header, source, target)


def pair_places(names: Sequence[str], source: int | None, target: int | None) -> tuple[int, int]:
    """Fill in the side that was not asked for: by its name, then by languages in order, then by order."""
    source = known_name(names, SOURCE_NAMES, but=target) if source is None else source
    target = known_name(names, TARGET_NAMES, but=source) if target is None else target
    order = [*_languages(names), *range(len(names))]
    if source is None:
        source = next(place for place in order if place != target)
    if target is None:
        target = next((place for place in order if place != source), source)
    return source, target


def text_input_column(path: str, rows: Rows, layout: DataConfig) -> Columns:
    """The text of a table to predict, which need not have labels."""
    header = layout.header
    if header == "auto" and _inputs_headed(rows):
        header = "yes"
    found = row_columns(path, rows, replace(layout, header=header), labelled=False)
    return replace(found, second=None)


def source_input_column(path: str, rows: Rows, layout: DataConfig) -> Columns:
    """The source of a table to predict, which need not have targets."""
    first, width = rows[0], len(rows[0])
    target_column = "" if _absent(layout.target_column, first) else layout.target_column
    asked = {"source_column": layout.source_column, "target_column": target_column}
    header = _headed(rows, layout, asked, lambda rows: _pairs_headed(rows) or _inputs_headed(rows))
    names = first if header else None
    source = _asked(path, "source_column", layout.source_column, names, width)
    target = _asked(path, "target_column", target_column, names, width)
    return Columns(header, _source_place(names or ("",) * width, source, target), None)


def _source_place(names: Sequence[str], source: int | None, target: int | None) -> int:
    """The place of the source, as for pairs; without a source or language name, a text name also counts."""
    if source is None and known_name(names, SOURCE_NAMES, but=target) is None and not _languages(names):
        source = known_name(names, TEXT_NAMES, but=target)
    return pair_places(names, source, target if len(names) > 1 else None)[0]


def source_input_key(path: str, keys: Sequence[str], layout: DataConfig) -> str:
    """The key of the source in JSON objects, which need not have targets."""
    if not keys:
        raise DataError("has no key; a source is needed", path=path)
    asked = layout.source_column
    source = named(path, "source_column", asked, keys, what="key") if asked else None
    target = None if _absent(layout.target_column, keys) else known_name(keys, (_fold(layout.target_column),))
    return keys[_source_place(keys, source, target)]


def row_keys(path: str, keys: Sequence[str], layout: DataConfig, *, labelled: bool) -> tuple[str, str]:
    """The keys of text and label in JSON objects, by their names; without `labelled` the label may be ""."""
    present = _fold(layout.label_column) in map(_fold, keys)
    asked_label = layout.label_column if labelled or present else ""
    label = named(path, "label_column", asked_label, keys, what="key") if asked_label else None
    if layout.text_column:
        text: int | None = named(path, "text_column", layout.text_column, keys, what="key")
    else:
        text = known_name(keys, TEXT_NAMES, but=label)
    label = known_name(keys, LABEL_NAMES, but=text) if label is None else label
    for place, setting, example in ((text, "text_column", "text"), (label, "label_column", "label")):
        if place is None and (labelled or setting == "text_column"):
            there = listed(keys) or "none"
            raise DataError(f"has no key like {example!r}; there are {there}: set data.{setting}", path=path)
    assert text is not None
    return keys[text], "" if label is None else keys[label]


def pair_keys(path: str, keys: Sequence[str], layout: DataConfig) -> tuple[str, str]:
    """The keys of source and target in JSON objects."""
    if len(keys) < 2:
        raise DataError("has fewer than two keys; a source and a target are needed", path=path)
    asked = {"source_column": layout.source_column, "target_column": layout.target_column}
    places = [named(path, *each, keys, what="key") if each[1] else None for each in asked.items()]
    source, target = pair_places(keys, *places)
    return keys[source], keys[target]
