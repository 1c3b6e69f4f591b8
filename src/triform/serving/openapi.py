"""Describe the endpoints of a server as OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from triform import __version__
from triform.serving.endpoints import FORM_TYPE, JSON_TYPE, UPLOAD_TYPE, Endpoint

REF_TEMPLATE = "#/components/schemas/{name}"
PATH_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


def describe_api(endpoints: Sequence[Endpoint], *, needs_token: bool) -> dict[str, Any]:
    """Return the OpenAPI document of these endpoints."""
    types = [kind for endpoint in endpoints for kind in (endpoint.request, endpoint.response) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    schema_of = {repr(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = PATH_PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _describe_endpoint(endpoint, schema_of)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Triform", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if needs_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _describe_endpoint(endpoint: Endpoint, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    def content(kind: Any, *media_types: str) -> dict[str, Any]:
        return {media_type: {"schema": schema_of[repr(kind)]} for media_type in media_types}

    description: dict[str, Any] = {
        "summary": endpoint.summary,
        "tags": [endpoint.dialect],
        "responses": {
            "200": {"description": "The result."},
            "default": {"description": "An error, in the shape of the dialect."},
        },
    }
    results = content(endpoint.response, JSON_TYPE) if endpoint.response is not None else {}
    for media_type, meaning in endpoint.other_responses.items():
        results[media_type] = {"schema": {"type": "string", "description": meaning}}
    if results:
        description["responses"]["200"]["content"] = results
    if endpoint.request is not None:
        media_types = (JSON_TYPE, FORM_TYPE) if endpoint.form else (JSON_TYPE,)
        description["requestBody"] = {"required": True, "content": content(endpoint.request, *media_types)}
    if endpoint.upload:
        file_schema = {"type": "string", "format": "binary", "minLength": 1}
        description["requestBody"] = {"required": True, "content": {UPLOAD_TYPE: {"schema": file_schema}}}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PATH_PARAMETER.findall(endpoint.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": msgspec.json.schema(kind)}
        for name, kind in (endpoint.query or {}).items()
    ]
    if parameters:
        description["parameters"] = parameters
    return description
