"""Evaluate baselines on the data of a reference system."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from reproduce.data import ExperimentData
from reproduce.embeddings import build_vocabulary
from triform.config import DataConfig
from triform.config.settings import build_config
from triform.data.readers import read_aligned, read_chunks, read_rows
from triform.evaluation.baselines import fit_baselines
from triform.evaluation.metrics import Metrics, lowercase_bleu
from triform.tasks.splits import find_split_point
from triform.text import load_tokenizer


def evaluate_system_baselines(data: ExperimentData) -> tuple[dict[str, dict[str, Metrics]], dict[str, str]]:
    """Return the metrics of each baseline by evaluation set, and the reasons of those that could not be fitted."""
    if not data.system.eval_files:  # sets by length compare variants
        return {}, {}
    train_rows, read_set = _rows_and_reader(data)
    tokenizer_options: dict[str, Any] = {}
    if vocabulary_files := next(
        (variant.vocabulary_files for variant in data.system.variants if variant.vocabulary_files), ()
    ):
        tokenizer = load_tokenizer(build_vocabulary(data, vocabulary_files))
        tokenizer_options = {"tokenize": tokenizer.encode, "vocab_size": tokenizer.vocab_size}
    fitted = fit_baselines(data.system.task, train_rows, **tokenizer_options)
    metrics_by_baseline: dict[str, dict[str, Metrics]] = {}
    reasons = dict(fitted.reasons)
    for eval_set, path in data.eval_files().items():
        if eval_set in ("train", "valid") and path:  # these sets compare variants, not systems
            continue
        rows = list(read_set(path))
        baseline_metrics = fitted.evaluate(rows)
        reasons |= baseline_metrics.reasons
        for name, metrics in baseline_metrics.items():
            if metrics:
                if data.system.task == "translate":
                    translator: Any = fitted.fitted[name]
                    hypotheses = translator.predict([pair.source for pair in rows])
                    metrics["tokenised_bleu"] = lowercase_bleu(hypotheses, [pair.target for pair in rows])
                metrics_by_baseline.setdefault(name, {})[eval_set] = {
                    metric: float(value) for metric, value in metrics.items()
                }
    return metrics_by_baseline, reasons


def _rows_and_reader(data: ExperimentData) -> tuple[Iterable[Any], Callable[[str], Iterable[Any]]]:
    """Return the training rows, and a reader of evaluation sets. An empty path means the held-out part."""
    system, data_config = data.system, DataConfig()
    if system.task == "translate":
        files = [str(data.files[system.files[side]]) for side in ("data.source", "data.target")]
        return read_aligned(*files), lambda path: read_aligned(*path.split(","))
    train = data.resolve_path(system.files["data.train"])
    if system.task == "classify":
        return read_rows(train, data_config), lambda path: read_rows(path, data_config)
    has_held_out = "" in system.eval_files.values()
    stop = find_split_point(build_config({"task": "generate", "data.train": train})) if has_held_out else None

    def read_eval_pieces(path: str) -> Iterable[Any]:
        return read_chunks(path, data_config) if path else read_chunks(train, data_config, start=stop or 0)

    return read_chunks(train, data_config, stop=stop), read_eval_pieces
