"""Commands keep their order, and heavy ones are done piece by piece."""

from __future__ import annotations

import sys

from lcpd.engine.commands import CommandQueue


class Script:
    """Commands that note what they do."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def command(self, name: str, pieces: int = 0):
        self.done.append(f"{name} begins")
        for i in range(pieces):
            yield
            self.done.append(f"{name}{i}")
        self.done.append(f"{name} ends")


def test_a_light_command_is_done_at_once():
    script, queue = Script(), CommandQueue()
    queue.add(script.command("a"))
    assert script.done == ["a begins", "a ends"]
    assert not queue


def test_a_light_command_waits_for_heavy_ones_before_it():
    script, queue = Script(), CommandQueue()
    queue.add(script.command("a", pieces=2))
    queue.add(script.command("b"))
    assert script.done == ["a begins"]
    queue.advance(pieces=1)
    assert script.done[1:] == ["a0"]
    queue.advance(pieces=1)
    assert script.done[2:] == ["a1", "a ends", "b begins", "b ends"]


def test_after_a_piece_the_next_heavy_command_waits_for_another_turn():
    script, queue = Script(), CommandQueue()
    queue.add(script.command("a", pieces=1))
    queue.add(script.command("b", pieces=1))
    queue.advance(pieces=1)
    assert script.done == ["a begins", "a0", "a ends", "b begins"]
    queue.advance(pieces=0)
    assert len(script.done) == 4
    queue.advance(pieces=1)
    assert not queue


def test_with_time_all_is_done_at_once_and_without_it_one_piece():
    script, queue = Script(), CommandQueue()
    queue.add(script.command("a", pieces=3))
    queue.advance(pieces=sys.maxsize, seconds=0.0)
    assert script.done == ["a begins", "a0"]
    queue.advance(pieces=sys.maxsize, seconds=60.0)
    assert not queue
