"""The chat client's table, with the fake chat process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import vocab
from fakes.chat import DIE, DIE_ONCE, GARBAGE, HANG, chat_command, refuse
from lcpd.chat.client import ChatClient, ChatCrashed, ChatRefused, ChatSettings, ChatUnavailable, Reply
from lcpd.engine.protocol import unpack
from lcpd.ipc.channel import DaemonChannel

Make = Callable[..., ChatClient]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds clients (not started); the keywords besides those named are the fake chat process's script."""
    made = []

    def build(
        call_timeout: float = 60,
        command: tuple[str, ...] | None = None,
        restarts: list[str] | None = None,
        **script: Any,
    ) -> ChatClient:
        settings = ChatSettings(
            model=Path("fake.gguf"),
            template=None,
            lib_dir=Path("no/libraries"),
            memory_limit=1 << 30,
            call_timeout=call_timeout,
            command=command or chat_command(**script),
        )
        client = ChatClient(settings, (lambda reason: None) if restarts is None else restarts.append)
        made.append(client)
        return client

    yield build
    for client in made:
        await client.stop()


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    """A call that is never answered fails the test."""
    async with asyncio.timeout(90):
        yield


async def tokenize(client: ChatClient, text: str) -> str:
    return vocab.decode(unpack(await client.tokenize(text, False, True)).tolist())


def body(text: str, **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


def alive(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()


# ---- calls ------------------------------------------------------------------------------------------------


async def test_starting_tells_the_templates_facts(make: Make) -> None:
    client = make(supports_thinking=True)
    assert not client.ready
    await client.start()
    assert client.ready
    assert client.info["supports_thinking"] is True


async def test_the_first_call_starts_the_process(make: Make) -> None:
    assert await tokenize(make(), "hello") == "hello"


async def test_a_body_is_rendered_with_its_spans_limits_and_fields(make: Make) -> None:
    rendered = await make().render("chat", body("hi", max_tokens=7, stop="END"))
    tokens = unpack(rendered.tokens).tolist()
    assert tokens == [vocab.MARKS["user"], *b"hi", vocab.END, vocab.MARKS["assistant"]]
    assert [(span.role, span.begin, span.length) for span in rendered.spans] == [("user", 0, 4), ("assistant", 4, 1)]
    assert rendered.max_tokens == 7
    assert json.loads(rendered.sampling)["stop"] == ["END"]


async def test_a_completions_prompt_may_be_text_or_tokens(make: Make) -> None:
    client = make()
    for prompt in ("ab", [97, 98]):
        assert unpack((await client.complete(prompt, b"{}")).tokens).tolist() == [97, 98]


async def test_calls_made_at_once_get_each_its_own_answer_in_order(make: Make) -> None:
    client = make()
    answered: list[int] = []

    async def call(number: int) -> None:
        assert await tokenize(client, f"text {number}") == f"text {number}"
        answered.append(number)

    await asyncio.gather(*(call(number) for number in range(50)))
    assert answered == list(range(50))


async def test_a_refusal_is_told_and_the_process_goes_on(make: Make) -> None:
    client = make()
    await client.start()
    pid = client.pid
    with pytest.raises(ChatRefused, match="tools: unknown type"):
        await client.render("chat", body(refuse("tools: unknown type")))
    assert await tokenize(client, "well") == "well"
    assert client.pid == pid


async def test_a_caller_that_gives_up_does_not_disturb_the_others(make: Make) -> None:
    client = make()
    await client.start()
    impatient = asyncio.create_task(tokenize(client, "never mind"))
    patient = asyncio.create_task(tokenize(client, "patient"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == "patient"


# ---- the process dies -------------------------------------------------------------------------------------


async def test_what_nobody_waits_for_any_more_is_not_sent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    send = DaemonChannel.send

    def record(channel: DaemonChannel[Any], message: Any) -> None:
        sent.append(getattr(message, "text", ""))
        send(channel, message)

    monkeypatch.setattr(DaemonChannel, "send", record)
    client = make(call_timeout=0.5)
    await client.start()
    hanging = asyncio.create_task(tokenize(client, HANG))
    given_up = [asyncio.create_task(tokenize(client, f"gone {i}")) for i in range(20)]
    last = asyncio.create_task(tokenize(client, "here"))
    await asyncio.sleep(0.1)
    for task in given_up:
        task.cancel()
    with pytest.raises(ChatCrashed):
        await hanging
    assert await last == "here"
    assert [text for text in sent if text.startswith("gone")] == ["gone 0"]  # it was on its way


async def test_a_process_killed_while_idle_is_replaced(make: Make) -> None:
    restarts: list[str] = []
    client = make(restarts=restarts)
    await client.start()
    first = client.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await tokenize(client, "again") == "again"
    assert client.pid not in (None, first)
    assert not alive(first)
    assert restarts == ["was killed by SIGKILL"]


async def test_a_call_whose_process_dies_once_is_answered_by_the_next_one(make: Make, tmp_path: Path) -> None:
    client = make(once=str(tmp_path / "died"))
    calls = [tokenize(client, text) for text in ("before", f"{DIE_ONCE} back", "after")]
    assert await asyncio.gather(*calls) == ["before", f"{DIE_ONCE} back", "after"]


async def test_a_call_that_kills_the_process_twice_fails_alone(make: Make) -> None:
    restarts: list[str] = []
    client = make(restarts=restarts)
    calls = [tokenize(client, text) for text in ("before", DIE, "after", "last")]
    before, killer, after, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (before, after, last) == ("before", "after", "last")
    assert isinstance(killer, ChatCrashed)
    assert "kills the chat process" in str(killer)
    assert len(restarts) == 2


async def test_bytes_that_are_no_message_count_as_a_death(make: Make) -> None:
    restarts: list[str] = []
    client = make(restarts=restarts)
    nonsense, after = await asyncio.gather(tokenize(client, GARBAGE), tokenize(client, "after"), return_exceptions=True)
    assert isinstance(nonsense, ChatCrashed)
    assert after == "after"
    assert [reason.partition(":")[0] for reason in restarts] == ["spoke nonsense"] * 2


async def test_a_call_that_waited_behind_a_hanging_one_still_has_both_its_tries(make: Make, tmp_path: Path) -> None:
    client = make(call_timeout=0.4, once=str(tmp_path / "died"))
    await client.start()
    hanging, once = await asyncio.gather(tokenize(client, HANG), tokenize(client, DIE_ONCE), return_exceptions=True)
    assert isinstance(hanging, ChatCrashed)
    assert once == DIE_ONCE


async def test_every_call_that_is_not_answered_in_time_fails_and_those_behind_it_are_answered(make: Make) -> None:
    client = make(call_timeout=0.4)
    await client.start()
    first = client.pid
    one, two, after = await asyncio.gather(
        *(tokenize(client, text) for text in (HANG, HANG, "after")), return_exceptions=True
    )
    assert isinstance(one, ChatCrashed)
    assert isinstance(two, ChatCrashed)
    assert "took more than 0.4 s (chat.call_timeout)" in str(one)
    assert after == "after"
    assert not alive(first)


async def test_the_deadline_does_not_run_while_nothing_is_asked(make: Make) -> None:
    client = make(call_timeout=0.1)
    await client.start()
    first = client.pid
    await tokenize(client, "one")
    await asyncio.sleep(0.15)  # longer than the deadline
    await tokenize(client, "two")
    assert client.pid == first


async def test_the_deadline_does_not_run_while_the_process_is_replaced(make: Make, tmp_path: Path) -> None:
    client = make(call_timeout=0.3, once=str(tmp_path / "died"), restart_seconds=0.5)
    await client.start()
    assert await tokenize(client, DIE_ONCE) == DIE_ONCE


# ---- the process cannot be started ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"die_at_start": True}, "exited with status 7: the fake was told not to start"),
        ({"problem": "the template has an error in line 3"}, "the template has an error in line 3"),
        ({"refuse_hello": "the daemon speaks protocol 9"}, "the daemon speaks protocol 9"),
        ({"garbage_hello": True}, "the chat process spoke nonsense"),
        ({"command": ("/no/such/python",)}, "cannot be started: .*/no/such/python"),
    ],
)
async def test_a_process_that_cannot_be_started_says_why_to_all_callers(
    make: Make, script: dict[str, Any], reason: str
) -> None:
    client = make(**script)
    with pytest.raises(ChatUnavailable, match=reason):
        await client.start()
    with pytest.raises(ChatUnavailable, match=reason):
        await tokenize(client, "hello")
    assert not client.ready


async def test_calls_in_flight_fail_when_the_process_cannot_be_replaced(make: Make, tmp_path: Path) -> None:
    client = make(once=str(tmp_path / "died"), die_at_restart=True)
    await client.start()
    reply = client.open_reply(b"{}")
    calls = [tokenize(client, DIE_ONCE), tokenize(client, "after"), client.push(reply, "text", final=False)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ChatUnavailable] * 3
    (tmp_path / "died").unlink()
    assert await tokenize(client, "once it can be started again") == "once it can be started again"


# ---- replies ----------------------------------------------------------------------------------------------


async def push(client: ChatClient, reply: Reply, text: str) -> str:
    """The new content."""
    deltas, _ = await client.push(reply, text, final=False)
    return "".join(delta["content"] for delta in deltas)


async def finish(client: ChatClient, reply: Reply) -> Any:
    """The content of the whole message."""
    _, message = await client.push(reply, "", final=True)
    assert message is not None
    return message["content"]


async def test_a_reply_is_parsed_piece_by_piece_and_whole_in_the_end(make: Make) -> None:
    client = make()
    reply = client.open_reply(b"{}")
    assert await client.push(reply, "one ", final=False) == ([{"content": "one "}], None)
    assert await client.push(reply, "two", final=True) == (
        [{"content": "two"}],
        {"role": "assistant", "content": "one two"},
    )


async def test_replies_at_the_same_time_are_kept_apart(make: Make) -> None:
    client = make()
    a, b = client.open_reply(b"{}"), client.open_reply(b"{}")
    await asyncio.gather(push(client, a, "a1"), push(client, b, "b1"))
    await asyncio.gather(push(client, a, "a2"), push(client, b, "b2"))
    assert (await finish(client, a), await finish(client, b)) == ("a1a2", "b1b2")


async def kill(client: ChatClient) -> None:
    """Kill the process and wait until another one is there."""
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    await tokenize(client, "there is a new process now")


async def test_after_a_restart_a_reply_goes_on_where_it_was_and_repeats_nothing(make: Make) -> None:
    client = make()
    reply = client.open_reply(b"{}")
    assert await push(client, reply, "one ") == "one "
    await kill(client)
    assert await push(client, reply, "two ") == "two "
    await kill(client)
    assert await push(client, reply, "three") == "three"
    assert await finish(client, reply) == "one two three"


async def test_a_push_behind_a_call_that_kills_the_process_is_answered_all_the_same(make: Make) -> None:
    client = make()
    begun, fresh = client.open_reply(b"{}"), client.open_reply(b"{}")
    await push(client, begun, "one ")
    killer, second, first = await asyncio.gather(
        tokenize(client, DIE), push(client, begun, "two"), push(client, fresh, "new"), return_exceptions=True
    )
    assert isinstance(killer, ChatCrashed)
    assert (second, first) == ("two", "new")
    assert (await finish(client, begun), await finish(client, fresh)) == ("one two", "new")


async def test_a_push_whose_process_dies_once_is_answered_by_the_next_one(make: Make, tmp_path: Path) -> None:
    client = make(once=str(tmp_path / "died"))
    reply = client.open_reply(b"{}")
    await push(client, reply, "one ")
    assert await push(client, reply, DIE_ONCE) == DIE_ONCE
    assert await finish(client, reply) == f"one {DIE_ONCE}"


async def test_a_push_that_kills_the_process_twice_fails_alone(make: Make) -> None:
    restarts: list[str] = []
    client = make(restarts=restarts)
    fatal, other = client.open_reply(b"{}"), client.open_reply(b"{}")
    await push(client, other, "one ")
    killer, text = await asyncio.gather(push(client, fatal, DIE), push(client, other, "two"), return_exceptions=True)
    assert isinstance(killer, ChatCrashed)
    assert text == "two"
    assert len(restarts) == 2


async def test_a_push_that_is_not_answered_in_time_fails(make: Make) -> None:
    client = make(call_timeout=0.4)
    await client.start()
    with pytest.raises(ChatCrashed, match="took more than"):
        await push(client, client.open_reply(b"{}"), HANG)


async def test_a_closed_reply_is_dropped_in_the_process(make: Make) -> None:
    client = make()
    reply = client.open_reply(b"{}")
    await push(client, reply, "one")
    await client.close_reply(reply)
    with pytest.raises(ChatRefused, match="is not open"):
        await push(client, reply, "two")


async def test_closing_a_reply_whose_process_is_gone_does_nothing(make: Make) -> None:
    client = make()
    reply = client.open_reply(b"{}")
    await push(client, reply, "one")
    await kill(client)
    await client.close_reply(reply)


# ---- stop -------------------------------------------------------------------------------------------------


async def test_stop_leaves_no_process_and_later_calls_are_refused(make: Make) -> None:
    client = make()
    await client.start()
    pid = client.pid
    await client.stop()
    assert not alive(pid)
    assert not client.ready
    with pytest.raises(ChatUnavailable, match="stopped"):
        await tokenize(client, "too late")


async def test_stop_ends_calls_in_flight_and_a_process_that_hangs(make: Make) -> None:
    client = make()
    await client.start()
    pid = client.pid
    calls = [asyncio.create_task(tokenize(client, text)) for text in (HANG, "behind it")]
    await asyncio.sleep(0)
    await client.stop()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ChatUnavailable] * 2
    assert not alive(pid)


async def test_stop_while_a_dead_process_is_being_replaced_ends_the_calls_that_waited_for_it(make: Make) -> None:
    restarting = asyncio.Event()
    client = make()
    client._on_restart = lambda reason: restarting.set()
    await client.start()
    call = asyncio.create_task(tokenize(client, DIE))
    await restarting.wait()
    await client.stop()
    with pytest.raises(ChatUnavailable, match="stopped"):
        await call
    assert not client.ready


async def test_stop_while_the_first_process_starts_leaves_none_behind(make: Make) -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    client = make()
    starting = asyncio.create_task(client.start())
    await asyncio.sleep(0)
    await client.stop()
    await starting
    assert client.pid is None
    assert children.read_text() == before
