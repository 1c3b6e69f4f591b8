# %% [markdown]
# # The Transformer from NumPy up
#
# You build attention from three matrix products, check a gradient by hand, train a small language model in NumPy,
# and then open the same weights in PyTorch. Both give the same logits, the same gradients and the same text.
#
# You need to know what a matrix product and a derivative are. Every claim is computed in a cell, and you can
# change each of them.

# %%
import os
import shutil
from pathlib import Path

import numpy as np

import triform
from triform import scratch
from triform.explain.attention_maps import AttentionMap, Explanation

STEPS = int(os.environ.get("TRIFORM_NOTEBOOK_STEPS", "400"))  # tests of this notebook train for a few steps only
FOLDER = Path("runs/from-numpy")
rng = np.random.default_rng(0)
np.set_printoptions(precision=2, suppress=True)

# %% [markdown]
# ## Tokens become vectors
#
# A model reads numbers. A tokenizer gives each token a number, and the embedding is a table with one row for each
# token: reading a token means taking its row. Position vectors are added, because attention alone does not know
# the order of its input.

# %%
words = "the cat saw the dog".split()
vocabulary = sorted(set(words))
tokens = np.array([vocabulary.index(word) for word in words])
table = rng.standard_normal((len(vocabulary), 8))  # (V, D)
positions = rng.standard_normal((len(words), 8))  # (T, D)
x = table[tokens] + positions  # (T, D)
print(tokens)
print("the first and the fourth token have the same row:", np.array_equal(table[tokens[0]], table[tokens[3]]))
print("with positions they differ:                      ", not np.array_equal(x[0], x[3]))

# %% [markdown]
# ## One attention head
#
# Every token asks a question (its query), and every token offers a label (its key) and a content (its value). The
# score of a query and a key is their dot product, divided by $\sqrt{d_h}$ so that it does not grow with the
# width. The softmax turns the scores of a query into weights that sum to one, and the output is the weighted mean
# of the values.
#
# $$A = \operatorname{softmax}\left(\frac{QK^\top}{\sqrt{d_h}} + M\right) \qquad y = AV$$
#
# The mask $M$ is $-\infty$ for keys that a query must not read. In a decoder these are later tokens.

# %%
q, k, v = (x @ rng.standard_normal((8, 4)) for _ in range(3))  # (T, Dh)
scores = q @ k.T / np.sqrt(4)  # (T, T)
scores[np.triu_indices(len(words), k=1)] = -np.inf
weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
weights /= weights.sum(axis=-1, keepdims=True)
y = weights @ v  # (T, Dh)
print(weights)
print("rows sum to one:", np.allclose(weights.sum(axis=-1), 1))
print("the first token can only read itself:", np.allclose(y[0], v[0]))

# %% [markdown]
# A map of weights is easier to read than a matrix. Click on a token to see what it reads.

# %%
head = AttentionMap(
    name="decoder",
    queries=tuple(words),
    keys=tuple(words),
    weights=weights[None, None].astype("float32"),
    causal=True,
)
Explanation(title="one head, by hand", text=" ".join(words), maps=(head,))

# %% [markdown]
# `triform.scratch` computes the same for many rows and heads at once. It has no other trick.

# %%
from triform.scratch.attention import causal_mask, scaled_dot_product_attention

masks = [causal_mask(len(words), np.float64)]
batched = [array[None, None] for array in (q, k, v)]  # (B, H, T, Dh)
output, _ = scaled_dot_product_attention(*batched, masks, 1 / np.sqrt(4), 0.0, None)  # (B, T, H, Dh)
print("largest difference:", abs(output[0, :, 0] - y).max())

# %% [markdown]
# ## The backward pass
#
# Training needs the derivative of the loss with respect to every number. Every layer of `triform.scratch` returns
# its output and a function `backward`, which turns the gradient of the output into the gradient of the input. You
# can check any of them: change one number by $\pm h$ and measure how the loss changes.


# %%
def numeric_gradient(function, array, h=1e-6):
    gradient = np.empty_like(array)
    for index in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[index] += h
        down[index] -= h
        gradient[index] = (function(up) - function(down)) / (2 * h)
    return gradient


def attention_loss(q, k, v):
    output, _ = scaled_dot_product_attention(q, k, v, masks, 0.5, 0.0, None)
    return (output.swapaxes(1, 2) * dy).sum()


dy = rng.standard_normal(batched[0].shape)
_, backward = scaled_dot_product_attention(*batched, masks, 0.5, 0.0, None)
dq, dk, dv = (np.empty_like(array) for array in batched)
backward(dy, dq, dk, dv)
q4, k4, v4 = batched
for name, exact, numeric in (
    ("queries", dq, numeric_gradient(lambda array: attention_loss(array, k4, v4), q4)),
    ("keys", dk, numeric_gradient(lambda array: attention_loss(q4, array, v4), k4)),
    ("values", dv, numeric_gradient(lambda array: attention_loss(q4, k4, array), v4)),
):
    error = abs(exact - numeric).max()
    print(f"{name:8} largest error {error:.1e}")
    assert error < 1e-6

# %% [markdown]
# ## A whole model
#
# A Transformer block adds attention and then a feed-forward network to its input. Blocks on top of each other, an
# embedding below and one linear layer above are a language model. Each position predicts the next token.

# %%
from triform.config import Config, DataConfig, DecodeConfig, ModelConfig, TokenizerConfig, TrainConfig

rhyme = "row, row, row your boat, gently down the stream. merrily, merrily, merrily, merrily, life is but a dream. "
config = Config(
    model=ModelConfig(d_model=32, n_layers=2, n_heads=2, dropout=0.0),
    train=TrainConfig(max_steps=STEPS, batch_size=8, lr=3e-3),
    tokenizer=TokenizerConfig(kind="char"),
    data=DataConfig(max_len=32),
)
language_model = scratch.LanguageModel(config).fit(rhyme * 20)
n_parameters = language_model.weights.value.size
print(f"{n_parameters:,} parameters, loss {language_model.losses[0]:.2f} -> {language_model.losses[-1]:.2f}")
print(f"guessing gives {np.log(language_model.tokenizer.vocab_size):.2f}, the logarithm of the vocabulary's size")
greedy = DecodeConfig(strategy="greedy", max_new_tokens=40)
print(repr(language_model.generate(["row, row"], greedy)[0]))

# %% [markdown]
# The gradient of the whole model is the chain of all `backward` functions. The check is the same as above, on a
# few of the parameters, in float64.

# %%
from triform.scratch.models import TransformerDecoder
from triform.scratch.module import FlatParameters

model = TransformerDecoder(language_model.config.model, language_model.sizes())
parameters = FlatParameters(model, np.float64)
parameters.value[:] = language_model.weights.value
ids = np.array([language_model.tokenizer.encode(rhyme)[:33]])
batch = {"tokens": ids[:, :-1], "expected": ids[:, 1:]}
_, backward = model.loss(**batch)
backward(1 / batch["expected"].size)
errors = []
for index in rng.choice(n_parameters, size=25, replace=False):
    value, losses = parameters.value[index], []
    for change in (1e-5, -1e-5):
        parameters.value[index] = value + change
        losses.append(model.loss(**batch)[0] / batch["expected"].size)
    parameters.value[index] = value
    errors.append(abs((losses[0] - losses[1]) / 2e-5 - parameters.grad[index]))
print(f"largest error of 25 gradients: {max(errors):.1e}")
assert max(errors) < 1e-7

# %% [markdown]
# ## The same weights in PyTorch
#
# The parameters have the same names in both implementations, so `triform.load` opens the folder that the NumPy
# model wrote.

# %%
shutil.rmtree(FOLDER, ignore_errors=True)
language_model.save(FOLDER)
run = triform.load(FOLDER, device="cpu")
run

# %%
import torch

torch_model = run.task.model.double()
logits = torch_model(torch.tensor(batch["tokens"]))
numpy_logits, _ = model(batch["tokens"])
print(f"logits:    largest difference {abs(logits.detach().numpy() - numpy_logits).max():.1e}")
assert np.allclose(logits.detach().numpy(), numpy_logits, atol=1e-9)

loss = torch.nn.functional.cross_entropy(logits[0], torch.tensor(batch["expected"][0]))
loss.backward()  # PyTorch finds the backward pass by itself
numpy_parameters = model.named_parameters()
differences = [
    abs(parameter.grad.numpy() - numpy_parameters[name].grad).max()
    for name, parameter in torch_model.named_parameters()
]
print(f"gradients: largest difference {max(differences):.1e} in {len(differences)} parameters")
assert max(differences) < 1e-9

# %% [markdown]
# Equal numbers give equal text.

# %%
run = triform.load(FOLDER, device="cpu")
texts = run.predict("row, row", strategy="greedy", max_new_tokens=40)
print("the same text:", texts[0].output == language_model.generate(["row, row"], greedy)[0])
texts

# %% [markdown]
# ## What to try
#
# - Remove the division by $\sqrt{d_h}$ and look at the map of the head again: what happens to its largest
#   weights?
# - Break a `backward` on purpose (drop a factor) and see which check finds it.
# - Train with `positions="none"` in `ModelConfig` and compare the last loss.
#
# The page [A Transformer from scratch in NumPy](../scratch.md) has the formulas of every layer.
