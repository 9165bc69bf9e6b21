"""What else the machine does: other processes' CPU time, which spoils measurements by far more than its share."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import Server

OTHERS_LIMIT = 0.1
"""Share of one core that all other processes may use during a round.

llama.cpp's threads wait for each other some hundred times a token, so one of them losing its core for a moment stops
all of them: a background job on two cores was seen to slow decoding down to a tenth.
"""
_QUIET_WINDOW = 0.5
"""Seconds over which the machine has to be quiet before a round."""


@dataclass(frozen=True)
class Usage:
    """CPU seconds used since some fixed instant, and when that was read (monotonic seconds)."""

    instant: float
    everything: float
    """By all processes, and time that the hypervisor gave to other machines."""
    ours: float


def usage(servers: Sequence[Server]) -> Usage:
    """The state now; `ours` is the servers and this process."""
    ours = sum(server.cpu_seconds() for server in servers) + time.process_time()
    return Usage(time.monotonic(), busy_seconds(Path("/proc/stat").read_text()), ours)


def others_share(before: Usage, after: Usage) -> float:
    """How much of one core other processes used in between; 1 is a whole core."""
    others = (after.everything - before.everything) - (after.ours - before.ours)
    return max(0.0, others / (after.instant - before.instant))


def wait_until_quiet(servers: Sequence[Server], patience: float) -> None:
    """Wait until other processes use next to nothing, but not much longer than `patience` seconds."""
    give_up = time.monotonic() + patience
    while True:
        before = usage(servers)
        time.sleep(_QUIET_WINDOW)
        after = usage(servers)
        if others_share(before, after) <= OTHERS_LIMIT or after.instant >= give_up:
            return


def busy_seconds(stat: str) -> float:
    """From the first line of /proc/stat (proc(5)): user, nice, system, irq, softirq and steal."""
    fields = [int(field) for field in stat.split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
