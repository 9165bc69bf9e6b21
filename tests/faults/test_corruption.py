"""Damaged files of a real store: each is found, counted by reason and computed again; no token is wrong.

The long form: ``python -m tests.faults --only corruption --corruptions 2000``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.harm.load import Ask, ask

from faults.corruption import INTERVAL, KINDS, corruptions, fill, settings
from faults.judging import judge
from faults.served import served
from oracle.process import Oracle

pytestmark = [pytest.mark.native, pytest.mark.faults]


async def test_every_damaged_file_is_found_counted_and_computed_again(
    oracles: Callable[[str], Oracle], seed: int, tmp_path: Path
) -> None:
    result = await corruptions(oracles("hybrid").tokenize, seed, count=22, conversations=22, folder=tmp_path)
    assert result.problems == []
    assert set(result.done) == set(KINDS)
    assert [said.error for said in result.replies if said.error] == []
    judge(oracles("hybrid"), result.replies, solo=False)


@pytest.mark.parametrize("how", ["zeroed", "truncated", "noise", "gone"])
async def test_a_damaged_index_is_removed_and_the_daemon_starts(
    oracles: Callable[[str], Oracle], how: str, seed: int, stranger: Callable[[int], list[int]], tmp_path: Path
) -> None:
    prompt = stranger(0)
    await fill(tmp_path, [prompt])
    database = tmp_path / "cache.db"
    data = bytearray(database.read_bytes())
    if how == "zeroed":
        data[:4096] = bytes(4096)
    elif how == "truncated":
        data = data[: len(data) // 3]
    elif how == "noise":
        draw = random.Random(seed)
        for _ in range(400):
            data[draw.randrange(100, len(data))] = draw.randrange(256)
    for left in tmp_path.glob("cache.db*"):
        left.unlink()
    if how != "gone":
        database.write_bytes(data)
    async with served("hybrid", **settings(tmp_path)) as daemon:
        said = await ask(daemon.client, daemon.url, Ask(prompt, 8))
        assert daemon.context.disk.stats().state == "ok"
    assert said.error == ""
    judge(oracles("hybrid"), [said])
    async with served("hybrid", **settings(tmp_path)) as daemon:
        again = await ask(daemon.client, daemon.url, Ask(prompt, 8))
    assert again.computed < said.prompt // 2, "nothing was stored after the index had been damaged"


async def test_files_of_an_undamaged_store_are_all_used(stranger: Callable[[int], list[int]], tmp_path: Path) -> None:
    """The control: without damage nothing is computed again but what lies behind the last checkpoint."""
    prompts = [stranger(number) for number in range(4)]
    await fill(tmp_path, prompts)
    async with served("hybrid", **settings(tmp_path)) as daemon:
        replies = [await ask(daemon.client, daemon.url, Ask(prompt, 8)) for prompt in prompts]
        stats = daemon.context.disk.stats()
    assert [said.error for said in replies] == [""] * 4
    assert all(said.computed <= INTERVAL for said in replies), [said.computed for said in replies]
    assert not any(stats.counts.removed.values()), stats
