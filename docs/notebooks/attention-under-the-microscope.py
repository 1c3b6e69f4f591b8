# %% [markdown]
# # Attention under the microscope
#
# You train a classifier on sentences whose rule you know, look at what its heads read, and then measure how far
# the maps can be trusted. Because the rule is known, each statement about attention can be compared with the
# truth.

# %%
import os
import random
from pathlib import Path

import numpy as np
import torch

import triform

STEPS = int(os.environ.get("TRIFORM_NOTEBOOK_STEPS", "200"))  # tests of this notebook train for a few steps only
Path("data").mkdir(exist_ok=True)

# %% [markdown]
# ## Sentences with a known rule
#
# Every sentence has a good and a bad word with *but* between them. The label follows the word **after** *but*.
# The same fillers stand around both words, so neither a single word nor a pair of neighbours gives the label
# away.

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


rows = draw_sentences(1800)  # without duplicates, so no sentence is in both files
Path("data/but-train.tsv").write_text("".join(rows[:1500]), encoding="utf-8")
Path("data/but-test.tsv").write_text("".join(rows[1500:]), encoding="utf-8")
print("".join(rows[:3]))

# %%
run = triform.train(
    "classify",
    data="data/but-train.tsv",
    out="runs/microscope",
    overwrite=True,
    device="cpu",
    model={"d_model": 32, "n_layers": 2, "n_heads": 2, "dropout": 0.0},
    train={"max_steps": STEPS, "batch_size": 32, "lr": 3e-3, "eval_every": 50},
)

# %%
run

# %% [markdown]
# Simple methods first: if a bag of words solved the task, the attention of this model would not be worth a look.

# %%
print({name: round(value, 3) for name, value in run.evaluate("data/but-test.tsv").items()})
run.baselines("data/but-test.tsv")

# %% [markdown]
# ## One sentence, all heads
#
# The map is interactive: choose a layer and a head, and click on a token to see what it reads. Above it are the
# attributions: how much each token raises or lowers the logit of the label.

# %%
sentence = "the film was quite dull rather but really lovely somewhat"
explanation = run.explain(sentence)
explanation

# %% [markdown]
# The label is read from the mean of all positions. Which word does each head read, on average over the positions?

# %%
attention = explanation.maps[0]
for layer in range(attention.n_layers):
    for head in range(attention.n_heads):
        received = attention.weights[layer, head].mean(axis=0)  # (S)
        order = np.argsort(-received)[:3]
        top = ", ".join(f"{attention.keys[index].strip()} {received[index]:.2f}" for index in order)
        print(f"layer {layer + 1}, head {head + 1}: {top}   (entropy {attention.entropy()[layer, head]:.2f} bits)")
print(f"a head that reads all tokens alike has {attention.max_entropy():.2f} bits")

# %% [markdown]
# ## Rollout
#
# In the second layer, a position no longer holds only its own token. Rollout multiplies the layers, under the
# assumption that half of each output comes from the residual connection. It is an estimate, not a measurement.

# %%
direct, rolled = attention.average()[-1].mean(axis=0), attention.rollout()[-1].mean(axis=0)
for piece, one, all_layers in zip(attention.keys, direct, rolled, strict=True):
    print(f"{piece.strip():10} last layer {one:.2f}   rollout {all_layers:.2f}")

# %% [markdown]
# ## Are the maps right?
#
# A wrong mask can hide for a long time, because a model trains in spite of it. These sums show it: every row must
# sum to one, and padding must get nothing.

# %%
padded = run.explain(sentence, pad_to=14, attributions=False).maps[0]
for layer, sums in enumerate(padded.sums(), start=1):
    low, high = sums["row_sum_min"], sums["row_sum_max"]
    print(f"layer {layer}: rows sum to {low:.6f} to {high:.6f}, padding gets {sums['padding']}")
assert all(sums["padding"] == 0 for sums in padded.sums())

# %% [markdown]
# `triform check` runs more of these checks: it changes a token and observes which outputs move, compares the fast
# kernel with the formula, and looks whether each parameter gets a gradient.

# %%
from triform.explain.checks import check_model

for check in check_model(run.config, run.task.sizes, run.task.model):
    mark = {True: "passed", False: "FAILED", None: "n/a"}[check.good]
    print(f"{mark:7} {check.name}: {check.detail}")
    assert check.good is not False

# %% [markdown]
# ## What attention is not
#
# A map shows which values are mixed. It does not show what the model does with them. The measurement is simple:
# replace one word of a sentence by an unknown one, and see how much the probability of the label changes. Then
# compare: is the word with the most attention the word with the largest effect?

# %%
texts = [row.strip().split("\t")[1] for row in rows[1500:]][: 60 if STEPS > 10 else 3]


def deletion_effects(text):
    words = text.split()
    variants = [" ".join([*words[:i], "xxxx", *words[i + 1 :]]) for i in range(len(words))]
    original, *changed = run.predict([text, *variants])
    label = original.output
    return np.array([original.probabilities[label] - variant.probabilities[label] for variant in changed])


agreement = {"attention of the last layer": 0, "rollout": 0, "integrated gradients": 0}
for text in texts:
    effects = deletion_effects(text)
    explained = run.explain(text)
    maps = explained.maps[0]
    measures = {
        "attention of the last layer": maps.average()[-1].mean(axis=0),
        "rollout": maps.rollout()[-1].mean(axis=0),
        "integrated gradients": np.array(explained.attributions[0].values),
    }
    for name, values in measures.items():
        assert len(values) == len(effects)  # each word is one token here
        agreement[name] += int(np.argmax(values) == np.argmax(effects))
for name, count in agreement.items():
    print(f"{name:28} names the word with the largest effect in {count} of {len(texts)} sentences")
print(f"{'a random word':28} would in about {sum(1 / len(text.split()) for text in texts):.0f}")

# %% [markdown]
# The rule names the word after *but*. Is that the word that the model reads? It does not have to be: the word
# before *but* is always the opposite, so it tells as much. A map shows what this model does, not the rule.

# %%
counts = {"the word before but": 0, "the word after but": 0, "another word": 0}
for text in texts:
    words = text.split()
    received = run.explain(text, attributions=False).maps[0].average()[-1].mean(axis=0)
    index = int(np.argmax(received))
    if words[index] not in GOOD + BAD:
        counts["another word"] += 1
    elif index < words.index("but"):
        counts["the word before but"] += 1
    else:
        counts["the word after but"] += 1
print("the last layer reads most:", counts)

# %% [markdown]
# A second test: the same maps from a model with random weights. If they look as convincing, looking is not
# evidence.

# %%
torch.manual_seed(0)
untrained = triform.load("runs/microscope", device="cpu")
for parameter in untrained.task.model.parameters():
    if parameter.dim() > 1:
        torch.nn.init.xavier_normal_(parameter)
for name, each in (("trained", run), ("random", untrained)):
    maps = each.explain(sentence, attributions=False).maps[0]
    received = maps.average()[-1].mean(axis=0)
    top = maps.keys[int(np.argmax(received))].strip()
    print(f"{name:8} reads {top!r} most ({received.max():.2f}), entropy {maps.entropy().mean():.2f} bits")

# %%
untrained.explain(sentence)

# %% [markdown]
# ## What to try
#
# - Train with `model={"n_layers": 1, ...}`: does the agreement change?
# - Change one word of `sentence` and predict which tokens of the map move before you run the cell.
# - Use `positions="none"`: can the model still learn the rule?
#
# The page [Attention](../attention.md) describes the kinds of attention and the checks.
