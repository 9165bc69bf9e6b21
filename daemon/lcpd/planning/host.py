"""What conversations cost on the host: bytes in the prompt cache, and the time to have one back.

What a conversation keeps is decided where it is at work, too: :func:`lcpd.cache.checkpoints.plan` says where a prompt
leaves checkpoints, and :mod:`lcpd.planning.exported` what segments and checkpoints weigh.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.cache.checkpoints import minimum_gap, plan
from lcpd.config.settings import KvType
from lcpd.inspect.shape import ModelShape
from lcpd.planning.exported import checkpoint_bytes, segment_bytes

_MESSAGE = 1024
"""Tokens of a message of an agent's conversation, as supposed here."""
_HEAD = 0.25
"""Share of a conversation that is its system text and tools, as supposed here."""


@dataclass(frozen=True)
class Speeds:
    """Of the machine; the defaults are guesses of lcpd's own (scheduler/speeds.py, cache/retention.py)."""

    prefill: float
    """Tokens a second."""
    copy: float = 4e9
    """Bytes a second between the engine and RAM."""
    disk: float = 500e6
    """Bytes a second from disk."""


@dataclass(frozen=True)
class CachePolicy:
    """Settings of the prompt cache that decide about bytes."""

    ram: int
    """cache.ram, in bytes."""
    interval: int = 8192
    """cache.checkpoint_interval, in tokens."""
    checkpoints: int = 8
    """model.checkpoints: 0 for none at all."""


@dataclass(frozen=True)
class Conversation:
    """One conversation in the prompt cache.  Bytes and seconds."""

    tokens: int
    segments: int
    checkpoints: int
    """How many, the one at its end included."""
    checkpoint_bytes: int
    """Of all of them."""
    least: int
    """Bytes of it when room was needed: all segments, and the checkpoint at its end alone."""
    fit_in_ram: int
    """How many such conversations, none sharing anything, cache.ram holds."""
    fit_at_least: int
    """How many with no more than `least`."""
    cold: float
    """To compute it."""
    from_ram: float
    """To restore it: its segments, and the checkpoint at its end."""
    from_disk: float
    """To read that, and restore it."""

    @property
    def nbytes(self) -> int:
        return self.segments + self.checkpoint_bytes


def conversation(shape: ModelShape, kv: KvType, tokens: int, policy: CachePolicy, speeds: Speeds) -> Conversation:
    """What one conversation of so many tokens costs that was computed in one go and then put away."""
    segments = segment_bytes(shape, tokens, kv)
    each = checkpoint_bytes(shape, tokens, kv)
    count = _checkpoints(tokens, each, policy, speeds) if each and policy.checkpoints else 0
    total = segments + count * each
    back = segments + (each if count else 0)
    restorable = total > 0 and (not each or count > 0)
    return Conversation(
        tokens=tokens,
        segments=segments,
        checkpoints=count,
        checkpoint_bytes=count * each,
        least=back,
        fit_in_ram=policy.ram // total if restorable else 0,
        fit_at_least=policy.ram // back if restorable else 0,
        cold=tokens / speeds.prefill,
        from_ram=back / speeds.copy,
        from_disk=back / speeds.disk + back / speeds.copy,
    )


@dataclass(frozen=True)
class _Message:
    role: str
    begin: int
    length: int


def _checkpoints(tokens: int, each: int, policy: CachePolicy, speeds: Speeds) -> int:
    """Those that its prompt leaves, and the one that is taken when it is put away."""
    head = int(tokens * _HEAD)
    messages = [_Message("system", 0, head)]
    for number, begin in enumerate(range(head, tokens, _MESSAGE)):
        role = "assistant" if number % 2 else "user"
        messages.append(_Message(role, begin, min(_MESSAGE, tokens - begin)))
    positions = plan(
        messages,
        0,
        tokens,
        interval=policy.interval,
        limit=max(policy.checkpoints, tokens // policy.interval + 4),
        gap=minimum_gap(each, speeds.copy, speeds.prefill),
    )
    return len(positions) + 1
