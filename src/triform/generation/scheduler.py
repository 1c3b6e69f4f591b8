"""Continuous batching: requests wait in a queue, are decoded together, and make room for others when they are done.

`generate` decodes a list of requests. `Scheduler` does the same for requests that arrive over time: `submit` adds
one at any moment, and `step` decodes a little and returns those that are done. One round of `step` is

1. admit: rows from the front of the queue join the batch, if there is room; their prompts are prefilled;
2. decode: every row of the batch takes a step (several, where CUDA graphs are replayed) and gets its next token;
3. evict: rows that have reached an end token or their limit leave the batch;
4. restart: rows whose context is full drop its older half and are prefilled again.

The scheduler owns the queue and the order of these steps. Its back end runs the model: `EagerBackend` on any
device, `GraphBackend` for Transformers on CUDA. Both give the same tokens, and the other requests
in the batch do not change them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch

from triform.config import DecodeConfig, DecodingStrategy
from triform.generation.adapters import DecoderAdapter, GenerationAdapter, Seq2SeqAdapter, TransformerAdapter
from triform.generation.backend import Backend, EagerBackend, Request, Row, SamplePicker, TokenConstraints
from triform.generation.beam import BeamPicker, BeamRow, BeamSettings, Hypothesis
from triform.generation.ensemble import EnsembleAdapter
from triform.generation.graph import GraphBackend
from triform.generation.recurrent import RecurrentDecoderAdapter, RecurrentSeq2SeqAdapter
from triform.models.ensemble import EnsembleDecoder, EnsembleSeq2Seq
from triform.models.factory import AnyDecoder, AnySeq2Seq
from triform.models.recurrent import RecurrentDecoder, RecurrentSeq2Seq
from triform.progress import report_progress

MAX_EAGER_HYPOTHESES = 128  # in a batch of the eager back end
MAX_EAGER_HYPOTHESES_CUDA = 2_048  # the same on CUDA, where a step costs little more for many rows


class Scheduler:
    """Decodes requests that arrive over time. Each thread needs its own scheduler.

    The loop of a server looks like this:

        with Scheduler(adapter, constraints) as scheduler:
            while True:
                for request, client in new_requests():
                    clients[scheduler.submit(request).id] = client
                for request_id, tokens in scheduler.step().items():
                    clients.pop(request_id).send(tokens)

    Args:
        adapter: The model.
        constraints: End token and banned tokens, the same for all requests.
        beam: The settings of beam search, the same for all requests. None: each request is decoded greedily or
            sampled, with its own settings.
        max_rows: The number of requests that are decoded at once. None: as many as are efficient.
        use_cuda_graphs: Whether to use the CUDA graph back end. None: wherever it is faster.
    """

    def __init__(
        self,
        adapter: GenerationAdapter,
        constraints: TokenConstraints,
        beam: BeamSettings | None = None,
        *,
        max_rows: int | None = None,
        use_cuda_graphs: bool | None = None,
    ) -> None:
        self.adapter, on_cuda = adapter, adapter.device.type == "cuda"
        make_picker = partial(build_picker, constraints, adapter.device, beam)
        self.picker = make_picker()
        self.waiting: deque[Row] = deque()  # requests that are not in the batch yet, in the order of their arrival
        self.n_submitted = self.n_finished = 0
        self.backend: Backend
        if isinstance(adapter, TransformerAdapter) and (on_cuda if use_cuda_graphs is None else use_cuda_graphs):
            self.backend = GraphBackend(adapter, make_picker, max_rows)
        else:
            max_hypotheses = MAX_EAGER_HYPOTHESES_CUDA if on_cuda else MAX_EAGER_HYPOTHESES
            max_rows = max_rows or max(1, max_hypotheses // self.picker.beam_size)
            self.backend = EagerBackend(adapter, self.picker, max_rows)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what the back end holds."""
        self.backend.close()

    @property
    def n_unfinished(self) -> int:
        """Requests that were submitted and are not done."""
        return self.n_submitted - self.n_finished

    def submit(self, request: Request) -> Row:
        """Add a request to the queue.

        Returns:
            Its row, whose `id` is 0, 1, 2, … and whose `output` grows with each round of `step`.
        """
        row = self.picker.make_row(self.n_submitted, request, self.adapter.initial_tokens(request.tokens))
        self.n_submitted += 1
        self.backend.reserve(row)
        self.waiting.append(row)
        return row

    @torch.inference_mode()
    def cancel(self, row: Row) -> None:
        """Give up a request that is not done, between two rounds. Others take its place."""
        assert not row.done
        if row in self.waiting:
            self.waiting.remove(row)
        with self.backend.lock:
            self.backend.evict([row])
        self.n_finished += 1

    def step(self) -> dict[int, list[int]]:
        """Decode one round.

        Returns:
            The new tokens of each request that is done now, without the end token, by the id of the request.
        """
        return {row.id: row.output for row in self.step_rows()}

    @torch.inference_mode()
    def step_rows(self) -> list[Row]:
        """Decode one round and return the rows that are done now."""
        if not self.n_unfinished:
            return []
        with self.backend.lock:
            return self._step()

    def _step(self) -> list[Row]:
        self.backend.admit(self.waiting)
        rows = self.backend.step()
        finished = [row for row in rows if row.done]
        if finished:
            self.backend.evict(finished)
            self.n_finished += len(finished)
        full = [row for row in rows if not row.done and self._context_is_full(row)]
        if full:
            for row in full:
                row.slide_context(self.adapter.max_len)
            self.backend.restart(full)
        return finished

    def _context_is_full(self, row: Row) -> bool:
        return self.adapter.sliding_context and row.context_len > self.adapter.max_len


def build_picker(
    constraints: TokenConstraints, device: torch.device, beam: BeamSettings | None
) -> SamplePicker | BeamPicker:
    """Return the token picker for beam search, or for greedy decoding and sampling."""
    return SamplePicker(constraints, device) if beam is None else BeamPicker(constraints, device, beam)


def beam_settings(decode: DecodeConfig) -> BeamSettings | None:
    """Return the settings of beam search, or None for the other strategies."""
    return BeamSettings(decode.beam_size, decode.length_penalty) if decode.strategy == "beam" else None


@lru_cache(maxsize=256)
def resolve_strategy(decode: DecodeConfig, default: DecodingStrategy) -> DecodeConfig:
    """Return decoding settings with a strategy that is not "auto"."""
    return replace(decode, strategy=default) if decode.strategy == "auto" else decode


def build_decoder_adapter(model: AnyDecoder | EnsembleDecoder, max_len: int) -> GenerationAdapter:
    """Return the adapter of a language model: Transformer, recurrent, or an ensemble."""
    if isinstance(model, EnsembleDecoder):
        return EnsembleAdapter(model, [build_decoder_adapter(member, max_len) for member in model.members])
    return RecurrentDecoderAdapter(model) if isinstance(model, RecurrentDecoder) else DecoderAdapter(model, max_len)


def build_seq2seq_adapter(model: AnySeq2Seq | EnsembleSeq2Seq, max_len: int, bos: int) -> GenerationAdapter:
    """Return the adapter of a translator: Transformer, recurrent, or an ensemble. Targets start with `bos`."""
    if isinstance(model, EnsembleSeq2Seq):
        return EnsembleAdapter(model, [build_seq2seq_adapter(member, max_len, bos) for member in model.members])
    if isinstance(model, RecurrentSeq2Seq):
        return RecurrentSeq2SeqAdapter(model, bos)
    return Seq2SeqAdapter(model, max_len, bos)


def row_seeds(seed: int, rows: Sequence[int]) -> list[int]:
    """Return a seed for each of these rows of a dataset. It does not depend on the batch."""
    return [seed * 1_000_003 + row for row in rows]


def generate(
    adapter: GenerationAdapter, requests: Sequence[Request], constraints: TokenConstraints
) -> list[list[int]]:
    """Decode all requests and return their new tokens, without the end token, in the same order.

    Args:
        adapter: The model.
        requests: Prompts or sources, each with its settings. With beam search, these are the same for all.
        constraints: End token and banned tokens.
    """
    outputs: list[list[int]] = [[] for _ in requests]
    for index, row in iter_finished_rows(adapter, requests, constraints):
        outputs[index] = row.output
    return outputs


def search_n_best(
    adapter: GenerationAdapter, requests: Sequence[Request], constraints: TokenConstraints, n_best: int
) -> list[list[Hypothesis]]:
    """Decode all requests by beam search and return the `n_best` hypotheses of each, the best first.

    The first hypothesis has the tokens that `generate` returns; for the other arguments see there.
    """
    hypotheses: list[list[Hypothesis]] = [[] for _ in requests]
    for index, row in iter_finished_rows(adapter, requests, constraints):
        assert isinstance(row, BeamRow)
        hypotheses[index] = row.hypotheses(n_best)
    return hypotheses


def iter_finished_rows(
    adapter: GenerationAdapter, requests: Sequence[Request], constraints: TokenConstraints
) -> Iterator[tuple[int, Row]]:
    """Decode all requests, and yield the index and the row of each as soon as it is done."""
    if not requests:
        return
    # The longest first: rows of similar length are prefilled together, with little padding.
    order = sorted(range(len(requests)), key=lambda index: -len(requests[index].tokens))
    with Scheduler(adapter, constraints, beam_settings(requests[0].decode)) as scheduler:
        index_of = {scheduler.submit(requests[index]).id: index for index in order}
        while scheduler.n_unfinished:
            yield from ((index_of[row.id], row) for row in scheduler.step_rows())
            if len(requests) > 1:  # a single request has no progress to report
                report_progress("decoding", scheduler.n_finished, len(requests))
