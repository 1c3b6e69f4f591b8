"""The two loops: token by token, and beam search. Rows that are done leave the batch, and others come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from triform.config import DecodeConfig
from triform.generation.adapters import TokenIds
from triform.generation.beam import BackPointers, BeamState, StoppingCriteria, backtrace
from triform.generation.graph_decoder import graph_decode
from triform.generation.recurrent import AnyAdapter, RecurrentDecoderAdapter, RecurrentSeq2SeqAdapter, build_stepper
from triform.generation.sampling import TokenSampler, TokenSelector, greedy
from triform.generation.stepper import Stepper
from triform.nn.loss import check_finite
from triform.progress import report_progress

MAX_BATCH = 128  # hypotheses in a batch where steps are not replayed
MAX_RECURRENT_BATCH = 2_048  # the same on CUDA, of states: they are small, and a step costs little more for many
COMPACT_RATIO = 8  # rows leave when they are one in so many: every time, the keys of those that stay are copied


class BatchQueue:
    """Which rows are in the batch, which wait, and which are done."""

    def __init__(self, n_rows: int, waiting: Sequence[TokenIds]) -> None:
        self.active = list(range(n_rows - len(waiting)))
        self.waiting = deque(zip(range(len(self.active), n_rows), waiting, strict=True))
        self.finished: set[int] = set()
        self.n_rows = n_rows

    def compact(self) -> tuple[list[int], list[tuple[int, TokenIds]]] | None:
        """Places of those that stay and, with their rows' numbers, those that come; None: not yet."""
        n_finished = sum(row in self.finished for row in self.active)
        if COMPACT_RATIO * n_finished < len(self.active) or not n_finished:
            return None
        kept_indices = [index for index, row in enumerate(self.active) if row not in self.finished]
        admitted = [self.waiting.popleft() for _ in range(min(n_finished, len(self.waiting)))]
        self.active = [self.active[index] for index in kept_indices] + [row for row, _ in admitted]
        return kept_indices, admitted


@torch.inference_mode()
def decode_stepwise(
    stepper: Stepper, select_token: TokenSelector, stopping: StoppingCriteria, waiting: Sequence[TokenIds] = ()
) -> list[list[int]]:
    """New tokens for each row, the end token left out; rows that wait are counted after those in the stepper."""
    outputs: list[list[int]] = [[] for _ in stopping.limits]
    queue = BatchQueue(len(outputs), waiting)
    logits = stepper.prefill()
    while True:
        check_finite(logits)
        tokens = select_token(stopping.mask_banned(logits), queue.active)
        for row, token in zip(queue.active, tokens.tolist(), strict=True):
            if row in queue.finished:
                continue
            if token != stopping.eos:
                outputs[row].append(token)
            if token == stopping.eos or len(outputs[row]) >= stopping.limits[row]:
                queue.finished.add(row)
        report_progress("decoding", len(queue.finished), queue.n_rows)
        admitted: list[tuple[int, TokenIds]] = []
        compaction = queue.compact()
        if compaction is not None:
            kept_indices, admitted = compaction
            if not queue.active:
                return outputs
            row_indices = torch.tensor(kept_indices, dtype=torch.long, device=tokens.device)
            stepper.select(row_indices)
            tokens = tokens[row_indices]
        logit_parts = [stepper.step(tokens)] if len(tokens) else []
        if admitted:
            logit_parts.append(stepper.append_rows([row for _, row in admitted]))
        logits = torch.cat(logit_parts)


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    stopping: StoppingCriteria,
    *,
    beam_size: int,
    length_penalty: float,
    waiting: Sequence[TokenIds] = (),
) -> list[list[int]]:
    """The best of `size` hypotheses a row, see `Beams`. With size 1 that is greedy decoding."""
    outputs: list[list[int]] = [[] for _ in stopping.limits]
    back_pointers: list[BackPointers] = [[] for _ in outputs]
    queue = BatchQueue(len(outputs), waiting)
    logits = stepper.prefill()[:, None].expand(-1, beam_size, -1)  # (B, size, V)
    stepper.expand_to_beams(beam_size)
    beam_state = BeamState(stopping, beam_size=beam_size, length_penalty=length_penalty, device=logits.device)
    beam_state.append_rows([stopping.limits[row] for row in queue.active])
    while True:
        check_finite(logits)
        tokens, parents = beam_state.advance(logits)
        row_ends = [beam_state.tensors[name].tolist() for name in ("over", "depth", "which")]
        row_steps = zip(queue.active, tokens.tolist(), parents.tolist(), *row_ends, strict=True)
        for row, step_tokens, step_parents, is_done, depth, hypothesis in row_steps:
            back_pointers[row].append((step_tokens, step_parents))
            if is_done and row not in queue.finished:
                outputs[row] = backtrace(back_pointers[row], depth, hypothesis)
                queue.finished.add(row)
        report_progress("decoding", len(queue.finished), queue.n_rows)
        admitted: list[tuple[int, TokenIds]] = []
        compaction = queue.compact()
        if compaction is not None:
            kept_indices, admitted = compaction
            if not queue.active:
                return outputs
            row_indices = torch.tensor(kept_indices, dtype=torch.long, device=tokens.device)
            stepper.select(row_indices)
            beam_state.select(row_indices)
            tokens, parents = tokens[row_indices], parents[row_indices]
        logit_parts = [stepper.step(tokens, parents)] if len(tokens) else []
        if admitted:
            logit_parts.append(stepper.append_rows([row for _, row in admitted])[:, None].expand(-1, beam_size, -1))
            beam_state.append_rows([stopping.limits[row] for row, _ in admitted])
        logits = torch.cat(logit_parts)


def generate(
    adapter: AnyAdapter,
    rows: Sequence[TokenIds],
    config: DecodeConfig,
    stopping: StoppingCriteria,
    *,
    default_strategy: str,
    seeds: Sequence[int],
) -> list[list[int]]:
    """Decode as the settings say; `default` is what "auto" means for the task."""
    if not rows:
        return []
    strategy = default_strategy if config.strategy == "auto" else config.strategy
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))  # rows of like length come together
    stopping = StoppingCriteria(
        eos=stopping.eos, limits=tuple(stopping.limits[row] for row in order), banned=stopping.banned
    )
    rows, seeds = [rows[row] for row in order], [seeds[row] for row in order]
    on_cuda = next(adapter.model.parameters()).is_cuda
    if on_cuda and not isinstance(adapter, RecurrentDecoderAdapter | RecurrentSeq2SeqAdapter):
        outputs = graph_decode(adapter, rows, config, stopping, strategy=strategy, seeds=seeds)
    else:
        beam_size = config.beam_size if strategy == "beam" else 1
        max_rows = max(1, (MAX_RECURRENT_BATCH if on_cuda else MAX_BATCH) // beam_size)
        first_rows, waiting = rows[:max_rows], rows[max_rows:]
        stepper = build_stepper(adapter, first_rows)
        with torch.inference_mode():
            if strategy == "beam":
                penalty = config.length_penalty
                outputs = beam_search(
                    stepper, stopping, beam_size=beam_size, length_penalty=penalty, waiting=waiting
                )
            else:
                select_token = TokenSampler(config, seeds) if strategy == "sample" else greedy
                outputs = decode_stepwise(stepper, select_token, stopping, waiting)
    return [tokens for _, tokens in sorted(zip(order, outputs, strict=True))]
