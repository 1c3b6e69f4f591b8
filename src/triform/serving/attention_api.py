"""Routes that look inside a run: attention maps of any text, and attributions of a label to the tokens."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import anyio.to_thread
import msgspec

from triform.explain.figure import HEADINGS
from triform.serving.endpoints import ApiError, Call, Endpoint, Text
from triform.serving.explanations import CacheEntry, HeadSummary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from triform.explain.attention_maps import AttentionMap, AttentionWeights, Explanation
    from triform.run import Run
    from triform.serving.server import Server

MAX_THUMBNAIL_PIXELS = 128
Index = Annotated[int, msgspec.Meta(ge=0)]
PartName = Literal["encoder", "decoder", "cross"]
Result = TypeVar("Result")


class AttentionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, and the layer and head whose attention to return. Layers and heads are counted from 0."""

    model: str
    text: Text
    target: str = ""  # the translation or continuation; the default is the translation of the model
    checkpoint: Literal["best", "latest"] = "best"
    step: int | None = None  # stay at this step of the latest checkpoint as long as it is in memory
    part: PartName | None = None  # the default is the first part
    layer: Index = 0
    head: Index | Literal["average", "rollout"] = 0
    weights: bool = True  # whether to return the weights
    summary: bool = True  # whether to return numbers about all heads
    thumbnails: Annotated[int, msgspec.Meta(ge=0, le=MAX_THUMBNAIL_PIXELS)] = 0  # pixels; 0 for none


class AttentionPart(msgspec.Struct, kw_only=True):
    """One stack of attention layers, and the tokens that it reads."""

    name: str
    title: str
    queries: list[str]
    keys: list[str]
    n_layers: int
    n_heads: int
    has_rollout: bool
    causal: bool


class WeightMatrix(msgspec.Struct, kw_only=True):
    """Weights of all queries (rows) and keys (columns) as base64 of little-endian float32 numbers, row by row."""

    rows: int
    columns: int
    data: str


class Thumbnails(msgspec.Struct, kw_only=True):
    """Small pictures of all heads of a layer as base64, one byte for each pixel, row by row, head after head.

    A pixel is the square root of the largest weight that it shows, relative to the largest weight of the head.
    """

    rows: int
    columns: int
    data: str


class AttentionResponse(msgspec.Struct, kw_only=True):
    """The attention of one layer and head, and what the others are like."""

    model: str
    task: str
    checkpoint: str
    step: int | None
    output: str
    notes: list[str]
    parts: list[AttentionPart]
    part: str
    layer: int
    head: int | str
    weights: WeightMatrix | None
    summary: HeadSummary | None
    thumbnails: Thumbnails | None


class AttributionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to classify. The logit of `label` is explained; the default is the predicted label."""

    model: str
    text: Text
    label: str = ""


class AttributionResult(msgspec.Struct, kw_only=True):
    """The contribution of each token to the logit of a label."""

    method: str
    label: str
    tokens: list[str]
    values: list[float]
    total: float | None  # what the values should add up to, if the method defines it


class AttributionResponse(msgspec.Struct, kw_only=True):
    """The predicted label, the probabilities of all labels, and the contributions of the tokens."""

    model: str
    output: str
    probabilities: dict[str, float]
    notes: list[str]
    attributions: list[AttributionResult]


async def attention(call: Call) -> AttentionResponse:
    """Return the attention of one layer and head."""
    body: AttentionRequest = call.body
    if body.checkpoint == "best":
        run = (await call.server.models.get(body.model)).run
    else:
        path, device = call.server.models.path(body.model), call.server.options.device
        run = await _run_in_thread(
            call.server, partial(call.server.explanations.load_latest, path, device, step=body.step)
        )
    return await _run_in_thread(call.server, partial(_show_attention, call.server, run, body))


async def attribution(call: Call) -> AttributionResponse:
    """Classify a text and explain a label by the tokens of the text."""
    body: AttributionRequest = call.body
    run = (await call.server.models.get(body.model, task="classify")).run
    explain = partial(call.server.explanations.explain, run, body.text, target=body.label, contents="attributions")
    explanation = _explanation(await _run_in_thread(call.server, explain))
    return AttributionResponse(
        model=body.model,
        output=explanation.output,
        probabilities=dict(explanation.probabilities or {}),
        notes=list(explanation.notes),
        attributions=[
            AttributionResult(
                method=item.method,
                label=item.label,
                tokens=list(item.pieces),
                values=list(item.values),
                total=item.total if math.isfinite(item.total) else None,
            )
            for item in explanation.attributions
        ],
    )


async def _run_in_thread(server: Server, function: Callable[[], Result]) -> Result:
    """Call a function in one of the few threads for explanations; refuse it if too many requests wait for them."""
    limiter = server.explanations.limiter
    if limiter.statistics().tasks_waiting >= server.options.max_queue:
        raise ApiError(429, "too many explanations are waiting; try again later", headers={"Retry-After": "1"})
    return await anyio.to_thread.run_sync(function, limiter=limiter)


def _show_attention(server: Server, run: Run, body: AttentionRequest) -> AttentionResponse:
    entry = server.explanations.explain(run, body.text, target=body.target, contents="maps")
    explanation = _explanation(entry)
    attention_map = _find_part(explanation, body.part)
    _require_below("layer", body.layer, attention_map.n_layers)
    if isinstance(body.head, int):
        _require_below("head", body.head, attention_map.n_heads)
    elif body.head == "rollout" and not attention_map.supports_rollout:
        raise ApiError(400, "head: rollout is defined for self-attention only, not for cross", param="head")
    return AttentionResponse(
        model=body.model,
        task=run.config.task,
        checkpoint=body.checkpoint,
        step=run.step,
        output=explanation.output,
        notes=list(explanation.notes),
        parts=[_describe_part(item) for item in explanation.maps],
        part=attention_map.name,
        layer=body.layer,
        head=body.head,
        weights=_encode_weights(_select_weights(attention_map, body.layer, body.head)) if body.weights else None,
        summary=entry.summary(attention_map) if body.summary else None,
        thumbnails=_encode_thumbnails(attention_map, body.layer, body.thumbnails) if body.thumbnails else None,
    )


def _explanation(entry: CacheEntry) -> Explanation:
    assert entry.explanation is not None
    return entry.explanation


def _find_part(explanation: Explanation, name: str | None) -> AttentionMap:
    names = [attention_map.name for attention_map in explanation.maps]
    if name is None:
        return explanation.maps[0]
    if name not in names:
        raise ApiError(
            400, f"part: this model has no {name} attention; choose from {', '.join(names)}", param="part"
        )
    return explanation.maps[names.index(name)]


def _require_below(name: str, value: int, count: int) -> None:
    if value >= count:
        raise ApiError(400, f"{name}: expected a number from 0 to {count - 1}, found {value}", param=name)


def _describe_part(attention_map: AttentionMap) -> AttentionPart:
    return AttentionPart(
        name=attention_map.name,
        title=HEADINGS[attention_map.name].partition(":")[0],
        queries=list(attention_map.queries),
        keys=list(attention_map.keys),
        n_layers=attention_map.n_layers,
        n_heads=attention_map.n_heads,
        has_rollout=attention_map.supports_rollout,
        causal=attention_map.causal,
    )


def _select_weights(attention_map: AttentionMap, layer: int, head: int | str) -> AttentionWeights:  # -> (T, S)
    if isinstance(head, int):
        return attention_map.weights[layer, head]
    return attention_map.rollout()[layer] if head == "rollout" else attention_map.average()[layer]


def _encode_weights(weights: AttentionWeights) -> WeightMatrix:
    rows, columns = weights.shape
    return WeightMatrix(rows=rows, columns=columns, data=_encode(weights.astype("<f4")))


def _encode_thumbnails(attention_map: AttentionMap, layer: int, size: int) -> Thumbnails:
    pixels = attention_map.thumbnails(layer, size)  # (H, rows, columns)
    return Thumbnails(rows=pixels.shape[1], columns=pixels.shape[2], data=_encode(pixels))


def _encode(values: NDArray[np.generic]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/attention",
        handler=attention,
        dialect="triform",
        summary="Return the attention weights of one layer and head for a text, and numbers about all heads.",
        request=AttentionRequest,
        response=AttentionResponse,
    ),
    Endpoint(
        method="POST",
        path="/api/attribution",
        handler=attribution,
        dialect="triform",
        summary="Classify a text and return how much each token contributes to a label.",
        request=AttributionRequest,
        response=AttributionResponse,
    ),
)
