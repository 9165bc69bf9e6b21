"""Putting the engine to sleep and waking it, for who sends an admin key."""

from __future__ import annotations

from aiohttp import web

from lcpd.api.admin import require_admin
from lcpd.api.context import CONTEXT
from lcpd.api.errors import ApiError
from lcpd.sleep import CannotSleep


async def sleep(request: web.Request) -> web.Response:
    """Let running requests finish, keep what slots hold, and free the engine's memory."""
    require_admin(request)
    context = request.app[CONTEXT]
    try:
        asleep = await context.sleeper.sleep()
    except CannotSleep as error:
        raise ApiError(409, str(error), code="cannot_sleep") from error
    return web.json_response({"asleep": asleep})


async def wake(request: web.Request) -> web.Response:
    """Start the engine again, without waiting until it is ready."""
    require_admin(request)
    request.app[CONTEXT].sleeper.wake()
    return web.json_response({"asleep": False})
