"""What a trained run of a system comes to, on every set that it is judged by."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from triform.data.readers import read_aligned
from triform.evaluation.metrics import Metrics, compute_translation_metrics, lowercase_bleu
from triform.run import Run
from triform.tasks.task import add_metric_sums

DECODE_SETTINGS: dict[str, dict[str, object]] = {"greedy": {"strategy": "greedy"}, "beam 5": {"beam_size": 5}}
WARM_UP_SENTENCES = 64  # sentences translated before the clock starts


def evaluate_run(run: Run, eval_files: Mapping[str, str]) -> dict[str, Metrics]:
    """Scores by set. Translations are judged once by each decoding, and timed."""
    if run.config.task != "translate":
        return {name: _to_floats(run.evaluate(path)) for name, path in eval_files.items()}
    metrics = {name: teacher_forced_metrics(run, path) for name, path in eval_files.items()}
    for decoding, decode_settings in DECODE_SETTINGS.items():
        metrics[f"test {decoding}"] = timed_translation_metrics(run, eval_files["test"], decode_settings)
    return metrics


def _to_floats(metrics: Metrics) -> Metrics:
    return {name: float(value) for name, value in metrics.items()}


@torch.inference_mode()
def teacher_forced_metrics(run: Run, path: str) -> Metrics:
    """Loss and share of right tokens where each token is predicted from the true ones before it."""
    task = run.task
    task.model.eval()
    data = task.load_dataset(path, [])
    nats, n_correct, n_tokens = add_metric_sums(
        task.metric_sums(batch.to(task.device)) for batch in data.batches()
    ).tolist()
    return {"loss": nats / n_tokens, "token_accuracy": n_correct / n_tokens}


def timed_translation_metrics(run: Run, path: str, decode_settings: Mapping[str, object]) -> Metrics:
    pairs = list(read_aligned(*path.split(",")))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    run.predict(sources[:WARM_UP_SENTENCES], **decode_settings)  # type: ignore[arg-type]
    start = time.perf_counter()
    hypotheses = [prediction.output for prediction in run.predict(sources, **decode_settings)]  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    metrics = compute_translation_metrics(hypotheses, references)
    return {**metrics, "tokenised_bleu": lowercase_bleu(hypotheses, references), "seconds": seconds}
