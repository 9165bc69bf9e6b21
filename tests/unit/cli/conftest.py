"""What the tests of commands share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings and no files of the machine, and a wide terminal."""
    for variable in [name for name in os.environ if name.startswith("LCPD_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("LCPD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
