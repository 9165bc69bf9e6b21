"""kill -9 of the daemon under load: each next one is ready, says nothing wrong, and finds what was flushed.

The long form: ``python -m tests.faults --only daemon --daemon-kills 50``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from faults.judging import judge
from faults.kills import LOSS_WINDOW, daemon_kills
from oracle.process import Oracle

pytestmark = [pytest.mark.native, pytest.mark.faults]


async def test_after_each_kill_the_daemon_is_ready_and_what_was_flushed_is_found(
    oracles: Callable[[str], Oracle], seed: int, tmp_path: Path
) -> None:
    result = await daemon_kills(seed, kills=3, folder=tmp_path, life=(2.0, 4.0))
    assert result.errors == []
    assert result.kills == 3
    assert result.probes, "no reply was finished before any of the kills"
    assert any(probe.intervals_found for probe in result.long_probes), result.probes
    assert max(result.loss_window, result.tail_window) < LOSS_WINDOW, result
    judge(oracles("hybrid"), [*result.replies, *result.again], solo=False)
