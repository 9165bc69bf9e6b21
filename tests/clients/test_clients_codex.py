"""What Codex alone has, or can be asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from clients_client import ECHO
from clients_run import end, environment, run_client
from clients_table import HEADLESS

pytestmark = pytest.mark.clients
CONFIG = """
model = "{model}"
model_provider = "lcpd"
model_context_window = {window}
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.lcpd]
name = "lcpd"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = {idle_ms}
"""
FREELY = "--dangerously-bypass-approvals-and-sandbox"


class Codex:
    """Codex in a folder of its own."""

    def __init__(
        self, folder: Path, url: str, model: str = "fake", window: int = 400_000, idle_ms: int = 60_000
    ) -> None:
        self._program = str(HEADLESS["codex"].program())
        self._home = folder / "codex-home"
        self.work = folder / "work"
        self._home.mkdir()
        self.work.mkdir()
        config = CONFIG.format(url=url, model=model, window=window, idle_ms=idle_ms)
        (self._home / "config.toml").write_text(config)

    async def run(self, *arguments: str) -> list[dict]:
        """The events of ``codex exec``."""
        command = [self._program, "exec", "--json", "--skip-git-repo-check", FREELY, *arguments]
        output = await run_client(command, self.work, CODEX_HOME=str(self._home))
        return list(map(json.loads, output.splitlines()))

    @asynccontextmanager
    async def app_server(self) -> AsyncIterator[AppServer]:
        """A process that goes through several turns of one thread, as the terminal interface does."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            "app-server",
            cwd=self.work,
            env=environment(self.work, CODEX_HOME=str(self._home)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 24,
            start_new_session=True,
        )
        try:
            yield AppServer(process)
        finally:
            await end(process)


class AppServer:
    """JSON-RPC, one message a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = count(1)
        self._thread = ""

    async def start(self) -> None:
        """Begin a thread."""
        await self._ask("initialize", {"clientInfo": {"name": "tests", "version": "1"}})
        self._send({"method": "initialized"})
        started = await self._ask("thread/start", {"approvalPolicy": "never", "sandbox": "danger-full-access"})
        self._thread = started["result"]["thread"]["id"]

    async def turn(self, text: str) -> str:
        """What is answered to a text; the error where the turn fails."""
        return await self._work("turn/start", input=[{"type": "text", "text": text}])

    async def compact(self) -> str:
        """As `turn`, for a compaction."""
        return await self._work("thread/compact/start")

    async def _work(self, method: str, **params: object) -> str:
        await self._ask(method, {"threadId": self._thread, **params})
        said = ""
        while (message := await self._next()).get("method") != "turn/completed":
            item = message.get("params", {}).get("item", {})
            said = item["text"] if item.get("type") == "agentMessage" else said
        turn = message["params"]["turn"]
        return turn["error"]["message"] if turn["error"] else said

    async def _ask(self, method: str, params: dict) -> dict:
        number = next(self._ids)
        self._send({"id": number, "method": method, "params": params})
        while (message := await self._next()).get("id") != number:
            pass
        return message

    def _send(self, message: dict) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _next(self) -> dict:
        assert self._process.stdout
        return json.loads(await asyncio.wait_for(self._process.stdout.readline(), 60))


async def scripted(start_scripted, folder: Path, script: dict, idle_ms: int = 60_000, **changes: object) -> Codex:
    """Codex with a daemon whose worker follows a script."""
    client = await start_scripted(script, **changes)
    window = int(str(changes.get("model__ctx", 400_000)))
    model = str(changes.get("model__alias", "fake"))
    return Codex(folder, str(client.make_url("")), model, window, idle_ms)


def call(name: str, **arguments: str) -> str:
    """A reply of the scripted worker that thinks and calls a tool."""
    return f"<think>I have a plan.</think><tool>{name} {json.dumps(arguments)}</tool>"


def items(events: list[dict], kind: str) -> list[dict]:
    return [e["item"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == kind]


def answer(events: list[dict]) -> str:
    return items(events, "agent_message")[-1]["text"]


def usage(events: list[dict]) -> dict:
    """Of all turns of the session up to now."""
    return next(event["usage"] for event in events if event["type"] == "turn.completed")


async def test_its_free_form_tool_gets_its_text(start_scripted, tmp_path):
    patch = '*** Begin Patch\n*** Add File: new.txt\n+it says "hé"\n*** End Patch'
    replies = [("Success.", "Written."), ("", call("apply_patch", input=patch))]
    # It offers the tool to models that it knows.
    codex = await scripted(start_scripted, tmp_path, {"replies": replies}, model__alias="gpt-5.5", model__ctx=900_000)
    assert answer(await codex.run("Write the file")) == "Written."
    assert (codex.work / "new.txt").read_text() == 'it says "hé"\n'


async def test_a_tool_of_its_namespace_is_found(start_scripted, tmp_path):
    # The tool itself complains of the id; a name that Codex does not know is an "unsupported call".
    replies = [
        ("unsupported call", "There is no such tool."),
        ("invalid agent id", "There is no such agent."),
        ("", call("multi_agent_v1__close_agent", target="nobody")),
    ]
    codex = await scripted(start_scripted, tmp_path, {"replies": replies})
    assert answer(await codex.run("Close it")) == "There is no such agent."


async def test_it_waits_for_a_prefill_of_several_times_its_patience(start_scripted, tmp_path):
    script = {"prefill_seconds": 0.02, "reply": "At last."}
    codex = await scripted(start_scripted, tmp_path, script, idle_ms=2000, server__heartbeat_interval=0.5)
    assert answer(await codex.run("Hello")) == "At last."


async def test_it_compacts_when_the_usage_nears_the_context(start_scripted, tmp_path):
    replies = [
        ("CHECKPOINT COMPACTION", "We ran it."),
        ("lcpd-42", "It printed the sum."),
        ("Another", "Fresh."),
        ("", call("exec_command", cmd=f"yes line | head -c 15000; {ECHO}")),
    ]
    codex = await scripted(start_scripted, tmp_path, {"replies": replies}, model__ctx=52_000)
    assert answer(await codex.run("Print it")) == "It printed the sum."
    assert answer(await codex.run("resume", "--last", "Another one")) == "Fresh."


async def test_a_prompt_that_is_too_long_is_told_and_a_compaction_gets_round_it(start_scripted, tmp_path):
    replies = [("CHECKPOINT COMPACTION", "We talked."), ("", "Yes.")]
    client = await start_scripted({"replies": replies}, model__ctx=60_000)
    # A window that was set too large: only the server's word can tell.
    codex = Codex(tmp_path, str(client.make_url("")), window=200_000)
    async with codex.app_server() as server:
        await server.start()
        assert await server.turn("Are you there? " * 1000) == "Yes."
        assert "ran out of room in the model's context window" in await server.turn("long " * 8000)
        # The first attempt does not fit either; Codex leaves out the oldest items until one does.
        assert "ran out of room" not in await server.compact()
