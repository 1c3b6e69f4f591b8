"""Classification and embeddings in the dialect of text-embeddings-inference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from triform.serving.endpoints import NON_EMPTY_LIST, ApiError, Call, Endpoint, Text, Texts
from triform.serving.models import ServedModel

ONE_TEXT = Meta(extra_json_schema={"minItems": 1, "maxItems": 1})
TOO_LONG_STATUS = 413  # as text-embeddings-inference answers
PAIRS_MESSAGE = 'inputs: pairs of texts are not supported; send several texts as [["first"], ["second"]]'


class PredictParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters that clients of Hugging Face send."""

    top_k: Annotated[int, Meta(ge=1)] | None = None
    function_to_apply: Literal["softmax", "none"] | None = None


class PredictRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to classify, or several as a list of lists with one text each."""

    inputs: Text | Annotated[list[Text | Annotated[list[Text], ONE_TEXT]], NON_EMPTY_LIST]
    truncate: bool | None = None
    truncation_direction: Literal["Right", "right"] | None = None
    raw_scores: bool | None = None
    parameters: PredictParameters | None = None
    model: str | None = None


class Label(msgspec.Struct, kw_only=True):
    """A label with its probability, or with its logit if the request has `raw_scores`."""

    score: float
    label: str


class EmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts whose vectors are wanted."""

    inputs: Texts
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Right", "right"] | None = None
    model: str | None = None


async def predict(call: Call) -> list[Label] | list[list[Label]]:
    """Return the labels of texts, the most probable first."""
    body: PredictRequest = call.body
    texts, is_batch = parse_inputs(body.inputs)
    served = await get_classifier(call, body.model)
    await check_texts(call, served, texts, truncate=bool(body.truncate))
    parameters = body.parameters or PredictParameters()
    if body.raw_scores or parameters.function_to_apply == "none":
        names = served.run.config.data.labels
        scores = [dict(zip(names, row, strict=True)) for row in await served.worker.logits(texts)]
    else:
        scores = [prediction.probabilities or {} for prediction in await served.worker.predict(texts)]
    labels = [rank_labels(scores_of_text)[: parameters.top_k] for scores_of_text in scores]
    return labels if is_batch else labels[0]


def parse_inputs(inputs: str | list[str | list[str]]) -> tuple[list[str], bool]:
    """Return the texts and whether they are a batch. A list of two texts is a pair in this dialect."""
    if isinstance(inputs, str):
        return [inputs], False
    if inputs and all(isinstance(item, str) for item in inputs):
        if len(inputs) > 1:
            raise ApiError(400, PAIRS_MESSAGE, param="inputs")
        return [str(inputs[0])], False
    texts = []
    for item in inputs:
        if isinstance(item, str) or len(item) != 1:
            raise ApiError(400, PAIRS_MESSAGE, param="inputs")
        texts.append(item[0])
    return texts, True


def rank_labels(scores: Mapping[str, float]) -> list[Label]:
    """Return the labels of a text, the most probable first."""
    return [Label(score=score, label=label) for label, score in sorted(scores.items(), key=lambda item: -item[1])]


async def embed(call: Call) -> list[list[float]]:
    """Return the pooled vector of each text."""
    body: EmbedRequest = call.body
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    served = await get_classifier(call, body.model)
    await check_texts(call, served, texts, truncate=bool(body.truncate))
    vectors = await served.worker.embed(texts)
    return vectors if body.normalize is False else [normalize_vector(vector) for vector in vectors]


def normalize_vector(vector: Sequence[float]) -> list[float]:
    """Return a vector of length 1 with the same direction."""
    length = math.hypot(*vector) or 1.0
    return [value / length for value in vector]


async def get_classifier(call: Call, model: str | None) -> ServedModel:
    """Return the classifier that a request names in its body or after `?`, or the only one."""
    return await call.server.models.get(model or call.query.get("model"), task="classify")


async def check_texts(call: Call, served: ServedModel, texts: Sequence[str], *, truncate: bool) -> None:
    """Raise `ApiError` if there is no text or too many, one is empty, or one is too long and may not be cut."""
    max_queue = call.server.options.max_queue
    if not texts or not all(text.strip() for text in texts):
        raise ApiError(400, "inputs: a text is empty" if texts else "inputs: there are no texts", param="inputs")
    if len(texts) > max_queue:
        problem = f"inputs: a request may have at most {max_queue} texts, found {len(texts)}"
        raise ApiError(TOO_LONG_STATUS, problem, param="inputs")

    def count() -> int:
        special = served.run.task.tokenizer.special_tokens
        n_special = len(special.before) + len(special.after)
        return max(len(tokens) for tokens in served.run.task.tokenizer.encode_batch(texts)) + n_special

    longest, max_len = await call.server.encode(texts, count), served.run.config.data.max_len
    if longest > max_len and not truncate:
        raise ApiError(
            TOO_LONG_STATUS,
            f"inputs: a text has {longest} tokens, and this model reads at most {max_len}; to read only its "
            "beginning, send truncate=true",
            param="inputs",
        )


MODEL_QUERY: dict[str, Any] = {"model": str}
ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/predict",
        handler=predict,
        dialect="text",
        summary="Classify texts, as text-embeddings-inference does.",
        request=PredictRequest,
        response=list[Label | list[Label]],
        query=MODEL_QUERY,
    ),
    Endpoint(
        method="POST",
        path="/embed",
        handler=embed,
        dialect="text",
        summary="Return the pooled vectors of texts, as text-embeddings-inference does.",
        request=EmbedRequest,
        response=list[list[float]],
        query=MODEL_QUERY,
    ),
)
