"""The outcome of the study as Markdown: quality and speed, quality by length, and what may be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triform.reproduce.outcome import Outcome
from triform.reproduce.system import Column
from triform.reproduce.tables import markdown, shown, values
from triform.reproduce.why.parts import NAME, PARTS, TITLE, Part
from triform.stats import holm, paired, verdict

INTRODUCTION = (
    "Each seed of each model learns for as many seconds: a pilot run shows how many steps a model takes in one, "
    "and the number of steps follows from that. How often it has then read its training data stands beside them. "
    "Where that is seldom, the figures tell how soon a model learns, not how far it would come; where it is often, "
    "a model may be past its best, and nothing stops it early. The rate is the best of those tried, by each model "
    "alike, on a tenth of the training data, held out; all of it is learned from afterwards. Models have the same "
    "number of parameters within 2 %: the LSTM's width is found for it. A seed is a run of its own on a device "
    "that does nothing else. Figures are means over seeds, ± half of their 95 % interval."
)
LIMITS = (
    "What is not equal: nothing but the rate was searched for here, and one at the end of its row may have a "
    "better one beyond it. On speeches all other settings, dropout and weight decay too, come from an earlier "
    "search for a Transformer; the others are usual ones. Each model learns in the number format that `train` "
    "takes for it, and on a GPU the LSTM runs in cuDNN's cells. The step counts come from a pilot, so the seconds "
    "beside them, measured, differ a little. On Shakespeare the validation loss of the LSTM carries its state "
    "through 16 windows and the Transformer's begins each window with nothing; the column beside it has both "
    "begin with nothing, and is the one compared. Intervals are over seeds and say nothing of other test rows, "
    "and the unseen rows of speeches are few. Seven seeds and three looks give no corrected p below 0.047."
)
RATE = Column(set="", score="", title="steps/s", digits=1)
SECONDS = Column(set="", score="", title="seconds", kind="seconds", digits=1)


def section(outcome: Outcome | None) -> str:
    parts = [f"## {TITLE}", f"`{NAME}`"]
    if outcome is None or not outcome["parts"]:
        return "\n\n".join([*parts, f"Not run yet: `triform reproduce {NAME}`."])
    if outcome["quick"]:
        parts.append("A quick run: it shows that everything runs, and no figure means anything.")
    parts += [INTRODUCTION, LIMITS, *outcome.get("notes", ())]
    told = [(part, outcome["parts"][part.name]) for part in PARTS if part.name in outcome["parts"]]
    for part in PARTS:
        parts.append(f"### {part.title}")
        if found := outcome["parts"].get(part.name):
            parts += [_table(part, found), _by_length(part, found), _tries(found)]
        else:
            parts.append(f"Not run yet: `triform reproduce {NAME}`.")
    parts.append("\n".join(f"- {line}" for line in verdicts(told)))
    return "\n\n".join([*parts, _how(told)])


def _table(part: Part, found: Mapping[str, Any]) -> str:
    head = ["", *(column.title for column in part.columns)]
    rows = []
    for each in found["variants"]:
        runs = each["runs"]
        rows.append(
            [
                f"**{each['name']}**",
                *(shown(column, values(each, column.key)) for column in part.columns),
                f"{each['parameters']:,}",
                f"{runs[0]['steps']:,}",
                f"{runs[0]['epochs']:.1f} times",
                shown(RATE, [run["steps_per_s"] for run in runs]),
                shown(SECONDS, [run["seconds"] for run in runs]),
                str(len(runs)),
            ]
        )
    return markdown([*head, "parameters", "steps", "data read", "steps/s", "learning", "seeds"], rows)


def _by_length(part: Part, found: Mapping[str, Any]) -> str:
    """A column a bin that either has."""
    bins = [
        name
        for name in part.bins
        if any(values(each, f"{name}.{part.by_length.score}") for each in found["variants"])
    ]
    rows = [
        [
            f"**{each['name']}**",
            *(
                shown(replace(part.by_length, set=name), values(each, f"{name}.{part.by_length.score}"))
                for name in bins
            ),
        ]
        for each in found["variants"]
    ]
    return markdown([f"{part.by_length.title}, by {part.counted}", *bins], rows)


def _tries(found: Mapping[str, Any]) -> str:
    """The loss of every rate that was tried; the one that was taken stands out."""
    rows = []
    for each in found["variants"]:
        taken = each["settings"]["train.lr"]
        cells = ["diverged" if tried["loss"] is None else f"{tried['loss']:.4f}" for tried in each["tries"]]
        marked = [
            f"**{cell}**" if tried["rate"] == taken else cell
            for tried, cell in zip(each["tries"], cells, strict=True)
        ]
        rows.append([f"**{each['name']}**", *marked])
    rates = [f"{tried['rate']:g}" for tried in found["variants"][0]["tries"]]
    return markdown(["loss held out, by `train.lr`", *rates], rows)


def verdicts(told: list[tuple[Part, Mapping[str, Any]]]) -> list[str]:
    """Whether the Transformer is better, in words, seed by seed, corrected for all parts together."""
    looked = []
    for part, found in told:
        transformer, lstm = found["variants"]
        both = {run["seed"] for run in transformer["runs"]} & {run["seed"] for run in lstm["runs"]}
        first, second = (values(each, part.judged, both) for each in (lstm, transformer))
        if len(first) == len(second) > 1:
            looked.append((part, paired(first, second)))
    corrected = holm([difference.p for _, difference in looked])
    said = []
    for (part, difference), p in zip(looked, corrected, strict=True):
        score = part.judged.rpartition(".")[2]
        words = verdict("lstm", "transformer", difference, score, corrected=p, comparisons=len(looked))
        title = next(column.title for column in part.columns if column.key == part.judged)
        said.append(f"{part.title}, {title}: {words}")
    return said


def _how(told: list[tuple[Part, Mapping[str, Any]]]) -> str:
    rows = []
    for part, found in told:
        made = found["made"]
        versions = f"torch {made['torch']}, Triform {made['triform']}, Python {made['python']}"
        kinds = ", ".join(f"{each['name']}: {each['trained_in']}" for each in found["variants"])
        vocabulary = f"{found['variants'][0]['vocabulary']:,}"
        rows.append([part.name, f"`{made['command']}`", made["device"], versions, kinds, vocabulary, made["date"]])
    return markdown(["", "command", "where", "with", "trained in", "vocabulary", "date"], rows)
