"""Every figure that lcpd exports, defined once: a module for each topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lcpd.cache.figures import DiskStats
from lcpd.metrics.cache import CacheFigures
from lcpd.metrics.clients import ClientFigures
from lcpd.metrics.definition import Topic
from lcpd.metrics.disk import DiskFigures
from lcpd.metrics.engine import EngineFigures
from lcpd.metrics.gpu import GpuFigures
from lcpd.metrics.info import InfoFigures
from lcpd.metrics.process import ProcessFigures
from lcpd.metrics.requests import RequestFigures
from lcpd.metrics.tokens import TokenFigures


class Metrics:
    """One daemon's figures, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._refresh = _Refresh()
        self.registry.register(self._refresh)
        self.requests = RequestFigures(self.registry)
        self.tokens = TokenFigures(self.registry)
        self.cache = CacheFigures(self.registry)
        self.disk = DiskFigures(self.registry)
        self.engine = EngineFigures(self.registry)
        self.clients = ClientFigures(self.registry)
        self.gpu = GpuFigures(self.registry)
        self.process = ProcessFigures(self.registry)
        self.info = InfoFigures(self.registry)

    @property
    def topics(self) -> list[Topic]:
        """All of them, in the order of the reference."""
        return [value for value in vars(self).values() if isinstance(value, Topic)]

    def show_disk(self, stats: DiskStats) -> None:
        """Set the figures that tell how the disk tier does, and what it holds."""
        self.disk.show(stats)
        self.cache.show_disk(stats)

    def at_scrape(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` whenever the figures are asked for, before they are read."""
        self._refresh.calls.append(refresh)


class _Refresh(Collector):
    """Has no figures of its own: the first in the registry, so that the others are up to date when it is their turn."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def collect(self) -> Iterable[Metric]:
        for call in self.calls:
            call()
        return ()
