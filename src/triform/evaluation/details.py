"""Details of an evaluation as tables, which the terminal, the report of a run and the studio show alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from triform.config import TaskName
from triform.errors import ConfigError
from triform.evaluation.label_details import ClassMetrics, ConfusedPair, LabelDetails, Mistake
from triform.evaluation.loss_details import LossBucket, LossDetails
from triform.evaluation.metrics import Metrics
from triform.evaluation.sentence_details import ScoredSentence, SentenceDetails
from triform.formatting import format_metric

MAX_MATRIX_LABELS = 20  # of more labels, the pairs that are confused most often are shown
MAX_SHOWN_CLASSES = 20
MAX_STORED_CHARACTERS = 300  # of a text in metrics.jsonl
DEFAULT_EXAMPLES = 10

Details = LabelDetails | SentenceDetails | LossDetails
ColumnKind = Literal["label", "number", "text"]


class DetailedMetrics(dict[str, float]):
    """The metrics of an evaluation by name, with its details if they were asked for, else None."""

    def __init__(self, metrics: Metrics, details: Details | None = None) -> None:
        super().__init__(metrics)
        self.details = details


@dataclass(frozen=True, kw_only=True)
class DetailTable:
    """A table of the details.

    Attributes:
        name: What the table shows: classes, confusion, pairs, mistakes, worst, context or frequency.
        title: The heading.
        columns: The headings of the columns.
        kinds: What each column holds: short labels, formatted numbers, or texts of any length.
        rows: The cells of each row.
        shares: For the confusion matrix: the fraction of its row in each cell that holds a number.
        note: A sentence about the table, or an empty string.
    """

    name: str
    title: str
    columns: list[str]
    kinds: list[ColumnKind]
    rows: list[list[str]]
    shares: list[list[float]] = field(default_factory=list)
    note: str = ""


def validate_details(details: object) -> None:
    """Refuse a value that is neither a boolean nor a number of examples."""
    if not isinstance(details, int) or details < 0:
        raise ConfigError(f"details must be True, False or a number of examples of 0 or more, found {details!r}")


def build_tables(details: Details) -> list[DetailTable]:
    """Return the tables of an evaluation. Tables without rows are left out."""
    if isinstance(details, LabelDetails):
        tables = _label_tables(details)
    elif isinstance(details, SentenceDetails):
        tables = [_worst_table(details)]
    else:
        tables = _loss_tables(details)
    return [table for table in tables if table.rows or table.note]


def count_examples(details: Details) -> int:
    """Return the number of rows, pairs or tokens that were evaluated."""
    if isinstance(details, LabelDetails):
        return details.rows
    return details.pairs if isinstance(details, SentenceDetails) else details.tokens


def compact_details(details: Details) -> Details:
    """Return the details without what is too large for a line of metrics.jsonl. Their tables stay the same."""
    if isinstance(details, LabelDetails):
        many = details.n_labels > MAX_MATRIX_LABELS
        return replace(
            details,
            labels=[] if many else details.labels,
            confusion=[] if many else details.confusion,
            classes=_shown_classes(details),
            mistakes=[replace(mistake, text=_shorten(mistake.text)) for mistake in details.mistakes],
        )
    if isinstance(details, SentenceDetails):
        return replace(details, worst=[_shorten_sentence(sentence) for sentence in details.worst])
    return details


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_STORED_CHARACTERS else text[: MAX_STORED_CHARACTERS - 1] + "…"


def _shorten_sentence(sentence: ScoredSentence) -> ScoredSentence:
    source, reference, output = map(_shorten, (sentence.source, sentence.reference, sentence.output))
    return replace(sentence, source=source, reference=reference, output=output)


def details_to_dict(details: Details) -> dict[str, Any]:
    """Return the details as JSON has them."""
    return asdict(details)


def details_from_dict(task: TaskName | str, fields: Mapping[str, Any]) -> Details:
    """Return the details that `details_to_dict` has returned.

    Raises:
        TypeError, KeyError: These are no details of an evaluation of this task.
    """
    values = dict(fields)
    if task == "classify":
        return LabelDetails(
            **{
                **values,
                "classes": [ClassMetrics(**item) for item in values["classes"]],
                "confused_pairs": [ConfusedPair(**item) for item in values["confused_pairs"]],
                "mistakes": [Mistake(**item) for item in values["mistakes"]],
            }
        )
    if task == "translate":
        return SentenceDetails(**{**values, "worst": [ScoredSentence(**item) for item in values["worst"]]})
    buckets = {key: [LossBucket(**item) for item in values[key]] for key in ("by_context", "by_frequency")}
    return LossDetails(**{**values, **buckets})


# -- classifiers


def _shown_classes(details: LabelDetails) -> list[ClassMetrics]:
    """Return all labels, or of many labels those with the lowest F1."""
    if len(details.classes) <= MAX_SHOWN_CLASSES:
        return details.classes
    return sorted(details.classes, key=lambda item: item.f1)[:MAX_SHOWN_CLASSES]


def _label_tables(details: LabelDetails) -> list[DetailTable]:
    selected = _shown_classes(details)
    names = ("precision", "recall", "f1")
    rows = [
        [item.label, *(format_metric("f1", getattr(item, name)) for name in names), f"{item.support:,}"]
        for item in selected
    ]
    rows.append(["mean", *(format_metric("f1", details.macro[name]) for name in names), f"{details.rows:,}"])
    subset = (
        f"the {len(selected)} labels with the lowest F1" if details.n_labels > MAX_SHOWN_CLASSES else "each label"
    )
    classes = DetailTable(
        name="classes",
        title=f"Metrics of {subset}",
        columns=["Label", "Precision", "Recall", "F1", "Rows"],
        kinds=["label", "number", "number", "number", "number"],
        rows=rows,
        note="The means are over all labels that occur, each with the same weight.",
    )
    return [classes, _confusion_table(details), _mistake_table(details)]


def _confusion_table(details: LabelDetails) -> DetailTable:
    if details.n_labels > MAX_MATRIX_LABELS:
        return DetailTable(
            name="pairs",
            title="Labels that are confused most often",
            columns=["Expected", "Predicted", "Rows"],
            kinds=["label", "label", "number"],
            rows=[[pair.expected, pair.predicted, f"{pair.rows:,}"] for pair in details.confused_pairs],
        )
    return DetailTable(
        name="confusion",
        title="Confusion matrix",
        columns=["Expected ↓ predicted →", *details.labels],
        kinds=["label", *["number" for _ in details.labels]],  # type: ignore[list-item]
        rows=[
            [label, *(f"{n:,}" for n in counts)]
            for label, counts in zip(details.labels, details.confusion, strict=True)
        ],
        shares=[[n / max(1, sum(counts)) for n in counts] for counts in details.confusion],
    )


def _mistake_table(details: LabelDetails) -> DetailTable:
    return DetailTable(
        name="mistakes",
        title="Most confident mistakes",
        columns=["Probability", "Predicted", "Expected", "Line", "Text"],
        kinds=["number", "label", "label", "number", "text"],
        rows=[
            [format_metric("f1", item.probability), item.predicted, item.expected, str(item.line), item.text]
            for item in details.mistakes
        ],
        note=f"{details.n_mistakes:,} of {details.rows:,} predictions are wrong.",
    )


# -- translators and language models


def _worst_table(details: SentenceDetails) -> DetailTable:
    empty = f" {details.n_empty:,} translations are empty." if details.n_empty else ""
    return DetailTable(
        name="worst",
        title="Translations with the lowest chrF",
        columns=["chrF", "Line", "Source", "Reference", "Translation"],
        kinds=["number", "number", "text", "text", "text"],
        rows=[
            [format_metric("chrf", item.chrf), str(item.line), item.source, item.reference, item.output]
            for item in details.worst
        ],
        note=f"The mean chrF of {details.pairs:,} sentences is {format_metric('chrf', details.mean_chrf)}.{empty}",
    )


def _loss_tables(details: LossDetails) -> list[DetailTable]:
    if details.by_frequency:
        part = "" if details.counts_are_complete else "first "
        note = f"Counted in the {part}{details.counted_tokens:,} tokens of the training data."
    else:
        note = f"Not available: {details.frequency_note}"
    return [
        _bucket_table("context", "Loss by tokens of context", "Context", details.by_context, details),
        _bucket_table("frequency", "Loss by token frequency", "Frequency", details.by_frequency, details, note),
    ]


def _bucket_table(
    name: str, title: str, column: str, buckets: list[LossBucket], details: LossDetails, note: str = ""
) -> DetailTable:
    total = max(details.loss * details.tokens, 1e-30)
    return DetailTable(
        name=name,
        title=title,
        columns=[column, "Loss", "Tokens", "Of tokens", "Of loss"],
        kinds=["label", "number", "number", "number", "number"],
        rows=[
            [
                format_range(bucket.low, bucket.high),
                format_metric("loss", bucket.loss),
                f"{bucket.tokens:,}",
                f"{100 * bucket.tokens / max(1, details.tokens):.1f} %",
                f"{100 * bucket.loss * bucket.tokens / total:.1f} %",
            ]
            for bucket in buckets
        ],
        note=note,
    )


def format_range(low: int, high: int | None) -> str:
    """Format a range of whole numbers.

    >>> format_range(0, 0), format_range(10, 99), format_range(1000, None)
    ('0', '10 to 99', '1,000 or more')
    """
    if low == high:
        return f"{low:,}"
    return f"{low:,} or more" if high is None else f"{low:,} to {high:,}"
