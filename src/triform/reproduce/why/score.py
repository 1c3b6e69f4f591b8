"""How good a run is, as a whole and by length: each score under the name of the rows it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from triform.config import DataConfig
from triform.data.readers import read_aligned, read_rows
from triform.metrics import Scores, translation_scores
from triform.reproduce.material import Material
from triform.reproduce.why.parts import Part
from triform.run import Run
from triform.tasks.generate import Generate

Judged = dict[str, Scores]


def judged(run: Run, part: Part, material: Material) -> Judged:
    return JUDGES[part.system.task](run, part, material)


def _labels(run: Run, part: Part, material: Material) -> Judged:
    """Test rows that are also in the training file tell what was remembered: lengths are those of the others."""
    rows = list(read_rows(material.path(part.system.tests["test"]), DataConfig()))
    answers = run.predict([row.text for row in rows])
    right = [answer.output == row.label for answer, row in zip(answers, rows, strict=True)]
    unseen = [place for place, seen in enumerate(material.leaked("test")) if not seen]
    lengths = [len(rows[place].text.split()) for place in unseen]

    def accuracy(places: Sequence[int]) -> Scores:
        return {"accuracy": sum(right[place] for place in places) / len(places), "rows": len(places)}

    binned = _binned(part, lengths)
    return {
        "test": accuracy(range(len(rows))),
        **({"unseen": accuracy(unseen)} if unseen else {}),
        **{name: accuracy([unseen[place] for place in places]) for name, places in binned.items()},
    }


def _translations(run: Run, part: Part, material: Material) -> Judged:
    pairs = list(read_aligned(*material.path(part.system.tests["test"]).split(",")))
    written = [made.output for made in run.predict([pair.source for pair in pairs], strategy="greedy")]

    def bleu(places: Sequence[int]) -> Scores:
        found = translation_scores([written[place] for place in places], [pairs[place].target for place in places])
        return {"bleu": found["bleu"], "chrf": found["chrf"], "pairs": len(places)}

    binned = _binned(part, [len(pair.source.split()) for pair in pairs])
    return {"test": bleu(range(len(pairs))), **{name: bleu(places) for name, places in binned.items()}}


def _binned(part: Part, lengths: Sequence[int]) -> dict[str, list[int]]:
    """The places of each bin that has any."""
    found: dict[str, list[int]] = {name: [] for name in part.bins}
    for place, length in enumerate(lengths):
        found[part.bin_of(length)].append(place)
    return {name: places for name, places in found.items() if places}


@torch.inference_mode()
def _losses(run: Run, part: Part, material: Material) -> Judged:
    """The loss as `evaluate` gives it, and by how many characters of a window were read before, from nothing on."""
    task = run.task
    assert isinstance(task, Generate)
    held = task.held_out([])
    assert held is not None
    task.model.eval()
    width = task.config.data.max_len
    totals = torch.zeros(width, dtype=torch.float64, device=task.device)
    n = 0
    for batch in held.batches():
        if batch.tokens.shape[1] < width:
            continue  # the last one, cut short
        scores = task.model(batch.tokens.to(task.device)).float()  # (B, T, V)
        losses = F.cross_entropy(scores.flatten(0, 1), batch.targets.to(task.device).flatten(), reduction="none")
        totals += losses.view(-1, width).sum(dim=0)
        n += len(batch.tokens)
    by_place = (totals / max(1, n)).tolist()
    found: Judged = {"valid": {"loss": float(run.evaluate()["loss"])}}
    if n:
        found["windows"] = {"loss": sum(by_place) / width}
        for name, places in _binned(part, range(1, width + 1)).items():
            found[name] = {"loss": sum(by_place[place] for place in places) / len(places)}
    return found


JUDGES: Mapping[str, Callable[[Run, Part, Material], Judged]] = {
    "classify": _labels,
    "generate": _losses,
    "translate": _translations,
}


def plain(scores: Judged) -> dict[str, dict[str, Any]]:
    return {name: {key: float(value) for key, value in each.items()} for name, each in scores.items()}
