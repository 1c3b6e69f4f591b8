"""The texts that a worker generates: requests with their schedulers, decoded together round by round."""

from __future__ import annotations

import logging
from collections import Counter

import torch

from triform.config import DecodeConfig
from triform.errors import ConfigError, DataError, TriformError
from triform.generation.backend import MAX_ALTERNATIVES, Request, Row
from triform.generation.beam import BeamRow, BeamSettings
from triform.generation.scheduler import Scheduler, beam_settings, resolve_strategy, row_seeds
from triform.run import Run
from triform.serving.endpoints import ApiError, to_api_error
from triform.serving.text_stream import TextStream
from triform.serving.worker_jobs import GenerationJob, GenerationRequest, GenerationUpdate
from triform.tasks.generate import TextGenerator
from triform.tasks.translate import TextTranslator

log = logging.getLogger("triform")
MAX_SCHEDULERS = 4  # that decode at the same time; requests with further settings of beam search wait


def text_predictor(run: Run) -> TextGenerator | TextTranslator:
    """Return the predictor of a run that generates text."""
    predictor = run.task.predictor
    assert isinstance(predictor, TextGenerator | TextTranslator), f"{run.task.name} generates no text"
    return predictor


class GenerationBatches:
    """The requests that are decoded. Greedy and sampled ones share a scheduler, and so do equal beam searches.

    One thread uses it.
    """

    def __init__(self, run: Run, max_batch: int) -> None:
        self.run, self.max_batch = run, max_batch
        self.jobs: list[GenerationJob] = []
        self.schedulers: dict[BeamSettings | None, Scheduler] = {}
        self.n_tokens = 0  # generated so far
        self.batch_sizes: Counter[int] = Counter()  # how often so many texts were decoded together

    def add(self, job: GenerationJob) -> bool:
        """Add a job, if there is room; otherwise return False."""
        scheduler = self._find_scheduler(beam_settings(job.request.decode))
        if scheduler is None or scheduler.n_unfinished >= self.max_batch:
            return False
        job.scheduler, job.stream = scheduler, self._build_stream(job.request)
        job.row = scheduler.submit(self._build_request(job.request))
        self.jobs.append(job)
        return True

    def _find_scheduler(self, settings: BeamSettings | None) -> Scheduler | None:
        """Return the scheduler for these settings; None if too many others are in use."""
        if settings not in self.schedulers:
            if len(self.schedulers) >= MAX_SCHEDULERS:
                return None
            predictor = text_predictor(self.run)
            self.schedulers[settings] = Scheduler(
                predictor.build_adapter(), predictor.constraints, settings, max_rows=self.max_batch
            )
        return self.schedulers[settings]

    def _build_request(self, request: GenerationRequest) -> Request:
        """Return the request as `Run.predict` builds it for a single text."""
        max_new_tokens = request.max_new_tokens
        if self.run.task.name == "translate":
            max_new_tokens = min(max_new_tokens, self.run.config.data.max_len - 1)
        (seed,) = row_seeds(request.seed, [0])
        return Request(request.tokens, max_new_tokens, seed, request.decode, request.n_logprobs)

    def _build_stream(self, request: GenerationRequest) -> TextStream:
        task = self.run.task
        if task.name == "translate":
            return TextStream(task.target_tokenizer, (), request.stop)
        return TextStream(task.tokenizer, request.tokens, request.stop)

    def decode(self) -> list[tuple[GenerationJob, GenerationUpdate | Exception]]:
        """Decode one round of every scheduler, and return what is new, or the error of jobs that failed."""
        self._drop_cancelled()
        answers = [answer for scheduler in list(self.schedulers.values()) for answer in self._step(scheduler)]
        for settings, scheduler in list(self.schedulers.items()):
            if not scheduler.n_unfinished:  # CUDA graphs that it captured are kept for the next one
                self.schedulers.pop(settings).close()
        return answers

    def _drop_cancelled(self) -> None:
        for job in self.jobs:
            if job.cancelled:
                job.scheduler.cancel(job.row)
        self.jobs = [job for job in self.jobs if not job.cancelled]

    def _step(self, scheduler: Scheduler) -> list[tuple[GenerationJob, GenerationUpdate | Exception]]:
        jobs = [job for job in self.jobs if job.scheduler is scheduler]
        if not jobs:
            return []
        try:
            with self.run.inference_context():
                scheduler.step_rows()
            updates = [(job, self._next_update(job)) for job in jobs]
        except Exception as error:
            return self._fail(scheduler, jobs, error)
        self.batch_sizes[len(jobs)] += 1
        for job, update in updates:
            if update is not None and update.finish_reason is not None:
                self.jobs.remove(job)
                if not job.row.done:  # it ended at a stop string
                    scheduler.cancel(job.row)
        return [(job, update) for job, update in updates if update is not None]

    def _fail(
        self, scheduler: Scheduler, jobs: list[GenerationJob], error: Exception
    ) -> list[tuple[GenerationJob, GenerationUpdate | Exception]]:
        """Give up a scheduler and all its jobs."""
        self.schedulers = {key: other for key, other in self.schedulers.items() if other is not scheduler}
        self.jobs = [job for job in self.jobs if job.scheduler is not scheduler]
        scheduler.close()
        return [(job, error_for_client(error)) for job in jobs]

    def _next_update(self, job: GenerationJob) -> GenerationUpdate | None:
        """Return what is new of a text, or None."""
        request, row, stream = job.request, job.row, job.stream
        self.n_tokens += len(row.output) - job.n_generated
        job.n_generated = len(row.output)
        if request.stream or request.stop or (row.done and request.n_logprobs):
            for index in range(len(stream.tokens), len(row.output)):
                stream.append(row.output[index], row.logprobs[index] if row.logprobs else None)
        elif row.done:
            stream.tokens = row.output
        n_tokens = len(stream.tokens)
        if not stream.stopped and not row.done:
            text, tokens = stream.pop() if request.stream else ("", ())
            return GenerationUpdate(text=text, tokens=tokens, n_tokens=n_tokens) if text or tokens else None
        text, tokens = stream.finish()
        return GenerationUpdate(
            text=text,
            tokens=tokens if request.stream or request.n_logprobs else (),
            n_tokens=n_tokens,
            finish_reason="stop" if stream.stopped else row.finish_reason,
            hypotheses=_hypotheses(row, stream, request.n_best),
        )

    def close(self) -> None:
        """Give up all jobs."""
        for scheduler in self.schedulers.values():
            scheduler.close()
        self.jobs, self.schedulers = [], {}


def resolve_request(run: Run, request: GenerationRequest) -> DecodeConfig:
    """Return the decoding settings of a request with a strategy that is not "auto".

    Raises:
        DataError: The tokens are not in the vocabulary.
        ConfigError: The settings contradict each other.
    """
    decode = resolve_strategy(request.decode, text_predictor(run).default_strategy)
    vocab_size, is_beam = run.task.tokenizer.vocab_size, decode.strategy == "beam"
    if not request.tokens:
        raise DataError("the prompt has no tokens")
    if not all(0 <= token < vocab_size for token in request.tokens):
        raise DataError(f"a token of the prompt is not in the vocabulary of tokens 0 to {vocab_size - 1}")
    if request.max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens={request.max_new_tokens} must be at least 1")
    if request.n_logprobs and is_beam:
        raise ConfigError("beam search reports no log probabilities of tokens; choose another decode.strategy")
    if request.n_logprobs > MAX_ALTERNATIVES:
        raise ConfigError(f"a token has at most {MAX_ALTERNATIVES} alternatives, found {request.n_logprobs}")
    if request.n_best > (decode.beam_size if is_beam else 1):
        raise ConfigError(
            f"{request.n_best} hypotheses need decode.strategy=beam and decode.beam_size={request.n_best} or more"
        )
    return decode


def _hypotheses(row: Row, stream: TextStream, n_best: int) -> tuple[tuple[str, float], ...]:
    if not isinstance(row, BeamRow):
        return ()
    return tuple((stream.cut(stream.full_text(tokens)), score) for tokens, score in row.hypotheses(n_best))


def error_for_client(error: Exception) -> Exception:
    """Return the error that a client sees."""
    if isinstance(error, TriformError):
        return to_api_error(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return ApiError(
            503, "the model ran out of memory; send shorter texts, or start the server with a lower max_batch"
        )
    log.error("error in the worker of a model", exc_info=error)
    return ApiError(500, "internal error; see the log of the server")
