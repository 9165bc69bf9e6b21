"""Who is to blame when the worker dies, and what becomes of those that ran: pure decisions, and the list of the guilty.

A request that was on a slot when the worker died is a *suspect* until it gets past where it stood then.  Suspects go
on one at a time (:mod:`lcpd.scheduler.decide`), so that the next death can tell who it was.

    the worker        while                                         then the request
    ----------        -----                                         ----------------
    dies of itself    others ran too                                suspect: goes on, before the others that are less so
    dies of itself    it ran alone, for the first time since it     the same
                      got past where it stood
    dies of itself    it ran alone, and it is its `FAULTS`th since  failed and quarantined
    was killed        others ran too                                suspect
    was killed        it ran alone, less than `KILLS` times since   suspect
    was killed        it ran alone, for the `KILLS`th time since    failed and quarantined
    any               it waited, parked or not                      goes on, not suspect

"Dies of itself": by any signal but SIGKILL, by an exit, by a hang, by nonsense on its channel, for want of memory.
SIGKILL comes from outside (an operator, a supervisor of the machine), so it says little about the request; it is
counted all the same, because the kernel kills so too where memory lacks, and a request that is behind this must come
to an end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from lcpd.scheduler.generation import Prompt

FAULTS = 2
KILLS = 20
QUARANTINE_SECONDS = 600.0
"""For so long a prompt that was found guilty is refused at once: the machine may have been at fault after all."""
_REMEMBERED = 256
KILLED = "killed"
"""The supervisor's word for a worker that was killed by somebody else."""


@dataclass(frozen=True)
class Record:
    """What speaks against a request."""

    stood: int = 0
    """Tokens of prompt and reply that were computed when the worker died, the most of all times."""
    faults: int = 0
    """Deaths of the worker by itself while this request ran, since it got past where it stood before."""
    kills: int = 0
    """Deaths by SIGKILL since then."""
    alone: int = 0
    """How many of these kills it saw alone."""

    @property
    def suspect(self) -> bool:
        """Whether it has not got past where it stood."""
        return self.faults > 0 or self.kills > 0

    @property
    def weight(self) -> tuple[int, int, int]:
        """The heavier, the more suspicious."""
        return self.faults, self.alone, self.kills


CLEAN = Record()


def after_death(record: Record, reached: int, cause: str, alone: bool) -> Record:
    """The record of a request that ran when the worker died, `reached` tokens on; see the module's table."""
    stood = max(record.stood, reached)
    if cause == KILLED:
        return Record(stood, record.faults, record.kills + 1, record.alone + alone)
    return Record(stood, record.faults + 1, record.kills, record.alone)


def guilty(record: Record, cause: str, alone: bool) -> bool:
    """Whether a request is to be failed whose record is this one after the worker died; see the module's table."""
    return alone and (record.alone >= KILLS if cause == KILLED else record.faults >= FAULTS)


def after_progress(record: Record, reached: int) -> Record:
    """The record of a request that has computed `reached` tokens of prompt and reply."""
    return CLEAN if record.suspect and reached > record.stood else record


def first_line(reason: str) -> str:
    """Why the engine is down, without the end of its log."""
    return reason.partition("\n")[0]


def fingerprint(prompt: Prompt) -> str:
    """What a prompt is known by when it is sent again: its tokens and its fields for the sampler."""
    digest = hashlib.blake2b(prompt.sampling, digest_size=16)
    digest.update(np.ascontiguousarray(prompt.tokens, "<i4").tobytes())
    return digest.hexdigest()


class Quarantine:
    """Owner of the prompts that were found guilty.  Times are monotonic seconds that come in from outside."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, name: str, now: float) -> None:
        """Refuse the prompt of this fingerprint from now on; the oldest is forgotten where there are too many."""
        self._until.pop(name, None)
        self._until[name] = now + QUARANTINE_SECONDS
        if len(self._until) > _REMEMBERED:
            del self._until[next(iter(self._until))]

    def seconds_left(self, prompt: Prompt, now: float) -> float:
        """For how long a prompt is still refused; 0 where it is not."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        if not self._until:
            return 0.0  # without hashing every prompt
        return max(0.0, self._until.get(fingerprint(prompt), now) - now)
