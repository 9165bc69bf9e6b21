"""A few fixed seeds of the random traces, and that the check notices a wrong state by far.

``python -m tests.differential`` runs other seeds, for longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from differential.judge import NOISE, judge
from differential.play import cache_of, play
from differential.trace import Setup, make
from e2e.e2e_parts import Parts, Reply, follow, running_parts
from lcpd.cache.arena import checksum
from lcpd.cache.cache import PromptCache
from lcpd.cache.payloads import TARGET, Payload
from lcpd.engine import protocol as p
from lcpd.scheduler.generation import Prompt
from lcpd.scheduler.slots import Span
from oracle.process import Oracle
from oracle.tables import table
from support import model_path

pytestmark = pytest.mark.native
SEEDS = [*(("hybrid", seed) for seed in range(1, 5)), *(("recurrent", seed) for seed in (1, 2)), ("attention", 1)]
SEEDS.append(("swa", 1))
ROUNDS = {"hybrid": 24, "recurrent": 20, "attention": 3, "swa": 4}
FAR = 3.0
"""How far a reply from a wrong state misses, over delta."""


@pytest.fixture(scope="module")
def oracles() -> Iterator[Callable[[str], Oracle]]:
    running: dict[str, Oracle] = {}

    def get(kind: str) -> Oracle:
        if kind not in running:
            running[kind] = Oracle(model_path(kind), ctx=4096).__enter__()
        return running[kind]

    yield get
    for oracle in running.values():
        oracle.__exit__()


@pytest.mark.parametrize(("kind", "seed"), SEEDS)
async def test_every_reply_is_what_a_cold_solo_replay_would_say(
    oracles: Callable[[str], Oracle], kind: str, seed: int
) -> None:
    oracle = oracles(kind)
    played = await play(make(seed, kind, ROUNDS[kind]), oracle.tokenize)
    judge(oracle, played.replies)
    assert played.seen["resumed"] > 0
    _seen[kind] += played.seen


_seen: dict[str, Counter[str]] = {kind: Counter() for kind in ROUNDS}


def test_the_traces_did_what_they_are_there_for() -> None:
    """After the tests above."""
    hybrid = _seen["hybrid"]
    wanted = ("resumed", "restored", "saved", "parked", "checkpoints", "cancelled")
    assert all(hybrid[what] for what in wanted), hybrid
    assert _seen["recurrent"]["checkpoints"]


# ---- negative controls -------------------------------------------------------------------------------------

CONTROLS = [
    *((kind, ("segment",)) for kind in ("hybrid", "attention")),
    *((kind, ("checkpoint",)) for kind in ("hybrid", "recurrent")),
    # With another text's window alone the layers that see everything still copy the right lines.
    ("swa", ("segment", "checkpoint")),
]
_TOKENS = {"hybrid": 160, "recurrent": 160, "attention": 100, "swa": 100}


@pytest.mark.parametrize(("kind", "what"), CONTROLS)
async def test_a_reply_from_another_conversations_state_misses_by_far(
    oracles: Callable[[str], Oracle], kind: str, what: tuple[str, ...]
) -> None:
    oracle = oracles(kind)
    bound = max(oracle.delta, NOISE)
    sections = Setup(kind, slots=1, ctx=1024, batch=64, ram=256 << 20, interval=64, follow_min=64).sections()
    async with running_parts(kind, **sections) as parts:

        async def second_turn(seeds: Sequence[int], wrong: bool) -> Reply:
            (first, again), (other, _), (third, _) = (_two_turns(oracle, seed, _TOKENS[kind]) for seed in seeds)
            begun = [await _ask(parts, prompt, 4) for prompt in (first, other)]
            await _ask(parts, third, 4)  # from one slot each pushes the one before out to RAM
            if wrong:
                paths = ([*reply.prompt, *reply.tokens[:-1]] for reply in begun)
                _swap(cache_of(parts), *paths, what)
            reply = await _ask(parts, [*first, *begun[0].tokens, *again], 16)
            started = parts.of(p.Started)[-1]
            assert (started.problem, started.begin > len(first)) == ("", True), started
            return reply

        right = await second_turn((1, 2, 3), wrong=False)
        assert oracle.gap(right.prompt, right.tokens) < bound
        worst = 0.0
        for first in (4, 14, 24, 34, 44, 54):  # what one text makes of a wrong state can be right by chance
            if worst <= FAR * bound:
                wrong = await second_turn((first, first + 1, first + 2), wrong=True)
                worst = max(worst, oracle.least_gap(wrong.prompt, wrong.tokens))
        assert worst > FAR * bound


def _two_turns(oracle: Oracle, seed: int, length: int) -> tuple[list[int], list[int]]:
    """A prompt of just so many tokens, and what is asked next: to repeat its last lines."""
    lines = table(seed + 7000, 40).splitlines()[:40]
    special = oracle.tokenize("")
    # The first one is its own: a slot that shares as little as that with the next prompt is not saved when it is short.
    tokens = [300 + seed, *special, *oracle.tokenize("\n".join(lines))[len(special) + 1 - length :]]
    return tokens, oracle.tokenize(f"\n\n{lines[-6]}\n")[len(special) :]


async def _ask(parts: Parts, tokens: list[int], length: int) -> Reply:
    spans = (Span("user", 0, len(tokens) - 2), Span("assistant", len(tokens) - 2, 2))
    sampling = b'{"temperature": 0, "ignore_eos": true}'
    reply = await follow(parts.dispatcher.submit(Prompt(np.array(tokens, np.int32), spans, sampling, length)))
    await parts.until(lambda: cache_of(parts).stats().reserved_bytes == 0, "all is saved")
    return reply


def _swap(cache: PromptCache, victim: list[int], other: list[int], what: Sequence[str]) -> None:
    """Put the state of another path of equal length in place of what the cache holds, so that checksums agree."""
    mine_at, theirs_at = _payloads(cache, victim, what), _payloads(cache, other, what)
    same = [at for at in mine_at if at in theirs_at and mine_at[at].bytes == theirs_at[at].bytes]
    assert same, f"{mine_at} and {theirs_at} have nothing in common"
    for mine, theirs in ((mine_at[at], theirs_at[at]) for at in same):
        source, target = cache._store.arena.view(theirs.piece.extent), cache._store.arena.view(mine.piece.extent)
        target[:] = source
        mine.parts[TARGET] = p.Piece(mine.piece.extent, checksum(target))


def _payloads(cache: PromptCache, tokens: list[int], what: Sequence[str]) -> dict[tuple[str, int], Payload]:
    """What the cache holds along a path, by kind and by where it ends."""
    path: Any = cache._trie.match(np.array(tokens, np.int32)).nodes
    found = {("segment", node.covers_end): node.segment for node in path}
    found |= {("checkpoint", node.end): node.checkpoint for node in path}
    return {at: payload for at, payload in found.items() if payload is not None and at[0] in what}
