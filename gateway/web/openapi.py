"""The OpenAPI document, generated from the table of endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from gateway.web.endpoints import PLACEHOLDER, Endpoint, Problem

REFUSALS = {
    HTTPStatus.BAD_REQUEST: "A parameter or the body is not valid.",
    HTTPStatus.UNAUTHORIZED: "The request names no user or brings no token, or a wrong one.",
    HTTPStatus.FORBIDDEN: "The user may not do this, or the request comes from a foreign page.",
    HTTPStatus.NOT_FOUND: "What the request names does not exist.",
    HTTPStatus.CONFLICT: "What the request names is in a state that does not allow this.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Nothing can be stored now, or the gateway is stopping.",
}
REFUSED_CHANGES = REFUSALS | {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long.",
    HTTPStatus.TOO_MANY_REQUESTS: "A limit of the topic is reached; try again later.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The request lacks the header `Content-Type: application/json`.",
}
"""Refusals of requests with a body."""

SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of http_token_file.",
    },
    "user": {
        "type": "http",
        "scheme": "basic",
        "description": "With authentication = true: a user's access key and secret key.",
    },
}
"""How requests say who sends them."""

_REF = "#/components/schemas/{name}"


def describe(endpoints: Iterable[Endpoint], base: str, version: str) -> dict[str, Any]:
    """Return the document (OpenAPI 3.1).

    :param base: path of the API.
    :param version: the gateway's version.
    """
    endpoints = list(endpoints)
    bodies = [endpoint.body for endpoint in endpoints if endpoint.body is not None]
    answers = [endpoint.answer for endpoint in endpoints]
    kinds = [*bodies, *answers, Problem]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schema_of)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "version": version,
            "description": "What operators see and change of a gateway. Times are epoch milliseconds.",
        },
        "servers": [{"url": base}],
        "security": [{}, {"token": []}, {"user": []}],
        "tags": [{"name": name} for name in dict.fromkeys(one.group for one in endpoints)],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SCHEMES},
    }


def _operation(endpoint: Endpoint, schema_of: Mapping[int, object]) -> dict[str, Any]:
    """Return what the document says of one endpoint.

    :param schema_of: the schemas of bodies and answers, by the ids of their types.
    """
    refusals = REFUSED_CHANGES if endpoint.method in ("POST", "PUT") else REFUSALS
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.group],
        "summary": endpoint.summary,
        "parameters": list(_parameters(endpoint)),
        "responses": {
            "200": {
                "description": "Done.",
                "content": {"application/json": {"schema": schema_of[id(endpoint.answer)]}},
            },
            **{
                str(int(status)): {
                    "description": text,
                    "content": {"application/problem+json": {"schema": schema_of[id(Problem)]}},
                }
                for status, text in sorted(refusals.items())
            },
        },
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[id(endpoint.body)]}},
        }
    return operation


def _parameters(endpoint: Endpoint) -> Iterable[dict[str, Any]]:
    if endpoint.query is None:
        return
    schemas, components = msgspec.json.schema_components([endpoint.query], ref_template=_REF)
    name = schemas[0]["$ref"].rpartition("/")[2]
    schema = components[name]
    in_path = set(PLACEHOLDER.findall(endpoint.path))
    for field, field_schema in schema["properties"].items():
        described = dict(field_schema)
        text = described.pop("description", "")
        yield {
            "name": field,
            "in": "path" if field in in_path else "query",
            "required": field in in_path or field in schema.get("required", ()),
            "description": text,
            "schema": described,
        }
