"""The aiohttp application: routes, and what happens around every request."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from lcpd.api import cache, counting, docs_page, embeddings, extras, guard, info, openapi, power
from lcpd.api.chat_completions import chat_completions
from lcpd.api.completions import completions
from lcpd.api.context import ADMIN, BEGUN, CONTEXT, CORS, ERROR, KEY, STATUS, Context
from lcpd.api.errors import ApiError, limit_exceeded, too_large
from lcpd.api.infill import infill
from lcpd.api.key_limits import LimitExceeded
from lcpd.api.messages import count_tokens, messages
from lcpd.api.rerank import rerank
from lcpd.api.responses import route as responses
from lcpd.api.responses.store import STORE, ResponseStore

log = logging.getLogger("lcpd.access")
_GONE = "client_gone"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(context: Context) -> web.Application:
    """The application for one daemon, to be served with `auto_decompress=False` (:mod:`lcpd.api.encoding`)."""
    app = web.Application(middlewares=[_errors, _guard], client_max_size=context.settings.server.max_body)
    app[CONTEXT] = context
    counting.begin(context)
    server = context.settings.server
    app[STORE] = ResponseStore(server.responses, server.responses_size)
    app.on_response_prepare.append(_add_cors)
    app.router.add_get("/", info.alive)
    app.router.add_get("/openapi.json", openapi.handler)
    app.router.add_get("/docs", docs_page.handler)
    app.router.add_get("/health", info.health)
    app.router.add_get("/version", info.version)
    app.router.add_get("/metrics", info.metrics)
    app.router.add_get("/slots", info.slots)
    app.router.add_post("/sleep", power.sleep)
    app.router.add_post("/wake", power.wake)
    app.router.add_get("/cache", cache.overview)
    app.router.add_get("/cache/requests/{id}", cache.why)
    app.router.add_post("/cache/pin", cache.pin)
    app.router.add_post("/cache/unpin", cache.unpin)
    app.router.add_post("/cache/purge", cache.purge)
    app.router.add_post("/tokenize", extras.tokenize)
    app.router.add_post("/detokenize", extras.detokenize)
    app.router.add_post("/apply-template", extras.apply_template)
    app.router.add_post("/infill", infill)
    app.router.add_post("/embedding", embeddings.native)
    app.router.add_get("/props", extras.props)
    app.router.add_post("/props", extras.set_props)
    for prefix in ("", "/v1"):
        # The SDKs are given a base URL with or without /v1, depending on their maker.
        app.router.add_get(f"{prefix}/models", info.models)
        app.router.add_get(f"{prefix}/models/{{name:.+}}", info.model)
        app.router.add_post(f"{prefix}/chat/completions", chat_completions)
        app.router.add_post(f"{prefix}/completions", completions)
        app.router.add_post(f"{prefix}/embeddings", embeddings.openai)
        app.router.add_post(f"{prefix}/rerank", rerank)
        app.router.add_post(f"{prefix}/reranking", rerank)
        app.router.add_post(f"{prefix}/messages", messages)
        app.router.add_post(f"{prefix}/messages/count_tokens", count_tokens)
        app.router.add_post(f"{prefix}/responses", responses.create)
        app.router.add_post(f"{prefix}/responses/input_tokens", responses.input_tokens)
        app.router.add_get(f"{prefix}/responses/{{id}}", responses.retrieve)
        app.router.add_delete(f"{prefix}/responses/{{id}}", responses.delete)
    return app


def _told(request: web.Request, error: ApiError) -> web.Response:
    """An error in the dialect of the route."""
    body = error.anthropic() if "/messages" in request.path else error.openai()
    return web.json_response(body, status=error.status, headers=error.headers)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error in the dialect of the route, counted and logged; nothing of the server's inside leaks."""
    begun = request[BEGUN] = time.monotonic()
    status = 500
    try:
        try:
            response = await handler(request)
        except web.HTTPRequestEntityTooLarge as error:
            raise too_large(request.app[CONTEXT].settings.server.max_body) from error
        except web.HTTPNotFound as error:
            raise ApiError(404, f"There is no {request.path} here.", code="not_found") from error
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            raise ApiError(
                405, f"{request.path} answers {allowed}, not {request.method}.", headers={"Allow": allowed}
            ) from error
        status = response.status
        return response
    except ApiError as error:
        status = error.status
        request[ERROR] = error.word
        return _told(request, error)
    except web.HTTPException as error:
        status = error.status
        return _told(request, ApiError(status, error.reason))
    except ConnectionError:
        status = 499  # the client is gone, as nginx writes it
        request[ERROR] = _GONE
        raise
    except BaseException as error:
        if not isinstance(error, Exception):
            status = 499
            request[ERROR] = _GONE
            raise
        request[ERROR] = "internal_error"
        log.exception("%s %s failed", request.method, request.rel_url.raw_path)
        return _told(
            request, ApiError(500, "An internal error; the server's log has the details.", type="server_error")
        )
    finally:
        status = request.get(STATUS, status)
        counting.count(request, status)
        seconds, key = time.monotonic() - begun, request.get(KEY)
        who = f" {key.name}" if key is not None else ""
        # As it was sent: decoded, it could have line ends and control characters in it.
        log.info("%s %s %d %.3f s%s", request.method, request.rel_url.raw_path, status, seconds, who)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what comes from foreign pages, without a key, or beyond the limits of one."""
    context = request.app[CONTEXT]
    server = context.settings.server
    host = request.headers.get("Host", "")
    if not guard.host_is_allowed(host, server.host, server.allowed_hosts):
        raise ApiError(
            403, f"The Host {host!r} is not this server; add it to server.allowed_hosts if it is.", param="Host"
        )
    origin = request.headers.get("Origin")
    if not guard.origin_is_allowed(origin, host, server.allowed_origins):
        raise ApiError(403, f"Requests from pages of {origin} are refused; see server.allowed_origins.", param="Origin")
    cors = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"} if origin in server.allowed_origins else {}
    if cors and request.method == "OPTIONS":
        allowed = {
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": "*, Authorization",
        }
        return web.Response(status=204, headers={**cors, **allowed})
    request[CORS] = cors
    key = context.keys.find(request.headers.get("Authorization"), request.headers.get("x-api-key"))
    request[ADMIN] = key is not None and key.admin
    if not context.keys.asked_for or request.path in guard.OPEN_PATHS:
        return await handler(request)
    if key is None:
        raise ApiError(
            401,
            "A valid API key is needed, as a bearer token or in x-api-key.",
            type="authentication_error",
            code="invalid_api_key",
        )
    request[KEY] = key
    if request.method != "POST":
        return await handler(request)
    try:
        with context.key_limits.admitted(key):
            return await handler(request)
    except LimitExceeded as error:
        context.metrics.clients.refusals.labels(key.name, error.what).inc()
        raise limit_exceeded(error.message, error.retry_after) from error


async def _add_cors(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: let allowed origins read the answer."""
    response.headers.update(request.get(CORS, {}))
