"""When state that lives in slots is brought to RAM though nobody needs its place: pure decisions.

Should the worker die, all is lost that only slots hold.  So:

    a sequence that      is saved                                                     up to
    ---------------      --------                                                     -----
    computes a prompt    when half a checkpoint interval is not in RAM, where a       where it stands
                         sequence can be truncated anywhere
                         where it cannot: when a checkpoint has been taken, and a     that checkpoint
                         sixteenth of an interval below it is not in RAM
    decodes a reply      every `save_every` seconds                                   where it stands
                         where it cannot be truncated anywhere: a checkpoint is       that checkpoint
                         ordered `ahead` tokens on, and saved once it is taken
    is idle              once it has been for `save_after` seconds, one sequence      its end, with a checkpoint
                         after the other

A death costs what was computed since then: less than an interval of a prompt (and a sixteenth), `save_every` seconds
of a reply.  What is saved is copied by the worker in pieces between its steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.scheduler.policy import Policy

AHEAD = 64
"""Tokens: more than a worker decodes until it hears of an order, unless it is fast; then half a second's."""
SHARE = 4
"""What needs more than one part in so many of the prompt cache's memory is not saved before it has to be: it would push
out most of what is there."""


@dataclass(frozen=True)
class Live:
    """A sequence that holds tokens.  Lengths in tokens, times in seconds."""

    seq: int
    running: bool
    decoding: bool
    held: int
    exported: int
    """Of these, how many are in RAM, or under way; as many as were asked for, where that did not fit."""
    since: float
    """When its tail was saved last, or it began to run; when it was last used where it is idle."""
    checkpoint: int = 0
    """Position of the last checkpoint that was taken while it ran."""
    tail: int = 0
    """What lies behind this is the reply of a running one."""
    ahead: int = AHEAD
    """How far ahead of what is known of its reply a checkpoint is ordered."""


@dataclass(frozen=True)
class SaveFront:
    """Save the first `end` tokens of a running sequence."""

    seq: int
    end: int
    tail: bool
    """Whether this is what is due every `save_every` seconds."""


@dataclass(frozen=True)
class SaveIdle:
    """Save all that an idle sequence holds."""

    seq: int


@dataclass(frozen=True)
class OrderCheckpoint:
    """Let a running sequence take a checkpoint at `position`, which its reply has not reached."""

    seq: int
    position: int


Action = SaveFront | SaveIdle | OrderCheckpoint


def decide(live: Live, policy: Policy, rolls_back: bool, now: float) -> Action | None:
    """What is to be done for a sequence; that it is idle and others are being saved is the caller's affair."""
    if not live.running:
        due = policy.save_after > 0 and now >= live.since + policy.save_after
        return SaveIdle(live.seq) if due and live.held else None
    tail_due = live.decoding and policy.save_every > 0 and now >= live.since + policy.save_every
    if rolls_back:
        missing = live.held - live.exported
        if missing > 0 and (tail_due or missing >= max(1, policy.checkpoint_interval // 2)):
            return SaveFront(live.seq, live.held, tail_due)
        return None
    missing = live.checkpoint - live.exported
    if missing >= max(1, policy.checkpoint_interval // 16) or (missing > 0 and live.checkpoint > live.tail):
        return SaveFront(live.seq, live.checkpoint, tail=False)
    return OrderCheckpoint(live.seq, live.held + live.ahead) if tail_due else None


def next_moment(live: Live, policy: Policy, now: float) -> float | None:
    """When `decide` may answer otherwise though nothing has happened; None: never."""
    wait = policy.save_every if live.running else policy.save_after
    if wait <= 0:
        return None
    moment = live.since + wait
    if moment > now:
        return moment
    return now + wait if live.running and not live.decoding else None
