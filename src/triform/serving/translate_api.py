"""Translation in the dialect of LibreTranslate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qs

import anyio.to_thread
import msgspec
from msgspec import UNSET, Meta, UnsetType

from triform.config.merging import override_decode
from triform.serving.endpoints import ApiError, Call, Endpoint, Text, Texts, read_body
from triform.serving.generated_texts import GeneratedText, generate_texts
from triform.serving.languages import NAMES, UNKNOWN, find_languages
from triform.serving.models import ModelRegistry
from triform.serving.security import check_token
from triform.serving.worker import GenerationRequest

if TYPE_CHECKING:
    from triform.run import Run

AUTO = "auto"
MAX_ALTERNATIVES = 16


class TranslateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to translate."""

    q: Texts
    source: str
    target: str
    format: Annotated[str, Meta(extra_json_schema={"enum": ["text"]})] = "text"
    alternatives: Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)] = 0
    api_key: str = ""
    model: str | None = None


class DetectedLanguage(msgspec.Struct, kw_only=True):
    """The source language. It is not detected, and the confidence is 0: a translator has one source language."""

    confidence: float
    language: str


class DetectRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text whose language is wanted."""

    q: Text
    api_key: str = ""


class TranslateResponse(msgspec.Struct, kw_only=True):
    """Translations; lists if `q` was a list."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str | list[str]] | UnsetType = UNSET
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | UnsetType = UNSET  # noqa: N815


class Language(msgspec.Struct, kw_only=True):
    """A source language, and the languages that it can be translated to."""

    code: str
    name: str
    targets: list[str]


async def translate(call: Call) -> TranslateResponse:
    """Translate texts."""
    body: TranslateRequest = call.body
    options = call.server.options
    check_token(options.token, call.http.headers, body.api_key)
    if body.format != "text":
        raise ApiError(400, f"format: {body.format!r} is not supported; choose 'text'", param="format")
    texts = body.q if isinstance(body.q, list) else [body.q]
    if not texts or not all(text.strip() for text in texts):
        raise ApiError(400, "q: a text is empty" if texts else "q: there are no texts", param="q")
    if len(texts) > options.max_queue:
        raise ApiError(
            400, f"q: a request may have at most {options.max_queue} texts, found {len(texts)}", param="q"
        )
    name, source = await anyio.to_thread.run_sync(
        choose_translator, call.server.models, body, body.model or call.query.get("model")
    )
    served = await call.server.models.get(name, task="translate")
    requests = await call.server.encode(texts, partial(build_requests, served.run, texts, body.alternatives))
    return build_response(body, await generate_texts(served.worker, requests), source)


def choose_translator(models: ModelRegistry, body: TranslateRequest, model: str | None) -> tuple[str, str]:
    """Return the name of the model for two languages, and the code of its source language.

    A model whose languages are not known can be used with any two languages. `auto` stands for any language.

    Raises:
        ApiError: No model translates between the languages, or several do.
    """
    pairs = find_pairs(models, model)
    matching = [
        name
        for name, (source, target) in pairs.items()
        if source == UNKNOWN or (body.source in (AUTO, source) and body.target in (AUTO, target))
    ]
    if len(matching) == 1 or model in matching:
        return matching[0], pairs[matching[0]][0]
    if not pairs:
        raise no_translator_error()
    if not matching:
        known = ", ".join(sorted({f"{source} to {target}" for source, target in pairs.values()}))
        raise ApiError(
            400, f"{body.source} to {body.target} is not available; this server translates {known}", param="target"
        )
    raise ApiError(400, f"several models fit; choose one with model: {', '.join(matching[:5])}", param="model")


def find_pairs(models: ModelRegistry, model: str | None = None) -> dict[str, tuple[str, str]]:
    """Return the codes of source and target of each translator by its name, or only those of one model."""
    names = models.names("translate") if model is None else [model]
    return {name: find_languages(name, models.read_settings(name).get("data", {})) for name in names}


def no_translator_error() -> ApiError:
    """Return the error of a server without a translator."""
    return ApiError(404, "there is no model for translate; GET /v1/models lists the models", param="model")


def build_requests(run: Run, texts: Sequence[str], n_alternatives: int) -> list[GenerationRequest]:
    """Return a request for each text.

    Raises:
        ApiError: A text is too long.
    """
    config, tokenizer = run.config, run.task.tokenizer
    settings = {"beam_size": max(config.decode.beam_size, n_alternatives + 1)} if n_alternatives else {}
    decode = override_decode(config.decode, **settings)
    sources = [tokenizer.special_tokens.wrap(tokens) for tokens in tokenizer.encode_batch(texts)]
    longest = max(len(source) for source in sources)
    if longest > config.data.max_len:
        raise ApiError(
            400, f"q: a text has {longest} tokens, and this model reads at most {config.data.max_len}", param="q"
        )
    return [
        GenerationRequest(
            tokens=source,
            max_new_tokens=decode.max_new_tokens or 2 * len(source) + 16,
            decode=decode,
            seed=config.seed,
            n_best=n_alternatives + 1,
            stream=False,
        )
        for source in sources
    ]


def build_response(body: TranslateRequest, translations: Sequence[GeneratedText], source: str) -> TranslateResponse:
    """Return translations in the shape of the request: lists if `q` was a list."""
    texts = [translation.text for translation in translations]
    detected = DetectedLanguage(confidence=0.0, language=source)
    alternatives = [
        [text for text in dict.fromkeys(text for text, _ in translation.hypotheses) if text != translation.text]
        for translation in translations
    ]
    is_batch = isinstance(body.q, list)
    response = TranslateResponse(translatedText=texts if is_batch else texts[0])
    if body.source == AUTO:
        response.detectedLanguage = [detected] * len(texts) if is_batch else detected
    if body.alternatives:
        response.alternatives = list(alternatives) if is_batch else list(alternatives[0])
    return response


async def detect(call: Call) -> list[DetectedLanguage]:
    """Return the only source language of the translators. The text is not read."""
    body: DetectRequest = call.body
    check_token(call.server.options.token, call.http.headers, body.api_key)
    if not body.q.strip():
        raise ApiError(400, "q: a text is empty", param="q")
    pairs = await anyio.to_thread.run_sync(find_pairs, call.server.models)
    sources = sorted({source for source, _ in pairs.values()})
    if not sources:
        raise no_translator_error()
    if len(sources) > 1:
        known = ", ".join(sources)
        raise ApiError(400, f"this server does not detect languages; send one of {known} as source to /translate")
    return [DetectedLanguage(confidence=0.0, language=sources[0])]


async def list_languages(call: Call) -> list[Language]:
    """Return the source languages of all translators."""
    content = await read_body(call.http, call.server.options.max_body)  # some clients send the key in a form
    form = parse_qs(content.decode(errors="replace"))
    api_key = call.query.get("api_key") or form.get("api_key", [""])[0]
    check_token(call.server.options.token, call.http.headers, api_key)

    targets: dict[str, set[str]] = {}
    for source, target in (await anyio.to_thread.run_sync(find_pairs, call.server.models)).values():
        targets.setdefault(source, set()).add(target)
    return [Language(code=code, name=NAMES[code], targets=sorted(targets[code])) for code in sorted(targets)]


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/translate",
        handler=translate,
        dialect="translate",
        summary="Translate texts, as LibreTranslate does.",
        request=TranslateRequest,
        response=TranslateResponse,
        query={"model": str},
        form=True,
    ),
    Endpoint(
        method="POST",
        path="/detect",
        handler=detect,
        dialect="translate",
        summary="Return the source language of the translators, as LibreTranslate does. Nothing is detected.",
        request=DetectRequest,
        response=list[DetectedLanguage],
        form=True,
    ),
    Endpoint(
        method="GET",
        path="/languages",
        handler=list_languages,
        dialect="translate",
        summary="List the languages that can be translated.",
        response=list[Language],
        query={"api_key": str},
    ),
)
