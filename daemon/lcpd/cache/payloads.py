"""What nodes of the trie hold, and whose extents in the arena are: every byte that is in use is accounted for here.

An extent is *reserved* while a command in flight may write into it, *held* by a payload, or *lingering*: its payload is
offered no more, but a command in flight still reads it, and it is freed with the last such pin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lcpd.cache.arena import Arena, checksum
from lcpd.cache.blob import BlobError, layout, split, split_sizes
from lcpd.cache.retention import Kind
from lcpd.engine.protocol import Extent, Piece

log = logging.getLogger(__name__)

TARGET = "target"
"""Name of the part that holds the model's own state."""


class CorruptPiece(RuntimeError):
    """Bytes in the arena are not those that were stored."""


@dataclass(eq=False)
class Payload:
    """State bytes of one segment or checkpoint.  Changed by its store only, but for `on_disk`."""

    parts: dict[str, Piece]
    kind: Kind = "segment"
    since: float = 0.0
    """When it came, on the store's clock."""
    pins: int = 0
    """Commands in flight that need it."""
    dropped: bool = False
    on_disk: bool = False
    """Whether a file has it too, as far as is known: it costs a read to get it back."""

    @property
    def piece(self) -> Piece:
        """The model's own state."""
        return self.parts[TARGET]

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return sum(piece.extent.size for piece in self.parts.values())


@dataclass
class Held:
    """Payloads of a kind that are offered."""

    count: int = 0
    bytes: int = 0


class PayloadStore:
    """The arena's bookkeeping: reservations, payloads and pins."""

    def __init__(self, arena: Arena, clock: Callable[[], float]) -> None:
        self.arena = arena
        self._clock = clock
        self.held: dict[Kind, Held] = {"segment": Held(), "checkpoint": Held()}
        self.lingering: set[Payload] = set()
        """Dropped, but pinned."""
        self.changes = 0
        """Payloads that came or went so far."""
        self._reserved: dict[Extent, Payload | None] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that are not in use, in however many runs."""
        return self.arena.size - self.arena.used

    @property
    def reserved(self) -> list[Extent]:
        """The extents that commands in flight may write into."""
        return list(self._reserved)

    def reserve(self, size: int, anchor: Payload | None = None) -> Extent | None:
        """Room for `size` bytes, or None.  `anchor` is pinned until they are kept or given back."""
        extent = self.arena.allocate(size)
        if extent is not None:
            self._reserved[extent] = anchor
            if anchor is not None:
                self.pin(anchor)
        return extent

    def give_back(self, extent: Extent) -> None:
        """The reserved `extent` is not needed.  ValueError where it is not reserved."""
        self._settle(extent)
        self.arena.free(extent)

    def keep(self, extent: Extent, piece: Piece, kind: Kind) -> Payload:
        """A payload of the piece that was written into the front of the reserved `extent`; the rest is freed."""
        if piece.extent.offset != extent.offset or piece.extent.size > extent.size:
            raise ValueError(f"{piece.extent} is not the front part of {extent}")
        self._settle(extent)
        self.changes += 1
        payload = Payload({TARGET: Piece(self.arena.shrink(extent, piece.extent.size), piece.checksum)})
        self.take_in(payload, kind)
        return payload

    def take_in(self, payload: Payload, kind: Kind) -> None:
        """Count a payload that is offered from now on, and whose bytes lie in the arena."""
        payload.kind, payload.since = kind, self._clock()
        self.held[kind].count += 1
        self.held[kind].bytes += payload.bytes

    def drop(self, payload: Payload) -> None:
        """The payload is offered no more; its bytes are freed now or with its last pin."""
        payload.dropped = True
        self.changes += 1
        self.held[payload.kind].count -= 1
        self.held[payload.kind].bytes -= payload.bytes
        if payload.pins:
            self.lingering.add(payload)
        else:
            self._free(payload)

    def pin(self, payload: Payload) -> None:
        """Keep the bytes until `unpin`."""
        payload.pins += 1

    def unpin(self, payload: Payload) -> None:
        """Undo one `pin`."""
        payload.pins -= 1
        if payload.dropped and not payload.pins:
            self.lingering.remove(payload)
            self._free(payload)

    @contextmanager
    def pinned(self, *payloads: Payload | None) -> Iterator[None]:
        """Keep the bytes for the time being; None stands for nothing."""
        kept = [payload for payload in payloads if payload is not None]
        for payload in kept:
            self.pin(payload)
        try:
            yield
        finally:
            for payload in kept:
                self.unpin(payload)

    def split(self, payload: Payload, k: int, room: Callable[[int], Extent | None]) -> tuple[Payload, Payload] | None:
        """Two new payloads, of the first `k` items of a segment and of the rest; the old one stays as it is.

        `room` reserves extents and may drop payloads, not this one.  None where it finds no room, or no cut is possible
        there.  Raises CorruptPiece where the bytes are not those that were stored.
        """
        with self.pinned(payload):
            halves = self._split(payload.piece, k, room)
        for half in halves or ():
            half.since = payload.since
        return halves

    def _split(self, piece: Piece, k: int, room: Callable[[int], Extent | None]) -> tuple[Payload, Payload] | None:
        data = self.arena.view(piece.extent)
        if checksum(data) != piece.checksum:
            raise CorruptPiece(f"the checksum of {piece.extent} is not that of what was stored there")
        try:
            found = layout(data)
            front_size, back_size = split_sizes(found, k)
        except BlobError as error:
            log.warning("a segment in the prompt cache cannot be cut at token %d: %s", k, error)
            return None
        front = room(front_size)
        if front is None:
            return None
        back = room(back_size)
        if back is None:
            self.give_back(front)
            return None
        front_data, back_data = self.arena.view(front), self.arena.view(back)
        split(data, found, k, front_data, back_data)
        pieces = Piece(front, checksum(front_data)), Piece(back, checksum(back_data))
        return self.keep(front, pieces[0], "segment"), self.keep(back, pieces[1], "segment")

    def _settle(self, extent: Extent) -> None:
        if extent not in self._reserved:
            raise ValueError(f"{extent} is not reserved: it was kept or given back before, or never handed out")
        anchor = self._reserved.pop(extent)
        if anchor is not None:
            self.unpin(anchor)

    def _free(self, payload: Payload) -> None:
        for piece in payload.parts.values():
            self.arena.free(piece.extent)
