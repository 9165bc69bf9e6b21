"""Conversations that outgrow the context.  Codex has tests of its own."""

from __future__ import annotations

import pytest
from clients_client import ECHO, Client, each
from clients_traffic import Traffic

pytestmark = pytest.mark.clients
SUMMARY = "The sum was printed."
# Claude Code looks for the outer mark, Qwen Code for the inner one.
COMPACTED = f"<summary><state_snapshot>{SUMMARY}</state_snapshot></summary>"
SECOND = "head -c 8000 /dev/zero | tr '\\0' y; echo second-$((40 + 2)); sleep 1"
ROOM = 16_000
"""Tokens beyond the first prompt; every byte is one."""


def replies(client: Client, first: int = 12_000) -> list[tuple[str, str]]:
    """Two tools fill the context, the first one with so many bytes; once there is a summary, it answers."""
    compaction = [(client.facts.compaction, COMPACTED)] if client.facts.compaction else []
    side = [(client.facts.side, "Nothing.")] if client.facts.side else []
    return [
        *side,
        *compaction,
        ("And now?", "Now too."),
        (SUMMARY, "It went on."),
        ("second-42", "It printed both."),
        ("lcpd-42", client.call(SECOND)),
        (client.offer, client.call(f"head -c {first} /dev/zero | tr '\\0' x; {ECHO}")),
        ("", "A title"),
    ]


@each(["claude-code", "pi", "cline"])
async def test_a_call_whose_result_does_not_fit_leads_to_a_compaction(start_scripted, monkeypatch, client):
    daemon = await start_scripted({"replies": replies(client)}, model__ctx=client.facts.prompt + ROOM)
    await client.connect(str(daemon.make_url("")))
    await refused(client, Traffic(daemon, monkeypatch))


@each(["opencode", "qwen-code"])
async def test_a_client_that_was_told_of_more_context_compacts_when_it_is_refused(start_scripted, monkeypatch, client):
    # These compact in time where they know the context; here only the server's word can tell.
    script = {"replies": replies(client)}
    large, daemon = await start_scripted(script), await start_scripted(script, model__ctx=client.facts.prompt + ROOM)
    await client.connect(str(large.make_url("")))
    client.move(large, daemon)
    await refused(client, Traffic(daemon, monkeypatch))


async def refused(client: Client, traffic: Traffic) -> None:
    """The second tool's result is refused; the session goes on all the same."""
    said = await client.ask("Print the sum", status=client.facts.refused)
    assert traffic.refused
    if not client.facts.compaction:
        # It leaves out what is old, without asking for a summary.
        assert "It printed both." in said
        return
    assert SUMMARY in client.conversation(traffic)[-1].text
    assert "Now too." in await client.ask_again("And now?")
    assert SUMMARY in client.conversation(traffic)[-1].text


@pytest.mark.parametrize(
    ("client", "room", "first"),
    [("claude-code", 40_000, 26_000), ("opencode", ROOM, 12_000), ("qwen-code", 38_000, 12_000), ("pi", ROOM, 12_000)],
    indirect=["client"],
)
async def test_near_the_end_of_the_context_it_compacts_in_time(start_scripted, monkeypatch, client, room, first):
    said = [(mark, "It did." if mark == "lcpd-42" else reply) for mark, reply in replies(client, first)]
    script = {"replies": said}
    daemon = await start_scripted(script, model__ctx=client.facts.prompt + room)
    await client.connect(str(daemon.make_url("")))
    traffic = Traffic(daemon, monkeypatch)
    await client.ask("Print the sum")
    assert "Now too." in await client.ask_again("And now?")
    assert SUMMARY in client.conversation(traffic)[-1].text
    assert not traffic.refused


@each(["aider"])
async def test_aider_says_that_a_prompt_is_too_long(start_scripted, monkeypatch, client):
    large, daemon = await start_scripted({}), await start_scripted({}, model__ctx=8192)
    await client.connect(str(large.make_url("")))
    client.move(large, daemon)
    traffic = Traffic(daemon, monkeypatch)
    said = await client.ask("long " * 2000)
    assert traffic.refused
    assert "hit a token limit" in said, said
