"""Responses that can be continued (`previous_response_id`) or fetched, in memory and within bounds.

A conversation is a chain: each response adds items to those of the one before.  What a chain shares is held once, and
as long as a response needs it; the response that was used least recently is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

Json = dict[str, Any]


@dataclass(eq=False)
class _Link:
    """The items that one response added to a conversation: those of its request and of its output."""

    items: bytes
    before: _Link | None
    users: int = 0
    """The response itself, and the links that follow on this one."""


@dataclass(frozen=True)
class _Stored:
    response: bytes
    link: _Link
    item_ids: tuple[str, ...]


@dataclass
class ResponseStore:
    """Owns all stored responses; everyone sees only their own."""

    max_count: int
    max_bytes: int
    size: int = 0
    """Bytes of JSON that are held now."""
    _stored: OrderedDict[tuple[str, str], _Stored] = field(default_factory=OrderedDict)
    _items: dict[tuple[str, str], str] = field(default_factory=dict)
    """(owner, item's id) -> response's id; of output items only."""

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, owner: str, response: Json, new_items: Sequence[Json], before: str | None) -> None:
        """Remember a response that answered `new_items` and followed on the response `before`, if that is known still.

        A conversation whose beginning was forgotten while this response was made is not remembered.
        """
        previous = self._stored.get((owner, before)) if before is not None else None
        if before is not None and previous is None:
            return
        items = msgspec.json.encode([*new_items, *response["output"]])
        link = _Link(items, previous.link if previous else None)
        ids = tuple(item["id"] for item in response["output"])
        stored = _Stored(msgspec.json.encode(response), link, ids)
        self._stored[owner, response["id"]] = stored
        self._items |= {(owner, item_id): response["id"] for item_id in ids}
        self.size += len(stored.response)
        self._use(link)
        while self._stored and (len(self._stored) > self.max_count or self.size > self.max_bytes):
            self.remove(*next(iter(self._stored)))

    def response(self, owner: str, response_id: str) -> bytes | None:
        """A response's JSON; None where there is none."""
        stored = self._stored.get((owner, response_id))
        return stored.response if stored else None

    def conversation(self, owner: str, response_id: str) -> list[Json] | None:
        """All items up to and with a response's output; None where it is not known."""
        stored = self._stored.get((owner, response_id))
        if stored is None:
            return None
        self._stored.move_to_end((owner, response_id))
        parts: list[list[Json]] = []
        link: _Link | None = stored.link
        while link is not None:
            parts.append(msgspec.json.decode(link.items))
            link = link.before
        return [item for part in reversed(parts) for item in part]

    def item(self, owner: str, item_id: str) -> Json | None:
        """An output item of a stored response."""
        response_id = self._items.get((owner, item_id))
        if response_id is None:
            return None
        self._stored.move_to_end((owner, response_id))
        output: list[Json] = msgspec.json.decode(self._stored[owner, response_id].response)["output"]
        return next(item for item in output if item["id"] == item_id)

    def remove(self, owner: str, response_id: str) -> bool:
        """Forget a response; returns whether there was one."""
        stored = self._stored.pop((owner, response_id), None)
        if stored is None:
            return False
        for item_id in stored.item_ids:
            self._items.pop((owner, item_id), None)
        self.size -= len(stored.response)
        self._release(stored.link)
        return True

    def forget(self) -> int:
        """Forget all responses of everyone; returns how many there were."""
        count = len(self._stored)
        self._stored.clear()
        self._items.clear()
        self.size = 0
        return count

    def _use(self, link: _Link) -> None:
        link.users += 1
        self.size += len(link.items)
        if link.before is not None:
            link.before.users += 1

    def _release(self, last: _Link) -> None:
        link: _Link | None = last
        while link is not None:
            link.users -= 1
            if link.users:
                return
            self.size -= len(link.items)
            link = link.before


STORE: web.AppKey[ResponseStore] = web.AppKey("responses", ResponseStore)
