"""The processes: memory, CPU time and open files of the daemon, of the worker and of the chat process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector

from lcpd.metrics.definition import Definition, Topic

_FIGURES = (
    ("virtual_memory_bytes", "gauge", "bytes", "How much address space does it have?"),
    (
        "resident_memory_bytes",
        "gauge",
        "bytes",
        "How much RAM does it take, the arena and a mapped model included?",
    ),
    ("start_time_seconds", "gauge", "seconds", "Since when does it run (Unix time)?"),
    ("cpu_seconds_total", "counter", "seconds", "How much CPU time did it take?"),
    ("open_fds", "gauge", "files", "How many files and sockets has it open?"),
    ("max_fds", "gauge", "files", "How many may it have open?"),
)
PROCESSES = {"": "the daemon", "lcpd_worker": "the worker", "lcpd_chat": "the chat process"}


class ProcessFigures(Topic):
    """Those of prometheus_client under its names; `lcpd_worker_` and `lcpd_chat_` go before those of the others."""

    title = "Processes"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        for prefix, who in PROCESSES.items():
            for name, kind, unit, question in _FIGURES:
                full = f"{prefix}_process_{name}" if prefix else f"process_{name}"
                self.definitions.append(Definition(full, kind, unit, {}, question.replace(" it ", f" {who} ", 1)))
        ProcessCollector(registry=registry)

    def watch(self, prefix: str, pid: Callable[[], int | None]) -> None:
        """Show the figures of another process, whose id `pid` gives while there is one."""
        ProcessCollector(namespace=prefix, pid=lambda: str(pid()), registry=self._registry)
