"""What a server says about the bytes that it keeps beside its slots, read from its log or its metrics."""

from __future__ import annotations

import re

import httpx

from benchmarks.servers import Server

LCPD_GAUGE = r'lcpd_cache_used_bytes{tier="ram"}'
_CACHE_STATE = re.compile(r"cache state: \d+ prompts, ([\d.]+) MiB")


async def saved_bytes(client: httpx.AsyncClient, server: Server) -> int | None:
    """The bytes; None where the server does not say.  Raises httpx.TransportError."""
    if server.name == "lcpd":
        return gauge((await client.get(f"{server.url}/metrics")).text, LCPD_GAUGE)
    return last_cache_state(server.log.read_text(errors="replace"))


def last_cache_state(log: str) -> int | None:
    """From llama-server's log: the size of its prompt cache after the last change; None before the first one."""
    found = _CACHE_STATE.findall(log)
    return round(float(found[-1]) * 2**20) if found else None


def gauge(metrics: str, name: str) -> int | None:
    """The sum over all labels of a metric in Prometheus' text format; None where it is missing."""
    values = [line.rsplit(" ", 1)[1] for line in metrics.splitlines() if re.match(rf"{re.escape(name)}[ {{]", line)]
    return round(sum(map(float, values))) if values else None
