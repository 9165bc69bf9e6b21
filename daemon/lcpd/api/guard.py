"""Protection against web pages that try to reach a local server.

A page that the user's browser shows can send requests to 127.0.0.1, or make a name of its own point there (DNS
rebinding).  The Host check stops the second, the Origin and Content-Type checks the first.  Pure functions; the
middleware is in :mod:`lcpd.api.app`, keys are in :mod:`lcpd.keys`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

OPEN_PATHS = ("/", "/health", "/openapi.json", "/docs")
"""Answered without a key: nothing there is about a user or a prompt."""


def host_is_allowed(host: str, bind: str, allowed: Collection[str]) -> bool:
    """Whether a Host header names this server: loopback, the bind address, any literal address, or an allowed name.

    A literal address cannot be rebound, so it is always fine.
    """
    name = (urlsplit(f"//{host}").hostname or "").rstrip(".") if _parses(host) else ""
    if not name:
        return False
    if name == "localhost" or name.endswith(".localhost") or name == bind.lower():
        return True
    if name in {a.lower() for a in allowed} or host.lower() in {a.lower() for a in allowed}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a server that listens on `address`; other names than localhost do not count."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _parses(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").port is None or True
    except ValueError:
        return False


def origin_is_allowed(origin: str | None, host: str, allowed: Collection[str]) -> bool:
    """Whether a request may come from a page of this origin; no origin means no browser."""
    if origin is None:
        return True
    return origin in allowed or origin.partition("://")[2] == host
