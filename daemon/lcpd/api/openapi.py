"""The OpenAPI document (https://spec.openapis.org/oas/v3.1.1), generated from what really checks a request.

The shapes come from the body models, the sampling fields from the table that :mod:`lcpd.api.sampling` checks with, the
routes from :mod:`lcpd.api.operations`.
"""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from lcpd import __version__
from lcpd.api.bodies import OpenAiBody
from lcpd.api.guard import OPEN_PATHS
from lcpd.api.operations import OPERATIONS, Operation
from lcpd.api.sampling import NO_EFFECT, RULES, SAMPLER_LETTERS, SAMPLERS, By, Flag, Number, Only, Rule, Whole

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_OBJECT: Json = {"type": "object"}
_BIAS: Json = {"anyOf": [{"type": "number", "minimum": -10_000, "maximum": 10_000}, {"const": False}]}

SHAPES: dict[str, Json] = {
    "stop": {"anyOf": [_TEXT, {**_TEXTS, "maxItems": 256}]},
    "samplers": {
        "anyOf": [
            {**_TEXT, "pattern": f"^[{SAMPLER_LETTERS}]*$", "maxLength": 32},
            {"type": "array", "items": {"enum": list(SAMPLERS)}, "maxItems": 32},
        ]
    },
    "logit_bias": {
        "anyOf": [
            {"type": "object", "additionalProperties": _BIAS, "maxProperties": 10_000},
            {
                "type": "array",
                "maxItems": 10_000,
                "items": {
                    "type": "array",
                    "prefixItems": [{"type": ["integer", "string"]}, _BIAS],
                    "minItems": 2,
                    "maxItems": 2,
                },
            },
        ]
    },
    "dry_sequence_breakers": {"type": "array", "items": {**_TEXT, "minLength": 1}, "minItems": 1, "maxItems": 64},
    "grammar": _TEXT,
    "json_schema": _OBJECT,
    "response_format": {
        "type": "object",
        "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
        "if": {"properties": {"type": {"const": "json_schema"}}, "required": ["type"]},
        "then": {
            "properties": {
                "json_schema": {"type": "object", "properties": {"schema": _OBJECT}, "required": ["schema"]}
            },
            "required": ["json_schema"],
        },
        "else": {
            "if": {"properties": {"type": {"const": "json_object"}}, "required": ["type"]},
            "then": {"properties": {"schema": {"type": ["object", "null"]}}},
        },
    },
    "reasoning_budget_message": _TEXT,
}
"""Of the sampling fields that have a check of their own."""

_TITLES = {401: "No valid key", 403: "A foreign page or host, or an admin key is needed"}
_TYPES = {"json": "application/json", "text": "text/plain", "html": "text/html", "metrics": "text/plain"}
_INFO = """Every route under /v1 answers without the /v1 as well. Fields that are not listed are ignored, or passed on
to llama.cpp's request schema; null counts as absent."""


async def handler(_: web.Request) -> web.Response:
    """GET /openapi.json"""
    return web.json_response(body=msgspec.json.encode(document()))


@cache
def document() -> Json:
    """The document.  It is the same for every daemon of this version; not to be changed."""
    bodies = list(dict.fromkeys(operation.body for operation in OPERATIONS.values() if operation.body))
    _, schemas = msgspec.json.schema_components(bodies, ref_template=_REF)
    for body in bodies:
        if issubclass(body, OpenAiBody):
            own = schemas[body.__name__]["properties"]
            schemas[body.__name__]["properties"] = {**own, **sampling_fields({**RULES, **body.rules}), **own}
    paths: dict[str, Json] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation)
    return {
        "openapi": "3.1.1",
        "info": {"title": "lcpd", "version": __version__, "description": _INFO, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": group} for group in dict.fromkeys(o.group for o in OPERATIONS.values())],
        "security": [{"bearer": []}, {"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, **_errors()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def sampling_fields(rules: dict[str, Rule]) -> dict[str, Json]:
    """The schemas of sampling fields, and of those that are taken without effect."""
    fields = {name: _nullable(rule_schema(name, rule)) for name, rule in rules.items()}
    return {**fields, **{name: {"description": "taken without effect"} for name in sorted(NO_EFFECT)}}


def rule_schema(name: str, rule: Rule) -> Json:
    """What a field may be; null, which counts as absent, aside."""
    match rule:
        case Number(low, high):
            return {"type": "number", "minimum": low, "maximum": high}
        case Whole(low, high):
            return {"type": "integer", "minimum": low, "maximum": high}
        case Flag():
            return {"type": "boolean"}
        case Only(values, reason):
            return {"enum": list(values), "description": f"not offered: {reason}"}
        case By():
            return SHAPES[name]


def _nullable(schema: Json) -> Json:
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {"anyOf": [schema, {"type": "null"}]}


def _operation(method: str, path: str, operation: Operation) -> Json:
    described: Json = {
        "tags": [operation.group],
        "summary": operation.summary,
        "operationId": f"{method.lower()} {path}".translate(str.maketrans(" /{}.-", "______")).rstrip("_"),
        "responses": _responses(method, path, operation),
    }
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters: list[Json] = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    if operation.generates:
        classes = {"type": "string", "enum": ["interactive", "background"]}
        parameters.append({"name": "x-lcpd-priority", "in": "header", "schema": classes})
        parameters.append({"name": "x-lcpd-cache", "in": "header", "schema": {"type": "string", "enum": ["no-store"]}})
    if parameters:
        described["parameters"] = parameters
    if operation.body:
        content = {"application/json": {"schema": {"$ref": _REF.format(name=operation.body.__name__)}}}
        described["requestBody"] = {"required": True, "content": content}
    if path in OPEN_PATHS:
        described["security"] = []
    return described


def _responses(method: str, path: str, operation: Operation) -> Json:
    statuses = [*operation.refusals, 500]
    if path not in OPEN_PATHS:
        statuses += [401]
    if operation.body:
        statuses += [400, 413, 415]
    if method == "POST":
        statuses += [429]
    if operation.generates:
        statuses += [404, 503]
    if operation.refused:
        statuses += [405]
    error = {"$ref": _REF.format(name="AnthropicError" if "/messages" in path else "Error")}
    errors = {
        str(status): {
            "description": _TITLES.get(status, HTTPStatus(status).phrase),
            "content": {"application/json": {"schema": error}},
        }
        for status in sorted({*statuses, 403})
    }
    if path == "/health":
        errors["503"] = {**_good(operation), "description": "Not yet, or not any more; why, and how far it is"}
    return errors if operation.refused else {"200": _good(operation), **errors}


def _good(operation: Operation) -> Json:
    if operation.kind == "list":
        either = {"anyOf": [{"type": "array", "items": _OBJECT}, _OBJECT]}
        return {"description": "OK", "content": {"application/json": {"schema": either}}}
    if operation.kind != "json":
        return {"description": operation.summary, "content": {_TYPES[operation.kind]: {"schema": _TEXT}}}
    schema = {
        "type": "object",
        "properties": {name: {} for name in operation.answer},
        "required": list(operation.answer),
    }
    content: Json = {"application/json": {"schema": schema}}
    if operation.generates:
        # With `stream`, and a JSON object with `error` when something went wrong after the headers.
        content["text/event-stream"] = {}  # OpenAPI 3.1 has no words for what the events of a stream are
        content["application/json"] = {"schema": {"anyOf": [schema, {"type": "object", "required": ["error"]}]}}
    return {"description": "OK", "content": content}


def _errors() -> dict[str, Json]:
    nullable = {"type": ["string", "null"]}
    return {
        "Error": {
            "type": "object",
            "properties": {
                "error": {
                    "type": "object",
                    "properties": {"message": _TEXT, "type": _TEXT, "param": nullable, "code": nullable},
                    "required": ["message", "type", "param", "code"],
                }
            },
            "required": ["error"],
        },
        "AnthropicError": {
            "type": "object",
            "properties": {
                "type": {"const": "error"},
                "error": {
                    "type": "object",
                    "properties": {"type": _TEXT, "message": _TEXT},
                    "required": ["type", "message"],
                },
            },
            "required": ["type", "error"],
        },
    }
