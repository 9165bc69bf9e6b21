"""Every figure that lcpd exports, defined once, with its unit and the question it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lcpd import __version__
from lcpd.cache.cache import CacheStats
from lcpd.cache.figures import DISK_REASONS, DiskCounts, DiskStats
from lcpd.scheduler.report import MISSES

# Seconds; from a warm short prompt on a GPU to a cold 100K-token one on a CPU.
_LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Metrics:
    """One daemon's figures, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._refresh = _Refresh()
        self.registry.register(self._refresh)
        r = self.registry
        self.build = Info("lcpd_build", "Which lcpd and llama.cpp are these?", registry=r)
        self.build.info({"version": __version__})
        self.requests = Counter(
            "lcpd_requests",
            "How many requests ended, where, and how (HTTP status)?",
            ["endpoint", "code"],
            registry=r,
        )
        self.key_requests = Counter(
            "lcpd_key_requests",
            "How many requests of which API key (its name) ended, and how (HTTP status)?",
            ["key", "code"],
            registry=r,
        )
        self.key_refusals = Counter(
            "lcpd_key_refusals",
            "How many requests were refused because of an API key's limits, and of which: concurrency, rate?",
            ["key", "limit"],
            registry=r,
        )
        self.running = Gauge("lcpd_requests_running", "How many requests hold a slot?", registry=r)
        self.waiting = Gauge("lcpd_requests_waiting", "How many requests wait for a slot?", registry=r)
        self.time_to_first_token = Histogram(
            "lcpd_time_to_first_token_seconds",
            "How long from a request's arrival to its first token?",
            buckets=_LATENCY_BUCKETS,
            registry=r,
        )
        self.prefill = Histogram(
            "lcpd_prefill_seconds",
            "How long did computing a request's prompt take?",
            buckets=_LATENCY_BUCKETS,
            registry=r,
        )
        self.prompt_tokens = Counter(
            "lcpd_prompt_tokens",
            "Where did prompt tokens come from: computed, the slot itself (vram), another slot (shared), RAM (ram), or"
            " RAM after they were read from disk for this request (disk)?"
            " And how many were computed before anybody asked for them (anticipated)?",
            ["source"],
            registry=r,
        )
        for source in ("computed", "vram", "shared", "ram", "disk", "anticipated"):
            self.prompt_tokens.labels(source)
        self.prewarmed = Counter(
            "lcpd_prewarmed_tokens",
            "How many tokens of earlier conversations were brought back to slots before anybody asked for them"
            " (cache.prewarm)?",
            registry=r,
        )
        self.preemptions = Counter(
            "lcpd_preemptions",
            "How often was a running request parked, and for want of what: a slot, or cells?",
            ["reason"],
            registry=r,
        )
        for reason in ("slot", "cells"):
            self.preemptions.labels(reason)
        self.evictions = Counter("lcpd_slot_evictions", "How often was an idle slot emptied for its cells?", registry=r)
        self.queue_timeouts = Counter(
            "lcpd_queue_timeouts", "How many requests were given up because they waited too long?", registry=r
        )
        self.generation_tokens = Counter("lcpd_generation_tokens", "How many tokens were sampled?", registry=r)
        self.worker_restarts = Counter(
            "lcpd_worker_restarts", "How often was the worker started again, and why?", ["cause"], registry=r
        )
        for cause in ("crash", "killed", "hang", "memory", "start", "load", "internal"):
            self.worker_restarts.labels(cause)
        self.quarantined = Counter(
            "lcpd_requests_quarantined",
            "How many requests were failed because they crashed the worker twice?",
            registry=r,
        )
        self.sleeping = Gauge("lcpd_sleeping", "Has the worker been stopped to free its memory (1)?", registry=r)
        self.chat_restarts = Counter("lcpd_chat_restarts", "How often was the chat process started again?", registry=r)
        self.checkpoint_bytes = Counter(
            "lcpd_checkpoint_bytes", "How many bytes of checkpoints were taken?", registry=r
        )
        self.cache_misses = Counter(
            "lcpd_cache_misses",
            "How many prompt tokens were computed that more memory, or a prompt that goes on as one before, had spared,"
            " and why?",
            ["reason"],
            registry=r,
        )
        for reason in MISSES:
            self.cache_misses.labels(reason)
        self.cache_ram_used = Gauge(
            "lcpd_cache_ram_used_bytes", "How much of the prompt cache's memory (cache.ram) is in use?", registry=r
        )
        self.cache_bytes = Gauge(
            "lcpd_cache_bytes",
            "What is it in use for: segments, checkpoints, what commands in flight will write (reserved) or still read"
            " (lingering)?",
            ["kind"],
            registry=r,
        )
        self.cache_fragmentation = Gauge(
            "lcpd_cache_fragmentation_ratio",
            "Which share of its free memory lies outside of the largest free run?",
            registry=r,
        )
        self.cache_evictions = Counter(
            "lcpd_cache_evictions",
            "How many pieces were given up: segments and checkpoints for want of room, discarded because the engine"
            " found them damaged, corrupt where the daemon did, purged because an admin said so?",
            ["kind"],
            registry=r,
        )
        for kind in ("segment", "checkpoint", "discarded", "corrupt", "purged"):
            self.cache_evictions.labels(kind)
        self.restored_bytes = Counter(
            "lcpd_cache_restored_bytes", "How many bytes were brought back from RAM to slots?", registry=r
        )
        self.restore_seconds = Counter("lcpd_cache_restore_seconds", "How long did that take?", registry=r)
        self.saved_bytes = Counter("lcpd_cache_saved_bytes", "How many bytes were saved from slots to RAM?", registry=r)
        self.save_seconds = Counter("lcpd_cache_save_seconds", "How long did that take?", registry=r)
        self.copy_runs = Counter(
            "lcpd_copy_runs",
            "In how many runs of contiguous cells was state copied? The more, the slower.",
            registry=r,
        )
        self.disk_used = Gauge(
            "lcpd_cache_disk_used_bytes",
            "How much disk space (of cache.disk) does the prompt cache take up?",
            registry=r,
        )
        self.disk_files = Gauge("lcpd_cache_disk_files", "In how many files?", registry=r)
        self.disk_degraded = Gauge(
            "lcpd_cache_disk_degraded",
            "Does the prompt cache do without its disk (1), because it is full, read-only, in use or broken?",
            registry=r,
        )
        self.disk_queue = Gauge(
            "lcpd_cache_disk_queue", "How many conversations wait to be written to disk?", registry=r
        )
        self.disk_lag = Gauge(
            "lcpd_cache_disk_lag_seconds", "For how long has the first of them been waiting?", registry=r
        )
        self.disk_written_today = Gauge(
            "lcpd_cache_disk_written_today_bytes",
            "How much of cache.write_budget was used in the last 24 hours?",
            registry=r,
        )
        self.disk_written = Counter("lcpd_cache_disk_written_bytes", "How many bytes were written?", registry=r)
        self.disk_read = Counter("lcpd_cache_disk_read_bytes", "How many bytes were brought back to RAM?", registry=r)
        self.disk_read_seconds = Counter("lcpd_cache_disk_read_seconds", "How long did that take?", registry=r)
        self.disk_removed = Counter(
            "lcpd_cache_disk_removed",
            "How many files were removed, and why: room for others, expired, purged; or because they could not be used"
            " (see docs/cache.md)?",
            ["reason"],
            registry=r,
        )
        for reason in DISK_REASONS:
            self.disk_removed.labels(reason)
        self.disk_skipped = Counter(
            "lcpd_cache_disk_skipped",
            "How often was something not written: over cache.write_budget (budget), cache.disk (size) or below"
            " cache.disk_floor (floor), given up in RAM before its turn (gone), too much waiting (queue)?",
            ["reason"],
            registry=r,
        )
        for reason in ("budget", "size", "floor", "gone", "queue"):
            self.disk_skipped.labels(reason)
        self._shown = DiskCounts()
        self._dropped: dict[str, int] = {}

    def show_cache(self, stats: CacheStats) -> None:
        """Set the figures that tell what the prompt cache holds."""
        self.cache_ram_used.set(stats.used)
        self.cache_fragmentation.set(stats.fragmentation)
        self.cache_bytes.labels("segment").set(stats.segment_bytes)
        self.cache_bytes.labels("checkpoint").set(stats.checkpoint_bytes)
        self.cache_bytes.labels("reserved").set(stats.reserved_bytes)
        self.cache_bytes.labels("lingering").set(stats.lingering_bytes)
        for kind, count in stats.dropped.items():
            self.cache_evictions.labels(kind).inc(count - self._dropped.get(kind, 0))
        self._dropped = dict(stats.dropped)

    def show_disk(self, stats: DiskStats) -> None:
        """Set the figures that tell how the disk tier does."""
        self.disk_used.set(stats.used)
        self.disk_files.set(stats.files)
        self.disk_degraded.set(stats.state == "degraded")
        self.disk_queue.set(stats.queue)
        self.disk_lag.set(stats.lag)
        self.disk_written_today.set(stats.written_today)
        shown, counts = self._shown, stats.counts
        self.disk_written.inc(counts.written - shown.written)
        self.disk_read.inc(counts.read - shown.read)
        self.disk_read_seconds.inc(counts.read_seconds - shown.read_seconds)
        for reason, count in counts.removed.items():
            self.disk_removed.labels(reason).inc(count - shown.removed.get(reason, 0))
        for reason, count in counts.skipped.items():
            self.disk_skipped.labels(reason).inc(count - shown.skipped.get(reason, 0))
        self._shown = counts

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
