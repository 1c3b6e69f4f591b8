"""What a trained run of a system comes to, on every set that it is judged by."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from triform.data.readers import read_aligned
from triform.metrics import Scores, lowercase_bleu, translation_scores
from triform.run import Run
from triform.tasks.task import summed

DECODINGS: dict[str, dict[str, object]] = {"greedy": {"strategy": "greedy"}, "beam 5": {"beam_size": 5}}
WARM_UP = 64  # sentences translated before the clock starts


def score(run: Run, tests: Mapping[str, str]) -> dict[str, Scores]:
    """Scores by set. Translations are judged once by each decoding, and timed."""
    if run.config.task != "translate":
        return {name: _plain(run.evaluate(path)) for name, path in tests.items()}
    found = {name: told_the_truth(run, path) for name, path in tests.items()}
    for how, decode in DECODINGS.items():
        found[f"test {how}"] = translated(run, tests["test"], decode)
    return found


def _plain(scores: Scores) -> Scores:
    return {name: float(value) for name, value in scores.items()}


@torch.inference_mode()
def told_the_truth(run: Run, path: str) -> Scores:
    """Loss and share of right tokens where each token is predicted from the true ones before it."""
    task = run.task
    task.model.eval()
    data = task.read(path, [])
    nats, hits, weight = summed(task.tally(batch.to(task.device)) for batch in data.batches()).tolist()
    return {"loss": nats / weight, "token_accuracy": hits / weight}


def translated(run: Run, path: str, decode: Mapping[str, object]) -> Scores:
    pairs = list(read_aligned(*path.split(",")))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    run.predict(sources[:WARM_UP], **decode)  # type: ignore[arg-type]
    start = time.perf_counter()
    written = [made.output for made in run.predict(sources, **decode)]  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    judged = translation_scores(written, references)
    return {**judged, "tokenised_bleu": lowercase_bleu(written, references), "seconds": seconds}
