"""Who may do what changes the daemon for everybody."""

from __future__ import annotations

from aiohttp import web

from lcpd.api.context import ADMIN, CONTEXT
from lcpd.api.errors import ApiError


def require_admin(request: web.Request) -> None:
    """Raises ApiError unless the request carries an admin key."""
    if request[ADMIN]:
        return
    if not request.app[CONTEXT].keys.has_admins:
        raise ApiError(403, "Only an admin may do that, and there is no admin key: set server.admin_key_file.")
    raise ApiError(403, "A key of server.admin_key_file is needed, as a bearer token or in x-api-key.")
