"""The prompt cache outlives the daemon where a service manager keeps its memory.

A stand-in for systemd listens on a notification socket, keeps the descriptor that it is sent, and passes it to the next
daemon as descriptor 3.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.conftest import READY_WITHIN, Daemon, _free_port
from lcpd.cache.arena import Arena
from lcpd.cache.index import Index, IndexArea, decode, front_size
from support import MODELS, text_of

pytestmark = pytest.mark.native

RAM = 256 << 20
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid());"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


class ManagedDaemon(Daemon):
    """``lcpd serve`` as a service manager starts it; `kept`: the descriptor that it passes."""

    def __init__(self, log: Path, address: str, kept: int | None, *flags: str, **environment: str) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        serve = ["-m", "lcpd", "serve", "--port", str(self.port), "--threads", "1", *flags]
        given = {**os.environ, "OMP_NUM_THREADS": "1", "LCPD_CACHE__RAM": str(RAM), "NOTIFY_SOCKET": address}
        command = [sys.executable, *serve]
        if kept is not None:
            given.update(LISTEN_FDS="1", LISTEN_FDNAMES="lcpd-arena")
            command = [sys.executable, "-c", LAUNCH, str(kept), *serve]
        pass_fds = () if kept is None else (kept,)
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**given, **environment}, pass_fds=pass_fds
            )

    def tokens(self, source: str) -> int:
        """Prompt tokens so far that came from there."""
        families = text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text)
        samples = [s for f in families for s in f.samples if s.name == "lcpd_prompt_tokens_total"]
        return sum(int(s.value) for s in samples if s.labels["source"] == source)


class ServiceManagerStandIn:
    """Keeps one descriptor, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = str(folder / "notify")
        self.told: list[str] = []
        self.kept: int | None = None
        self.daemons: list[ManagedDaemon] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._sock, 1 << 16, 8)
            lines = data.decode().split("\n")
            if lines == ["end"]:
                return
            if "FDSTOREREMOVE=1" in lines:
                self._forget()
            for descriptor in descriptors:
                if self.kept is not None and os.path.sameopenfile(self.kept, descriptor):
                    os.close(descriptor)
                    continue
                assert "FDNAME=lcpd-arena" in lines
                assert self.kept is None, "one more than FileDescriptorStoreMax"
                self.kept = descriptor
            self.told.extend(lines)

    def _forget(self) -> None:
        if self.kept is not None:
            os.close(self.kept)
            self.kept = None

    def start(self, *flags: str, wait: str = "ok", **environment: str) -> ManagedDaemon:
        self.told.clear()
        log = self._folder / f"daemon-{len(self.daemons)}.log"
        daemon = ManagedDaemon(log, self.address, self.kept, *flags, **environment)
        self.daemons.append(daemon)
        daemon.wait_for(wait)
        self.wait_until_told("READY=1")
        return daemon

    def wait_until_told(self, line: str) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while line not in self.told:
            assert time.monotonic() < deadline, self.told
            time.sleep(0.02)

    def arena(self) -> Arena:
        """The memory that is kept."""
        assert self.kept is not None
        return Arena.adopt(os.dup(self.kept), RAM, front_size(RAM))

    def listed(self) -> Index:
        """What the last list in it says."""
        with closing(self.arena()) as arena:
            return decode(IndexArea(arena.front).read())

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.stop(signal.SIGKILL)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"end", self.address)
        self._thread.join()
        self._sock.close()
        self._forget()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManagerStandIn]:
    manager = ServiceManagerStandIn(tmp_path)
    yield manager
    manager.close()


def kill(daemon: ManagedDaemon) -> None:
    """As systemd does it: the next daemon begins when no process of this one is left."""
    children = daemon.children()
    daemon.stop(signal.SIGKILL)
    for child in children:
        while Path(f"/proc/{child}").exists():
            time.sleep(0.01)


def count(begin: int, end: int) -> str:
    return ", ".join(map(str, range(begin, end)))


# Counting on leaves no ties that the last bits of a logit could decide.
TURNS = (count(1, 120), "I see.", "Count!", count(1, 60) + ",")
SMALL = ("--ctx", "4096", "--slots", "1")


def said(response: httpx.Response) -> str:
    message = response.json()["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


def cached(response: httpx.Response) -> int:
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def cold(start_daemon):
    """What a daemon says that never saw the conversation before."""

    def ask(*flags: str) -> str:
        daemon = start_daemon(*flags)
        text = said(daemon.chat(*TURNS))
        daemon.stop()
        return text

    return ask


@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"])
def test_after_a_planned_restart_the_next_turn_resumes_from_ram_and_says_the_same(kind, manager, cold):
    flags = (*SMALL, "--model", MODELS[kind], "--flash-attn", "off")
    first = manager.start(*flags)
    assert cached(first.chat(*TURNS[:1])) == 0
    assert first.stop() == 0, first.log
    assert "STOPPING=1" in manager.told
    second = manager.start(*flags)
    assert "the prompt cache was kept" in second.log
    answer = second.chat(*TURNS)
    assert cached(answer) > 200
    assert second.tokens("ram") == cached(answer)
    assert said(answer) == cold(*flags)


def test_the_cache_goes_on_from_daemon_to_daemon(manager):
    for life in range(3):
        daemon = manager.start(*SMALL)
        assert (cached(daemon.chat(text_of(300))) > 200) == (life > 0)
        assert daemon.stop() == 0, daemon.log


def test_after_kill_9_what_was_listed_is_used_and_the_rest_is_computed(manager, cold):
    first = manager.start(*SMALL)
    first.chat(*TURNS[:1])
    first.chat(text_of(300, seed=1))  # takes the slot: the first conversation goes to RAM
    deadline = time.monotonic() + 60
    while not any(entry.segment for entry in manager.listed().entries):
        assert time.monotonic() < deadline, first.log
        time.sleep(0.1)
    kill(first)
    second = manager.start(*SMALL)
    answer = second.chat(*TURNS)
    assert cached(answer) > 200
    assert said(answer) == cold(*SMALL)
    assert second.chat(text_of(300, seed=1)).status_code == 200


def test_extents_that_were_used_again_after_the_last_list_are_not_believed(manager, cold):
    first = manager.start(*SMALL)
    first.chat(*TURNS[:1])
    assert first.stop() == 0
    with closing(manager.arena()) as arena:
        stale = bytes(arena.front)
    second = manager.start(*SMALL)
    for seed in range(4):
        second.chat(text_of(300, seed=seed))
    assert second.stop() == 0
    with closing(manager.arena()) as arena:
        used = max(piece.extent.offset for e in manager.listed().entries for piece in (e.segment or {}).values())
        assert used > 0
        arena.front[:] = stale
    third = manager.start(*SMALL)
    assert said(third.chat(*TURNS)) == cold(*SMALL)


def test_another_kv_type_begins_cold_and_says_why(manager):
    flags = (*SMALL, "--flash-attn", "on")
    first = manager.start(*flags, "--kv", "f16")
    first.chat(*TURNS[:1])
    assert first.stop() == 0
    second = manager.start(*flags, "--kv", "q8_0")
    assert "fingerprint changed: kv type (f16, now q8_0)" in second.log
    answer = second.chat(*TURNS)
    assert (answer.status_code, cached(answer)) == (200, 0)


def test_memory_that_changed_meanwhile_is_computed_again(manager, cold):
    first = manager.start(*SMALL)
    first.chat(*TURNS[:1])
    assert first.stop() == 0
    with closing(manager.arena()) as arena:
        pieces = [
            p for e in manager.listed().entries for part in (e.segment, e.checkpoint) for p in (part or {}).values()
        ]
        assert pieces
        for piece in pieces:
            assert arena.claim(piece.extent)
            arena.view(piece.extent)[piece.extent.size // 2] ^= 0x40
    second = manager.start(*SMALL)
    answer = second.chat(*TURNS)
    assert cached(answer) == 0
    assert said(answer) == cold(*SMALL)
    assert "damaged" in second.log


def test_a_list_that_changed_meanwhile_is_not_used(manager, cold):
    first = manager.start(*SMALL)
    first.chat(*TURNS[:1])
    assert first.stop() == 0
    with closing(manager.arena()) as arena:
        for at in range(4096, len(arena.front), 97):
            arena.front[at] ^= 0xFF
    second = manager.start(*SMALL)
    assert "the list of the prompt cache that was kept is not used" in second.log
    answer = second.chat(*TURNS)
    assert cached(answer) == 0
    assert said(answer) == cold(*SMALL)


def test_an_arena_of_another_size_is_replaced(manager):
    first = manager.start(*SMALL)
    first.chat(*TURNS[:1])
    assert first.stop() == 0
    second = manager.start(*SMALL, LCPD_CACHE__RAM=str(RAM // 2))
    assert f"it has {RAM} bytes, cache.ram is {RAM // 2}" in second.log
    assert cached(second.chat(*TURNS)) == 0
    assert manager.kept is not None
    assert os.fstat(manager.kept).st_size == RAM // 2


def test_children_see_nothing_of_the_service_manager(manager):
    daemon = manager.start(*SMALL)
    assert daemon.stop() == 0
    daemon = manager.start(*SMALL)
    for child in daemon.children():
        environment = Path(f"/proc/{child}/environ").read_bytes()
        assert b"NOTIFY_SOCKET" not in environment
        assert b"LISTEN_" not in environment
