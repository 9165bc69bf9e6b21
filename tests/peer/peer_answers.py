"""What of an answer has to be the same: no ids, no times, and streams put together again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from benchmarks.servers import Server
from peer_differences import SHAPES
from peer_requests import Request

Json = dict[str, Any]
UNUSED_PROMPT = {"prompt": [7], "max_tokens": 1}
"""Makes the only slot hold something that no prompt of these tests begins with."""
_IDS = ("id", "created", "tool_call_id")
_DURATIONS = re.compile(r"(_ms|_per_second)$")
_CLOSE = 2e-3
"""How far the logarithms of two probabilities may lie apart."""


@dataclass(frozen=True)
class Answer:
    """A comparable answer."""

    status: int
    content: Any


def answer_of(server: Server, request: Request) -> Answer:
    """A server's answer to a request, whose prompt is computed from its first token."""
    if request.path.startswith("/v1/") and request.body is not None:
        _send(server, Request("", "/v1/completions", UNUSED_PROMPT))
    response = _send(server, request)
    if response.status_code != 200:
        error = response.json()["error"]
        assert isinstance(error["message"], str) and error["message"]
        return Answer(response.status_code, {"type": error["type"]})
    if response.headers["Content-Type"].startswith("text/event-stream"):
        events = list(_events(response.text))
        content = claude_stream(events) if request.path.endswith("/messages") else openai_stream(events)
    else:
        content = response.json()
    places = [
        place
        for shape in SHAPES
        if shape.path in ("", request.path)
        for place in (shape.ours if server.name == "lcpd" else shape.theirs)
    ]
    return Answer(200, without(comparable(content), places))


def _send(server: Server, request: Request) -> httpx.Response:
    data = request.body if isinstance(request.body, bytes) else json.dumps(request.body).encode()
    try:
        if request.body is None:
            return httpx.get(server.url + request.path, timeout=60)
        headers = {"Content-Type": "application/json"}
        return httpx.post(server.url + request.path, content=data, headers=headers, timeout=120)
    except httpx.TransportError as error:
        pytest.fail(f"{server.name} did not answer: {error!r}; its log ends:\n{server.log_tail()}")


def _events(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        if line.startswith("data: "):
            yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


def comparable(value: Any) -> Any:
    """A value without ids, and with durations as whether there are any."""
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: one for key, one in value.items() if key not in _IDS or (isinstance(one, int) and key == "id")}
    return {key: True if _DURATIONS.search(key) else comparable(one) for key, one in kept.items()}


def without(value: Any, places: Sequence[str]) -> Any:
    """A value without what is at some places, such as "choices.*.index"; a place with "=null" only where it is null."""
    for place in places:
        path, _, only = place.partition("=")
        value = _cut(value, path.split("."), only)
    return value


def _cut(value: Any, path: list[str], only: str) -> Any:
    key, *rest = path
    if key == "*" and isinstance(value, list):
        return [_cut(one, rest, only) for one in value]
    if key == "*" and isinstance(value, dict):
        return {name: _cut(one, rest, only) for name, one in value.items()}
    if not isinstance(value, dict) or key not in value:
        return value
    if rest:
        return {**value, key: _cut(value[key], rest, only)}
    if only and json.dumps(value[key]) != only:
        return value
    return {name: one for name, one in value.items() if name != key}


def openai_stream(events: list[Any]) -> Json:
    """A chat's or text completion's stream as one object, and in which order what came."""
    whole: Json = {"order": [], "choices": {}}
    for event in events:
        if event == "[DONE]":
            _note(whole["order"], "done")
            continue
        if "error" in event:
            _note(whole["order"], f"error {event['error']['type']}")
            continue
        rest = {key: one for key, one in event.items() if key not in ("choices", "usage")}
        if "usage" in event:
            rest |= {"stream_usage": event["usage"], "usage_alone": not event["choices"]}
        for choice in event["choices"]:
            _add(whole["choices"].setdefault(str(choice["index"]), {}), choice, whole["order"])
        whole |= rest
    return whole


def _add(whole: Json, choice: Json, order: list[str]) -> None:
    delta = choice.get("delta", {"text": choice.get("text", "")})
    for key, value in delta.items():
        _note(order, f"{choice['index']} {key}")
        if key == "tool_calls":
            for call in value:
                known = whole.setdefault("calls", {}).setdefault(str(call["index"]), {"name": "", "arguments": ""})
                for part, text in call.get("function", {}).items():
                    known[part] += text
        else:
            whole[key] = value if value is None or key == "role" else (whole.get(key) or "") + value
    for entry in (choice.get("logprobs") or {}).get("content", []):
        whole.setdefault("logprobs", []).append(entry)
    if choice["finish_reason"]:
        _note(order, f"{choice['index']} finish")
        whole["finish_reason"] = choice["finish_reason"]


def claude_stream(events: list[Any]) -> Json:
    """A message's stream as one object, and in which order what came."""
    order: list[str] = []
    blocks: dict[str, Json] = {}
    whole: Json = {"order": order, "blocks": blocks}
    for event in events:
        _note(order, event["type"])
        match event["type"]:
            case "message_start":
                whole["start"] = event["message"]
            case "content_block_start":
                blocks[str(event["index"])] = {**event["content_block"], "deltas": ""}
            case "content_block_delta":
                delta = {key: text for key, text in event["delta"].items() if key != "type"}
                blocks[str(event["index"])]["deltas"] += "".join(delta.values())
            case "message_delta":
                whole |= {"delta": event["delta"], "delta_usage": event["usage"]}
    return whole


def _note(order: list[str], what: str) -> None:
    if not order or order[-1] != what:
        order.append(what)


def unequal(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Where two values differ, in words."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in sorted(set(ours) | set(theirs)):
            here = f"{place}.{key}".lstrip(".")
            if key not in theirs:
                found.append(f"{here}: only lcpd has it: {ours[key]!r}")
            elif key not in ours:
                found.append(f"{here}: only llama-server has it: {theirs[key]!r}")
            else:
                found += unequal(ours[key], theirs[key], here)
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [one for i, pair in enumerate(zip(ours, theirs, strict=True)) for one in unequal(*pair, f"{place}.{i}")]
    if isinstance(ours, float) and isinstance(theirs, float) and abs(ours - theirs) < _CLOSE:
        return []
    return [] if ours == theirs and type(ours) is type(theirs) else [f"{place}: {ours!r}, llama-server: {theirs!r}"]
