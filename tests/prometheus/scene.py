"""A day in a daemon's life within half a minute: agents that work, people that leave, and everything that goes wrong.

What the dashboards and alerts are to show has to happen first; each of these functions makes some of it happen.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from e2e.conftest import Daemon
from support import text_of

Json = dict[str, Any]

KEYS = {"ann": "key-of-ann", "ci": "key-of-ci", "prometheus": "key-of-prometheus"}
"""Names of API keys, and the keys."""
_ADMIN = "key-of-the-admin"
_LIMITS = {"ci": "priority=background rate=40/m"}
_AGENTS = {"claude-code": "claude-cli/2.0.1", "opencode": "opencode/1.0", "openai-sdk": "OpenAI/Python 3.0"}
"""Programs, and what they call themselves."""
_HEAD = "You are a careful engineer. " + text_of(250, seed=1)
_WORKER, _CHAT = "lcpd.engine.worker", "lcpd.chat.service"
_WITHIN = 60.0
"""Seconds for what is waited for."""


def settings(folder: Path, write_budget: str = "16MiB") -> dict[str, str]:
    """The environment of a daemon for which things get tight: little memory and disk, a short queue, no patience."""
    return {
        "LCPD_API_KEYS": "".join(f"{name} {key} {_LIMITS.get(name, '')}\n" for name, key in KEYS.items()),
        "LCPD_ADMIN_KEYS": f"admin {_ADMIN}\n",
        "LCPD_MODEL__SLOTS": "2",
        "LCPD_MODEL__CTX": "8192",
        "LCPD_SERVER__QUEUE_SIZE": "6",
        "LCPD_SCHEDULER__QUEUE_TIMEOUT": "2",
        "LCPD_ENGINE__RESTART_BACKOFF": "0.05",
        "LCPD_ENGINE__CRASH_LIMIT": "1000",
        "LCPD_CACHE__RAM": "8MiB",
        "LCPD_CACHE__SAVE_AFTER": "0.2",
        "LCPD_CACHE__CHECKPOINT_INTERVAL": "512",
        "LCPD_CACHE__DISK": "16MiB",
        "LCPD_CACHE__WRITE_BUDGET": write_budget,
        "LCPD_CACHE__DISK_FLOOR": "0",
        "LCPD_CACHE__DIR": str(folder / "prompts"),
    }


class Conversation:
    """One that grows, of one program with one key."""

    def __init__(self, url: str, client: httpx.AsyncClient, key: str, agent: str, seed: int, head: str = _HEAD) -> None:
        self._url = url
        self._client = client
        self._headers = {"Authorization": f"Bearer {KEYS[key]}", "User-Agent": _AGENTS[agent]}
        self._seed = seed
        self.messages: list[Json] = [{"role": "system", "content": head}]

    async def turn(self, words: int = 60, tokens: int = 24, leave_after: int | None = None) -> int:
        """Say so many words and hear so many tokens, or go away after some events; returns the status."""
        text = text_of(words, seed=100 * self._seed + len(self.messages))
        self.messages.append({"role": "user", "content": text})
        body = {"messages": self.messages, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        events = 0
        async with self._client.stream(
            "POST", f"{self._url}/v1/chat/completions", json=body, headers=self._headers
        ) as response:
            async for line in response.aiter_lines():
                events += line.startswith("data: ")
                if events == leave_after:
                    break
        self.messages.append({"role": "assistant", "content": "as you like"})
        return response.status_code


class Scene:
    """What can be done to a daemon."""

    def __init__(self, daemon: Daemon, client: httpx.AsyncClient) -> None:
        self._daemon = daemon
        self._client = client
        self._seed = 0

    def conversation(self, key: str = "ann", agent: str = "claude-code", head: str = _HEAD) -> Conversation:
        """A new one."""
        self._seed += 1
        return Conversation(self._daemon.url, self._client, key, agent, self._seed, head)

    async def work(self, turns: int = 3) -> None:
        """Three agents of two people work at once; they share a head, and one of them is in no hurry."""
        agents = [
            self.conversation("ann", "claude-code"),
            self.conversation("ann", "opencode"),
            self.conversation("ci", "openai-sdk"),
        ]
        for _ in range(turns):
            await asyncio.gather(*(agent.turn() for agent in agents))

    async def wander(self, conversations: int = 8) -> None:
        """Many that have nothing in common fill the memory, and then the first come back."""
        strangers = [self.conversation(head=text_of(400, seed=1000 + i)) for i in range(conversations)]
        for stranger in [*strangers, *strangers[:3]]:
            await stranger.turn(tokens=4)

    async def change_the_head(self) -> None:
        """As a date in the system text does."""
        for day in ("Monday", "Tuesday"):
            await self.conversation(head=f"Today is {day}. " + _HEAD).turn(tokens=4)

    async def forget(self) -> None:
        """An admin has all prompts removed, once there are some on the disk."""
        headers = {"Authorization": f"Bearer {_ADMIN}"}
        deadline = time.monotonic() + _WITHIN
        while not (await self._client.get(f"{self._daemon.url}/cache", headers=headers)).json()["disk"]["files"]:
            assert time.monotonic() < deadline, "nothing came to the disk"
            await asyncio.sleep(0.1)
        (await self._client.post(f"{self._daemon.url}/cache/purge", headers=headers)).raise_for_status()

    async def leave(self) -> None:
        """Clients that do not wait for the end, and one that does not wait for the beginning."""
        await self.conversation().turn(tokens=400, leave_after=3)
        one = asyncio.create_task(self.conversation(head=text_of(1500, seed=7)).turn())
        await asyncio.sleep(0.2)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)

    async def err(self) -> None:
        """Mistakes, a wrong key, and more than a key may ask for."""
        url, headers = self._daemon.url, {"Authorization": f"Bearer {KEYS['ann']}"}
        await self._client.post(f"{url}/v1/chat/completions", json={"messages": []}, headers=headers)
        await self._client.get(f"{url}/nowhere", headers=headers)
        await self._client.get(f"{url}/v1/models", headers={"Authorization": "Bearer wrong"})
        await asyncio.gather(*(self.conversation("ci", "openai-sdk").turn(tokens=1) for _ in range(45)))

    async def rush(self) -> None:
        """More than there are slots, and than may wait: some wait too long, some are turned away."""
        slow = [self.conversation("ci", "openai-sdk", text_of(50, i)) for i in range(2)]
        running = [asyncio.create_task(one.turn(words=20, tokens=2000)) for one in slow]
        await asyncio.sleep(0.5)
        many = [self.conversation(head=text_of(50, 10 + i)) for i in range(12)]
        await asyncio.gather(*(one.turn(words=20, tokens=2000) for one in many), *running)

    async def kill(self) -> None:
        """The worker and the chat process are killed while a reply is generated."""
        reply = asyncio.create_task(self.conversation().turn(tokens=200))
        await asyncio.sleep(0.5)
        for module in (_WORKER, _CHAT):
            os.kill(self._daemon.child(module), signal.SIGKILL)
        await reply

    async def crash_for_one_request(self) -> None:
        """A request during which the worker aborts, again and again, until it is quarantined."""
        request = asyncio.create_task(self.conversation(head="alone").turn(tokens=4000))
        deadline = time.monotonic() + _WITHIN
        killed = 0
        while not request.done() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            pid = self._working()
            if pid not in (0, killed):
                killed = pid
                os.kill(pid, signal.SIGABRT)
        await request

    def _working(self) -> int:
        """The pid of a worker that has loaded and computes; 0 while there is none."""
        health = self._daemon.health()
        return self._daemon.child(_WORKER) if health["status"] == "ok" and health["slots"]["busy"] else 0

    async def damage_memory(self) -> None:
        """What is kept in RAM changes behind the daemon's back, and has to come back from there."""
        one = self.conversation()
        await one.turn()
        await asyncio.sleep(1)
        flip_bytes(self._daemon.process.pid)
        os.kill(self._daemon.child(_WORKER), signal.SIGKILL)
        await one.turn()


def flip_bytes(pid: int) -> None:
    """Change a byte in every 512 of a daemon's arena."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if "lcpd-arena" not in str(link.readlink()):
            continue
        with link.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            for at in range(0, len(memory), 512):
                memory[at] ^= 1
        return
    raise AssertionError("the daemon has no arena")


@asynccontextmanager
async def scene_of(daemon: Daemon) -> AsyncIterator[Scene]:
    """To play with a daemon."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=_WITHIN, limits=limits) as client:
        yield Scene(daemon, client)


async def everything(daemon: Daemon) -> None:
    """All of it once, in an order in which each shows."""
    async with scene_of(daemon) as scene:
        for act in (
            *(scene.work, scene.change_the_head, scene.wander, scene.leave, scene.rush, scene.kill),
            *(scene.work, scene.damage_memory, scene.crash_for_one_request, scene.err, scene.forget),
        ):
            await act()


async def a_day(daemon: Daemon, end: float) -> None:
    """Mostly work, with pauses, and mishaps in between, until an instant (Unix time)."""
    async with scene_of(daemon) as scene:
        mishaps = itertools.cycle(
            (scene.change_the_head, scene.leave, scene.kill, scene.rush, scene.err, scene.wander, scene.damage_memory)
        )
        while time.time() < end:
            for _ in range(3):
                await scene.work()
                await asyncio.sleep(1)
            await next(mishaps)()
            await asyncio.sleep(2)
        await scene.crash_for_one_request()
        await scene.work()
