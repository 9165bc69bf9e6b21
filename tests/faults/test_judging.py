"""The check itself: a reply from another conversation's state does not pass, on the very prompts of the fault tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benchmarks.harm.load import Ask, Said
from benchmarks.harm.talk import Talk

from faults.judging import WrongToken, judge
from faults.kills import SHAPE
from oracle.process import Oracle

pytestmark = [pytest.mark.native, pytest.mark.faults]
CASES = 8


def said(oracle: Oracle, prompt: list[int], told: list[int], length: int) -> Said:
    """What the state of `told` says, as the reply to `prompt`."""
    return Said(Ask(prompt, length), 0.0, tokens=oracle.greedy(told, length))


def passes(oracle: Oracle, reply: Said) -> bool:
    try:
        judge(oracle, [reply], solo=False)
    except WrongToken:
        return False
    return True


def pairs(oracle: Oracle, seed: int, wrong: int) -> list[tuple[list[int], list[int]]]:
    """Prompts, and the same ones whose first tokens, but for the last `wrong`, are another conversation's."""
    found = []
    for number in range(CASES):
        prompt = oracle.tokenize(Talk(f"control {seed} {number}", SHAPE).next().prompt)
        other = oracle.tokenize(Talk(f"another {seed} {number}", SHAPE).next().prompt) * 4
        found.append((prompt, [*other[: len(prompt) - wrong], *prompt[-wrong:]]))
    return found


def test_replies_from_the_right_state_pass(oracles: Callable[[str], Oracle], seed: int) -> None:
    oracle = oracles("hybrid")
    assert all(passes(oracle, said(oracle, prompt, prompt, 60)) for prompt, _ in pairs(oracle, seed, 16))


def test_replies_from_another_conversations_state_do_not(oracles: Callable[[str], Oracle], seed: int) -> None:
    """All but the last 16 tokens, as if a checkpoint and segments were swapped; one in eight may be right by chance."""
    oracle = oracles("hybrid")
    passed = sum(passes(oracle, said(oracle, prompt, other, 60)) for prompt, other in pairs(oracle, seed, 16))
    assert passed <= CASES // 8


def test_replies_to_strangers_from_another_ones_state_do_not(
    oracles: Callable[[str], Oracle], stranger: Callable[[int], list[int]]
) -> None:
    oracle = oracles("hybrid")
    cases = [(stranger(number), stranger(number + 50)) for number in range(CASES)]
    replies = [said(oracle, mine, [*other[:-16], *mine[-16:]], 8) for mine, other in cases]
    assert sum(passes(oracle, reply) for reply in replies) <= CASES // 8
