"""The order of a planned stop, and how long it may take.

    step                                              at most
    ----                                              -------
    the HTTP server: running requests finish          `server.drain_timeout`
    those that have not are cancelled                 CANCEL_WITHIN
    nothing is computed or restored ahead any more    at once
    what slots hold is brought into RAM, and listed   carry_over.STOP_WITHIN
    what the disk lacks is written                    FLUSH_WITHIN, and what an answer of the disk may take
    the chat process ends                             seconds, which _SPARE has room for
    the worker ends                                   `engine.stop_timeout`, and until it has gone
    the tracer ends, the arena is closed              hardly anything

The engine goes after everything that needs it, and storage after everything that is kept in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from lcpd.anticipation.prewarm import Prewarmer
from lcpd.api.context import Context
from lcpd.cache.tier import ANSWER_WITHIN
from lcpd.carry_over import STOP_WITHIN, CarryOver, save_slots
from lcpd.config import Settings

CANCEL_WITHIN = 1.0
"""Seconds that requests which `server.drain_timeout` was too short for get to end when they are cancelled."""
FLUSH_WITHIN = 20.0
"""Seconds that a planned stop may take to write to disk what is not there yet."""
_SPARE = 10.0
"""Seconds for all that has no limit of its own."""


def stop_within(settings: Settings) -> float:
    """Seconds that a planned stop takes at most: one step after the other, and some on top."""
    saving = STOP_WITHIN + FLUSH_WITHIN + ANSWER_WITHIN
    return settings.server.drain_timeout + CANCEL_WITHIN + saving + 2 * settings.engine.stop_timeout + _SPARE


def stops(
    context: Context, carry_over: CarryOver | None, prewarmer: Prewarmer | None
) -> Iterator[Callable[[], Awaitable[None]]]:
    """What is to be awaited to stop the parts, in this order, when the HTTP server is gone."""
    dispatcher, disk = context.dispatcher, context.disk
    yield context.sleeper.stop
    if prewarmer:
        yield prewarmer.stop
    if context.anticipator:
        yield context.anticipator.stop
    if carry_over:
        yield partial(carry_over.finish, dispatcher)
    elif disk:
        yield partial(save_slots, dispatcher)
    if disk:
        yield partial(disk.finish, FLUSH_WITHIN)
    yield context.chat.stop
    yield context.supervisor.stop
