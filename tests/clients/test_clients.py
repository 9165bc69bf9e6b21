"""The clients, headless, as ``lcpd connect CLIENT --apply`` configures them in an empty home."""

from __future__ import annotations

import json

import pytest
from clients_client import ECHO, each
from clients_table import BUT_CODEX, WITH_TOOLS
from clients_traffic import Traffic, exactly

pytestmark = pytest.mark.clients
PREFILL = 8.0
"""Seconds; four times the patience that the clients are left with."""
BATCH = 64
"""Tokens that the scripted worker computes at a time."""


@each(WITH_TOOLS)
async def test_a_tool_runs_and_every_prompt_goes_on_from_all_of_the_one_before(start_scripted, monkeypatch, client):
    side = [(client.facts.side, "Nothing.")] if client.facts.side else []
    replies = [
        *side,
        ("And now?", "Now too."),
        ("lcpd-42", "It printed the sum."),
        (client.offer, client.call(ECHO)),
        ("", "A title"),
    ]
    daemon = await start_scripted({"replies": replies})
    traffic = Traffic(daemon, monkeypatch)
    await client.connect(str(daemon.make_url("")))
    assert "It printed the sum." in await client.ask("Print the sum")
    asked, called = exactly(2, client.conversation(traffic))
    # The last token is always computed.
    assert called.reused >= asked.tokens - 1
    if not client.facts.again:
        return
    assert "Now too." in await client.ask_again("And now?")
    resumed = client.conversation(traffic)[-1]
    kept = called.text.partition(client.facts.forgets)[0] if client.facts.forgets else called.text
    assert resumed.reused >= len(kept.encode())


@each(BUT_CODEX)
async def test_it_waits_for_a_prefill_of_several_times_its_patience(start_scripted, monkeypatch, client):
    script = {"prefill_seconds": PREFILL / (client.facts.prompt / BATCH), "reply": "At last."}
    daemon = await start_scripted(script, server__heartbeat_interval=0.5)
    await client.connect(str(daemon.make_url("")))
    client.make_impatient()
    traffic = Traffic(daemon, monkeypatch)
    assert "At last." in await client.ask("Are you there?")
    # A client that hangs up and asks once more would find what was computed, and answer too.
    exactly(1, client.conversation(traffic))


@each(["claude-code"])
async def test_a_second_session_reuses_the_whole_head(start_scripted, monkeypatch, client):
    daemon = await start_scripted({"reply": "Yes."})
    traffic = Traffic(daemon, monkeypatch)
    await client.connect(str(daemon.make_url("")))
    await client.ask("Are you there?")
    await client.ask("Is anybody here?")
    first, second = exactly(2, client.conversation(traffic))
    assert second.reused >= len(first.text.partition("Are you there?")[0].encode())


@each(["claude-code"])
async def test_so_does_one_with_the_settings_that_it_comes_with(start_scripted, monkeypatch, client):
    # It begins each prompt with a line of its own for billing, with another value in every session.
    daemon = await start_scripted({"reply": "Yes."})
    traffic = Traffic(daemon, monkeypatch)
    address = {"ANTHROPIC_BASE_URL": str(daemon.make_url("")), "ANTHROPIC_AUTH_TOKEN": "x", "ANTHROPIC_MODEL": "fake"}
    settings = client.home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"env": address}))
    await client.ask("Are you there?")
    await client.ask("Is anybody here?")
    first, second = exactly(2, client.conversation(traffic))
    assert second.reused >= len(first.text.partition("Are you there?")[0].encode())


@each(["aider"])
async def test_aider_edits_a_file_and_goes_on(start_scripted, monkeypatch, client):
    reply = "new.txt\n```\nlcpd\n```\n"
    daemon = await start_scripted({"replies": [("And now?", "Nothing more."), ("", reply)]})
    traffic = Traffic(daemon, monkeypatch)
    await client.connect(str(daemon.make_url("")))
    await client.ask("Write the file")
    assert (client.work / "new.txt").read_text() == "lcpd\n"
    assert "Nothing more." in await client.ask_again("And now?")
    first, second = traffic()
    # Only the head: earlier turns come before what it says of files, and its instructions are repeated at the end.
    assert second.reused >= len(first.text.partition("I am not sharing any files")[0].encode())
