"""The plan of a daemon beside what its engine has allocated."""

from __future__ import annotations

import logging

from lcpd.engine.protocol import ModelInfo
from lcpd.metrics import Metrics
from lcpd.planning.compare import Row, compare
from lcpd.planning.loglines import Logged
from lcpd.planning.plan import MIB, MemoryPlan

log = logging.getLogger("lcpd")

TOLERANCE = 0.02
"""Share of the whole by which a plan may have been too small without a word in the log.  It may be too large: what is
estimated is meant to be, and a context that did not fit is made smaller."""


class LoadedMemory:
    """Compares after each load, and shows both in the metrics."""

    def __init__(self, plan: MemoryPlan | None = None, metrics: Metrics | None = None) -> None:
        self.plan = plan
        self.rows: list[Row] = []
        """Of the last load, the sum last; none before it, or where there is no plan."""
        self._metrics = metrics

    def on_model(self, info: ModelInfo) -> None:
        """The model is loaded."""
        if self.plan is None or not info.memory:
            return
        self.rows = compare(self.plan, Logged(info.memory))
        *parts, total = self.rows
        if self._metrics is not None:
            for row in parts:
                self._metrics.engine.memory.labels(row.name, "planned").set(row.planned)
                self._metrics.engine.memory.labels(row.name, "loaded").set(row.loaded)
        if total.loaded > (1 + TOLERANCE) * total.planned:
            log.warning(
                "the engine has allocated %.0f MiB, and %.0f MiB were planned: %s",
                total.loaded / MIB,
                total.planned / MIB,
                ", ".join(f"{row.name} {row.loaded / MIB:.0f} of {row.planned / MIB:.0f}" for row in parts),
            )
