"""Compare default classifiers with logistic regression on TF-IDF, on random samples of a labelled file.

For each size, `triform train classify --data sample.csv` trains on random samples with default settings, once for
each seed. The baselines, words and words with pairs, read the same rows. All figures are accuracies on another file
in percent. `margin` is the accuracy of the default minus that of the better baseline, which is the one with the
higher mean at this size; `margin_ci` is the half-width of its 95 % interval over samples (t distribution, paired).

`--data FILE` has the rows to draw from and `--test FILE` the rows to evaluate on; both have labels and texts, as
`triform train classify` reads them. `--sizes 100:8,1000:3` draws 8 samples of 100 rows and 3 of 1,000.
"""

from __future__ import annotations

import csv
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import t

from benchmarks.options import build_parser
from benchmarks.report import BenchmarkReport
from triform.config import DataConfig
from triform.data.builtin.reviews import reviews
from triform.data.readers import LabelledText, read_rows
from triform.evaluation.baselines.tfidf import TfidfBaseline
from triform.launch import train

SMOKE_SIZES = "40:2"
Rows = Sequence[LabelledText]


def read_file(path: Path | None, split: str) -> list[LabelledText]:
    """Read the rows of a file, or the built-in reviews without a file."""
    if path is None:
        return [LabelledText(label=label, text=text, line=0) for text, label in reviews(split)]
    return list(read_rows(str(path), DataConfig(train=str(path))))


def parse_sizes(text: str) -> list[tuple[int, int]]:
    """Return pairs of a size and its number of samples."""
    pairs = (item.partition(":") for item in text.split(","))
    return [(int(size), int(n_samples or 1)) for size, _, n_samples in pairs]


def baseline_accuracy(sample: Rows, test: Rows, *, bigrams: bool) -> float:
    """Return the accuracy of logistic regression on TF-IDF, in percent."""
    baseline = TfidfBaseline.fit(sample, bigrams=bigrams)
    predicted = baseline.predict([row.text for row in test]).argmax(axis=1)
    return 100 * float(np.mean([baseline.labels[i] == row.label for i, row in zip(predicted, test, strict=True)]))


def default_accuracy(sample: Rows, test: Rows, folder: Path, seed: int) -> float:
    """Train with default settings, and return the accuracy in percent."""
    file, out = folder / "sample.csv", folder / f"run{seed}"
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *((row.text, row.label) for row in sample)])
    run = train("classify", data=file, out=out, seed=seed, device="cpu", quiet=True, overwrite=True)
    predictions = run.predict([row.text for row in test])
    return 100 * float(np.mean([p.output == row.label for p, row in zip(predictions, test, strict=True)]))


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu",), help="cpu, on which small data is trained")
    parser.add_argument("--data", type=Path, help="rows to draw from; without it, the built-in reviews")
    parser.add_argument("--test", type=Path, help="rows to evaluate on; without it, built-in ones")
    parser.add_argument("--sizes", default="100:8,200:6,500:4,1000:3", help="sizes and numbers of samples")
    parser.add_argument("--seeds", type=int, default=1, help="runs for each sample")
    parser.add_argument("--max-test-rows", type=int, default=2_000, help="rows to evaluate on")
    options = parser.parse_args(arguments)
    report = BenchmarkReport("learning_curves", options)
    data, test = read_file(options.data, "train"), read_file(options.test, "valid")
    test = test[: 50 if report.smoke else options.max_test_rows]
    for size, n_samples in parse_sizes(SMOKE_SIZES if report.smoke else options.sizes):
        accuracies: list[tuple[float, ...]] = []
        seconds = 0.0
        for number in range(n_samples):
            sample = random.Random(f"{size}-{number}").sample(data, min(size, len(data)))
            words, pairs = (baseline_accuracy(sample, test, bigrams=bigrams) for bigrams in (False, True))
            started_at = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                runs = [default_accuracy(sample, test, Path(folder), seed) for seed in range(options.seeds)]
            seconds += time.monotonic() - started_at
            accuracies.append((float(np.mean(runs)), words, pairs))
        default, *baselines = np.array(accuracies).T
        margins = default - max(baselines, key=np.mean)
        deviation = float(margins.std(ddof=1)) if n_samples > 1 else float("nan")
        report.add_figures(
            f"{size} rows, {n_samples} samples",
            default=float(default.mean()),
            words=float(baselines[0].mean()),
            pairs=float(baselines[1].mean()),
            margin=float(margins.mean()),
            margin_ci=float(t.ppf(0.975, max(1, n_samples - 1))) * deviation / n_samples**0.5,
            seconds_per_run=seconds / (n_samples * options.seeds),
        )
    report.write()


if __name__ == "__main__":
    main()
