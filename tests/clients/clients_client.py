"""A client with a home and a folder to work in, as ``lcpd connect CLIENT --apply`` configures it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient
from clients_run import RUN_WITHIN, connect, run_client
from clients_table import HEADLESS, Headless
from clients_traffic import Asked, Traffic

# The sum is in a prompt only when the command has really run.  On a busy machine Qwen Code 0.24.4 loses what a command
# printed that ends at once.
ECHO = "echo lcpd-$((40 + 2)); sleep 1"


class Client:
    """One of `HEADLESS`, with folders below `folder`; the test is skipped where it is not installed."""

    def __init__(self, name: str, folder: Path) -> None:
        self.facts: Headless = HEADLESS[name]
        self.name = name
        self._program = str(self.facts.program())
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir(parents=True)
        self.work.mkdir()

    async def connect(self, url: str) -> None:
        await connect(self.name, url, self.home)

    async def ask(self, text: str, within: float = RUN_WITHIN, status: int = 0) -> str:
        """What is answered to the first text of a session."""
        return await self._run(*self.facts.first, text, within=within, status=status)

    async def ask_again(self, text: str, within: float = RUN_WITHIN) -> str:
        """What is answered to the next one of the same session."""
        return await self._run(*self.facts.again, text, within=within)

    async def _run(self, *arguments: str, within: float = RUN_WITHIN, status: int = 0) -> str:
        more = {"HOME": str(self.home), **self.facts.variables}
        return await run_client([self._program, *arguments], self.work, within, status, **more)

    def make_impatient(self) -> None:
        """Scale its patience down, which ``lcpd connect`` has set to half an hour."""
        for one in self.facts.impatience:
            file = self.home / one.file
            whole = value = json.loads(file.read_text())
            for key in one.place[:-1]:
                value = value[key]
            value[one.place[-1]] = one.value
            file.write_text(json.dumps(whole))

    def forget_patience(self) -> None:
        """Leave it the patience that it comes with; AssertionError where ``lcpd connect`` sets other names."""
        if not self.facts.config:
            return
        file = self.home / self.facts.config
        text = file.read_text()
        for name in self.facts.patience:
            text, found = re.subn(rf'^\s*"?{name}"?\s*[:=].*\n', "", text, flags=re.MULTILINE)
            assert found, f"{name} is not in {file.name}"
        # JSON has no comma before the end of an object.
        file.write_text(re.sub(r",(\s*})", r"\1", text))

    def move(self, old: TestClient, new: TestClient) -> None:
        """Point it at another daemon; all else that it was told, such as the length of the context, stays."""
        for file in filter(Path.is_file, self.home.rglob("*")):
            text = file.read_bytes()
            file.write_bytes(text.replace(f":{old.port}".encode(), f":{new.port}".encode()))

    def call(self, command: str) -> str:
        """A reply of the scripted worker that runs a command."""
        return f"<tool>{self.facts.tool} {json.dumps(self.facts.arguments(command))}</tool>"

    @property
    def offer(self) -> str:
        """What prompts of the conversation have in them, and those of titles and the like have not."""
        return f'"name":"{self.facts.tool}"' if self.facts.tool else self.facts.own

    def conversation(self, traffic: Traffic) -> list[Asked]:
        """The prompts of the conversation alone."""
        side = self.facts.side
        return [one for one in traffic(self.offer) if not side or side not in one.text]


def each(names: list[str]) -> pytest.MarkDecorator:
    """A test that gets each of these as its `client`."""
    return pytest.mark.parametrize("client", names, indirect=True)
