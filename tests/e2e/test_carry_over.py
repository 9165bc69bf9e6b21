"""The prompt cache outlives the daemon where a service manager keeps its memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from e2e.service_manager import RAM, ManagedDaemon, ServiceManagerStandIn
from support import MODELS, text_of

pytestmark = pytest.mark.native


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
