"""The prompt cache: what is kept, what it is good for, and why it is given up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from prometheus_client import CollectorRegistry

from lcpd.cache.figures import DAMAGES, DROPPED, Amount, DiskStats, RamFigures
from lcpd.cache.retention import Kind
from lcpd.metrics.definition import AGES, SIZES, Topic
from lcpd.scheduler.report import MISSES

KINDS: tuple[Kind, ...] = get_args(Kind)
RESULTS = ("hit", "partial", "miss")
_RAM_DAMAGES = ("discarded", "corrupt")
_TIER = {"tier": ("ram", "disk")}
_KIND = {"kind": KINDS}


class CacheFigures(Topic):
    """See the module."""

    title = "Prompt cache"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.lookups = self.counter(
            "lcpd_cache_lookups_total",
            "requests",
            "How many prompts computed only what is new (hit), some of what counts as missed in"
            " lcpd_cache_miss_tokens_total too (partial), or all they have (miss)?",
            {"result": RESULTS},
        )
        self.miss_tokens = self.counter(
            "lcpd_cache_miss_tokens_total",
            "tokens",
            "How many prompt tokens were computed that more memory, or a prompt that goes on as one before, had spared,"
            " and why (see docs/cache.md)?",
            {"reason": MISSES},
        )
        self.size = self.gauge(
            "lcpd_cache_size_bytes", "bytes", "How much may the prompt cache take (cache.ram, cache.disk)?", _TIER
        )
        self.used = self.gauge(
            "lcpd_cache_used_bytes", "bytes", "How much of that is in use, rounding and index included?", _TIER
        )
        self.bytes = self.gauge(
            "lcpd_cache_bytes",
            "bytes",
            "How many bytes are what: segments, checkpoints; in RAM also what commands in flight will write (reserved)"
            " or still read (lingering); in slots (vram) what their cells hold or are reserved for, at most?",
            {"tier": "vram, ram, disk", "kind": "segment, checkpoint, reserved, lingering"},
        )
        self.pieces = self.gauge(
            "lcpd_cache_pieces", "pieces", "How many segments and checkpoints are there?", {**_TIER, **_KIND}
        )
        self.conversations = self.gauge(
            "lcpd_cache_conversations", "conversations", "How many different endings do the kept token paths have?"
        )
        self.dedup = self.gauge(
            "lcpd_cache_dedup_ratio",
            "ratio",
            "How many times as many tokens would have to be kept if each of them were kept by itself? 1: no two have"
            " anything in common.",
        )
        self.fragmentation = self.gauge(
            "lcpd_cache_fragmentation_ratio",
            "ratio",
            "Which share of the free RAM of the prompt cache lies outside of its largest free run?",
        )
        self.evictions = self.total(
            "lcpd_cache_evictions_total",
            "pieces",
            "How many pieces went from RAM, and why: for want of room, discarded because the engine found them damaged,"
            " corrupt where the daemon did, purged because an admin said so?",
            {**_KIND, "reason": DROPPED},
        )
        self.lifetime = self.histogram(
            "lcpd_cache_lifetime_seconds",
            "seconds",
            "For how long had what was evicted for want of room been kept (by this daemon)?",
            AGES,
            _KIND,
        )
        self.idle = self.histogram(
            "lcpd_cache_idle_before_evict_seconds",
            "seconds",
            "For how long had nobody used what was evicted for want of room?",
            AGES,
            _KIND,
        )
        self.reuse_gap = self.histogram(
            "lcpd_cache_reuse_gap_seconds",
            "seconds",
            "How long after its last use was a kept path used again? What is evicted younger than that comes back. Less"
            " than 16 tokens do not count.",
            AGES,
        )
        self.checkpoint_size = self.histogram(
            "lcpd_checkpoint_size_bytes",
            "bytes",
            "How many checkpoints were taken (_count), and how large are they?",
            SIZES,
        )
        self.restored_bytes = self.counter(
            "lcpd_cache_restored_bytes_total", "bytes", "How many bytes were brought back from RAM to slots?"
        )
        self.restore_seconds = self.counter("lcpd_cache_restore_seconds_total", "seconds", "How long did that take?")
        self.saved_bytes = self.counter(
            "lcpd_cache_saved_bytes_total", "bytes", "How many bytes were saved from slots to RAM?"
        )
        self.save_seconds = self.counter("lcpd_cache_save_seconds_total", "seconds", "How long did that take?")
        self.copy_runs = self.counter(
            "lcpd_cache_copy_runs_total",
            "runs",
            "In how many runs of contiguous cells was state copied, both ways? The more, the slower.",
        )
        self.corrupt = self.total(
            "lcpd_cache_corrupt_total",
            "pieces",
            "How many pieces were found not to be what was stored, where, and how? They are never used.",
            {"tier": "ram, disk", "reason": f"ram: {', '.join(_RAM_DAMAGES)}; disk: {', '.join(DAMAGES)}"},
        )
        for tier, reasons in (("ram", _RAM_DAMAGES), ("disk", DAMAGES)):
            for reason in reasons:
                self.corrupt.show(0, tier, reason)

    # ---- told by the cache (Ages) ----------------------------------------------------------------------

    def evicted(self, kind: Kind, lifetime: float, idle: float) -> None:
        """See `Ages`."""
        self.lifetime.labels(kind).observe(lifetime)
        self.idle.labels(kind).observe(idle)

    def used_again(self, gap: float) -> None:
        """See `Ages`."""
        self.reuse_gap.observe(gap)

    # ---- shown when they are asked for -----------------------------------------------------------------

    def show_ram(self, now: RamFigures) -> None:
        """What is held in RAM."""
        self.size.labels("ram").set(now.size)
        self.used.labels("ram").set(now.used)
        self._show_held("ram", now.held)
        self.bytes.labels("ram", "reserved").set(now.reserved)
        self.bytes.labels("ram", "lingering").set(now.lingering)
        self.conversations.set(now.paths)
        self.dedup.set(now.path_tokens / now.tokens if now.tokens else 1)
        self.fragmentation.set(now.fragmentation)
        for (kind, reason), count in now.dropped.items():
            self.evictions.show(count, kind, reason)
        for reason in _RAM_DAMAGES:
            self.corrupt.show(sum(now.dropped.get((kind, reason), 0) for kind in KINDS), "ram", reason)

    def show_disk(self, now: DiskStats) -> None:
        """What is held on disk."""
        self.size.labels("disk").set(now.size)
        self.used.labels("disk").set(now.used)
        self._show_held("disk", now.held)
        for reason in DAMAGES:
            self.corrupt.show(now.counts.removed.get(reason, 0), "disk", reason)

    def _show_held(self, tier: str, held: Mapping[Kind, Amount]) -> None:
        for kind, amount in held.items():
            self.bytes.labels(tier, kind).set(amount.bytes)
            self.pieces.labels(tier, kind).set(amount.count)
