"""Claims about parameters and cost, with verdicts from exact counts."""

from __future__ import annotations

import math

from reproduce.claims.claim import Assessment, Claim, Results
from triform.analysis.costs import Workload, estimate_costs
from triform.analysis.parameters import ParameterBudget, count_parameters
from triform.analysis.reported_counts import PUBLISHED_COUNT, reconcile_counts
from triform.config import Config, DataSizes, ModelConfig
from triform.config.presets import preset
from triform.config.settings import build_config
from triform.reporting.markdown import render_markdown_table

PUBLISHED_SIZES = DataSizes(vocab_size=30_000, max_len=256)
SPEECHES_SIZES = DataSizes(vocab_size=5_755, max_len=32, n_labels=3)
HEADS = (1, 2, 4, 8, 16)
WIDTHS = (128, 256, 512, 1024)
LENGTH = 64
# One core of an AMD EPYC, torch 2.13, fp32: an example, measured with the script on the page.
STEP_MILLISECONDS = {128: 16, 256: 41, 512: 123, 1024: 457}
STEP_SCRIPT = f"""
import time

import torch

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import Decoder

torch.set_num_threads(1)
tokens = torch.randint(0, 100, (4, {LENGTH}))  # 4 texts of {LENGTH} tokens
for width in {WIDTHS}:
    config = ModelConfig(d_model=width, d_ff=4 * width, n_layers=2, n_heads=8)
    model = Decoder(config, DataSizes(vocab_size=100, max_len={LENGTH}))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        model(tokens).logsumexp(-1).mean().backward()  # forward and backward pass
        times.append(time.perf_counter() - start)
    print(width, f"{{1000 * min(times):.0f}} ms")
"""


def _count_role(budget: ParameterBudget, *roles: str) -> int:
    return sum(group.layers * row.total for group, row in budget.iter_rows() if row.role in roles)


def _assess_heads(_: Results) -> Assessment:
    base, rows, counts = preset("transformer-base"), [], []
    for n_heads in HEADS:
        budget = count_parameters(build_config({"model.n_heads": n_heads}, base), PUBLISHED_SIZES)
        counts.append(_count_role(budget, "attention", "cross"))
        rows.append([str(n_heads), str(base.model.d_model // n_heads), f"{counts[-1]:,}"])
    evidence = render_markdown_table(["heads", "width of a head", "parameters of attention, all layers"], rows)
    return Assessment(
        evidence,
        "false" if len(set(counts)) == 1 else "true",
        "The count is 4·d² + 4·d for each attention, and the number of heads is not in this formula: H heads of "
        "width d / H have a total width of d. The count would grow only if every head kept a fixed width while "
        "their number grows, which makes their total width larger than d_model.",
    )


def _assess_components(_: Results) -> Assessment:
    rows, answers = [], set()
    for name in ("imdb-encoder", "shakespeare-char", "speeches-classifier", "speeches-lm", "transformer-base"):
        config = preset(name)
        budget = count_parameters(config, DataSizes(vocab_size=30_000, max_len=32, n_labels=2))
        attention, cross, feedforward = (
            _count_role(budget, role) // config.model.n_layers for role in ("attention", "cross", "feedforward")
        )
        if config.task == "translate":  # one layer of the decoder
            attention, feedforward = attention // 2, feedforward // 2
        larger = "feed-forward" if feedforward > attention + cross else "attention"
        answers.add(larger)
        layer = "decoder layer" if config.task == "translate" else "layer"
        sizes = f"d = {config.model.d_model}, d_ff = {config.model.d_ff}"
        rows.append([f"{name}, {layer}", sizes, f"{attention + cross:,}", f"{feedforward:,}", larger])
    evidence = render_markdown_table(
        ["model", "widths", "attention", "feed-forward", "larger"], rows, n_text_columns=2
    )
    return Assessment(
        evidence,
        "true only if d_ff is above 2·d_model, or above 4·d_model with cross-attention"
        if len(answers) == 2
        else f"{answers.pop()} is always larger",
        "Weights are 4·d² for each attention and 2·d·d_ff for the feed-forward network. With d_ff = 4·d, the "
        "feed-forward network has twice as many parameters as self-attention. In a decoder layer with "
        "cross-attention, the weights of both are equal, and attention has slightly more biases. With d_ff = 100 "
        "and d = 64, attention is larger. Operations are a different question: attention also compares all pairs "
        "of tokens, so with d_ff = 4·d it needs more operations than the feed-forward network if a text has more "
        "than 2·d_model tokens.",
    )


def _assess_width(_: Results) -> Assessment:
    rows, layer_counts, operations = [], [], []
    for width in WIDTHS:
        model = ModelConfig(d_model=width, d_ff=4 * width, n_layers=2, n_heads=8)
        config, sizes = Config(task="generate", model=model), DataSizes(vocab_size=100, max_len=LENGTH)
        layer_counts.append(_count_role(count_parameters(config, sizes), "attention", "feedforward", "norm"))
        costs = estimate_costs(config, sizes, Workload(batch_size=4, length=LENGTH))
        operations.append(sum(item.total for item in costs.flop_items if not item.name.startswith("output")))
        rows.append(
            [
                f"{width:,}",
                f"{layer_counts[-1]:,}",
                f"{operations[-1] / 1e6:,.0f}",
                f"{STEP_MILLISECONDS[width]} ms",
            ]
        )
    measured = [STEP_MILLISECONDS[width] for width in WIDTHS]
    last_factors = [f"{series[-1] / series[-2]:.2f}" for series in (layer_counts, operations, measured)]
    exponents = [f"{_fit_exponent(series):.2f}" for series in (layer_counts, operations, measured)]
    rows.append(["factor from 512 to 1,024", *last_factors])
    rows.append(["exponent of d_model, fitted", *exponents])
    head = ["d_model", "parameters of 2 layers", "operations of the forward pass, millions", "time of a step"]
    return Assessment(
        render_markdown_table(head, rows),
        "false",
        "Cost grows with the square of d_model: each time d_model doubles, parameters and operations are "
        "multiplied by about four. An exponential cost would be squared each time. The measured time of a "
        "step grows more slowly than the operations. The times are an example, "
        "measured with the script on one core of an AMD EPYC processor in fp32: forward and backward pass, the "
        "fastest of four. Parameters and operations are those of `triform params`, without the embedding and the "
        "output layer.",
    )


def _fit_exponent(costs: list[int]) -> float:
    """Return the slope of the line through log(cost) over log(width), by least squares."""
    xs, ys = [math.log(width) for width in WIDTHS], [math.log(cost) for cost in costs]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - x_mean) ** 2 for x in xs)


def _assess_published_count(_: Results) -> Assessment:
    budget = count_parameters(preset("transformer-base"), PUBLISHED_SIZES)
    rows = [[step.name, step.why, f"{step.change:+,}", f"{step.sum:,}"] for step in reconcile_counts(budget)]
    evidence = render_markdown_table(["component", "reason", "change", "sum"], rows, n_text_columns=2)
    untied = count_parameters(
        build_config({"model.tie_embeddings": False}, preset("transformer-base")), PUBLISHED_SIZES
    )
    return Assessment(
        evidence,
        "true" if PUBLISHED_COUNT in (budget.total, untied.total) else "false",
        f"The model has {budget.total:,} parameters if the embeddings and the output layer share one matrix, and "
        f"{untied.total:,} if they do not. The report leaves out cross-attention, biases and norms, and one of its "
        "products is wrong. The count is equal to `sum(p.numel() for p in model.parameters())` of the built model.",
    )


def _assess_speeches_counts(_: Results) -> Assessment:
    reported = {"speeches-classifier": 576_467, "speeches-lm": 863_243}
    counts = {name: count_parameters(preset(name), SPEECHES_SIZES).total for name in reported}
    rows = [[name, f"{reported[name]:,}", f"{counts[name]:,}"] for name in reported]
    return Assessment(
        render_markdown_table(["model", "reported", "ours"], rows),
        "true" if counts == reported else "false",
        "The counts are equal with the vocabulary of 5,755 words, queries, keys and values without biases, an "
        "output projection with a bias, and a norm after the last layer. Our own results have a slightly smaller "
        "vocabulary, because Triform splits words differently.",
    )


SIZE_CLAIMS = (
    Claim(
        title="Attention parameters grow with the number of heads",
        statement="A report says that more heads give attention more parameters.",
        code="triform params --preset transformer-base --vocab-size 30000 --set model.n_heads=1\n"
        "triform params --preset transformer-base --vocab-size 30000 --set model.n_heads=16",
        assess=_assess_heads,
    ),
    Claim(
        title="The feed-forward network is larger than attention",
        statement="The reports disagree on whether attention or the feed-forward network contains most "
        "parameters of a layer.",
        code="triform params --preset speeches-lm --vocab-size 5755\n"
        "triform params --preset transformer-base --vocab-size 30000",
        assess=_assess_components,
    ),
    Claim(
        title="Cost grows exponentially with d_model",
        statement="A report says that the cost of a model grows exponentially with its width.",
        code=STEP_SCRIPT,
        language="python",
        assess=_assess_width,
    ),
    Claim(
        title="A base Transformer has 68,554,752 parameters",
        statement="A report counts this number for a vocabulary of 30,000, a width of 512, 8 heads and 6 + 6 "
        "layers.",
        code="triform params --preset transformer-base --vocab-size 30000",
        assess=_assess_published_count,
    ),
    Claim(
        title="The speeches models have 576,467 and 863,243 parameters",
        statement="A report gives these counts for its classifier and for its language model.",
        code="triform params --preset speeches-classifier --vocab-size 5755 --labels 3\n"
        "triform params --preset speeches-lm --vocab-size 5755",
        assess=_assess_speeches_counts,
    ),
)
