"""Sanity checks as a program: what a Transformer must do, measured on a model and compared with its settings.

Each check is a function that gives a finding; it looks at behaviour, not at the code that should produce it.
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
from triform.nn.attention import naive_attention

TOLERANCE = 1e-9  # in float64
OVERFIT_RATIO = 0.02  # of the first loss
MAX_OVERFIT_STEPS, WARMUP_STEPS = 200, 10


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check found; `good` is None where it does not apply."""

    name: str
    good: bool | None
    detail: str


def check_model(config: Config, sizes: DataSizes, model: nn.Module) -> Iterator[CheckResult]:
    """All checks on a model, one after the other. It is copied, never changed."""
    probe = PROBES[config.task](config, sizes, model)
    for name, check in CHECKS.items():
        if check in ATTENTION_CHECKS and not has_attention(model):
            yield CheckResult(name=name, good=None, detail="this model has no attention")
            continue
        try:
            with torch.inference_mode(False), torch.enable_grad():
                good, detail = check(probe)
        except Exception as error:  # a check that cannot even run is a check that fails
            good, detail = False, f"{type(error).__name__}: {error}"
        yield CheckResult(name=name, good=good, detail=detail)


CheckOutcome = tuple[bool | None, str]


def _record_attention(probe: ModelProbe) -> AttentionRecord:
    with record_attention(probe.model) as record, torch.no_grad():
        probe.compute_logits(probe.rows, probe.sources)
    return record


def _key_rows(probe: ModelProbe, stack: str) -> ProbeRows:
    """The rows that a stack reads."""
    reads_source = probe.config.task == "translate" and stack in ("encoder", "cross")
    return probe.sources if reads_source else probe.rows


def _query_rows(probe: ModelProbe, stack: str) -> ProbeRows:
    return probe.rows if stack == "cross" else _key_rows(probe, stack)


def _iterate_weights(probe: ModelProbe) -> Iterator[tuple[str, int, int, Tensor]]:
    """Stack, layer, row and weights (H, T, S) of each row's real queries."""
    record = _record_attention(probe)
    for stack in record.stacks():
        for layer, weights in enumerate(record[stack]):
            for row, tokens in enumerate(_query_rows(probe, stack)):
                yield stack, layer, row, weights[row, :, : len(tokens)]


def _max_or_nan(values: Iterable[float | Tensor]) -> float:
    """The largest; where one is no number, no number (Python's `max` would step over it)."""
    return torch.tensor([0.0, *(float(value) for value in values)], dtype=torch.float64).max().item()


def rows_sum_to_one(probe: ModelProbe) -> CheckOutcome:
    max_error = _max_or_nan((weights.sum(-1) - 1).abs().max() for *_, weights in _iterate_weights(probe))
    return max_error < 1e-6, f"off by {max_error:.1e} at most"


def no_weight_on_padding(probe: ModelProbe) -> CheckOutcome:
    padding_weights = [
        weights[..., len(_key_rows(probe, stack)[row]) :] for stack, _, row, weights in _iterate_weights(probe)
    ]
    max_weight = _max_or_nan(
        weights_on_padding.max() for weights_on_padding in padding_weights if weights_on_padding.numel()
    )
    return max_weight == 0, f"at most {max_weight:.1e}"


def _reads_ahead(probe: ModelProbe, stack: str) -> bool:
    return stack == "cross" or (stack == "encoder" and probe.config.model.attention_direction != "causal")


def no_weight_on_future(probe: ModelProbe) -> CheckOutcome:
    future_weights = [
        weights.triu(1) for stack, _, _, weights in _iterate_weights(probe) if not _reads_ahead(probe, stack)
    ]
    max_weight = _max_or_nan(weights_ahead.max() for weights_ahead in future_weights)
    return (
        (max_weight == 0, f"at most {max_weight:.1e}") if future_weights else (None, "an encoder reads both ways")
    )


def no_weight_outside_window(probe: ModelProbe) -> CheckOutcome:
    outside_weights = []
    for stack, layer, _, weights in _iterate_weights(probe):
        width = probe.config.model.windows[layer]
        is_outside = _relative_distances(weights).abs() >= width
        if width > 0 and stack != "cross" and is_outside.any():
            outside_weights.append(weights[:, is_outside].flatten())
    max_weight = _max_or_nan(values.max() for values in outside_weights)
    return (
        (max_weight == 0, f"at most {max_weight:.1e}")
        if outside_weights
        else (None, "no layer has a window that hides anything")
    )


def farthest_key_is_read(probe: ModelProbe) -> CheckOutcome:
    """In each layer, on each side: a reach that is too short shows here."""
    edge_weights = {}
    for stack, layer, row, weights in _iterate_weights(probe):
        if len(_query_rows(probe, stack)[row]) < max(map(len, _query_rows(probe, stack))):
            continue  # shorter rows may not get to the edge
        width, n_keys = probe.config.model.windows[layer], len(_key_rows(probe, stack)[row])
        if stack == "cross":  # every key of the source
            edge_weights[stack, layer, 0] = weights[..., :n_keys].amax(dim=(0, 1)).min().item()
            continue
        max_distance = (n_keys if width < 0 else min(width, n_keys)) - 1
        for side in (-1, 1) if _reads_ahead(probe, stack) else (-1,):
            edge_weights[stack, layer, side] = (
                weights[:, _relative_distances(weights) == side * max_distance].amax().item()
            )
    return min(edge_weights.values()) > 0, f"with a weight of {min(edge_weights.values()):.1e} or more"


def _relative_distances(weights: Tensor) -> Tensor:  # (H, T, S) -> (T, S)
    return torch.arange(weights.shape[-1]) - torch.arange(weights.shape[-2])[:, None]


@torch.no_grad()
def kernel_matches_reference(probe: ModelProbe) -> CheckOutcome:
    """What each layer's own kernel computes, beside attention as it is written."""
    errors: list[Tensor] = []
    with watch_attention(
        probe.model, lambda call: errors.append((call.output - naive_attention(*call.arguments)).abs().max())
    ):
        probe.compute_logits(probe.rows, probe.sources)
        probe.compute_logits(probe.rows, probe.sources, packed=True)
    return _max_or_nan(errors) <= TOLERANCE, f"off by {_max_or_nan(errors):.1e} at most, in {len(errors)} calls"


@torch.no_grad()
def masked_tokens_have_no_influence(probe: ModelProbe) -> CheckOutcome:
    """Change a token and see which states move: those that may read it, out to the edge, and no other."""
    leaks, n_unmoved = [], 0
    for row, compute_states, reads_ahead, vocab_size in probe.probe_inputs():
        before, reach = compute_states(row), _total_reach(probe, len(row))
        for position in sorted({0, len(row) // 2, len(row) - 1}):
            change = (compute_states(_change_token(row, position, vocab_size)) - before).abs().amax(-1)  # (T)
            distance = torch.arange(len(row)) - position
            allowed = (distance.abs() <= reach) & (distance >= (-reach if reads_ahead else 0))
            leaks += change[~allowed].tolist()
            edge = (distance.abs() == reach) & (not probe.config.model.is_recurrent)  # what is carried may fade
            n_unmoved += int((change[allowed & ((distance == 0) | edge)] == 0).sum())
    max_leak = _max_or_nan(leaks)
    padded_logits = [
        probe.compute_logits(probe.rows, probe.sources, pad_token=fill) for fill in (0, probe.vocab_size - 1)
    ]
    max_padding_change = _max_or_nan((a - b).abs().max() for a, b in zip(*padded_logits, strict=True))
    passed = _max_or_nan([max_leak, max_padding_change]) <= TOLERANCE and not n_unmoved
    detail = f"hidden tokens move a state by {max_leak:.1e}, padding by {max_padding_change:.1e}"
    return passed, detail + (f"; {n_unmoved} states do not read what they may" if n_unmoved else "")


def _total_reach(probe: ModelProbe, length: int) -> int:
    """How far a token's influence gets through all layers."""
    widths = probe.config.model.windows
    return length - 1 if -1 in widths else min(length - 1, sum(width - 1 for width in widths))


def _change_token(row: list[int], position: int, vocab_size: int) -> list[int]:
    changed = list(row)
    changed[position] = (row[position] + 1) % vocab_size
    return changed


def padding_changes_nothing(probe: ModelProbe) -> CheckOutcome:
    """Each row alone, among longer ones, and packed without padding: one answer."""
    with torch.no_grad():
        padded = probe.compute_logits(probe.rows, probe.sources)
        packed = probe.compute_logits(probe.rows, probe.sources, packed=True)
        unbatched = [
            probe.compute_logits([row], [source])[0] for row, source in zip(probe.rows, probe.sources, strict=True)
        ]
    max_padding_change = _max_or_nan((a - b).abs().max() for a, b in zip(padded, unbatched, strict=True))
    max_packing_change = _max_or_nan((a - b).abs().max() for a, b in zip(packed, unbatched, strict=True))
    passed = _max_or_nan([max_padding_change, max_packing_change]) <= TOLERANCE
    return passed, f"padding moves an answer by {max_padding_change:.1e}, packing by {max_packing_change:.1e}"


def gradients_reach_every_parameter(probe: ModelProbe) -> CheckOutcome:
    model = copy.deepcopy(probe.model)
    probe.loss(model).backward()  # type: ignore[no-untyped-call]
    without_gradient = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all() or not parameter.grad.any()
    ]
    n_parameters = sum(1 for _ in model.parameters())
    return (
        not without_gradient,
        f"none or not finite: {', '.join(without_gradient[:4])}"
        if without_gradient
        else f"all {n_parameters} tensors",
    )


def can_overfit_one_batch(probe: ModelProbe) -> CheckOutcome:
    """A fresh model of the same settings, a few rows, no dropout: the loss must go to zero.

    What is too fast for a deep post-norm model is tried again slower.
    """
    width = probe.config.model.d_model
    first_loss = last_loss = 0.0
    learning_rates = (1e-2, 2e-3) if probe.config.model.is_recurrent else (min(3e-3, 0.1 / width), 0.02 / width)
    for learning_rate in learning_rates:
        losses = _overfit(probe, learning_rate)
        first_loss, last_loss = losses[0], losses[-1]
        if last_loss <= OVERFIT_RATIO * first_loss:
            return True, f"loss {first_loss:.2f} to {last_loss:.3f} in {len(losses) - 1} steps"
    return False, f"loss {first_loss:.2f}, and still {last_loss:.3f} after {MAX_OVERFIT_STEPS} steps"


def _overfit(probe: ModelProbe, learning_rate: float) -> list[float]:
    """Losses before each step, until the last is small, or there were too many."""
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
    actual = sum(parameter.numel() for parameter in probe.model.parameters())
    expected = count_parameters(probe.config, probe.sizes).total
    return actual == expected, f"{actual:,} parameters" + (
        "" if actual == expected else f", {expected:,} by the formula"
    )


def cached_decoding_matches_uncached(probe: ModelProbe) -> CheckOutcome:
    """Compare decode steps over a cache with full passes over the same tokens.

    Halfway, one row leaves the batch and another is repeated, as in beam search. Meanwhile the second row is also
    decoded alone, because the rows that it is batched with must not matter.
    """
    if not isinstance(probe, GenerationProbe):
        return None, "a classifier generates nothing"
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
    return max_error <= 1e-5, f"logits differ by {max_error:.1e} in {n_steps} steps"  # steppers answer in float32


def _next_token_logits(probe: GenerationProbe, texts: ProbeRows, prompts: ProbeRows) -> Tensor:  # -> (N, V)
    pairs = zip(texts, prompts, strict=True)
    return torch.stack([probe.next_token_logits(text, prompt) for text, prompt in pairs]).float()


CHECKS: dict[str, Callable[[ModelProbe], CheckOutcome]] = {
    "attention rows sum to one": rows_sum_to_one,
    "no weight on padding": no_weight_on_padding,
    "no weight on the future": no_weight_on_future,
    "no weight outside the window": no_weight_outside_window,
    "the farthest key in reach is read": farthest_key_is_read,
    "the kernel equals the formula": kernel_matches_reference,
    "hidden tokens have no influence": masked_tokens_have_no_influence,
    "padding and packing change nothing": padding_changes_nothing,
    "gradients reach every parameter": gradients_reach_every_parameter,
    "one batch can be learned by heart": can_overfit_one_batch,
    "the parameter count equals the formula": count_matches_formula,
    "cached decoding equals uncached": cached_decoding_matches_uncached,
}
ATTENTION_CHECKS = (
    rows_sum_to_one,
    no_weight_on_padding,
    no_weight_on_future,
    no_weight_outside_window,
    farthest_key_is_read,
    kernel_matches_reference,
)
