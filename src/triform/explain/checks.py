"""Sanity checks as a program: what a Transformer must do, measured on a model and compared with its settings.

Each check is a function that gives a finding; it looks at behaviour, not at the code that should produce it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from triform.config import Config, Sizes
from triform.explain.record import Recording, attends, record_attention, watch_attention
from triform.explain.trial import TRIALS, Rows, Trial, fresh_model
from triform.models.budget import budget
from triform.nn.kernels import explicit

EQUAL = 1e-9  # in float64
LEARNED = 0.02  # of the first loss
MOST_STEPS, WARM_UP = 200, 10


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found; `good` is None where it does not apply."""

    name: str
    good: bool | None
    detail: str


def check_model(config: Config, sizes: Sizes, model: nn.Module) -> Iterator[Finding]:
    """All checks on a model, one after the other. It is copied, never changed."""
    trial = TRIALS[config.task](config, sizes, model)
    for name, check in CHECKS.items():
        if check in OF_ATTENTION and not attends(model):
            yield Finding(name=name, good=None, detail="this model has no attention")
            continue
        try:
            with torch.inference_mode(False), torch.enable_grad():
                good, detail = check(trial)
        except Exception as error:  # a check that cannot even run is a check that fails
            good, detail = False, f"{type(error).__name__}: {error}"
        yield Finding(name=name, good=good, detail=detail)


Outcome = tuple[bool | None, str]


def _recorded(trial: Trial) -> Recording:
    with record_attention(trial.model) as recording, torch.no_grad():
        trial.answers(trial.rows, trial.sources)
    return recording


def _keys(trial: Trial, stack: str) -> Rows:
    """The rows that a stack reads."""
    reads_source = trial.config.task == "translate" and stack in ("encoder", "cross")
    return trial.sources if reads_source else trial.rows


def _queries(trial: Trial, stack: str) -> Rows:
    return trial.rows if stack == "cross" else _keys(trial, stack)


def _seen(trial: Trial) -> Iterator[tuple[str, int, int, Tensor]]:
    """Stack, layer, row and weights (H, T, S) of each row's real queries."""
    recording = _recorded(trial)
    for stack in recording.stacks():
        for layer, weights in enumerate(recording[stack]):
            for row, tokens in enumerate(_queries(trial, stack)):
                yield stack, layer, row, weights[row, :, : len(tokens)]


def _most(values: Iterable[float | Tensor]) -> float:
    """The largest; where one is no number, no number (Python's `max` would step over it)."""
    return torch.tensor([0.0, *(float(value) for value in values)], dtype=torch.float64).max().item()


def rows_sum_to_one(trial: Trial) -> Outcome:
    off = _most((weights.sum(-1) - 1).abs().max() for *_, weights in _seen(trial))
    return off < 1e-6, f"off by {off:.1e} at most"


def no_weight_on_padding(trial: Trial) -> Outcome:
    parts = [weights[..., len(_keys(trial, stack)[row]) :] for stack, _, row, weights in _seen(trial)]
    most = _most(part.max() for part in parts if part.numel())
    return most == 0, f"at most {most:.1e}"


def _looks_ahead(trial: Trial, stack: str) -> bool:
    return stack == "cross" or (stack == "encoder" and trial.config.model.reach != "causal")


def no_weight_on_the_future(trial: Trial) -> Outcome:
    hidden = [weights.triu(1) for stack, _, _, weights in _seen(trial) if not _looks_ahead(trial, stack)]
    most = _most(part.max() for part in hidden)
    return (most == 0, f"at most {most:.1e}") if hidden else (None, "an encoder reads both ways")


def no_weight_outside_the_window(trial: Trial) -> Outcome:
    parts = []
    for stack, layer, _, weights in _seen(trial):
        width = trial.config.model.windows[layer]
        beyond = _distances(weights).abs() >= width
        if width > 0 and stack != "cross" and beyond.any():
            parts.append(weights[:, beyond].flatten())
    most = _most(part.max() for part in parts)
    return (most == 0, f"at most {most:.1e}") if parts else (None, "no layer has a window that hides anything")


def the_farthest_key_in_reach_is_read(trial: Trial) -> Outcome:
    """In each layer, on each side: a reach that is too short shows here."""
    least = {}
    for stack, layer, row, weights in _seen(trial):
        if len(_queries(trial, stack)[row]) < max(map(len, _queries(trial, stack))):
            continue  # shorter rows may not get to the edge
        width, keys = trial.config.model.windows[layer], len(_keys(trial, stack)[row])
        if stack == "cross":  # every key of the source
            least[stack, layer, 0] = weights[..., :keys].amax(dim=(0, 1)).min().item()
            continue
        edge = (keys if width < 0 else min(width, keys)) - 1
        for side in (-1, 1) if _looks_ahead(trial, stack) else (-1,):
            least[stack, layer, side] = weights[:, _distances(weights) == side * edge].amax().item()
    return min(least.values()) > 0, f"with a weight of {min(least.values()):.1e} or more"


def _distances(weights: Tensor) -> Tensor:  # (H, T, S) -> (T, S)
    return torch.arange(weights.shape[-1]) - torch.arange(weights.shape[-2])[:, None]


@torch.no_grad()
def the_kernel_equals_the_formula(trial: Trial) -> Outcome:
    """What each layer's own kernel computes, beside attention as it is written."""
    off: list[Tensor] = []
    with watch_attention(trial.model, lambda call: off.append((call.answer - explicit(*call.asked)).abs().max())):
        trial.answers(trial.rows, trial.sources)
        trial.answers(trial.rows, trial.sources, packed=True)
    return _most(off) <= EQUAL, f"off by {_most(off):.1e} at most, in {len(off)} calls"


@torch.no_grad()
def hidden_tokens_have_no_influence(trial: Trial) -> Outcome:
    """Change a token and see which states move: those that may read it, out to the edge, and no other."""
    leaks, still = [], 0
    for row, states, ahead, vocab_size in trial.readings():
        before, reach = states(row), _whole_reach(trial, len(row))
        for place in sorted({0, len(row) // 2, len(row) - 1}):
            moved = (states(_other(row, place, vocab_size)) - before).abs().amax(-1)  # (T)
            away = torch.arange(len(row)) - place
            allowed = (away.abs() <= reach) & (away >= (-reach if ahead else 0))
            leaks += moved[~allowed].tolist()
            edge = (away.abs() == reach) & (not trial.config.model.is_recurrent)  # what is carried may fade
            still += int((moved[allowed & ((away == 0) | edge)] == 0).sum())
    leak = _most(leaks)
    answers = [trial.answers(trial.rows, trial.sources, fill=fill) for fill in (0, trial.vocabulary - 1)]
    by_padding = _most((a - b).abs().max() for a, b in zip(*answers, strict=True))
    good = _most([leak, by_padding]) <= EQUAL and not still
    told = f"hidden tokens move a state by {leak:.1e}, padding by {by_padding:.1e}"
    return good, told + (f"; {still} states do not read what they may" if still else "")


def _whole_reach(trial: Trial, length: int) -> int:
    """How far a token's influence gets through all layers."""
    widths = trial.config.model.windows
    return length - 1 if -1 in widths else min(length - 1, sum(width - 1 for width in widths))


def _other(row: list[int], place: int, vocab_size: int) -> list[int]:
    changed = list(row)
    changed[place] = (row[place] + 1) % vocab_size
    return changed


def padding_changes_nothing(trial: Trial) -> Outcome:
    """Each row alone, among longer ones, and packed without padding: one answer."""
    with torch.no_grad():
        padded = trial.answers(trial.rows, trial.sources)
        packed = trial.answers(trial.rows, trial.sources, packed=True)
        alone = [trial.answers([row], [source])[0] for row, source in zip(trial.rows, trial.sources, strict=True)]
    by_padding = _most((a - b).abs().max() for a, b in zip(padded, alone, strict=True))
    by_packing = _most((a - b).abs().max() for a, b in zip(packed, alone, strict=True))
    good = _most([by_padding, by_packing]) <= EQUAL
    return good, f"padding moves an answer by {by_padding:.1e}, packing by {by_packing:.1e}"


def gradients_reach_every_parameter(trial: Trial) -> Outcome:
    model = copy.deepcopy(trial.model)
    trial.loss(model).backward()  # type: ignore[no-untyped-call]
    dead = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all() or not parameter.grad.any()
    ]
    number = sum(1 for _ in model.parameters())
    return not dead, f"none or not finite: {', '.join(dead[:4])}" if dead else f"all {number} tensors"


def one_batch_can_be_learned_by_heart(trial: Trial) -> Outcome:
    """A fresh model of the same settings, a few rows, no dropout: the loss must go to zero.

    What is too fast for a deep post-norm model is tried again slower.
    """
    width = trial.config.model.d_model
    first = last = 0.0
    rates = (1e-2, 2e-3) if trial.config.model.is_recurrent else (min(3e-3, 0.1 / width), 0.02 / width)
    for rate in rates:
        losses = _learn(trial, rate)
        first, last = losses[0], losses[-1]
        if last <= LEARNED * first:
            return True, f"loss {first:.2f} to {last:.3f} in {len(losses) - 1} steps"
    return False, f"loss {first:.2f}, and still {last:.3f} after {MOST_STEPS} steps"


def _learn(trial: Trial, rate: float) -> list[float]:
    """Losses before each step, until the last is small, or there were too many."""
    model = fresh_model(trial.config, trial.sizes).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses: list[float] = []
    while len(losses) <= MOST_STEPS:
        loss = trial.loss(model)
        losses.append(loss.item())
        if losses[-1] <= LEARNED * losses[0] or not loss.isfinite():
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, len(losses) / WARM_UP)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses


def the_count_equals_the_formula(trial: Trial) -> Outcome:
    have = sum(parameter.numel() for parameter in trial.model.parameters())
    want = budget(trial.config, trial.sizes).total
    return have == want, f"{have:,} parameters" + ("" if have == want else f", {want:,} by the formula")


def cached_decoding_equals_uncached(trial: Trial) -> Outcome:
    """Tokens are taken one by one, some rows leave on the way, others come twice, as beams do.

    Beside them the second row goes on alone: what it is batched with must not matter.
    """
    both = [found for cached in (True, False) if (found := trial.stepper(cached=cached))]
    lone = trial.stepper(cached=True, among=slice(1, 2))
    if lone is None:
        return None, "a classifier writes nothing"
    steps = max(1, min(trial.sizes.max_len // 2, 12))
    numbers = torch.Generator().manual_seed(1)
    off = []
    with torch.no_grad():
        cached, plain = (stepper.start() for stepper in both)
        off += [(cached - plain).abs().max(), (plain[1] - lone.start()[0]).abs().max()]
        for step in range(steps):
            if step == steps // 2:
                for stepper in both:
                    stepper.select(torch.tensor([2, 0, 0]))
            tokens = torch.randint(0, trial.vocabulary, (3,), generator=numbers)
            cached, plain = (stepper.step(tokens) for stepper in both)
            off.append((cached - plain).abs().max())
            if step < steps // 2:
                off.append((plain[1] - lone.step(tokens[1:2])[0]).abs().max())
    most = _most(off)
    return most <= 1e-5, f"scores differ by {most:.1e} in {steps} steps"  # steppers answer in float32


CHECKS: dict[str, Callable[[Trial], Outcome]] = {
    "attention rows sum to one": rows_sum_to_one,
    "no weight on padding": no_weight_on_padding,
    "no weight on the future": no_weight_on_the_future,
    "no weight outside the window": no_weight_outside_the_window,
    "the farthest key in reach is read": the_farthest_key_in_reach_is_read,
    "the kernel equals the formula": the_kernel_equals_the_formula,
    "hidden tokens have no influence": hidden_tokens_have_no_influence,
    "padding and packing change nothing": padding_changes_nothing,
    "gradients reach every parameter": gradients_reach_every_parameter,
    "one batch can be learned by heart": one_batch_can_be_learned_by_heart,
    "the parameter count equals the formula": the_count_equals_the_formula,
    "cached decoding equals uncached": cached_decoding_equals_uncached,
}
OF_ATTENTION = (
    rows_sum_to_one,
    no_weight_on_padding,
    no_weight_on_the_future,
    no_weight_outside_the_window,
    the_farthest_key_in_reach_is_read,
    the_kernel_equals_the_formula,
)
