"""Streams: what is sent while nothing comes, when the engine dies, and when the client goes away or does not read."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from fakes.api import chat_body, context_of, until

PATHS = {
    "chat": ("/v1/chat/completions", chat_body("hello", stream=True)),
    "completions": ("/v1/completions", {"prompt": "hello", "stream": True}),
    "messages": ("/v1/messages", chat_body("hello", stream=True, max_tokens=50)),
}
SLOW = {"decode_seconds": 0.25, "reply": "slow"}


def events(body: str) -> list:
    """The JSON payloads of a stream."""
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]


async def test_chat_streams_send_empty_deltas_because_qwen_code_takes_comments_for_silence(make_client):
    client = await make_client(SLOW, server__heartbeat_interval=0.05)
    path, body = PATHS["chat"]
    received = events(await (await client.post(path, json=body)).text())
    choices = [event["choices"][0] for event in received if event["choices"]]
    assert sum(choice["delta"] == {} and choice["finish_reason"] is None for choice in choices) >= 3
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "slow"


async def test_completions_streams_send_comments_while_nothing_else_comes(make_client):
    client = await make_client(SLOW, server__heartbeat_interval=0.05)
    path, body = PATHS["completions"]
    text = await (await client.post(path, json=body)).text()
    assert text.count(": still working\n\n") >= 3
    assert text.endswith("data: [DONE]\n\n")


async def test_anthropic_streams_send_empty_deltas_because_claude_code_counts_nothing_else(make_client):
    client = await make_client(SLOW, server__heartbeat_interval=0.05)
    path, body = PATHS["messages"]
    received = events(await (await client.post(path, json=body)).text())
    kinds = [event["type"] for event in received]
    assert kinds[:2] == ["message_start", "content_block_start"]
    empty = [e for e in received if e["type"] == "content_block_delta" and e["delta"].get("text") == ""]
    assert len(empty) >= 3
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert "".join(e["delta"].get("text", "") for e in received if e["type"] == "content_block_delta") == "slow"


async def test_a_client_that_asked_for_thinking_gets_its_heartbeats_in_a_thinking_block(make_client):
    client = await make_client({"prefill_seconds": 0.3, "reply": "slow"}, server__heartbeat_interval=0.05)
    body = {**PATHS["messages"][1], "thinking": {"type": "adaptive"}}
    received = events(await (await client.post("/v1/messages", json=body)).text())
    assert received[1]["content_block"]["type"] == "thinking"
    # The text that comes after it is a block of its own.
    starts = [e["content_block"]["type"] for e in received if e["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]


@pytest.mark.parametrize("dialect", ["chat", "messages"])
async def test_a_long_reply_that_is_not_streamed_is_preceded_by_white_space(make_client, dialect):
    client = await make_client(SLOW, server__heartbeat_interval=0.05)
    path, body = PATHS[dialect]
    response = await client.post(path, json={**body, "stream": False})
    text = await response.text()
    assert text.startswith("   ")
    assert "slow" in json.dumps(json.loads(text))


@pytest.mark.parametrize("dialect", ["chat", "messages"])
async def test_a_defect_after_white_space_was_sent_ends_the_body_as_an_error_of_the_dialect(
    make_client, monkeypatch, caplog, dialect
):
    client = await make_client({"reply": "slow"}, server__heartbeat_interval=0.02)
    context = context_of(client)

    async def push(*_):
        await asyncio.sleep(0.1)
        raise RuntimeError("a defect")

    monkeypatch.setattr(context.chat, "push", push)
    path, body = PATHS[dialect]
    async with asyncio.timeout(10):
        response = await client.post(path, json={**body, "stream": False})
        text = await response.text()
    assert text.startswith(" ")
    answer = json.loads(text)
    assert "the server's log has the details" in answer["error"]["message"]
    assert ("type" in answer) == (dialect == "messages")
    assert "a defect" in caplog.text
    failed = {"endpoint": path.removeprefix("/v1"), "code": "500"}
    await until(lambda: context.metrics.registry.get_sample_value("lcpd_requests_total", failed) == 1)
    # The connection is of use for the next request.
    assert (await client.get("/health")).status == 200


async def test_headers_come_at_once_and_tell_proxies_not_to_wait(make_client):
    client = await make_client({"prefill_seconds": 5})
    path, body = PATHS["chat"]
    response = await asyncio.wait_for(client.post(path, json=body), 3)
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.content_type == "text/event-stream"
    response.close()


@pytest.mark.parametrize(("dialect", "marker"), [("chat", "error"), ("completions", "error"), ("messages", "type")])
async def test_a_stream_that_kills_the_engine_twice_ends_in_an_error_of_its_dialect(make_client, dialect, marker):
    client = await make_client({"reply": "a long reply", "poison": "hello"})
    path, body = PATHS[dialect]
    last = events(await (await client.post(path, json=body)).text())[-1]
    error = last["error"]
    assert marker in last
    assert "crashed the engine twice" in error["message"]
    again = await client.post(path, json=body)
    assert again.status == 500
    assert "is quarantined: it is refused for another" in (await again.json())["error"]["message"]


async def test_a_client_that_goes_away_frees_its_slot(make_client):
    client = await make_client({"decode_seconds": 0.05}, model__slots=1)
    path, body = PATHS["chat"]
    response = await client.post(path, json={**body, "ignore_eos": True})
    await response.content.readline()
    dispatcher = context_of(client).dispatcher
    assert dispatcher.running == 1
    response.close()
    await until(lambda: dispatcher.running == 0)


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_a_client_that_leaves_with_the_last_event_counts_as_served(make_client, monkeypatch, dialect):
    client = await make_client(cache__anticipate=True)
    context = context_of(client)
    ahead: list = []
    monkeypatch.setattr(context.anticipator, "finished", ahead.append)
    # The end of the handler takes until the client has gone.
    monkeypatch.setattr(context.chat, "close_reply", lambda reply: asyncio.Event().wait())
    path, body = PATHS.get(dialect, ("/v1/responses", {"input": "hello", "stream": True}))
    response = await client.post(path, json=body)
    async for line in response.content:
        if b"[DONE]" in line or b'"message_stop"' in line or b'"response.completed"' in line:
            break
    response.close()
    served = {"endpoint": path.removeprefix("/v1"), "code": "200"}
    await until(lambda: context.metrics.registry.get_sample_value("lcpd_requests_total", served) == 1)
    assert len(ahead) == 1


async def test_a_client_that_leaves_the_queue_is_forgotten(make_client):
    client = await make_client({"decode_seconds": 0.05}, model__slots=1)
    path, body = PATHS["chat"]
    first = await client.post(path, json={**body, "ignore_eos": True})
    second = await client.post(path, json=body)
    dispatcher = context_of(client).dispatcher
    assert dispatcher.waiting == 1
    second.close()
    await until(lambda: dispatcher.waiting == 0)
    first.close()


async def test_a_client_that_does_not_read_is_dropped(make_client):
    client = await make_client(model__slots=1, model__ctx=2_000_000, server__client_timeout=0.3)
    body = json.dumps({**PATHS["completions"][1], "ignore_eos": True})
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    dispatcher = context_of(client).dispatcher
    with socket.create_connection((client.host, client.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", body]).encode())
        await until(lambda: dispatcher.running == 1)
        await until(lambda: dispatcher.running == 0)
    metrics = context_of(client).metrics.registry
    assert metrics.get_sample_value("lcpd_generation_tokens_total") < 1_900_000


async def test_slow_parsing_makes_fewer_and_larger_deltas_and_loses_nothing(make_client):
    client = await make_client({"reply": "many small pieces of text " * 40})
    path, body = PATHS["chat"]
    received = events(await (await client.post(path, json=body)).text())
    content = "".join(e["choices"][0]["delta"].get("content") or "" for e in received if e["choices"])
    assert content == "many small pieces of text " * 40


@pytest.mark.parametrize("dialect", list(PATHS))
async def test_characters_are_never_split_across_deltas(make_client, dialect):
    # Every token of the fake is one byte, so each of these characters comes in two to four tokens.
    reply = "größer 你好 नमस्ते 🚂 עברית "
    client = await make_client({"reply": reply, "decode_seconds": 0.002})
    path, body = PATHS[dialect]
    received = events(await (await client.post(path, json={**body, "max_tokens": 500})).text())
    parts = [text_of(event) for event in received]
    assert "".join(parts) == reply
    assert "\ufffd" not in "".join(parts)
    assert sum(map(bool, parts)) > 5


def text_of(event):
    """What an event of any dialect adds to the text."""
    if "choices" in event:
        return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in event["choices"])
    return (event.get("delta") or {}).get("text") or ""


async def test_a_reader_that_stalls_gets_fewer_and_larger_deltas_and_the_same_text(make_client):
    reply = "ein längerer Text 🚂 " * 150
    client = await make_client({"reply": reply}, model__slots=1, model__ctx=200_000)
    data = json.dumps({**PATHS["completions"][1], "stream_options": {"include_usage": True}})
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Connection: close"]
    reader, writer = await asyncio.open_connection(client.host, client.port, limit=1024)
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    writer.write("\r\n".join([*head, f"Content-Length: {len(data)}", "", data]).encode())
    dispatcher = context_of(client).dispatcher
    await until(lambda: dispatcher.running == 1)
    await until(lambda: dispatcher.running == 0)  # the engine is done, whoever reads
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    raw = b""
    while more := await reader.read(65536):
        raw += more
    writer.close()
    received = events(dechunked(raw))
    assert "".join(map(text_of, received)) == reply
    tokens = received[-1]["usage"]["completion_tokens"]
    assert len(received) < tokens


def dechunked(raw):
    """The body of a response in chunks."""
    body, text = raw.partition(b"\r\n\r\n")[2], b""
    while body:
        size, _, body = body.partition(b"\r\n")
        text, body = text + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return text.decode()
