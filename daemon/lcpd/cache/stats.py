"""What the prompt cache holds in RAM, counted.  Pure functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lcpd.cache.figures import Amount, RamFigures
from lcpd.cache.history import History
from lcpd.cache.holdings import Holdings


@dataclass(frozen=True)
class CacheStats:
    """What the cache holds now."""

    size: int
    """Bytes of the arena."""
    used: int
    """Bytes that are in use for the four kinds below, each extent rounded up to the arena's alignment."""
    segment_bytes: int
    checkpoint_bytes: int
    reserved_bytes: int
    """Promised to commands in flight."""
    lingering_bytes: int
    """No longer offered, but a command in flight still reads them."""
    segments: int
    checkpoints: int
    tokens: int
    """Covered by segments; shared ones once."""
    nodes: int
    dropped: dict[str, int]
    """Payloads that went since the start: "segment" and "checkpoint" for want of room, "discarded", "corrupt"."""
    fragmentation: float
    """The share of the free bytes that lies outside of the largest free run: 0 (best) to almost 1."""
    remembered: int
    """Tokens of prompts and replies, whether or not anything is left of their state."""


def stats_of(holdings: Holdings, history: History) -> CacheStats:
    """Walks over all nodes."""
    store = holdings.store
    nodes = list(holdings.trie.nodes())
    segments = [node.segment for node in nodes if node.segment is not None]
    checkpoints = [node.checkpoint for node in nodes if node.checkpoint is not None]
    return CacheStats(
        size=store.arena.size,
        used=store.arena.used,
        segment_bytes=sum(payload.bytes for payload in segments),
        checkpoint_bytes=sum(payload.bytes for payload in checkpoints),
        reserved_bytes=sum(extent.size for extent in store.reserved),
        lingering_bytes=sum(payload.bytes for payload in store.lingering),
        segments=len(segments),
        checkpoints=len(checkpoints),
        tokens=sum(len(node.covers) for node in nodes),
        nodes=len(nodes),
        dropped=_dropped(holdings),
        fragmentation=store.arena.fragmentation,
        remembered=history.tokens,
    )


def figures_of(holdings: Holdings) -> RamFigures:
    """The same for the metrics, at a cost that does not grow with what is there."""
    store, trie = holdings.store, holdings.trie
    return RamFigures(
        size=store.arena.size,
        used=store.arena.used,
        held={kind: Amount(held.count, held.bytes) for kind, held in store.held.items()},
        reserved=sum(extent.size for extent in store.reserved),
        lingering=sum(payload.bytes for payload in store.lingering),
        fragmentation=store.arena.fragmentation,
        dropped=dict(holdings.dropped),
        paths=trie.ends,
        path_tokens=trie.end_items,
        tokens=trie.items,
    )


def _dropped(holdings: Holdings) -> dict[str, int]:
    total: Counter[str] = Counter()
    for (kind, reason), count in holdings.dropped.items():
        total[kind if reason == "room" else reason] += count
    return dict(total)
