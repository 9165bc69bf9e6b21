"""The other clients, headless, as ``lcpd connect CLIENT --apply`` configures them in an empty home."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients_run import connect, end_all_at_home, run_client
from clients_table import HEADLESS, WITH_TOOLS, Headless
from clients_traffic import Asked, Traffic

pytestmark = pytest.mark.clients
# The sum is in a prompt only when the command has really run.
ECHO = "echo lcpd-$((40 + 2))"
PREFILL = 8.0
"""Seconds; four times the patience that the clients are left with."""
BATCH = 64
"""Tokens that the scripted worker computes at a time."""


class Client:
    """A client with a home and a folder to work in."""

    def __init__(self, name: str, folder: Path) -> None:
        self.facts: Headless = HEADLESS[name]
        self._name = name
        self._program = str(self.facts.program())
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()

    async def connect(self, url: str) -> None:
        await connect(self._name, url, self.home)

    async def ask(self, text: str) -> str:
        """What is answered to the first text of a session."""
        return await self._run(*self.facts.first, text)

    async def ask_again(self, text: str) -> str:
        """What is answered to the next one of the same session."""
        return await self._run(*self.facts.again, text)

    async def _run(self, *arguments: str) -> str:
        return await run_client([self._program, *arguments], self.work, HOME=str(self.home), **self.facts.variables)

    def make_impatient(self) -> None:
        """Scale its patience down, which ``lcpd connect`` has set to half an hour."""
        for one in self.facts.impatience:
            file = self.home / one.file
            whole = value = json.loads(file.read_text())
            for key in one.place[:-1]:
                value = value[key]
            value[one.place[-1]] = one.value
            file.write_text(json.dumps(whole))

    def call(self, command: str) -> str:
        """A reply of the scripted worker that runs a command."""
        return f"<tool>{self.facts.tool} {json.dumps(self.facts.arguments(command))}</tool>"

    @property
    def offer(self) -> str:
        """What prompts of the conversation have in them, and those of titles and the like have not."""
        return f'"name":"{self.facts.tool}"' if self.facts.tool else ""

    def conversation(self, traffic: Traffic) -> list[Asked]:
        """The prompts of the conversation alone."""
        side = self.facts.side
        return [one for one in traffic(self.offer) if not side or side not in one.text]


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    yield Client(request.param, tmp_path)
    end_all_at_home(tmp_path / "home")


def each(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", names, indirect=True)


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
    asked, called = client.conversation(traffic)
    # The last token is always computed.
    assert called.reused >= asked.tokens - 1
    if not client.facts.again:
        return
    assert "Now too." in await client.ask_again("And now?")
    resumed = client.conversation(traffic)[-1]
    kept = called.text.partition(client.facts.forgets)[0] if client.facts.forgets else called.text
    assert resumed.reused >= len(kept.encode())


@each(list(HEADLESS))
async def test_it_waits_for_a_prefill_of_several_times_its_patience(start_scripted, monkeypatch, client):
    script = {"prefill_seconds": PREFILL / (client.facts.prompt / BATCH), "reply": "At last."}
    daemon = await start_scripted(script, server__heartbeat_interval=0.5)
    await client.connect(str(daemon.make_url("")))
    client.make_impatient()
    traffic = Traffic(daemon, monkeypatch)
    assert "At last." in await client.ask("Are you there?")
    # A client that hangs up and asks once more would find what was computed, and answer too.
    assert len(client.conversation(traffic)) == 1


@each(["claude-code"])
async def test_a_second_session_reuses_the_whole_head(start_scripted, monkeypatch, client):
    daemon = await start_scripted({"reply": "Yes."})
    traffic = Traffic(daemon, monkeypatch)
    await client.connect(str(daemon.make_url("")))
    await client.ask("Are you there?")
    await client.ask("Is anybody here?")
    first, second = client.conversation(traffic)
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
