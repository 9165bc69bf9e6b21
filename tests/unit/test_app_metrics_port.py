"""The port that `metrics.port` asks for."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.daemon import settings_with
from lcpd.config import ConfigError
from lcpd.serving import serve_metrics


def context(port: int) -> Any:
    return SimpleNamespace(settings=settings_with(metrics__port=port))


async def test_a_port_that_cannot_be_had_is_named_with_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with AsyncExitStack() as stack:
            with pytest.raises(ConfigError, match=r"metrics\.host, metrics\.port: 127\.0\.0\.1:\d+ cannot be listened"):
                await serve_metrics(context(taken.getsockname()[1]), stack)


async def test_it_is_given_up_with_the_daemon() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        async with AsyncExitStack() as stack:
            await serve_metrics(context(port), stack)
            socket.create_connection(("127.0.0.1", port)).close()
