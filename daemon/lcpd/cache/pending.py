"""What is to be written to disk, and when: token paths, not pieces.  Pure.

What of a path is to be written is found out when it is due, so a path may go on, be cut or be given up meanwhile: a
conversation that goes on every few seconds leaves a checkpoint on disk every `MOST` seconds instead of one each turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lcpd.cache.trie import common_prefix
from lcpd.engine.protocol import Tokens

WAIT = 5.0
"""Seconds for which a path has to stay as it is before its end is written."""
MOST = 30.0
"""Seconds after which it is written even if it goes on."""
_DAY = 86400.0
_HOUR = 3600.0


@dataclass(eq=False)
class _Path:
    tokens: Tokens
    first: float
    """When it came in."""
    last: float
    """When something of it came in last."""
    due: float


class PendingPaths:
    """Paths that wait to be written.  Times in seconds, on any clock that only goes forward."""

    def __init__(self, limit: int) -> None:
        """`limit`: paths."""
        self._limit = limit
        self._paths: list[_Path] = []
        self.dropped = 0
        """Paths that there was no room for: each time the one that would have been written last."""

    def __len__(self) -> int:
        return len(self._paths)

    def note(self, tokens: Tokens, now: float, at_once: bool) -> None:
        """State of this path came in.  A path that it goes on from waits for no write of its own any more."""
        path = _Path(tokens, now, now, now if at_once else now + WAIT)
        kept = []
        for other in self._paths:
            if not _is_prefix(other.tokens, tokens) and not _is_prefix(tokens, other.tokens):
                kept.append(other)
                continue
            path.first = min(path.first, other.first)
            if len(other.tokens) > len(path.tokens):
                path.tokens = other.tokens
            if other.due <= now:
                path.due = now
        path.due = min(path.due, path.first + MOST)
        kept.append(path)
        if len(kept) > self._limit:
            kept.remove(max(kept, key=lambda one: one.due))
            self.dropped += 1
        self._paths = kept

    def take(self, now: float) -> Tokens | None:
        """The path that has been due longest; None where none is."""
        due = min(self._paths, key=lambda path: path.due, default=None)
        if due is None or due.due > now:
            return None
        self._paths.remove(due)
        return due.tokens

    def all_due(self) -> None:
        """Nothing waits any longer.

        What came in last is written last: after a restart the times of the files tell which conversation that was.
        """
        for path in self._paths:
            path.due = path.last

    def next_due(self) -> float | None:
        """When the next one is due; None: there is none."""
        return min((path.due for path in self._paths), default=None)

    def lag(self, now: float) -> float:
        """For how long the oldest one has been waiting."""
        return max((now - path.first for path in self._paths), default=0.0)

    def clear(self) -> None:
        """Forget all of them."""
        self._paths.clear()


def _is_prefix(front: Tokens, tokens: Tokens) -> bool:
    size = len(front)
    if not 0 < size <= len(tokens) or front[0] != tokens[0] or front[-1] != tokens[size - 1]:
        return False
    return common_prefix(front, tokens) == size


class WriteBudget:
    """Bytes that may be written in any 24 hours, counted by the hour."""

    def __init__(self, limit: int) -> None:
        """`limit`: 0 = none."""
        self._limit = limit
        self._hours: deque[tuple[int, int]] = deque()

    def note(self, size: int, at: float) -> None:
        """So many bytes were written at that time."""
        hour = int(at // _HOUR)
        self._set_back(hour)
        if self._hours and self._hours[-1][0] >= hour:
            last, count = self._hours.pop()
            self._hours.append((last, count + size))
        else:
            self._hours.append((hour, size))

    def spent(self, now: float) -> int:
        """Bytes of the last 24 hours."""
        self._set_back(int(now // _HOUR))
        while self._hours and (self._hours[0][0] + 1) * _HOUR <= now - _DAY:
            self._hours.popleft()
        return sum(size for _, size in self._hours)

    def _set_back(self, hour: int) -> None:
        """What a clock that was wrong says was written after that hour counts as written in it, not for years."""
        later = 0
        while self._hours and self._hours[-1][0] > hour:
            later += self._hours.pop()[1]
        if later:
            earlier = self._hours.pop()[1] if self._hours and self._hours[-1][0] == hour else 0
            self._hours.append((hour, earlier + later))

    def allows(self, size: int, now: float) -> bool:
        """Whether so much may be written now."""
        return not self._limit or self.spent(now) + size <= self._limit


def worth_writing(checkpoints: Sequence[tuple[int, bool]], there: Sequence[int], gap: int) -> list[int]:
    """Which checkpoints of a path are to be written: positions, ascending.

    `checkpoints`: position of each, ascending, and whether paths part there; `there`: positions of those on disk.  The
    last two are (the end of a reply, and where the message before it ends: templates that write the reply otherwise
    into the history make the next turn resume there), and where paths part; of the others, those that come `gap`
    tokens or more behind the one before.
    """
    chosen: list[int] = []
    for index, (position, forks) in enumerate(checkpoints):
        before = max((at for at in (*there, *chosen) if at < position), default=0)
        near_end = index >= len(checkpoints) - 2
        if position not in there and (near_end or forks or position - before >= gap):
            chosen.append(position)
    return chosen
