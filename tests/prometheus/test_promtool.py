"""What promtool says of rules, configuration and metrics."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest

from prometheus import scene
from prometheus.conftest import Seen
from prometheus.prometheus_programs import Programs
from prometheus.prometheus_server import CONFIG, RULES

pytestmark = pytest.mark.prometheus


def promtool(programs: Programs, *arguments: str, text: str = "") -> str:
    """What it prints; AssertionError where it complains, also where it only warns."""
    done = subprocess.run([str(programs.promtool), *arguments], input=text, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_the_rules_are_clean(prometheus_programs: Programs) -> None:
    assert "SUCCESS" in promtool(prometheus_programs, "check", "rules", "--lint-fatal", str(RULES))


def test_the_configuration_is_valid_and_finds_the_rules(prometheus_programs: Programs) -> None:
    assert RULES.name in promtool(prometheus_programs, "check", "config", "--lint-fatal", str(CONFIG))


def test_alerts_fire_when_they_should_and_only_then(prometheus_programs: Programs) -> None:
    promtool(prometheus_programs, "test", "rules", str(Path(__file__).parent / "alerts.test.yml"))


@pytest.mark.native
def test_the_metrics_are_clean_after_all_that_can_happen(prometheus_programs: Programs, seen: Seen) -> None:
    headers = {"Authorization": f"Bearer {scene.KEYS['prometheus']}"}
    exposition = httpx.get(f"{seen.daemon.url}/metrics", headers=headers).text
    assert promtool(prometheus_programs, "check", "metrics", text=exposition) == ""
