"""The disk tier of the prompt cache."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from lcpd.cache.figures import DISK_REASONS, DiskStats
from lcpd.metrics.definition import Topic


class DiskFigures(Topic):
    """See the module."""

    title = "Disk tier"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.files = self.gauge("lcpd_cache_disk_files", "files", "In how many files is the prompt cache on disk?")
        self.degraded = self.gauge(
            "lcpd_cache_disk_degraded",
            "",
            "Does the prompt cache do without its disk (1), because it is full, read-only, in use or broken?",
        )
        self.queue = self.gauge(
            "lcpd_cache_disk_queue", "conversations", "How many conversations wait to be written to disk?"
        )
        self.lag = self.gauge(
            "lcpd_cache_disk_lag_seconds",
            "seconds",
            "For how long has the first of them been waiting? What a power cut now would lose is younger.",
        )
        self.written_today = self.gauge(
            "lcpd_cache_disk_written_today_bytes", "bytes", "How much was written in the last 24 hours?"
        )
        self.budget = self.gauge(
            "lcpd_cache_disk_write_budget_bytes",
            "bytes",
            "How much may be written in 24 hours (cache.write_budget)? 0: no limit.",
        )
        self.written = self.total("lcpd_cache_disk_written_bytes_total", "bytes", "How many bytes were written?")
        self.read = self.total("lcpd_cache_disk_read_bytes_total", "bytes", "How many bytes were brought back to RAM?")
        self.read_seconds = self.total("lcpd_cache_disk_read_seconds_total", "seconds", "How long did that take?")
        self.removed = self.total(
            "lcpd_cache_disk_removed_total",
            "files",
            "How many files were removed, and why: room for others, expired, purged; or because they could not be used"
            " (see docs/cache.md)?",
            {"reason": DISK_REASONS},
        )
        self.skipped = self.total(
            "lcpd_cache_disk_skipped_total",
            "pieces",
            "How often was something not written: over cache.write_budget (budget), cache.disk (size) or below"
            " cache.disk_floor (floor), given up in RAM before its turn (gone), too much waiting (queue)?",
            {"reason": ("budget", "size", "floor", "gone", "queue")},
        )

    def show(self, now: DiskStats) -> None:
        """How the disk tier does."""
        self.files.set(now.files)
        self.degraded.set(now.state == "degraded")
        self.queue.set(now.queue)
        self.lag.set(now.lag)
        self.written_today.set(now.written_today)
        self.budget.set(now.budget)
        counts = now.counts
        self.written.show(counts.written)
        self.read.show(counts.read)
        self.read_seconds.show(counts.read_seconds)
        for reason, count in counts.removed.items():
            self.removed.show(count, reason)
        for reason, count in counts.skipped.items():
            self.skipped.show(count, reason)
