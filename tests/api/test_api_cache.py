"""What a request says of the prompt cache, what the cache shows of itself, and who may see texts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fakes import vocab
from fakes.api import ADMIN_KEY, chat_body, context_of, until, use_keys
from lcpd.api import cache_report
from lcpd.cache.isolation import Isolation
from lcpd.chat import protocol as p
from lcpd.chat.client import ChatClient
from lcpd.scheduler.report import CacheReport, Divergence, Recomputed

CHAT = "/v1/chat/completions"
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
BODIES = {
    "chat": (CHAT, chat_body("hello, this is a longer text")),
    "completions": ("/v1/completions", {"prompt": "hello, this is a longer text"}),
    "messages": ("/v1/messages", chat_body("hello, this is a longer text", max_tokens=50)),
}
PARTED = Recomputed(7, 9, "diverged", "at token 7", Divergence(7, "system", (1, 2), (3, 4), (5, 6)))
REPORT = CacheReport(
    prompt=10, begin=6, vram=3, ram=2, disk=1, computed=4, known=7, matched=7, checkpoint=True, seq=1,
    name="chatcmpl-1",
    reasons=(Recomputed(6, 7, "no checkpoint", "none between 6 and 7"), PARTED, Recomputed(9, 10, "last token", "")),
)  # fmt: skip


async def ask(client, *turns, **fields):
    response = await client.post(CHAT, json=chat_body(*turns, **fields))
    assert response.status == 200
    return response, await response.json()


# ---- the shapes of a report ------------------------------------------------------------------------------


def test_a_header_says_it_in_one_line() -> None:
    assert cache_report.header(REPORT) == (
        'hit=6; vram=3; shared=0; ram=2; disk=1; computed=4; why="no-checkpoint:1,diverged@7:2,last-token:1"'
    )


def test_what_was_put_right_stands_at_the_end() -> None:
    changed = replace(REPORT, normalised=("tool-order", "tool-keys"))
    assert cache_report.header(changed) == cache_report.header(REPORT) + '; normalised="tool-order,tool-keys"'
    assert cache_report.brief(changed)["normalised"] == ["tool-order", "tool-keys"]


def test_timings_have_ranges_and_no_tokens() -> None:
    assert cache_report.brief(REPORT) == {
        "hit": 6, "vram": 3, "shared": 0, "ram": 2, "disk": 1, "computed": 4,
        "why": [
            {"reason": "no checkpoint", "begin": 6, "end": 7},
            {"reason": "diverged", "begin": 7, "end": 9, "position": 7, "role": "system"},
            {"reason": "last token", "begin": 9, "end": 10},
        ],
    }  # fmt: skip


def test_a_whole_report_has_texts_and_tokens_only_where_texts_are_given() -> None:
    assert cache_report.windows(REPORT) == [(1, 2), (3, 4), (5, 6)]
    shown = cache_report.whole(REPORT, ["a", "b", "c"])["why"][1]
    assert shown["text"] == {"before": "a", "ours": "b", "theirs": "c"}
    assert shown["tokens"] == {"before": [1, 2], "ours": [3, 4], "theirs": [5, 6]}
    hidden = cache_report.whole(REPORT)
    assert "text" not in hidden["why"][1]
    assert "tokens" not in hidden["why"][1]
    assert (hidden["id"], hidden["known"], hidden["checkpoint"]) == ("chatcmpl-1", 7, True)


# ---- with a reply ----------------------------------------------------------------------------------------


async def test_a_whole_reply_of_any_dialect_has_its_report_in_a_header_and_in_timings(make_client) -> None:
    client = await make_client()
    for path, body in BODIES.values():
        response = await client.post(path, json=body)
        answer = await response.json()
        assert response.headers["x-lcpd-request-id"] == answer["id"]
        report = answer["timings"]["cache"]
        assert report["hit"] + report["computed"] == answer["timings"]["prompt_n"] + answer["timings"]["cache_n"]
        assert sum(part["end"] - part["begin"] for part in report["why"]) == report["computed"]
        assert response.headers["x-lcpd-cache"].startswith(
            f"hit={report['hit']}; vram={report['vram']}; shared=0; ram="
        )


async def test_a_stream_of_any_dialect_has_its_id_in_a_header_and_its_report_in_the_last_timings(make_client) -> None:
    client = await make_client()
    for path, body in BODIES.values():
        response = await client.post(path, json={**body, "stream": True})
        lines = (await response.text()).splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        name = response.headers["x-lcpd-request-id"]
        assert name in (events[0].get("id"), events[0].get("message", {}).get("id"))
        (timings,) = [event["timings"] for event in events if "timings" in event]
        assert timings["cache"]["computed"] > 0
        assert "x-lcpd-cache" not in response.headers


async def test_headers_that_go_out_before_the_reply_is_there_tell_what_is_known_by_then(make_client) -> None:
    client = await make_client({"decode_seconds": 0.1, "reply": "slow"}, server__heartbeat_interval=0.1)
    response, answer = await ask(client, "hello")
    assert response.headers["x-lcpd-request-id"] == answer["id"]
    assert "x-lcpd-cache" in response.headers


async def test_the_next_turn_computes_what_is_new_and_says_so(make_client) -> None:
    client = await make_client({"reply": "fine"})
    await ask(client, "hello, this is a longer text")
    _, answer = await ask(client, "hello, this is a longer text", "fine", "and now?")
    report = answer["timings"]["cache"]
    assert report["vram"] == report["hit"] > 20
    assert [part["reason"] for part in report["why"]] == ["new"]


# ---- asking for a report ---------------------------------------------------------------------------------


async def diverged(client):
    """The id of a request that parted from an earlier one in the first message."""
    await ask(client, "the weather on Monday is fine, and nobody minds")
    _, answer = await ask(client, "the weather on Tuesday is fine, and nobody minds")
    return answer["id"]


async def test_an_admin_is_shown_the_texts_around_where_prompts_parted(make_client) -> None:
    client = await make_client(model__slots=1)
    name = await diverged(client)
    report = await (await client.get(f"/cache/requests/{name}", headers=ADMIN)).json()
    (part,) = [one for one in report["why"] if one["reason"] == "diverged"]
    assert (part["position"], part["role"]) == (1 + len("the weather on "), "user")
    assert "weather on " in part["text"]["before"] + part["text"]["ours"]
    assert part["text"]["ours"].startswith("Tuesday")
    assert part["text"]["theirs"].startswith("Monday")


async def test_others_are_told_the_position_but_no_text_and_no_tokens(make_client) -> None:
    client = await make_client(model__slots=1)
    name = await diverged(client)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        text = await (await client.get(f"/cache/requests/{name}", headers=headers)).text()
        assert '"diverged"' in text
        assert "Tuesday" not in text
        assert '"tokens"' not in text


async def test_an_unknown_request_is_404(make_client) -> None:
    client = await make_client()
    response = await client.get("/cache/requests/chatcmpl-none")
    assert response.status == 404
    assert "chatcmpl-none" in (await response.json())["error"]["message"]


async def test_several_replies_have_reports_of_their_own(make_client) -> None:
    client = await make_client()
    _, answer = await ask(client, "hello", n=2)
    for name in (answer["id"], f"{answer['id']}.1"):
        assert (await client.get(f"/cache/requests/{name}")).status == 200


# ---- what the cache holds --------------------------------------------------------------------------------


async def test_the_tree_tells_where_tokens_are_and_an_admin_what_they_say(make_client) -> None:
    client = await make_client({"reply": "fine"})
    await ask(client, "hello, this is a longer text")
    view = await (await client.get("/cache")).json()
    (branch,) = view["branches"]
    assert (branch["begin"], branch["parent"], branch["ram"]) == (0, None, 0)
    assert branch["vram"] == branch["tokens"] > 20
    assert view["ram"]["size"] == 1 << 20
    assert (view["omitted"], view["pins"]) == (0, [])
    assert "text" not in branch
    assert "starts" not in branch
    shown = await (await client.get("/cache", headers=ADMIN)).json()
    assert shown["branches"][0]["text"].startswith("hello, this")


async def test_an_empty_cache_is_shown_as_such(make_client) -> None:
    client = await make_client()
    for headers in ({}, ADMIN):
        assert (await (await client.get("/cache", headers=headers)).json())["branches"] == []


async def test_an_admin_pins_and_unpins_a_conversation_or_a_prompt(make_client) -> None:
    client = await make_client()
    for what in (chat_body("a conversation"), {"prompt": "a prompt"}):
        answer = await (await client.post("/cache/pin", json=what, headers=ADMIN)).json()
        pins = (await (await client.get("/cache")).json())["pins"]
        assert pins == [{"pin": answer["pin"], "tokens": answer["tokens"]}]
        undone = await (await client.post("/cache/unpin", json=what, headers=ADMIN)).json()
        assert undone == {"unpinned": [answer["pin"]]}
        assert (await (await client.get("/cache")).json())["pins"] == []


async def test_a_pin_is_undone_by_its_number_once(make_client) -> None:
    client = await make_client()
    answer = await (await client.post("/cache/pin", json={"prompt": "text"}, headers=ADMIN)).json()
    for status in (200, 404):
        response = await client.post("/cache/unpin", json={"pin": answer["pin"]}, headers=ADMIN)
        assert response.status == status


async def test_a_pinned_chat_reaches_to_where_its_reply_begins(make_client) -> None:
    client = await make_client()
    answer = await (await client.post("/cache/pin", json=chat_body("hi"), headers=ADMIN)).json()
    assert answer["tokens"] == 4  # the message with its mark and its end


@pytest.mark.parametrize("admin", ["", ADMIN_KEY])
async def test_nobody_else_may_pin(make_client, admin: str) -> None:
    client = await make_client()
    use_keys(client, admin=admin)
    for path in ("/cache/pin", "/cache/unpin"):
        response = await client.post(path, json={"prompt": "text"})
        assert response.status == 403
        assert "server.admin_key_file" in (await response.json())["error"]["message"]


async def test_what_is_to_be_pinned_must_be_clear(make_client) -> None:
    client = await make_client()
    for body in ({}, {"prompt": "a", **chat_body("b")}, {"pin": 1, "prompt": "a"}, {"pin": 0}):
        assert (await client.post("/cache/pin", json=body, headers=ADMIN)).status == 400


async def test_an_admin_key_is_taken_where_api_keys_are_asked_for(make_client) -> None:
    client = await make_client()
    use_keys(client, "a-users")
    assert (await client.get("/cache")).status == 401
    assert (await client.get("/cache", headers={"x-api-key": "a-users"})).status == 200
    assert (await client.get("/cache", headers=ADMIN)).status == 200


# ---- replies as history ----------------------------------------------------------------------------------


def called(arguments: str) -> dict:
    function = {"name": "edit", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def after_a_call(arguments: str, asked: str = "change the file") -> dict:
    result = {"role": "tool", "tool_call_id": "call_0", "content": "done"}
    return {"messages": [*chat_body(asked)["messages"], called(arguments), result]}


RAW = '{"path" : "x.py",  "line": 3}'
GUESS = '{"path":"x.py","line":3}'
CALL = {"type": "tool_use", "id": "call_0", "name": "edit", "input": json.loads(GUESS)}
RESULT = {"type": "tool_result", "tool_use_id": "call_0", "content": "done"}
SAID = {"type": "function_call", "call_id": "call_0", "name": "edit", "arguments": GUESS}
DONE = {"type": "function_call_output", "call_id": "call_0", "output": "done"}
GUESSES = {
    "chat": (CHAT, chat_body("change the file"), after_a_call(GUESS), lambda usage: usage["prompt_tokens"]),
    "messages": (
        "/v1/messages",
        chat_body("change the file", max_tokens=99),
        {
            "messages": [
                *chat_body("change the file")["messages"],
                {"role": "assistant", "content": [CALL]},
                {"role": "user", "content": [RESULT]},
            ],
            "max_tokens": 99,
        },
        lambda usage: usage["input_tokens"] + usage["cache_read_input_tokens"],
    ),
    "responses": (
        "/v1/responses",
        {"input": "change the file"},
        {"input": [*chat_body("change the file")["messages"], SAID, DONE]},
        lambda usage: usage["input_tokens"],
    ),
}
"""Route, question, the same with a guessed reply and its result, and the length of a prompt."""


async def test_arguments_that_a_client_wrote_otherwise_are_found_as_they_were_generated(make_client) -> None:
    client = await make_client({"reply": f"<tool>edit {RAW}</tool>"})
    for arguments in (RAW, '{"path":"x.py","line":3}', '{"line": 3, "path": "x.py"}'):
        asked = f"write {arguments}"
        _, first = await ask(client, asked)
        second = await (await client.post(CHAT, json=after_a_call(arguments, asked))).json()
        # All of the reply but the token that ended it.
        expected = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
        assert second["timings"]["cache"]["hit"] == expected


async def test_arguments_with_another_value_are_the_clients(make_client) -> None:
    client = await make_client({"reply": f"<tool>edit {RAW}</tool>"})
    _, first = await ask(client, "change the file")
    second = await (await client.post(CHAT, json=after_a_call('{"path":"x.py","line":4}'))).json()
    assert second["timings"]["cache"]["hit"] < first["usage"]["prompt_tokens"] + 20


async def test_without_replay_the_clients_arguments_are_taken(make_client) -> None:
    client = await make_client({"reply": f"<tool>edit {RAW}</tool>"}, cache__replay=False)
    _, first = await ask(client, "change the file")
    second = await (await client.post(CHAT, json=after_a_call('{"path":"x.py","line":3}'))).json()
    assert second["timings"]["cache"]["hit"] < first["usage"]["prompt_tokens"] + 30


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_a_key_learns_nothing_of_the_replies_to_another_one(make_client, dialect: str) -> None:
    client = await make_client({"reply": f"<tool>edit {RAW}</tool>"})
    use_keys(client, "sk-one\nsk-two\n")
    keys = [key.digest for key in context_of(client).keys.keys]
    object.__setattr__(context_of(client), "isolation", Isolation(keys))
    path, body, history, tokens_of = GUESSES[dialect]

    async def tokens(key: str, asked: dict) -> int:
        response = await client.post(path, json=asked, headers={"x-api-key": key})
        assert response.status == 200, await response.text()
        return tokens_of((await response.json())["usage"])

    unknown = await tokens("sk-one", history)
    await tokens("sk-one", body)
    assert await tokens("sk-two", history) == unknown
    assert await tokens("sk-one", history) == unknown + len(RAW) - len(GUESS)


# ---- computing ahead -------------------------------------------------------------------------------------

ANSWER = "the answer is long enough to be worth computing ahead of the next question " * 2


async def two_turns(client, **fields):
    """The second turn of a conversation whose reasoning is left out of the history."""
    await ask(client, "a question", **fields)
    if anticipator := context_of(client).anticipator:
        await until(lambda: not anticipator.working)
    _, answer = await ask(client, "a question", ANSWER, "another one", **fields)
    return answer["timings"]["cache"]


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_a_turn_after_reasoning_computes_only_what_is_new(make_client, kind: str) -> None:
    client = await make_client({"kind": kind, "reply": f"<think>let me see</think>{ANSWER}"})
    report = await two_turns(client)
    assert report["computed"] == len("another one") + 3 - 1  # its end and the reply's mark; its own mark is there


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_without_anticipation_it_computes_the_reply_again(make_client, kind: str) -> None:
    script = {"kind": kind, "reply": f"<think>let me see</think>{ANSWER}"}
    report = await two_turns(await make_client(script, cache__anticipate=False))
    assert report["computed"] > len(ANSWER)


async def test_a_prefill_that_is_under_way_does_not_keep_the_next_request_waiting(make_client) -> None:
    script = {"reply": f"<think>let me see</think>{ANSWER}", "prefill_seconds": 0.2}
    client = await make_client(script)
    await ask(client, "a question")
    context = context_of(client)
    await until(lambda: context.dispatcher.running > 0)
    response, _ = await ask(client, "something else")
    assert response.status == 200


async def test_a_reply_that_was_cut_off_is_followed_by_nothing(make_client) -> None:
    client = await make_client({"decode_seconds": 0.05})
    response = await client.post(CHAT, json=chat_body("a question", stream=True, ignore_eos=True))
    await response.content.readany()
    response.close()
    context = context_of(client)
    await until(lambda: not context.dispatcher.running)
    assert context.anticipator is not None
    assert context.anticipator.pending == 0


# ---- privacy ---------------------------------------------------------------------------------------------


async def test_a_purge_forgets_ram_and_idle_slots_and_needs_an_admin(make_client) -> None:
    client = await make_client()
    await ask(client, "hello, this is a longer text")
    assert (await client.post("/cache/purge")).status == 403
    response = await client.post("/cache/purge", headers=ADMIN)
    assert (await response.json())["purged"].keys() == {"ram", "responses"}
    assert all(not len(slot.tokens) for slot in context_of(client).dispatcher.slots)
    assert context_of(client).cache.stats().nodes == 0
    _, answer = await ask(client, "hello, this is a longer text")
    assert answer["timings"]["cache"]["hit"] == 0


async def test_a_purge_forgets_stored_responses(make_client) -> None:
    client = await make_client()
    response = await (await client.post("/v1/responses", json={"input": "hello"})).json()
    purged = (await (await client.post("/cache/purge", headers=ADMIN)).json())["purged"]
    assert purged["responses"] == {"count": 1}
    assert (await client.get(f"/v1/responses/{response['id']}")).status == 404
    answer = await client.post("/v1/responses", json={"input": "more", "previous_response_id": response["id"]})
    assert (await answer.json())["error"]["code"] == "previous_response_not_found"


async def test_a_purge_forgets_replies_that_would_be_recognised_and_tools_and_turns(make_client) -> None:
    reply = '<tool>read_file {"path":  "a"}</tool>'
    client = await make_client({"reply": reply}, cache__anticipate=True)
    tools = [{"type": "function", "function": {"name": "read_file"}}]
    _, answer = await ask(client, "hello", tools=tools)
    await client.post("/cache/purge", headers=ADMIN)
    context = context_of(client)
    assert context.anticipator.pending == 0
    assert len(context.known_tools) == 0
    call = answer["choices"][0]["message"]["tool_calls"][0]
    call["function"]["arguments"] = '{"path":"a"}'
    history = [{"role": "user", "content": "hello"}, {"role": "assistant", "tool_calls": [call]}]
    history.append({"role": "tool", "tool_call_id": call["id"], "content": "text"})
    tokens = [slot.tokens.tolist() for slot in context.dispatcher.slots]
    assert tokens == [[], []]
    await client.post(CHAT, json={"messages": history, "tools": tools})
    (held,) = [slot.tokens.tolist() for slot in context.dispatcher.slots if len(slot.tokens)]
    assert '{"path":"a"}' in vocab.decode(held), "as the client wrote it, not as it was generated"


@pytest.mark.parametrize("name", BODIES)
async def test_of_a_request_that_says_so_nothing_is_kept(make_client, name) -> None:
    client = await make_client()
    path, body = BODIES[name]
    response = await client.post(path, json=body, headers={"x-lcpd-cache": "no-store"})
    assert response.status == 200
    answer = await response.json()
    assert (await client.get(f"/cache/requests/{answer['id']}")).status == 404
    context = context_of(client)
    context.dispatcher.save(0)
    assert context.cache.stats().nodes == 0
    assert context.cache.stats().remembered == 0
    assert not context.dispatcher.exporting


@pytest.mark.parametrize("name", [*BODIES, "responses", "counting", "pin", "pinned prompt"])
async def test_the_chat_process_is_told_for_whom_it_remembers_a_prompt_and_whether(
    make_client, monkeypatch, name: str
) -> None:
    told = []
    real = ChatClient._call

    async def listening(self, message, *args):
        told.append(message)
        return await real(self, message, *args)

    monkeypatch.setattr(ChatClient, "_call", listening)
    others = {
        "responses": ("/v1/responses", {"input": "hello"}),
        "counting": ("/v1/messages/count_tokens", chat_body("hello")),
        "pin": ("/cache/pin", chat_body("hello")),
        "pinned prompt": ("/cache/pin", {"prompt": "hello"}),
    }
    client = await make_client(cache__anticipate=False)
    key = ADMIN_KEY if "pin" in name else "sk-two"
    use_keys(client, "sk-one\nsk-two\n")
    digests = [known.digest for known in context_of(client).keys.keys]
    isolation = Isolation(digests)
    object.__setattr__(context_of(client), "isolation", isolation)
    path, body = {**BODIES, **others}[name]
    for wish in ({}, {"x-lcpd-cache": "no-store"}):
        response = await client.post(path, json=body, headers={"x-api-key": key, **wish})
        assert response.status in (200, 404), await response.text()  # the latter: nothing is there to be pinned
    asked = [call for call in told if isinstance(call, p.Render | p.Complete)]
    assert [call.store for call in asked] == [True, False]
    if "pin" not in name:
        assert {call.scope for call in asked} == {isolation.number(digests[1])}


async def test_a_slot_that_is_not_stored_is_still_used(make_client) -> None:
    client = await make_client()
    for _ in range(2):
        response = await client.post(CHAT, json=chat_body("hello, this is text"), headers={"x-lcpd-cache": "no-store"})
    assert (await response.json())["timings"]["cache"]["hit"] > 0


async def test_other_wishes_about_the_cache_are_refused(make_client) -> None:
    client = await make_client()
    response = await client.post(CHAT, json=chat_body("hello"), headers={"x-lcpd-cache": "no-cache"})
    assert response.status == 400
    assert (await response.json())["error"]["param"] == "x-lcpd-cache"
