"""kill -9 of the daemon under load: each next one is ready, says nothing wrong, and finds what was flushed.

The long form: ``python -m tests.faults --only daemon --daemon-kills 50``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from faults.judging import judge
from faults.kills import daemon_kills
from oracle.process import Oracle

pytestmark = [pytest.mark.native, pytest.mark.faults]
LOSS_WINDOW = 35.0
"""Seconds: a tail is saved after 30 s at most (cache.save_every), and then written."""


async def test_after_each_kill_the_daemon_is_ready_and_what_was_flushed_is_found(
    oracles: Callable[[str], Oracle], seed: int, tmp_path: Path
) -> None:
    result = await daemon_kills(seed, kills=3, folder=tmp_path, life=(3.0, 6.0))
    assert result.errors == []
    assert result.kills == 3
    assert result.probes, "no reply was finished before any of the kills"
    assert any(probe.found for probe in result.probes), result.probes
    assert result.loss_window < LOSS_WINDOW, result
    judge(oracles("hybrid"), [*result.replies, *result.again], solo=False)
