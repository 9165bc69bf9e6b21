"""Bodies that no honest client sends: data, without a server."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from lcpd.api.openapi import document

Json = dict[str, Any]
JSON_TYPE = {"Content-Type": "application/json"}
HI = [{"role": "user", "content": "hi"}]
BASES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": HI},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/embedding": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["a"]},
    "/v1/reranking": {"query": "hi", "documents": ["a"]},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/tokenize": {"content": "hi"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": {"messages": HI},
    "/cache/pin": {"messages": HI},
    "/cache/unpin": {"messages": HI},
}
"""A good body for every route that takes one."""
WRONG: list[Any] = [
    *(None, True, False, 0, -1, 7, 0.5, 1e308, -1e308, 2**31, 2**63, 2**64, 10**40, "", "x", "\0", "5", "auto"),
    *([], {}, [[]], [{}], [None], ["x"], [7], {"type": "x"}, {"type": ["x"]}, {"a": [1]}, {"": {}}, {"url": "/x"}),
    *("<|im_start|>system\n", "{{ 7 * 7 }}", "../../etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/"),
]  # fmt: skip
"""Values for fields that want something else."""
BRACKETS = 300_000


@dataclass(frozen=True)
class Hostile:
    """One body as it is sent."""

    name: str
    path: str
    data: bytes
    headers: dict[str, str] = field(default_factory=lambda: JSON_TYPE)


def routes() -> list[str]:
    """Every route that takes a body."""
    return [path for path, item in document()["paths"].items() if "requestBody" in item.get("post", {})]


def fields_of(path: str) -> list[str]:
    """The names that the document has for a route's body."""
    schema = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = document()["components"]["schemas"][schema["$ref"].split("/")[-1]]["properties"]
    return sorted({*names, "chat_template_kwargs", "reasoning_format", "continue_final_message", "metadata", "user"})


def wrong_fields(path: str, count: int, rng: random.Random) -> Iterator[Hostile]:
    """Good bodies in which one to three fields have something wrong in them, at some depth."""
    names = fields_of(path)
    for number in range(count):
        body: Json = dict(BASES[path])
        for name in rng.sample(names, rng.randint(1, 3)):
            value = rng.choice(WRONG)
            kept = body.get(name)
            if isinstance(kept, list) and kept and isinstance(kept[0], dict) and rng.random() < 0.7:
                # One step down: a message, a tool, a part of a content.
                value = [{**kept[0], rng.choice(["role", "content", "tool_calls", "name", "type"]): value}]
            body[name] = value
        yield Hostile(f"wrong-{number}-{json.dumps(body)[:200]}", path, json.dumps(body).encode())


def broken_json(path: str) -> Iterator[Hostile]:
    """What is no JSON, or JSON that readers stumble over."""
    base = json.dumps(BASES[path])
    first = next(iter(BASES[path]))
    with_number = base[:-1] + ', "temperature": %s}'
    texts = {
        "empty": b"",
        "spaces": b" " * 10_000,
        "nothing": b"null",
        "number": b"7",
        "text": b'"hi"',
        "list": b"[" + base.encode() + b"]",
        "cut-off": base.encode()[:-1],
        "twice": base.encode() * 2,
        "byte-order-mark": b"\xef\xbb\xbf" + base.encode(),
        "utf-16": base.encode("utf-16"),
        "zero-byte": base.encode().replace(b"hi", b"h\0i"),
        "invalid-utf-8": base.encode().replace(b"hi", b"\xff\xfe\xc3"),
        "overlong-utf-8": base.encode().replace(b"hi", b"\xc0\xaf"),
        "lone-surrogate": base.replace("hi", r"\ud800 \udfff").encode(),
        "surrogate-as-name": (base[:-1] + r', "\ud800": 1}').encode(),
        "surrogate-bytes": base.encode().replace(b"hi", b"\xed\xa0\x80"),
        "duplicate-key": (base[:-1] + f', "{first}": {json.dumps(BASES[path][first])}}}').encode(),
        "duplicate-of-other-type": (base[:-1] + f', "{first}": 7}}').encode(),
        **{f"number-{n}": (with_number % n).encode() for n in ("NaN", "Infinity", "-Infinity", "1e999", "-0", "0x10")},
        "long-number": (with_number % ("9" * 100_000)).encode(),
        "long-fraction": (with_number % ("0." + "3" * 100_000)).encode(),
        "huge-exponent": (with_number % "1e-999999999").encode(),
    }
    for name, data in texts.items():
        yield Hostile(name, path, data)


def deep(path: str) -> Iterator[Hostile]:
    """Nesting without end, in the place of each field that a body must have and of those that hold structures."""
    kinds = {"lists": (b"[", b"]"), "objects": (b'{"a":', b"}"), "schemas": (b'{"items":', b"}")}
    for name in {*BASES[path], "tools", "json_schema", "metadata"}:
        for kind, (begin, end) in kinds.items():
            for levels in (150, BRACKETS):
                inner = begin * levels + b"1" + end * levels
                rest = json.dumps({key: value for key, value in BASES[path].items() if key != name}).encode()[1:-1]
                data = b'{"' + name.encode() + b'":' + inner + (b"," + rest if rest else b"") + b"}"
                yield Hostile(f"deep-{name}-{kind}-{levels}", path, data)


def large(path: str) -> Iterator[Hostile]:
    """Bodies of about 10 MB."""
    text, first = "word " * 2_000_000, next(iter(BASES[path]))
    bodies: dict[str, Json] = {
        "long-text": json.loads(json.dumps(BASES[path]).replace('"hi"', json.dumps(text))),
        "long-word": {**BASES[path], "model": "x" * 10_000_000},
        "long-name": {**BASES[path], "x" * 10_000_000: 1},
        "many-names": {**BASES[path], **{f"name{number}": number for number in range(500_000)}},
        "many-numbers": {**BASES[path], first: [7] * 3_000_000},
        "many-lists": {**BASES[path], first: [[]] * 2_000_000},
        "many-stops": {**BASES[path], "stop": ["x"] * 1_000_000, "stop_sequences": ["x"] * 1_000_000},
        "long-escapes": {**BASES[path], "user": "\ud83d\ude00" * 800_000},
    }
    for name, body in bodies.items():
        yield Hostile(name, path, json.dumps(body).encode("utf-8", "surrogatepass"))


@cache
def _bomb() -> bytes:
    """A body of 100 MiB in 100 KiB."""
    return gzip.compress(b'{"messages": "' + bytes(100 * 2**20) + b'"}', 6)


def packed(path: str) -> Iterator[Hostile]:
    """Bodies in encodings and of types that nobody asked for."""
    base = json.dumps(BASES[path]).encode()
    yield Hostile("gzip-bomb", path, _bomb(), {**JSON_TYPE, "Content-Encoding": "gzip"})
    yield Hostile(
        "gzip-twice", path, gzip.compress(gzip.compress(base)), {**JSON_TYPE, "Content-Encoding": "gzip, gzip"}
    )
    for encoding in ("gzip", "deflate", "br", "zstd", "compress", "x"):
        yield Hostile(f"not-{encoding}", path, base, {**JSON_TYPE, "Content-Encoding": encoding})
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "", "json"):
        yield Hostile(f"type-{kind}", path, base, {"Content-Type": kind})
    for charset in ("utf-16", "nonsense", "utf-7"):
        yield Hostile(f"charset-{charset}", path, base, {"Content-Type": f"application/json; charset={charset}"})
