"""How long a planned stop may take, which the service manager is told."""

from __future__ import annotations

from lcpd.app import stop_within
from lcpd.config.settings import Settings


def test_running_replies_get_the_time_that_the_settings_give_them_however_short_the_units_own_is() -> None:
    usual, patient = (Settings.model_validate({"server": {"drain_timeout": seconds}}) for seconds in (30, 3600))
    assert stop_within(usual) <= 120  # TimeoutStopSec of lcpd.service
    assert stop_within(patient) == stop_within(usual) + 3570
