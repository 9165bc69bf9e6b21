"""GET /docs: the OpenAPI document as one page to read, without scripts and without anything from elsewhere."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any

from aiohttp import web

from lcpd.api.openapi import document

Json = dict[str, Any]
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
code { font: 0.9em ui-monospace, monospace; }
details { border: 1px solid #8884; border-radius: 6px; margin: 0.5rem 0; padding: 0.5rem 0.8rem; }
summary { cursor: pointer; }
.method { display: inline-block; font-weight: 600; min-width: 3.5em; }
.about { color: #777; }
table { border-collapse: collapse; margin: 0.8rem 0; width: 100%; }
th, td { border-top: 1px solid #8884; padding: 0.25rem 0.6rem 0.25rem 0; text-align: left; vertical-align: top; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


async def handler(_: web.Request) -> web.Response:
    """GET /docs"""
    return web.Response(text=page(), content_type="text/html", headers={"Content-Security-Policy": _POLICY})


@cache
def page() -> str:
    """The page."""
    spec = document()
    info = spec["info"]
    groups = "".join(_group(tag["name"], spec) for tag in spec["tags"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}: routes</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])} The same for"
        ' programs: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{groups}</body></html>\n"
    )


def _group(name: str, spec: Json) -> str:
    routes = [
        _route(method, path, operation, spec)
        for path, item in spec["paths"].items()
        for method, operation in item.items()
        if name in operation["tags"]
    ]
    return f"<h2>{escape(name)}</h2>{''.join(routes)}"


def _route(method: str, path: str, operation: Json, spec: Json) -> str:
    head = (
        f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code>'
        f' <span class="about">{escape(operation["summary"])}</span>'
    )
    return f"<details><summary>{head}</summary>{_request(operation, spec)}{_answers(operation)}</details>"


def _request(operation: Json, spec: Json) -> str:
    rows = [
        (parameter["name"], f"{parameter['in']}: {kind(parameter['schema'])}", parameter.get("required", False), "")
        for parameter in operation.get("parameters", [])
    ]
    if body := operation.get("requestBody"):
        schema = spec["components"]["schemas"][body["content"]["application/json"]["schema"]["$ref"].split("/")[-1]]
        required = schema.get("required", [])
        rows += [
            (name, kind(field), name in required, field.get("description", ""))
            for name, field in schema["properties"].items()
        ]
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (required)' if needed else ''}</td>"
        f"<td>{escape(what)}</td><td>{escape(about)}</td></tr>"
        for name, what, needed, about in rows
    )
    return f"<table><tr><th>field</th><th>what it may be</th><th></th></tr>{cells}</table>"


def _answers(operation: Json) -> str:
    rows = ""
    for status, answer in operation["responses"].items():
        types = ", ".join(answer.get("content", {}))
        rows += f"<tr><td>{status}</td><td>{escape(answer['description'])}</td><td><code>{escape(types)}</code></td>"
    return f"<table><tr><th>status</th><th>when</th><th>content</th></tr>{rows}</table>"


def kind(schema: Json) -> str:
    """What a JSON schema allows, in a few words; null, which counts as absent everywhere, is left out."""
    if "$ref" in schema:
        return str(schema["$ref"].split("/")[-1])
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"] if one != {"type": "null"})
    if "enum" in schema:
        values = [value for value in schema["enum"] if value is not None]
        return "one of " + ", ".join(map(repr, values)) if values else "nothing"
    if "const" in schema:
        return str(schema["const"]).lower()
    types = schema.get("type", "anything")
    words = types if isinstance(types, str) else " or ".join(t for t in types if t != "null")
    if words == "array" and "items" in schema:
        words = f"list of {kind(schema['items'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{words} from {low:.15g} to {high:.15g}"
    return words if low is None else f"{words} from {low:.15g}"
