"""Claims about positions, attention maps, recurrent networks, word vectors and backward passes."""

from __future__ import annotations

import math

from reproduce.claims.claim import (
    UNDECIDED,
    Assessment,
    Claim,
    Results,
    bullet_list,
    column_mean,
    count_wins,
    findings,
    format_column,
    variant_entry,
    variant_table,
    verdict_from_counts,
)
from reproduce.systems import WHY_TRANSFORMERS
from reproduce.why.comparison import load_comparison_tasks
from reproduce.why.tables import comparison_verdicts
from triform.reporting.markdown import render_markdown_table

MAX_SHIFT_ERROR = 1e-12
WIDTH, N_POSITIONS, SHIFTS = 64, 512, (1, 10, 100)
ROUNDING = 0.0005  # stored attention weights have three decimals
WINDOW = 8


def _assess_shift(_: Results) -> Assessment:
    rows, is_linear = [], True
    for shift in SHIFTS:
        error = max(_shift_error(shift, position) for position in range(N_POSITIONS - shift))
        is_linear &= error < MAX_SHIFT_ERROR
        rows.append([str(shift), f"below {MAX_SHIFT_ERROR:g}" if error < MAX_SHIFT_ERROR else f"{error:.2g}"])
    return Assessment(
        render_markdown_table(["shift by k positions", "largest error of the matrix"], rows),
        "true" if is_linear else "false",
        f"One matrix for each k, the same for all {N_POSITIONS} positions, turns the vector of position p into "
        f"the vector of position p + k. The width here is {WIDTH}, in double precision. The matrix rotates each "
        "pair of coordinates; [Attention](attention.md#positions) has the formula. Relative positions are "
        "therefore easy to express. This does not show that a trained model uses them.",
    )


def _shift_error(shift: int, position: int) -> float:
    """Return the largest difference between a rotated position vector and the vector `shift` positions later."""
    errors = []
    for k in range(0, WIDTH, 2):
        rate = 10_000 ** (-k / WIDTH)
        sine, cosine, angle = math.sin(rate * position), math.cos(rate * position), rate * shift
        errors.append(abs(math.cos(angle) * sine + math.sin(angle) * cosine - math.sin(rate * (position + shift))))
        errors.append(abs(-math.sin(angle) * sine + math.cos(angle) * cosine - math.cos(rate * (position + shift))))
    return max(errors)


def _assess_maps(results: Results) -> Assessment:
    rows, is_sound = [], True
    for name, window in (("full", None), (f"window-{WINDOW}", WINDOW)):
        attention = variant_entry(results, "speeches-window", name)["map"]
        sums, future, outside = _sum_attention(attention["weights"], window)
        is_sound &= sums <= len(attention["keys"]) * ROUNDING and future == 0 and outside == 0
        outside_text = f"{outside:.3f}" if window else "no window"
        rows.append([name, f"{sums:.3f}", f"{future:.3f}", outside_text])
    head = ["variant", "largest distance of a row sum from 1", "weight on the future", "weight outside the window"]
    return Assessment(
        render_markdown_table(head, rows),
        "true" if is_sound else "false",
        "The sums are over all layers and heads of the stored maps of one sentence. Weights are stored with three "
        "decimals, so the sum of a row may differ slightly from 1. `triform check` tests the same properties, and "
        "that no weight is on padding, for any model.",
    )


def _sum_attention(
    weights: list[list[list[list[float]]]], window: int | None
) -> tuple[float, float, float]:  # (layers, H, T, T)
    """Return the largest distance of a row sum from 1, and the weight on the future and outside the window."""
    rows = [(query, row) for layer in weights for head in layer for query, row in enumerate(head)]
    sums = max(abs(sum(row) - 1) for _, row in rows)
    future = sum(sum(row[query + 1 :]) for query, row in rows)
    outside = sum(sum(row[: max(0, query - window + 1)]) for query, row in rows) if window else 0.0
    return sums, future, outside


def _assess_gradients(results: Results) -> Assessment:
    names = ("rnn", "gru", "lstm", "transformer")
    columns = ("gradients.distance 1", "gradients.distance 16", "gradients.distance 64", "valid.loss")
    far = {name: column_mean(results, "long-range", name, "gradients.distance 64") for name in names}
    losses = {name: column_mean(results, "long-range", name, "valid.loss") for name in names}
    factors = {name: _round_to_two_digits(far["transformer"] / far[name]) for name in names[:3]}
    vanishes = far["rnn"] < min(far["gru"], far["lstm"]) and max(far["gru"], far["lstm"]) < far["transformer"]
    best = min(names, key=lambda name: losses[name])
    return Assessment(
        variant_table(results, "long-range", names, columns),
        "true" if vanishes else "not true for every recurrent network",
        f"At a distance of 64 characters, the gradient of the network with tanh is about {factors['rnn']} times "
        f"smaller than that of the Transformer. With gates, it is about {factors['gru']} times (GRU) and "
        f"{factors['lstm']} times (LSTM) smaller. With an equal number of parameters and steps, the "
        f"lowest validation loss is that of `{best}`.",
    )


def _round_to_two_digits(number: float) -> str:
    digits = max(0, math.floor(math.log10(number)) - 1)
    return f"{round(number, -digits):,.0f}"


def _assess_transformers(results: Results) -> Assessment:
    parts = results[WHY_TRANSFORMERS]["parts"]
    comparisons = [(comparison, parts[comparison.name]) for comparison in load_comparison_tasks()]
    lines = comparison_verdicts(comparisons)
    wins, losses = count_wins(lines, "transformer"), count_wins(lines, "lstm")
    titles = [line.partition(", ")[0] for line in lines if count_wins([line], "transformer")]
    tasks = " and ".join(titles) or "no task"
    return Assessment(
        bullet_list(lines),
        verdict_from_counts(wins, losses, len(lines), "tasks"),
        "The models have equal numbers of parameters and equal training times. The Transformer is better on "
        f"{tasks}. [Results](results/why-transformers.md) lists the "
        "limits of the comparison.",
    )


def _assess_vectors(results: Results) -> Assessment:
    systems = {"word-vectors-speeches": "speeches", "word-vectors-imdb": "IMDb reviews"}
    evidence, better, worse = [], [], []
    for system, title in systems.items():
        lines = findings(results, system, "random", "vectors")
        evidence += [f"{title}, {line}" for line in lines]
        better += [title] * (count_wins(lines, "vectors") > 0)
        worse += [title] * (count_wins(lines, "random") > 0)
    verdict = "true" if len(better) == len(systems) else f"true only for {better[0]}" if better else UNDECIDED
    if worse and not better:
        verdict = "false"
    accuracies = {
        name: format_column(results, "word-vectors-imdb", name, "test.accuracy") for name in ("random", "vectors")
    }
    return Assessment(
        bullet_list(evidence),
        verdict,
        "The vectors are learned from the training file only. On IMDb, "
        f"models that start at random reach {accuracies['random']}, and models that start from word vectors reach "
        f"{accuracies['vectors']}.",
    )


def _assess_backward(_: Results) -> Assessment:
    return Assessment(
        "",
        "true if every backward pass is derived from its forward pass",
        "The backward pass of the report is not the gradient of its forward pass, so its training does not "
        "follow the loss. `triform.scratch` computes gradients by hand for all three forms. The tests compare "
        "every gradient with PyTorch's autograd. [A Transformer from scratch in NumPy](scratch.md) derives them "
        "and shows how you check a gradient numerically.",
    )


POSITION_CLAIMS = (
    Claim(
        title="A shift of sinusoidal positions is a linear map",
        statement="For a fixed distance k, the vector of position p + k is a linear function of the vector of "
        "position p.",
        code="python -m pytest tests/nn/test_nn_positions.py -k linear_map",
        assess=_assess_shift,
    ),
    Claim(
        title="Attention maps respect the masks",
        statement="Each row of an attention map sums to one, and no weight is on padding, on the future or "
        "outside the window.",
        code="triform check --preset speeches-window --vocab-size 5755",
        assess=_assess_maps,
        needs={"speeches-window": ("full", f"window-{WINDOW}")},
    ),
    Claim(
        title="A Transformer can be trained in NumPy with backward passes by hand",
        statement="A report trains a Transformer without automatic differentiation.",
        code="python -m pytest tests/scratch/test_scratch_parity.py",
        assess=_assess_backward,
    ),
)
RECURRENT_CLAIMS = (
    Claim(
        title="Gradients vanish in recurrent networks",
        statement="The further apart two tokens are, the smaller is the gradient between them in a recurrent "
        "network.",
        code="python -m reproduce long-range",
        assess=_assess_gradients,
        needs={"long-range": ("rnn", "gru", "lstm", "transformer")},
    ),
    Claim(
        title="Transformers are better than recurrent networks",
        statement="Transformers replaced recurrent networks because their results are better.",
        code="python -m reproduce why-transformers",
        assess=_assess_transformers,
        needs={WHY_TRANSFORMERS: ("speeches", "shakespeare", "ted")},
    ),
    Claim(
        title="Word vectors are a good start for embeddings",
        statement="Vectors of word2vec can initialise the embedding of a model.",
        code="python -m reproduce word-vectors",
        assess=_assess_vectors,
        needs=dict.fromkeys(("word-vectors-speeches", "word-vectors-imdb"), ("random", "vectors")),
    ),
)
