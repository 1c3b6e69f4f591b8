"""Sanity checks of a model: measure its behaviour and compare it with what its settings require.

Each check is a function that returns whether it passed, and a detail. It observes what the model computes and does
not depend on how.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from triform.analysis.parameters import count_parameters
from triform.config import Config, DataSizes
from triform.explain.probes import PROBES, GenerationProbe, ModelProbe, ProbeRows, build_untrained_model
from triform.explain.recorder import AttentionRecord, has_attention, record_attention, watch_attention
from triform.models.wide import TermClassifier
from triform.nn.attention import naive_attention

TOLERANCE = 1e-9  # in float64
OVERFIT_RATIO = 0.02  # the last loss must be below this share of the first
MAX_OVERFIT_STEPS, WARMUP_STEPS = 200, 10


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check. `good` is None if the check does not apply to the model."""

    name: str
    good: bool | None
    detail: str


def check_model(config: Config, sizes: DataSizes, model: nn.Module) -> Iterator[CheckResult]:
    """Run all checks on a copy of a model, and yield the result of each.

    Args:
        config: The settings of the model.
        sizes: The sizes that the model was built for.
        model: The model to check. It is not changed.

    Yields:
        One result for each check. A check that raises an exception counts as failed.
    """
    probe = PROBES[config.task](config, sizes, model)
    for name, check in CHECKS.items():
        if check in ATTENTION_CHECKS and not has_attention(model):
            yield CheckResult(name=name, good=None, detail="this model has no attention")
            continue
        try:
            with torch.inference_mode(False), torch.enable_grad():
                good, detail = check(probe)
        except Exception as error:  # a check that cannot run has failed
            good, detail = False, f"{type(error).__name__}: {error}"
        yield CheckResult(name=name, good=good, detail=detail)


CheckOutcome = tuple[bool | None, str]


def _record_attention(probe: ModelProbe) -> AttentionRecord:
    with record_attention(probe.model) as record, torch.no_grad():
        probe.compute_logits(probe.rows, probe.sources)
    return record


def _key_rows(probe: ModelProbe, stack: str) -> ProbeRows:
    """Return the rows that provide the keys of a stack."""
    reads_source = probe.config.task == "translate" and stack in ("encoder", "cross")
    return probe.sources if reads_source else probe.rows


def _query_rows(probe: ModelProbe, stack: str) -> ProbeRows:
    return probe.rows if stack == "cross" else _key_rows(probe, stack)


def _iterate_weights(probe: ModelProbe) -> Iterator[tuple[str, int, int, Tensor]]:
    """Yield the stack, the layer, the row and the weights (H, T, S) of its queries without padding."""
    record = _record_attention(probe)
    for stack in record.stacks():
        for layer, weights in enumerate(record[stack]):
            for row, tokens in enumerate(_query_rows(probe, stack)):
                yield stack, layer, row, weights[row, :, : len(tokens)]


def _max_or_nan(values: Iterable[float | Tensor]) -> float:
    """Return the largest value, or NaN if any value is NaN, which Python's `max` might ignore."""
    return torch.tensor([0.0, *(float(value) for value in values)], dtype=torch.float64).max().item()


def rows_sum_to_one(probe: ModelProbe) -> CheckOutcome:
    """Check that the attention weights of every query sum to one."""
    max_error = _max_or_nan((weights.sum(-1) - 1).abs().max() for *_, weights in _iterate_weights(probe))
    return max_error < 1e-6, f"largest error {max_error:.1e}"


def no_weight_on_padding(probe: ModelProbe) -> CheckOutcome:
    """Check that no query reads padding."""
    padding_weights = [
        weights[..., len(_key_rows(probe, stack)[row]) :] for stack, _, row, weights in _iterate_weights(probe)
    ]
    max_weight = _max_or_nan(
        weights_on_padding.max() for weights_on_padding in padding_weights if weights_on_padding.numel()
    )
    return max_weight == 0, f"largest weight {max_weight:.1e}"


def _reads_ahead(probe: ModelProbe, stack: str) -> bool:
    return stack == "cross" or (stack == "encoder" and probe.config.model.attention_direction != "causal")


def no_weight_on_future(probe: ModelProbe) -> CheckOutcome:
    """Check that causal attention does not read later tokens."""
    future_weights = [
        weights.triu(1) for stack, _, _, weights in _iterate_weights(probe) if not _reads_ahead(probe, stack)
    ]
    max_weight = _max_or_nan(weights_ahead.max() for weights_ahead in future_weights)
    return (
        (max_weight == 0, f"largest weight {max_weight:.1e}")
        if future_weights
        else (None, "an encoder is bidirectional")
    )


def no_weight_outside_window(probe: ModelProbe) -> CheckOutcome:
    """Check that no query reads a key outside its layer's window."""
    outside_weights = []
    for stack, layer, _, weights in _iterate_weights(probe):
        width = probe.config.model.windows[layer]
        is_outside = _relative_distances(weights).abs() >= width
        if width > 0 and stack != "cross" and is_outside.any():
            outside_weights.append(weights[:, is_outside].flatten())
    max_weight = _max_or_nan(values.max() for values in outside_weights)
    return (
        (max_weight == 0, f"largest weight {max_weight:.1e}")
        if outside_weights
        else (None, "no layer has a window shorter than the text")
    )


def farthest_key_is_read(probe: ModelProbe) -> CheckOutcome:
    """Check that every layer reads the farthest key that its mask allows, on each side."""
    edge_weights = {}
    for stack, layer, row, weights in _iterate_weights(probe):
        if len(_query_rows(probe, stack)[row]) < max(map(len, _query_rows(probe, stack))):
            continue  # shorter rows may not reach the edge of the window
        width, n_keys = probe.config.model.windows[layer], len(_key_rows(probe, stack)[row])
        if stack == "cross":  # every key of the source
            edge_weights[stack, layer, 0] = weights[..., :n_keys].amax(dim=(0, 1)).min().item()
            continue
        max_distance = (n_keys if width < 0 else min(width, n_keys)) - 1
        for side in (-1, 1) if _reads_ahead(probe, stack) else (-1,):
            edge_weights[stack, layer, side] = (
                weights[:, _relative_distances(weights) == side * max_distance].amax().item()
            )
    return min(edge_weights.values()) > 0, f"smallest weight {min(edge_weights.values()):.1e}"


def _relative_distances(weights: Tensor) -> Tensor:  # (H, T, S) -> (T, S)
    return torch.arange(weights.shape[-1]) - torch.arange(weights.shape[-2])[:, None]


@torch.no_grad()
def kernel_matches_reference(probe: ModelProbe) -> CheckOutcome:
    """Check that the kernel of each layer matches the reference implementation of attention."""
    errors: list[Tensor] = []
    with watch_attention(
        probe.model, lambda call: errors.append((call.output - naive_attention(*call.arguments)).abs().max())
    ):
        probe.compute_logits(probe.rows, probe.sources)
        probe.compute_logits(probe.rows, probe.sources, packed=True)
    return _max_or_nan(errors) <= TOLERANCE, f"largest error {_max_or_nan(errors):.1e} in {len(errors)} calls"


@torch.no_grad()
def masked_tokens_have_no_influence(probe: ModelProbe) -> CheckOutcome:
    """Check that changing a token changes the states that may read it, and no others."""
    leaks, n_unmoved = [], 0
    for row, compute_states, reads_ahead, vocab_size in probe.probe_inputs():
        before, reach = compute_states(row), _total_reach(probe, len(row))
        for position in sorted({0, len(row) // 2, len(row) - 1}):
            change = (compute_states(_change_token(row, position, vocab_size)) - before).abs().amax(-1)  # (T)
            distance = torch.arange(len(row)) - position
            allowed = (distance.abs() <= reach) & (distance >= (-reach if reads_ahead else 0))
            leaks += change[~allowed].tolist()
            edge = (distance.abs() == reach) & (not probe.config.model.is_recurrent)  # a recurrent state may fade
            n_unmoved += int((change[allowed & ((distance == 0) | edge)] == 0).sum())
    max_leak = _max_or_nan(leaks)
    padded_logits = [
        probe.compute_logits(probe.rows, probe.sources, pad_token=fill) for fill in (0, probe.vocab_size - 1)
    ]
    max_padding_change = _max_or_nan((a - b).abs().max() for a, b in zip(*padded_logits, strict=True))
    passed = _max_or_nan([max_leak, max_padding_change]) <= TOLERANCE and not n_unmoved
    detail = f"masked tokens change states by {max_leak:.1e}, padding by {max_padding_change:.1e}"
    return passed, detail + (f"; {n_unmoved} states ignore a token that they may read" if n_unmoved else "")


def _total_reach(probe: ModelProbe, length: int) -> int:
    """Return how many positions away a token can have influence after all layers."""
    widths = probe.config.model.windows
    return length - 1 if -1 in widths else min(length - 1, sum(width - 1 for width in widths))


def _change_token(row: list[int], position: int, vocab_size: int) -> list[int]:
    changed = list(row)
    changed[position] = (row[position] + 1) % vocab_size
    return changed


def padding_changes_nothing(probe: ModelProbe) -> CheckOutcome:
    """Check that a row gets the same logits alone, padded in a batch, and packed without padding."""
    with torch.no_grad():
        padded = probe.compute_logits(probe.rows, probe.sources)
        packed = probe.compute_logits(probe.rows, probe.sources, packed=True)
        unbatched = [
            probe.compute_logits([row], [source])[0] for row, source in zip(probe.rows, probe.sources, strict=True)
        ]
    max_padding_change = _max_or_nan((a - b).abs().max() for a, b in zip(padded, unbatched, strict=True))
    max_packing_change = _max_or_nan((a - b).abs().max() for a, b in zip(packed, unbatched, strict=True))
    passed = _max_or_nan([max_padding_change, max_packing_change]) <= TOLERANCE
    return passed, f"padding changes logits by {max_padding_change:.1e}, packing by {max_packing_change:.1e}"


def gradients_reach_every_parameter(probe: ModelProbe) -> CheckOutcome:
    """Check that every parameter gets a finite gradient that is not zero, except those of a linear part."""
    model = copy.deepcopy(probe.model)
    probe.loss(model).backward()  # type: ignore[no-untyped-call]
    fitted = {
        id(p) for module in model.modules() if isinstance(module, TermClassifier) for p in module.parameters()
    }
    trainable = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in fitted}
    without_gradient = [
        name
        for name, parameter in trainable.items()
        if parameter.grad is None or not parameter.grad.isfinite().all() or not parameter.grad.any()
    ]
    fitted_text = f"; the {len(fitted)} of the linear part are fitted without gradients" if fitted else ""
    return (
        not without_gradient,
        f"no gradient, or not finite: {', '.join(without_gradient[:4])}"
        if without_gradient
        else f"all {len(trainable)} tensors have a gradient{fitted_text}",
    )


def can_overfit_one_batch(probe: ModelProbe) -> CheckOutcome:
    """Check that an untrained model with the same settings can reach almost zero loss on a few rows.

    A second attempt uses a lower learning rate, which deep post-norm models need.
    """
    width = probe.config.model.d_model
    first_loss = last_loss = 0.0
    learning_rates = (1e-2, 2e-3) if probe.config.model.is_recurrent else (min(3e-3, 0.1 / width), 0.02 / width)
    for learning_rate in learning_rates:
        losses = _overfit(probe, learning_rate)
        first_loss, last_loss = losses[0], losses[-1]
        if last_loss <= OVERFIT_RATIO * first_loss:
            return True, f"loss falls from {first_loss:.2f} to {last_loss:.3f} in {len(losses) - 1} steps"
    return False, f"loss is {first_loss:.2f} at first and still {last_loss:.3f} after {MAX_OVERFIT_STEPS} steps"


def _overfit(probe: ModelProbe, learning_rate: float) -> list[float]:
    """Return the loss before each step, until it is small or the maximum number of steps is reached."""
    model = build_untrained_model(probe.config, probe.sizes).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses: list[float] = []
    while len(losses) <= MAX_OVERFIT_STEPS:
        loss = probe.loss(model)
        losses.append(loss.item())
        if losses[-1] <= OVERFIT_RATIO * losses[0] or not loss.isfinite():
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, len(losses) / WARMUP_STEPS)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses


def count_matches_formula(probe: ModelProbe) -> CheckOutcome:
    """Check that the model has as many parameters as `triform params` computes from its settings."""
    actual = sum(parameter.numel() for parameter in probe.model.parameters())
    expected = count_parameters(probe.config, probe.sizes).total
    return actual == expected, f"{actual:,} parameters" + (
        "" if actual == expected else f", but the formula gives {expected:,}"
    )


def cached_decoding_matches_uncached(probe: ModelProbe) -> CheckOutcome:
    """Check that decode steps with a KV cache give the logits of full passes over the same tokens.

    Halfway, one row leaves the batch and another is repeated, as in beam search. Until then the second row is also
    decoded alone, because other rows in the batch must not affect it.
    """
    if not isinstance(probe, GenerationProbe):
        return None, "a classifier does not generate text"
    adapter, prompts = probe.build_adapter(), probe.prompts()
    texts = [adapter.initial_tokens(prompt) for prompt in prompts]
    n_steps = min(probe.sizes.max_len // 2, probe.sizes.max_len - max(map(len, texts)), 12)
    generator = torch.Generator().manual_seed(1)
    batched, alone = adapter.build_stepper(), adapter.build_stepper()
    with torch.no_grad():
        expected = _next_token_logits(probe, texts, prompts)
        errors = [(batched.append_rows(prompts) - expected).abs().max()]
        errors.append((alone.append_rows(prompts[1:2]) - expected[1:2]).abs().max())
        for step in range(n_steps):
            if step == n_steps // 2:
                order = [2, 0, 0]
                batched.select(torch.tensor(order))
                prompts, texts = [prompts[row] for row in order], [texts[row] for row in order]
            tokens = torch.randint(0, probe.vocab_size, (3, 1), generator=generator)
            texts = [text + token for text, token in zip(texts, tokens.tolist(), strict=True)]
            expected = _next_token_logits(probe, texts, prompts)
            errors.append((batched.step(tokens)[:, 0] - expected).abs().max())
            if step < n_steps // 2:
                errors.append((alone.step(tokens[1:2])[:, 0] - expected[1:2]).abs().max())
    max_error = _max_or_nan(errors)
    return max_error <= 1e-5, f"logits differ by {max_error:.1e} in {n_steps} steps"  # steppers return float32


def _next_token_logits(probe: GenerationProbe, texts: ProbeRows, prompts: ProbeRows) -> Tensor:  # -> (N, V)
    pairs = zip(texts, prompts, strict=True)
    return torch.stack([probe.next_token_logits(text, prompt) for text, prompt in pairs]).float()


CHECKS: dict[str, Callable[[ModelProbe], CheckOutcome]] = {
    "attention rows sum to one": rows_sum_to_one,
    "no weight on padding": no_weight_on_padding,
    "no weight on the future": no_weight_on_future,
    "no weight outside the window": no_weight_outside_window,
    "the farthest visible key is read": farthest_key_is_read,
    "the kernel matches the reference": kernel_matches_reference,
    "masked tokens have no influence": masked_tokens_have_no_influence,
    "padding and packing change nothing": padding_changes_nothing,
    "gradients reach every parameter": gradients_reach_every_parameter,
    "the model can overfit one batch": can_overfit_one_batch,
    "the parameter count matches the formula": count_matches_formula,
    "cached decoding matches uncached": cached_decoding_matches_uncached,
}
ATTENTION_CHECKS = (
    rows_sum_to_one,
    no_weight_on_padding,
    no_weight_on_future,
    no_weight_outside_window,
    farthest_key_is_read,
    kernel_matches_reference,
)
