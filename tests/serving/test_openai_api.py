"""The dialect of OpenAI, used by the unmodified `openai` client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import triform
from triform.serving import ServerOptions
from triform.serving.completion_choices import score_prompt

PROMPT = "amber birch"


@pytest.fixture(scope="module")
def address(start_server: Any, runs_folder: Path) -> Iterator[str]:
    names = {"verses": "verses", "seeds/first": "seeds/seed-1"}
    runs = {name: runs_folder / path for name, path in names.items()}
    with start_server(ServerOptions(runs=runs, device="cpu", max_queue=8)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def run(runs_folder: Path) -> triform.Run:
    return triform.load(runs_folder / "verses", device="cpu")


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == ["verses", "seeds/first"]
    assert all(model.object == "model" and model.owned_by == "triform" for model in models)
    assert client.models.retrieve("seeds/first").created == models[1].created > 1_700_000_000
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.models.retrieve("other")


def test_a_greedy_completion_is_the_prediction_of_the_run(client: openai.OpenAI, run: triform.Run) -> None:
    answer = client.completions.create(model="verses", prompt=PROMPT, max_tokens=6, temperature=0)
    expected = run.predict(PROMPT, strategy="greedy", max_new_tokens=6)[0].output
    (choice,) = answer.choices
    assert (choice.text, choice.index, choice.logprobs) == (expected, 0, None)
    assert choice.finish_reason == "length"
    assert answer.object == "text_completion"
    assert answer.model == "verses"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6


def test_the_model_may_be_left_out_when_only_one_fits(address: str) -> None:
    answer = httpx.post(f"{address}/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}, timeout=60)
    assert answer.json()["model"] == "verses"


def test_a_seed_repeats_a_sample_and_choices_differ(client: openai.OpenAI, run: triform.Run) -> None:
    def sample(seed: int) -> list[str]:
        answer = client.completions.create(
            model="verses", prompt=PROMPT, max_tokens=8, temperature=1.5, n=3, seed=seed
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.text for choice in answer.choices]

    assert sample(3) == sample(3)
    assert len(set(sample(3))) > 1
    assert sample(3)[0] == run.predict(PROMPT, temperature=1.5, seed=3, max_new_tokens=8)[0].output
    extra = client.completions.create(
        model="verses", prompt=PROMPT, max_tokens=6, temperature=2, extra_body={"top_k": 1}
    )
    greedy = client.completions.create(model="verses", prompt=PROMPT, max_tokens=6, temperature=0)
    assert extra.choices[0].text == greedy.choices[0].text
    narrow = client.completions.create(model="verses", prompt=PROMPT, max_tokens=6, top_p=1e-9)
    assert narrow.choices[0].text == greedy.choices[0].text


def test_prompts_are_texts_or_tokens_one_or_several(client: openai.OpenAI, run: triform.Run) -> None:
    tokens = run.task.tokenizer.encode(PROMPT)
    texts = []
    for prompt in (PROMPT, [PROMPT], tokens, [tokens], [PROMPT, "cedar"], [tokens, tokens]):
        answer = client.completions.create(model="verses", prompt=prompt, max_tokens=4, temperature=0)
        texts.append([choice.text for choice in answer.choices])
    assert texts[:4] == [texts[0]] * 4
    assert texts[4][0] == texts[0][0]
    assert texts[5] == texts[0] * 2
    empty = client.completions.create(model="verses", prompt="", max_tokens=2, temperature=0, echo=True)
    assert empty.choices[0].finish_reason


def test_a_text_ends_before_a_stop_string(client: openai.OpenAI) -> None:
    full = client.completions.create(model="verses", prompt=PROMPT, max_tokens=12, temperature=0).choices[0].text
    stop = full[len(full) // 2 :][:3]
    answer = client.completions.create(
        model="verses", prompt=PROMPT, max_tokens=12, temperature=0, stop=[stop, "#"]
    )
    assert answer.choices[0].text == full[: full.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_prompt_is_scored_once_for_all_its_continuations(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = []

    def count(run: triform.Run, tokens: list[int], n: int) -> Any:
        scored.append(tokens)
        return score_prompt(run, tokens, n)

    monkeypatch.setattr("triform.serving.openai_api.score_prompt", count)
    prompts = [PROMPT, PROMPT[: len(PROMPT) // 2]]
    answer = client.completions.create(model="verses", prompt=prompts, max_tokens=0, logprobs=1, echo=True, n=3)
    assert len(scored) == 2
    assert [choice.text for choice in answer.choices] == [prompts[0]] * 3 + [prompts[1]] * 3
    values = [choice.logprobs.token_logprobs for choice in answer.choices if choice.logprobs]
    assert values[0] == values[1] == values[2]
    assert len(values[3] or []) == len(scored[1])


def test_log_probabilities_are_those_of_the_model(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="verses", prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2, echo=True
    )
    (choice,) = answer.choices
    assert choice.text.startswith(PROMPT)
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    assert all(len(best) == 2 for best in logprobs.top_logprobs[1:])
    for token, offset in zip(logprobs.tokens, logprobs.text_offset or [], strict=True):
        assert choice.text[offset:].startswith(token)
    # The greedy token is the best alternative. A prompt has the log probabilities that generating it has.
    assert max(logprobs.top_logprobs[-1].values()) == pytest.approx(logprobs.token_logprobs[-1], abs=1e-5)
    scored = client.completions.create(model="verses", prompt=choice.text, max_tokens=0, logprobs=2, echo=True)
    assert scored.choices[0].text == choice.text
    repeated = scored.choices[0].logprobs
    assert repeated is not None
    assert repeated.token_logprobs is not None
    assert repeated.token_logprobs[1:] == pytest.approx(logprobs.token_logprobs[1:], abs=1e-4)
    without_alternatives = (
        client.completions.create(model="verses", prompt=PROMPT, max_tokens=2, temperature=0, logprobs=0)
        .choices[0]
        .logprobs
    )
    assert without_alternatives is not None
    assert without_alternatives.top_logprobs is None
    assert len(without_alternatives.token_logprobs or []) == 2


def test_a_stream_has_the_same_text_as_a_whole_answer(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "verses", "prompt": [PROMPT, "cedar"], "max_tokens": 6, "seed": 5, "n": 2}
    options |= {"logprobs": 1, "echo": True}
    full = client.completions.create(**options)
    texts, tokens, reasons = [""] * 4, [0] * 4, [None] * 4
    usage = None
    for chunk in client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        assert chunk.id.startswith("cmpl-")
        usage = chunk.usage
        assert (usage is None) == bool(chunk.choices)
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += len(choice.logprobs.tokens) if choice.logprobs else 0
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in full.choices]
    assert tokens == [len(choice.logprobs.tokens) for choice in full.choices]
    assert reasons == [choice.finish_reason for choice in full.choices]
    assert usage == full.usage


def test_a_stream_ends_with_done_and_without_usage_unless_asked(address: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3, "stream": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(line.removeprefix("data: ")) for line in lines[:-1])


def test_many_clients_get_what_they_get_alone(address: str, client: openai.OpenAI) -> None:
    async def complete_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as many:
            calls = [
                many.completions.create(model="verses", prompt=PROMPT, max_tokens=5 + seed, seed=seed)
                for seed in range(6)
            ]
            streamed = await many.completions.create(
                model="verses", prompt=PROMPT, max_tokens=5, seed=0, stream=True
            )
            text = "".join([chunk.choices[0].text async for chunk in streamed])
            return [text, *(answer.choices[0].text for answer in await asyncio.gather(*calls))]

    in_company = asyncio.run(complete_all())
    alone = [
        client.completions.create(model="verses", prompt=PROMPT, max_tokens=5 + seed, seed=seed).choices[0].text
        for seed in range(6)
    ]
    assert in_company == [alone[0], *alone]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"best_of": 2}, "best_of: this parameter is not supported"),
        ({"suffix": "x"}, "suffix: this parameter is not supported"),
        ({"logit_bias": {"3": 1}}, "logit_bias: this parameter is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty: this parameter is not supported"),
        ({"frequency_penalty": -1}, "frequency_penalty: this parameter is not supported"),
        ({"extra_body": {"min_p": 0.1}}, "unknown parameter: min_p"),
        ({"stream_options": {"include_usage": True}}, "stream_options: this parameter needs stream=true"),
        ({"temperature": 3}, "temperature: Expected `float` <= 2"),
        ({"temperature": -1}, "temperature: Expected `float` >= 0"),
        ({"top_p": 0}, "top_p: Expected `float` > 0"),
        ({"n": 0}, "n: Expected `int` >= 1"),
        ({"n": 9}, "a request may have at most 8 texts, found 9"),
        ({"max_tokens": -1}, "max_tokens: Expected `int` >= 0"),
        ({"logprobs": 6}, "logprobs: Expected `int` <= 5"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop: at most 4 strings are allowed"),
        ({"stop": ""}, "stop: a stop string is empty"),
        ({"prompt": []}, "prompt: expected a text, a list of texts, or their tokens"),
        ({"prompt": [PROMPT, 3]}, "prompt: expected a text, a list of texts, or their tokens"),
        ({"prompt": [[]]}, "prompt: expected tokens from 0 to"),
        ({"prompt": [10**9]}, "prompt: expected tokens from 0 to"),
        ({"prompt": [-1]}, "prompt: expected tokens from 0 to"),
        ({"prompt": "amber " * 1000}, "tokens, and this model reads at most"),
        ({"model": "seeds/first"}, "is for classify, and this route is for generate; use POST /predict"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(
    client: openai.OpenAI, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "verses", "prompt": PROMPT, **settings})
    assert message in str(caught.value)
    assert caught.value.type == "invalid_request_error"
    name = next(iter(settings.get("extra_body", settings)))
    assert caught.value.param == name


def test_neutral_values_of_unsupported_parameters_are_accepted(client: openai.OpenAI) -> None:
    neutral: dict[str, Any] = {"best_of": 2, "n": 2, "suffix": "", "logit_bias": {}, "presence_penalty": 0}
    answer = client.completions.create(model="verses", prompt=PROMPT, max_tokens=1, user="me", **neutral)
    assert len(answer.choices) == 2


def test_an_unknown_model_and_an_unknown_route_are_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.completions.create(model="gpt", prompt=PROMPT)
    with pytest.raises(openai.NotFoundError, match="there is no route /v1/chat/completions"):
        client.chat.completions.create(model="verses", messages=[{"role": "user", "content": "hi"}])


def test_a_wrong_token_is_an_authentication_error(start_server: Any, runs_folder: Path) -> None:
    with start_server(ServerOptions(runs={"m": runs_folder / "verses"}, device="cpu", token="secret")) as address:
        with pytest.raises(openai.AuthenticationError, match="the token is wrong"):
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong").models.list()
        assert openai.OpenAI(base_url=f"{address}/v1", api_key="secret").models.list().data[0].id == "m"


def test_a_full_queue_is_a_rate_limit_error_with_the_time_to_wait(start_server: Any, runs_folder: Path) -> None:
    options = ServerOptions(runs={"m": runs_folder / "verses"}, device="cpu", max_queue=1, max_batch=1)

    async def overload(address: str) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as many:

            def create(**settings: Any) -> Any:
                return many.completions.create(model="m", prompt=PROMPT, **settings)

            endless = await create(max_tokens=1_000_000, temperature=0, stream=True)
            await anext(aiter(endless))  # it is being decoded, so one of the others waits
            calls = [asyncio.ensure_future(create(max_tokens=3)) for _ in range(6)]
            while sum(call.done() for call in calls) < 5:
                await asyncio.sleep(0.01)
            await endless.close()
            return await asyncio.gather(*calls, return_exceptions=True)

    with start_server(options) as address:
        answers = asyncio.run(overload(address))
        errors = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
        assert len(errors) == 5
        assert all(int(error.response.headers["Retry-After"]) >= 1 for error in errors)
        streamed = openai.OpenAI(base_url=f"{address}/v1", api_key="none").completions.create(
            model="m", prompt=PROMPT, max_tokens=2, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in streamed)


def test_a_client_that_disconnects_frees_its_place(start_server: Any, runs_folder: Path) -> None:
    options = ServerOptions(runs={"m": runs_folder / "verses"}, device="cpu", max_batch=1)
    body = {"prompt": PROMPT, "max_tokens": 1_000_000, "temperature": 0}  # this text repeats itself without end
    with start_server(options) as address:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/v1/completions", json=body, timeout=0.5)
        request = {"url": f"{address}/v1/completions", "json": {**body, "stream": True}, "timeout": 60}
        with httpx.stream("POST", **request) as answer:
            assert next(answer.iter_lines()).startswith("data: ")  # and close the connection
        short = httpx.post(f"{address}/v1/completions", json={**body, "max_tokens": 2}, timeout=60)
        assert short.status_code == 200
