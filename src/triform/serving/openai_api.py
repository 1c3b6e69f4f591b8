"""The dialect of OpenAI: the list of models, and completions of language models."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio.to_thread
import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from triform.config.merging import override_decode
from triform.errors import TriformError
from triform.serving.completion_choices import Choice, ChoiceBuilder, Prompt, score_prompt
from triform.serving.endpoints import (
    NON_EMPTY_LIST,
    STREAM_TYPE,
    ApiError,
    Call,
    Endpoint,
    error_content,
    to_api_error,
)
from triform.serving.generated_texts import stream_texts
from triform.serving.models import ServedModel, model_stamp
from triform.serving.worker import GenerationRequest, GenerationUpdate

if TYPE_CHECKING:
    from triform.config import DecodeConfig
    from triform.run import Run

DEFAULT_MAX_TOKENS = 16
MAX_STOP_STRINGS = 4
# The handler refuses other values, because it knows the vocabulary and has clearer words.
Token = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
StopString = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
# Parameters of OpenAI that Triform does not have, with the values that change nothing.
NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
}


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream contains besides the text."""

    include_usage: bool = False


class CompletionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Prompts to continue: a text, several texts, the tokens of a text, or those of several texts."""

    prompt: str | Annotated[list[str | Token | Annotated[list[Token], NON_EMPTY_LIST]], NON_EMPTY_LIST]
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: (
        StopString | Annotated[list[StopString], Meta(extra_json_schema={"maxItems": MAX_STOP_STRINGS})] | None
    ) = None
    seed: int | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    best_of: int | None = None
    suffix: str | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class Usage(msgspec.Struct, kw_only=True):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(msgspec.Struct, kw_only=True):
    """Continuations, `n` for each prompt. A stream consists of several, each with what is new."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct, kw_only=True):
    """A model that can be used."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "triform"


class ModelList(msgspec.Struct, kw_only=True):
    """All models that can be used."""

    object: Literal["list"] = "list"
    data: list[Model]


async def list_models(call: Call) -> ModelList:
    """Return all models."""

    def read() -> list[Model]:
        return [describe_model(call, name) for name in call.server.models.names()]

    return ModelList(data=await anyio.to_thread.run_sync(read))


async def show_model(call: Call) -> Model:
    """Return one model."""
    return describe_model(call, call.path["id"])


def describe_model(call: Call, name: str) -> Model:
    """Return a model with the time at which its weights were written."""
    stamps = [stamp for stamp in model_stamp(call.server.models.path(name)) if stamp]
    return Model(id=name, created=max(stamps)[0] // 10**9 if stamps else 0)


async def create_completion(call: Call) -> Completion | Response:
    """Continue prompts with a language model."""
    body: CompletionRequest = call.body
    refuse_unsupported(body)
    served = await call.server.models.get(body.model, task="generate")
    texts = (
        [body.prompt] if isinstance(body.prompt, str) else [text for text in body.prompt if isinstance(text, str)]
    )
    prompts = await call.server.encode(texts, partial(encode_prompts, body, served.run))
    n, max_queue = body.n or 1, call.server.options.max_queue
    if len(prompts) * n > max_queue:
        raise ApiError(400, f"a request may have at most {max_queue} texts, found {len(prompts) * n}", param="n")
    builders = [
        ChoiceBuilder(index=index, prompt=prompts[index // n], echo=bool(body.echo), n_logprobs=body.logprobs)
        for index in range(len(prompts) * n)
    ]
    if body.echo and body.logprobs is not None:
        if served.run.config.decode.mix:
            raise ApiError(400, "echo: with decode.mix, a prompt has no log probabilities", param="echo")
        limiter = call.server.explanations.limiter  # few heavy computations at a time
        for index, prompt in enumerate(prompts):
            score = partial(score_prompt, served.run, prompt.tokens, body.logprobs)
            tokens = await anyio.to_thread.run_sync(score, limiter=limiter)
            for builder in builders[index * n : (index + 1) * n]:
                builder.prompt_tokens = tokens
    completion = Completion(
        id=f"cmpl-{secrets.token_hex(12)}", created=int(time.time()), model=served.name, choices=[]
    )
    requests = build_requests(body, prompts, served.run) if body.max_tokens != 0 else []
    if body.stream:
        return await stream_completion(body, served, requests, builders, completion)
    async with aclosing(stream_texts(served.worker, requests)) as updates:
        async for index, update in updates:
            builders[index].generated.add(update)
    completion.choices = [builder.full_choice() for builder in builders]
    completion.usage = count_usage(prompts, builders)
    return completion


def refuse_unsupported(body: CompletionRequest) -> None:
    """Refuse parameters that would change the result and that Triform does not have."""
    for name, neutral in NEUTRAL_VALUES.items():
        value = getattr(body, name)
        if value not in neutral and not (name == "best_of" and value == (body.n or 1)):
            raise ApiError(400, f"{name}: this parameter is not supported; leave it out", param=name)
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options: this parameter needs stream=true", param="stream_options")
    stops = stop_strings(body)
    if len(stops) > MAX_STOP_STRINGS:
        raise ApiError(400, f"stop: at most {MAX_STOP_STRINGS} strings are allowed", param="stop")
    if "" in stops:
        raise ApiError(400, "stop: a stop string is empty", param="stop")


def stop_strings(body: CompletionRequest) -> tuple[str, ...]:
    """Return the strings before which a text ends."""
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def encode_prompts(body: CompletionRequest, run: Run) -> list[Prompt]:
    """Encode each prompt.

    Raises:
        ApiError: A prompt is too long, or its tokens are not in the vocabulary.
    """
    prompt = body.prompt
    if isinstance(prompt, str):
        prompts: Sequence[Any] = [prompt]
    elif prompt and all(isinstance(token, int) for token in prompt):
        prompts = [prompt]
    else:
        prompts = prompt
    kinds = {str if isinstance(item, str) else list if isinstance(item, list) else int for item in prompts}
    if not prompts or kinds not in ({str}, {list}):
        raise ApiError(400, "prompt: expected a text, a list of texts, or their tokens", param="prompt")
    return [_encode_prompt(item, run) for item in prompts]


def _encode_prompt(prompt: str | list[int], run: Run) -> Prompt:
    tokenizer, max_len = run.task.tokenizer, run.config.data.max_len
    generator: Any = run.task.predictor
    tokens: list[int] = generator.encode_prompt(prompt) if isinstance(prompt, str) else prompt
    vocab_size = tokenizer.vocab_size
    if not tokens or not all(0 <= token < vocab_size for token in tokens):
        raise ApiError(400, f"prompt: expected tokens from 0 to {vocab_size - 1}", param="prompt")
    if len(tokens) > max_len and not run.config.model.is_recurrent:
        raise ApiError(
            400, f"prompt: it has {len(tokens)} tokens, and this model reads at most {max_len}", param="prompt"
        )
    return Prompt(tokens, prompt if isinstance(prompt, str) else tokenizer.decode(tokens))


def build_requests(body: CompletionRequest, prompts: Sequence[Prompt], run: Run) -> list[GenerationRequest]:
    """Return `n` requests for each prompt, with seeds that follow each other."""
    n, decode = body.n or 1, decode_settings(body, run)
    seed = secrets.randbits(32) if body.seed is None else body.seed
    return [
        GenerationRequest(
            tokens=prompts[index // n].tokens,
            max_new_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
            decode=decode,
            seed=(seed + index) % 2**32,
            stop=stop_strings(body),
            stream=bool(body.stream),
            n_logprobs=0 if body.logprobs is None else max(1, body.logprobs),
        )
        for index in range(len(prompts) * n)
    ]


def decode_settings(body: CompletionRequest, run: Run) -> DecodeConfig:
    """Return the settings of sampling. What the request leaves out has the default of OpenAI, not of the run."""
    temperature = 1.0 if body.temperature is None else body.temperature
    if temperature == 0:
        return override_decode(run.config.decode, strategy="greedy")
    settings = {
        "strategy": "sample",
        "temperature": temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_k": max(0, body.top_k or 0),
    }
    return override_decode(run.config.decode, **settings)


def count_usage(prompts: Sequence[Prompt], builders: Sequence[ChoiceBuilder]) -> Usage:
    """Return the numbers of tokens of all prompts and all continuations."""
    n_prompt = sum(len(prompt.tokens) for prompt in prompts)
    n_completion = sum(builder.generated.n_tokens for builder in builders)
    return Usage(prompt_tokens=n_prompt, completion_tokens=n_completion, total_tokens=n_prompt + n_completion)


async def stream_completion(
    body: CompletionRequest,
    served: ServedModel,
    requests: Sequence[GenerationRequest],
    builders: Sequence[ChoiceBuilder],
    completion: Completion,
) -> Response:
    """Return the continuations as server-sent events.

    The response starts with the first token, so that errors before it, such as a full queue, have their status.
    """
    updates = stream_texts(served.worker, requests)
    first = await anext(updates, None)
    include_usage = bool(body.stream_options and body.stream_options.include_usage)

    def to_event(choices: list[Choice], usage: Usage | None = None) -> bytes:
        unset_or_usage = usage if include_usage else msgspec.UNSET
        chunk = msgspec.structs.replace(completion, choices=choices, usage=unset_or_usage)
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    async def iter_updates() -> AsyncIterator[tuple[int, GenerationUpdate]]:
        if first is not None:
            yield first
        async for update in updates:
            yield update

    async def iter_events() -> AsyncIterator[bytes]:
        async with aclosing(updates):
            for builder in builders if body.echo or not requests else ():
                yield to_event([builder.prompt_choice(is_complete=not requests)])
            try:
                async for index, update in iter_updates():
                    if choice := builders[index].add(update):
                        yield to_event([choice])
            except (ApiError, TriformError) as error:
                api_error = error if isinstance(error, ApiError) else to_api_error(error)
                yield b"data: " + msgspec.json.encode(error_content("openai", api_error)) + b"\n\n"
                return
        if include_usage:
            n = body.n or 1
            yield to_event([], count_usage([builder.prompt for builder in builders[::n]], builders))
        yield b"data: [DONE]\n\n"

    return StreamingResponse(iter_events(), media_type=STREAM_TYPE)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/models",
        handler=list_models,
        dialect="openai",
        summary="List all models.",
        response=ModelList,
    ),
    Endpoint(
        method="GET",
        path="/v1/models/{id:path}",
        handler=show_model,
        dialect="openai",
        summary="Return one model.",
        response=Model,
    ),
    Endpoint(
        method="POST",
        path="/v1/completions",
        handler=create_completion,
        dialect="openai",
        summary="Continue prompts with a language model.",
        request=CompletionRequest,
        response=Completion,
        other_responses={
            STREAM_TYPE: "With `stream`: an event `data: COMPLETION` for each new part of a text. The last one is "
            "`data: [DONE]`, or `data: ERROR` if the text cannot be continued."
        },
    ),
)
