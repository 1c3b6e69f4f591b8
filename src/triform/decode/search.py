"""The two loops: token by token, and beam search. Rows that are done leave the batch, and others come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from triform.config import DecodeConfig
from triform.decode.beam import Beams, Ending, Trail, traced
from triform.decode.carried import AnyForm, CarriedDecoderForm, CarriedSeq2SeqForm, stepper_of
from triform.decode.choose import Choose, Sample, best
from triform.decode.forms import Tokens
from triform.decode.replay import replay
from triform.decode.stepper import Stepper
from triform.nn.vocabulary import check_finite
from triform.progress import report

AT_ONCE = 128  # hypotheses in a batch where steps are not replayed
MOST_CARRIED = 2_048  # the same on CUDA, of states: they are small, and a step costs little more for many
WORTH_MOVING = 8  # rows leave when they are one in so many: every time, the keys of those that stay are copied


class Queue:
    """Which rows are in the batch, which wait, and which are done."""

    def __init__(self, n_rows: int, waiting: Sequence[Tokens]) -> None:
        self.there = list(range(n_rows - len(waiting)))
        self.waiting = deque(zip(range(len(self.there), n_rows), waiting, strict=True))
        self.done: set[int] = set()
        self.total = n_rows

    def move(self) -> tuple[list[int], list[tuple[int, Tokens]]] | None:
        """Places of those that stay and, with their rows' numbers, those that come; None: not yet."""
        gone = sum(row in self.done for row in self.there)
        if WORTH_MOVING * gone < len(self.there) or not gone:
            return None
        stay = [place for place, row in enumerate(self.there) if row not in self.done]
        come = [self.waiting.popleft() for _ in range(min(gone, len(self.waiting)))]
        self.there = [self.there[place] for place in stay] + [row for row, _ in come]
        return stay, come


@torch.inference_mode()
def write(stepper: Stepper, choose: Choose, ending: Ending, waiting: Sequence[Tokens] = ()) -> list[list[int]]:
    """New tokens for each row, the end token left out; rows that wait are counted after those in the stepper."""
    written: list[list[int]] = [[] for _ in ending.limits]
    queue = Queue(len(written), waiting)
    scores = stepper.start()
    while True:
        check_finite(scores)
        tokens = choose(ending.allowed(scores), queue.there)
        for row, token in zip(queue.there, tokens.tolist(), strict=True):
            if row in queue.done:
                continue
            if token != ending.eos:
                written[row].append(token)
            if token == ending.eos or len(written[row]) >= ending.limits[row]:
                queue.done.add(row)
        report("decoding", len(queue.done), queue.total)
        come: list[tuple[int, Tokens]] = []
        moved = queue.move()
        if moved is not None:
            stay, come = moved
            if not queue.there:
                return written
            rows = torch.tensor(stay, dtype=torch.long, device=tokens.device)
            stepper.select(rows)
            tokens = tokens[rows]
        parts = [stepper.step(tokens)] if len(tokens) else []
        if come:
            parts.append(stepper.join([row for _, row in come]))
        scores = torch.cat(parts)


@torch.inference_mode()
def beam_search(
    stepper: Stepper, ending: Ending, *, size: int, length_penalty: float, waiting: Sequence[Tokens] = ()
) -> list[list[int]]:
    """The best of `size` hypotheses a row, see `Beams`. With size 1 that is greedy decoding."""
    found: list[list[int]] = [[] for _ in ending.limits]
    trails: list[Trail] = [[] for _ in found]
    queue = Queue(len(found), waiting)
    scores = stepper.start()[:, None].expand(-1, size, -1)  # (B, size, V)
    stepper.fork(size)
    beams = Beams(ending, size=size, length_penalty=length_penalty, device=scores.device)
    beams.join([ending.limits[row] for row in queue.there])
    while True:
        check_finite(scores)
        tokens, parents = beams.advance(scores)
        ends = [beams.state[name].tolist() for name in ("over", "depth", "which")]
        steps = zip(queue.there, tokens.tolist(), parents.tolist(), *ends, strict=True)
        for row, texts, origins, over, depth, which in steps:
            trails[row].append((texts, origins))
            if over and row not in queue.done:
                found[row] = traced(trails[row], depth, which)
                queue.done.add(row)
        report("decoding", len(queue.done), queue.total)
        come: list[tuple[int, Tokens]] = []
        moved = queue.move()
        if moved is not None:
            stay, come = moved
            if not queue.there:
                return found
            rows = torch.tensor(stay, dtype=torch.long, device=tokens.device)
            stepper.select(rows)
            beams.select(rows)
            tokens, parents = tokens[rows], parents[rows]
        parts = [stepper.step(tokens, parents)] if len(tokens) else []
        if come:
            parts.append(stepper.join([row for _, row in come])[:, None].expand(-1, size, -1))
            beams.join([ending.limits[row] for row, _ in come])
        scores = torch.cat(parts)


def run_search(
    form: AnyForm,
    rows: Sequence[Tokens],
    config: DecodeConfig,
    ending: Ending,
    *,
    default: str,
    seeds: Sequence[int],
) -> list[list[int]]:
    """Decode as the settings say; `default` is what "auto" means for the task."""
    if not rows:
        return []
    strategy = default if config.strategy == "auto" else config.strategy
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))  # rows of like length come together
    ending = Ending(eos=ending.eos, limits=tuple(ending.limits[row] for row in order), banned=ending.banned)
    rows, seeds = [rows[row] for row in order], [seeds[row] for row in order]
    on_cuda = next(form.model.parameters()).is_cuda
    if on_cuda and not isinstance(form, CarriedDecoderForm | CarriedSeq2SeqForm):
        found = replay(form, rows, config, ending, strategy=strategy, seeds=seeds)
    else:
        size = config.beam_size if strategy == "beam" else 1
        at_once = max(1, (MOST_CARRIED if on_cuda else AT_ONCE) // size)
        now, waiting = rows[:at_once], rows[at_once:]
        stepper = stepper_of(form, now)
        with torch.inference_mode():
            if strategy == "beam":
                penalty = config.length_penalty
                found = beam_search(stepper, ending, size=size, length_penalty=penalty, waiting=waiting)
            else:
                choose = Sample(config, seeds) if strategy == "sample" else best
                found = write(stepper, choose, ending, waiting)
    return [tokens for _, tokens in sorted(zip(order, found, strict=True))]
