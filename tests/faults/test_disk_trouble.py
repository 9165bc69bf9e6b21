"""Full, failing and read-only disks: the daemon goes on in RAM alone, says so, and uses the disk again afterwards."""

from __future__ import annotations

import asyncio
import errno
import gc
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from benchmarks.harm.daemon import metric
from benchmarks.harm.load import Ask, Said, ask

from fakes.api import until
from faults.corruption import fill, settings
from faults.disk_trouble import KINDS, FailingStore
from faults.judging import judge
from faults.served import Served, served
from oracle.process import Oracle

pytestmark = [pytest.mark.native, pytest.mark.faults]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FailingStore]]:
    """The daemons of this test have this store."""
    monkeypatch.setattr("lcpd.assembly.storage.DiskStore", FailingStore)
    FailingStore.works()
    FailingStore.failures = 0
    yield FailingStore
    FailingStore.works()


async def say(daemon: Served, prompt: list[int]) -> Said:
    said = await ask(daemon.client, daemon.url, Ask(prompt, 8))
    assert said.error == ""
    return said


async def health(daemon: Served) -> dict:
    async with httpx.AsyncClient() as client:
        response = await client.get(f"{daemon.url}/health")
    assert response.status_code == 200, "a disk that fails keeps nobody from being served"
    return response.json()


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_disk_that_cannot_be_written_degrades_to_ram_and_says_so(
    failing: type[FailingStore],
    oracles: Callable[[str], Oracle],
    kind: str,
    stranger: Callable[[int], list[int]],
    tmp_path: Path,
) -> None:
    failing.writing = KINDS[kind]
    async with served("hybrid", **settings(tmp_path)) as daemon:
        disk = daemon.context.disk
        first = await say(daemon, stranger(0))
        await until(lambda: failing.failures > 0)
        await until(lambda: disk.stats().state == "degraded")
        report = await health(daemon)
        assert report["disk"]["status"] == "degraded"
        assert report["disk"]["reason"]
        exposition = (await daemon.client.get(f"{daemon.url}/metrics")).text
        assert metric(exposition, "lcpd_cache_disk_degraded") == 1
        again = await say(daemon, stranger(0))
        assert again.computed < first.prompt // 2, "RAM and slots work on"
        assert not list(tmp_path.glob("*/*.blob")), "half-written files are left"
        failing.works()
        await until(lambda: disk.stats().state == "ok", seconds=60)
        await say(daemon, stranger(1))
    async with served("hybrid", **settings(tmp_path)) as daemon:
        later = await say(daemon, stranger(1))
        assert later.computed < later.prompt // 2, "what was written after the disk had recovered is not used"
    judge(oracles("hybrid"), [first, again, later])


async def test_files_that_cannot_be_read_are_computed_again_and_counted(
    failing: type[FailingStore], oracles: Callable[[str], Oracle], stranger: Callable[[int], list[int]], tmp_path: Path
) -> None:
    prompts = [stranger(number) for number in range(4)]
    await fill(tmp_path, prompts)
    failing.reading = errno.EIO
    async with served("hybrid", **settings(tmp_path)) as daemon:
        replies = [await say(daemon, prompt) for prompt in prompts]
        removed = daemon.context.disk.stats().counts.removed
    assert removed.get("unreadable", 0) >= len(prompts), removed
    judge(oracles("hybrid"), replies)


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_disk_that_cannot_be_opened_keeps_nobody_from_starting(
    failing: type[FailingStore], kind: str, stranger: Callable[[int], list[int]], tmp_path: Path
) -> None:
    failing.opening = KINDS[kind]
    async with served("hybrid", **settings(tmp_path)) as daemon:
        await say(daemon, stranger(0))
        await until(lambda: daemon.context.disk.stats().state == "degraded")
        assert (await health(daemon))["disk"]["status"] == "degraded"
        failing.works()
        await until(lambda: daemon.context.disk.stats().state == "ok", seconds=60)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB, where this machine lets tests mount one."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "lcpd-faults", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here: ENOSPC and EROFS are tested with an injected store only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(file: Path) -> None:
    """Leave no space in a file system."""
    with file.open("wb", buffering=0) as out, suppress(OSError):
        while True:
            out.write(bytes(4096))


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


async def test_a_real_file_system_that_fills_up_is_lived_with(
    tiny_disk: Path, oracles: Callable[[str], Oracle], stranger: Callable[[int], list[int]]
) -> None:
    async with served("hybrid", **settings(tiny_disk)) as daemon:
        replies = [await say(daemon, stranger(number)) for number in range(10)]
        await daemon.context.disk.flush()
        stats = daemon.context.disk.stats()
    assert stats.state == "degraded", stats
    judge(oracles("hybrid"), replies)
    async with served("hybrid", **settings(tiny_disk)) as daemon:
        again = [await say(daemon, stranger(number)) for number in range(10)]
    judge(oracles("hybrid"), again)


async def test_a_real_file_system_that_others_fill_up_is_done_without_until_there_is_space_again(
    tiny_disk: Path, oracles: Callable[[str], Oracle], stranger: Callable[[int], list[int]]
) -> None:
    ballast = tiny_disk / "ballast"
    async with served("hybrid", **settings(tiny_disk)) as daemon:
        disk = daemon.context.disk
        replies = [await say(daemon, stranger(0))]
        await disk.flush()
        assert disk.stats().state == "ok"
        await asyncio.to_thread(fill_up, ballast)
        replies += [await say(daemon, stranger(1))]
        await until(lambda: disk.stats().state == "degraded", seconds=60)
        told = await health(daemon)
        assert told["disk"]["status"] == "degraded"
        assert told["disk"]["reason"].startswith("full: ")
        exposition = (await daemon.client.get(f"{daemon.url}/metrics")).text
        assert metric(exposition, "lcpd_cache_disk_degraded") == 1
        again = await say(daemon, stranger(1))
        assert again.computed < again.prompt // 2, "RAM and slots work on"
        ballast.unlink()
        await until(lambda: disk.stats().state == "ok", seconds=60)
        assert (await health(daemon))["disk"] == {"status": "ok"}
    judge(oracles("hybrid"), [*replies, again])
    async with served("hybrid", **settings(tiny_disk)) as daemon:
        known = await say(daemon, stranger(1))
    assert known.computed < known.prompt // 2, "what was computed while the disk was full did not get there later"


async def test_a_real_file_system_that_is_read_only_at_the_start_is_lived_with(
    tiny_disk: Path, oracles: Callable[[str], Oracle], stranger: Callable[[int], list[int]]
) -> None:
    """Under a running daemon the kernel refuses to make it read-only, because the index is open."""
    await fill(tiny_disk, [stranger(0)])
    gc.collect()  # the index's connection of the thread that wrote, which still has it open
    remount(tiny_disk, "ro")
    async with served("hybrid", **settings(tiny_disk)) as daemon:
        disk = daemon.context.disk
        replies = [await say(daemon, stranger(number)) for number in (0, 1)]
        assert disk.stats().state == "degraded"
        assert (await health(daemon))["disk"]["status"] == "degraded"
        remount(tiny_disk, "rw")
        await until(lambda: disk.stats().state == "ok", seconds=60)
    judge(oracles("hybrid"), replies)
    async with served("hybrid", **settings(tiny_disk)) as daemon:
        known = await say(daemon, stranger(1))
    assert known.computed < known.prompt // 2, "what was computed while the disk was read-only did not get there later"


async def test_files_deleted_under_a_running_daemon_are_computed_again(
    oracles: Callable[[str], Oracle], stranger: Callable[[int], list[int]], tmp_path: Path
) -> None:
    prompts = [stranger(number) for number in range(4)]
    await fill(tmp_path, prompts)
    async with served("hybrid", **settings(tmp_path)) as daemon:
        await until(lambda: daemon.context.disk.stats().state == "ok")
        for file in tmp_path.glob("*/*.blob"):
            await asyncio.to_thread(file.unlink)
        replies = [await say(daemon, prompt) for prompt in prompts]
        removed = daemon.context.disk.stats().counts.removed
    assert removed.get("missing", 0) >= len(prompts), removed
    judge(oracles("hybrid"), replies)
