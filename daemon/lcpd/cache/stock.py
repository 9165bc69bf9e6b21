"""What an index lists, told apart: what can be used, and what is removed and why.  Pure; meant to run in a thread.

reason        what is removed
------        ---------------
foreign       state of another model
stale         state of another build, kind of KV cache, ...
damaged       a row whose header is not what was written
truncated     a file that is shorter or longer than it was
missing       a row without a file
orphan        a file without a row
unlinked      what builds on a file that is not there (any more)
index         everything, because the index itself was damaged (counted once)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lcpd.cache.catalogue import Catalogue, Found
from lcpd.cache.fingerprint import Fingerprint, difference
from lcpd.cache.record import BadFile, decode
from lcpd.cache.store import Listing, Row
from lcpd.engine.protocol import Tokens

_LOST_PATHS = 32
"""Conversations of which cache reports tell that a changed fingerprint is why they are computed again."""


@dataclass
class Stock:
    """What there is."""

    catalogue: Catalogue = field(default_factory=Catalogue)
    refused: Counter[str] = field(default_factory=Counter)
    """Files, by reason."""
    doomed: dict[str, int] = field(default_factory=dict)
    """Key -> bytes of files that are to be removed."""
    written: list[tuple[float, int]] = field(default_factory=list)
    """When (unix seconds), and how many bytes."""
    changed: str = ""
    """How the fingerprint of stale state differs from ours."""
    lost: list[Tokens] = field(default_factory=list)
    """Paths whose state is stale, those used last."""


def take_stock(listing: Listing, fingerprint: Fingerprint, needs_segments: bool) -> Stock:
    """Build the catalogue of all that can be used."""
    stock = Stock()
    stock.catalogue.needs_segments = needs_segments
    for reason, count in (("missing", listing.missing), ("orphan", listing.orphans), ("index", int(listing.reset))):
        if count:
            stock.refused[reason] = count
    usable, stale = list[Found](), list[Found]()
    for row in listing.rows:
        stock.written.append((row.written, row.size))
        found, reason = _judged(row, fingerprint)
        if reason:
            _refuse(stock, reason, row.key, row.size)
        elif found is not None:
            usable.append(found)
        if reason == "stale" and found is not None:
            stale.append(found)
    for one in _add(stock.catalogue, usable):
        _refuse(stock, "unlinked", one.key, one.length)
    if stale:
        stock.changed = difference(stale[0].record.fingerprint, fingerprint)
        past = Catalogue()
        past.needs_segments = needs_segments
        _add(past, stale)
        stock.lost = [entry.path for entry in past.ends(_LOST_PATHS)][::-1]
    return stock


def _refuse(stock: Stock, reason: str, key: str, length: int) -> None:
    stock.refused[reason] += 1
    stock.doomed[key] = length


def _judged(row: Row, fingerprint: Fingerprint) -> tuple[Found | None, str]:
    """What a row tells, and why it cannot be used; "": it can."""
    try:
        header = decode(row.header)
    except BadFile:
        return None, "damaged"
    record = header.record
    found = Found(row.key, record, header.state, row.size, row.used)
    if row.key != record.key:
        return None, "damaged"
    if record.fingerprint.get("model file") != fingerprint.get("model file"):
        return found, "foreign"
    if record.fingerprint != fingerprint:
        return found, "stale"
    if row.size != header.length + header.state:
        return found, "truncated"
    return found, ""


def _add(catalogue: Catalogue, files: list[Found]) -> list[Found]:
    """Add files, parents before what builds on them; returns those that could not be."""
    children: dict[str, list[Found]] = {}
    for one in files:
        children.setdefault(one.record.parent, []).append(one)
    ready, refused = children.pop("", []), list[Found]()
    while ready:
        one = ready.pop()
        if catalogue.add(one):
            # Segments first: a checkpoint needs what it lies in.
            ready += sorted(children.pop(one.key, []), key=lambda child: child.record.kind)
        else:
            refused.append(one)
    return refused + [one for group in children.values() for one in group]
