"""In which order a daemon stops, and how long that may take, which the service manager is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lcpd.assembly import stopping
from lcpd.assembly.stopping import stop_within, stops
from lcpd.config.settings import Settings


def test_running_replies_get_the_time_that_the_settings_give_them_however_short_the_units_own_is() -> None:
    usual, patient = (Settings.model_validate({"server": {"drain_timeout": seconds}}) for seconds in (30, 3600))
    assert stop_within(usual) <= 120  # TimeoutStopSec of lcpd.service
    assert stop_within(patient) == stop_within(usual) + 3570


@pytest.mark.parametrize(
    ("parts", "order"),
    [
        ((), "sleeper chat supervisor"),
        (("disk",), "sleeper slots disk chat supervisor"),
        (
            ("disk", "carry_over", "prewarmer", "anticipator"),
            "sleeper prewarmer anticipator carry_over disk chat supervisor",
        ),
    ],
)
async def test_what_slots_hold_is_saved_before_the_disk_is_written_and_both_before_the_engine_goes(
    parts: tuple[str, ...], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    def part(name: str) -> Any:
        async def stop(*_: object) -> None:
            stopped.append(name)

        return SimpleNamespace(stop=stop, finish=stop)

    always = {name: part(name) for name in ("sleeper", "chat", "supervisor")}
    some = {name: part(name) if name in parts else None for name in ("disk", "anticipator", "carry_over", "prewarmer")}
    monkeypatch.setattr(stopping, "save_slots", part("slots").stop)
    context: Any = SimpleNamespace(dispatcher=None, disk=some["disk"], anticipator=some["anticipator"], **always)
    for stop in stops(context, some["carry_over"], some["prewarmer"]):
        await stop()
    assert stopped == order.split()
