# %% [markdown]
# # An honest comparison
#
# You have two ideas and one number for each. Which idea is better? This notebook compares three variants of a
# classifier over several seeds, and shows what a difference must survive before you may report it: another seed,
# a paired test, a correction for several comparisons, and a simple baseline.

# %%
import os
import random
import shutil
from pathlib import Path

import numpy as np

import triform

STEPS = int(os.environ.get("TRIFORM_NOTEBOOK_STEPS", "70"))  # tests of this notebook train for a few steps only
SEEDS = 8 if STEPS > 10 else 2
Path("data").mkdir(exist_ok=True)

# %% [markdown]
# ## The question
#
# The sentences have a good and a bad word with *but* between them, and the label follows the word after *but*. So
# the order of the words matters. Two ideas:
#
# 1. **Positions**: the model needs to know where a token is.
# 2. **Activation**: GELU instead of ReLU in the feed-forward network.
#
# Training is short on purpose. After long training every variant with positions solves the task, and nothing is
# left to compare.

# %%
GOOD, BAD = ["good", "lovely", "clever", "warm", "funny"], ["bad", "dull", "cruel", "cold", "boring"]
FILLERS = ["quite", "rather", "really", "somewhat"]


def draw_sentences(n_rows, seed=0):
    draw, rows = random.Random(seed), {}
    while len(rows) < n_rows:
        first, second = draw.choice([(GOOD, BAD), (BAD, GOOD)])
        label = "positive" if second is GOOD else "negative"
        start = draw.choice(["the film was", "this story is", "her new book was", "it is"])
        words = [start, draw.choice(FILLERS), draw.choice(first), draw.choice(FILLERS), "but", draw.choice(FILLERS)]
        rows[f"{label}\t{' '.join([*words, draw.choice(second), draw.choice(FILLERS)])}\n"] = None
    return list(rows)


rows = draw_sentences(2800)  # without duplicates, so no sentence is in two of the files
for name, part in (("train", rows[:1500]), ("valid", rows[1500:1800]), ("test", rows[1800:])):
    Path(f"data/but-{name}.tsv").write_text("".join(part), encoding="utf-8")
print("".join(rows[:3]))

# %% [markdown]
# ## Baselines come first
#
# A comparison of two Transformers says nothing if a method without one does as well. The baselines are fitted on
# the same training data.

# %%
COMMON = {"d_model": 32, "n_layers": 1, "n_heads": 2, "dropout": 0.0}
TRAINING = {"max_steps": STEPS, "batch_size": 32, "lr": 2e-3, "eval_every": max(1, STEPS // 5)}
first = triform.train(
    "classify",
    data="data/but-train.tsv",
    valid="data/but-valid.tsv",
    out="runs/honest-first",
    overwrite=True,
    device="cpu",
    model={**COMMON, "activation": "gelu"},
    train=TRAINING,
)
first.baselines("data/but-test.tsv")

# %% [markdown]
# ## One seed proves nothing
#
# The same model with other seeds differs only in its initial weights and in the order of its data. How far do the
# results spread?

# %%
shutil.rmtree("runs/honest-seeds", ignore_errors=True)
seeds = triform.train_seeds(
    "classify",
    SEEDS,
    data="data/but-train.tsv",
    valid="data/but-valid.tsv",
    out="runs/honest-seeds",
    device="cpu",
    quiet=True,
    model={**COMMON, "activation": "gelu"},
    train=TRAINING,
)
seeds

# %%
spread = 100 * (max(seeds.values) - min(seeds.values))
print(f"two seeds of the same model differ by up to {spread:.1f} points")
print("a smaller difference between two ideas with one seed each could be the seed alone")

# %% [markdown]
# ## A study: three variants, the same seeds
#
# All variants are trained with the same seeds, so that they see the same batches in the same order. This pairs
# the runs: what a seed does to all variants cancels out of the difference. The test file was never used to choose
# anything.

# %%
shutil.rmtree("runs/honest-study", ignore_errors=True)
study = triform.compare(
    {
        "task": "classify",
        "tests": {"test": "data/but-test.tsv"},
        "common": {
            "data": {"train": "data/but-train.tsv", "valid": "data/but-valid.tsv"},
            "model": COMMON,
            "train": TRAINING,
        },
        "variants": {
            "gelu": {"model": {"activation": "gelu"}},
            "relu": {"model": {"activation": "relu"}},
            "no-positions": {"model": {"activation": "gelu", "positions": "none"}},
        },
    },
    seeds=SEEDS,
    out="runs/honest-study",
    device="cpu",
    quiet=True,
)
study

# %% [markdown]
# ## How a paired test works
#
# Take the differences of a pair of variants, one for each seed. If the idea had no effect, each difference could
# as well have the opposite sign. So try all signs: the p-value is the share of them whose mean is at least as far
# from zero as the measured one.

# %%
from itertools import product

from triform.evaluation.statistics import sign_flip


def metric_by_seed(variant):
    return {run.seed: run.metric_values["test"] for run in study.runs_of(variant)}


for first_name, second_name in (("gelu", "relu"), ("gelu", "no-positions")):
    one, other = metric_by_seed(first_name), metric_by_seed(second_name)
    differences = np.array([other[seed] - one[seed] for seed in one])
    means = [abs((differences * signs).mean()) for signs in product((1, -1), repeat=len(differences))]
    p = np.mean([mean >= abs(differences.mean()) - 1e-12 for mean in means])
    print(f"{second_name} - {first_name}: {np.round(100 * differences, 1)} points, p = {p:.3f}")
    assert np.isclose(p, sign_flip(differences))

# %% [markdown]
# With $n$ seeds there are $2^n$ signs, so no p-value can be below $2 / 2^n$. That is why a study with few seeds
# says so instead of giving a verdict. Three comparisons are three chances to be lucky: the
# corrected p-values take this into account.

# %%
print(f"{SEEDS} seeds cannot give p below {2 / 2**SEEDS:.3f}")
for comparison in study.comparisons:
    p, corrected = comparison.difference.p, comparison.corrected_p
    print(f"{comparison.first} and {comparison.second}: p = {p:.3f}, corrected {corrected:.3f}")

# %% [markdown]
# ## What "not shown" means
#
# A difference that is not shown is not shown to be zero. The interval says what is still possible: everything
# inside it fits the data.

# %%
for comparison in study.comparisons:
    low, high = 100 * comparison.difference.low, 100 * comparison.difference.high
    print(f"{comparison.second} - {comparison.first}: between {low:+.1f} and {high:+.1f} points")
    print(f"    verdict: {comparison.verdict}")

# %% [markdown]
# How many seeds would show a difference half as large? The interval shrinks with the square root of their number,
# so half the width takes four times the seeds.

# %% [markdown]
# ## What to try
#
# - Set `STEPS` to 300: which differences remain?
# - Compare with two seeds only, and read what the verdicts say then.
# - Add a fourth variant that equals `gelu` in everything, and count how often it "wins".
#
# The page [Comparing settings](../compare.md) describes studies, and `triform compare` runs them from a file.
