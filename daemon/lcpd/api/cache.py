"""What the prompt cache holds, why a request computed what it did, and what is never to be given up.

Texts, and ids of tokens, which are as good, are shown only to who sends an admin key.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from lcpd.api import cache_report
from lcpd.api import requests as r
from lcpd.api.admin import require_admin
from lcpd.api.bodies import PinBody
from lcpd.api.context import ADMIN, CONTEXT, Context
from lcpd.api.errors import ApiError, bad_request
from lcpd.api.normalise import chat_body
from lcpd.api.responses.store import STORE
from lcpd.api.sampling import engine_fields
from lcpd.cache.isolation import marked, plain
from lcpd.cache.store import StoreError
from lcpd.chat.replay import reply_start
from lcpd.engine.protocol import Tokens, pack, unpack

Json = dict[str, Any]


async def overview(request: web.Request) -> web.Response:
    """Totals, the tree of what is known with where it is, and what is pinned."""
    context = request.app[CONTEXT]
    tree = context.cache.tree(slot.tokens for slot in context.dispatcher.slots)
    branches = [asdict(branch) for branch in tree.branches]
    starts = [branch.pop("starts") for branch in branches]
    if request[ADMIN] and starts:
        with r.api_errors("cache"):
            texts = await context.chat.detokenize([_array(tokens) for tokens in starts])
        branches = [{**branch, "text": text} for branch, text in zip(branches, texts, strict=True)]
    pins = [{"pin": number, "tokens": len(tokens)} for number, tokens in context.cache.holds().items()]
    disk = {"disk": asdict(context.disk.stats())} if context.disk else {}
    return web.json_response(
        {"ram": asdict(context.cache.stats()), **disk, "branches": branches, "omitted": tree.omitted, "pins": pins}
    )


async def why(request: web.Request) -> web.Response:
    """The whole cache report of one request."""
    context = request.app[CONTEXT]
    name = request.match_info["id"]
    report = context.dispatcher.report(name)
    if report is None:
        raise ApiError(
            404,
            f"There is no cache report of {name!r}: only those of the last requests are kept, from when they begin.",
            param="id",
            code="not_found",
        )
    texts = None
    if request[ADMIN]:
        with r.api_errors("id"):
            texts = await context.chat.detokenize([_array(window) for window in cache_report.windows(report)])
    return web.json_response(cache_report.whole(report, texts))


async def pin(request: web.Request) -> web.Response:
    """Never give up a conversation or prompt for want of room."""
    context = request.app[CONTEXT]
    require_admin(request)
    body, plain = await r.read_body(request, PinBody)
    if body.pin is not None:
        raise bad_request("Send messages or a prompt to be pinned; pin is what this answers.", "pin")
    tokens = await _path(request, body, plain)
    number = context.cache.hold(tokens)
    return web.json_response({"pin": number, "tokens": len(tokens), "ram": context.cache.covered(tokens)})


async def unpin(request: web.Request) -> web.Response:
    """Undo a pin, by its number or by what was pinned."""
    context = request.app[CONTEXT]
    require_admin(request)
    body, plain = await r.read_body(request, PinBody)
    if body.pin is not None:
        numbers = [body.pin]
    else:
        wanted = pack(await _path(request, body, plain))
        numbers = [number for number, tokens in context.cache.holds().items() if pack(tokens) == wanted]
    released = [number for number in numbers if context.cache.release(number)]
    if not released:
        raise ApiError(404, "That is not pinned; GET /cache lists the pins.", code="not_found")
    return web.json_response({"unpinned": released})


async def purge(request: web.Request) -> web.Response:
    """Forget all prompts and replies: what is in RAM, pins and all, what is on disk, what idle slots hold, stored
    responses, and what is remembered of texts to recognise them when they come again."""
    context = request.app[CONTEXT]
    require_admin(request)
    if context.anticipator is not None:
        context.anticipator.forget()
    context.dispatcher.forget()
    context.known_tools.forget()
    purged: Json = {"ram": {"bytes": context.cache.purge()}, "responses": {"count": request.app[STORE].forget()}}
    await context.chat.forget()
    if context.disk is not None:
        try:
            purged["disk"] = asdict(await context.disk.purge())
        except StoreError as error:
            raise ApiError(503, f"RAM was purged, but the disk cannot be: {error}.", type="server_error") from error
    return web.json_response({"purged": purged})


async def _path(request: web.Request, body: PinBody, plain: Json) -> Tokens:
    """The path of what a body names; of a chat without the beginning of a reply."""
    scope = r.scope_of(request)
    plain, _ = r.normalised(request, plain)
    return marked(await _tokens(request.app[CONTEXT], body, plain, scope, r.stores(request.headers)), scope)


async def _tokens(context: Context, body: PinBody, plain: Json, scope: int, store: bool) -> Tokens:
    if (body.messages is None) == (body.prompt is None):
        raise bad_request("Send either messages, as in a chat, or a prompt.", "messages")
    if body.prompt is not None:
        with r.api_errors("prompt", plain):
            return unpack((await context.chat.complete(body.prompt, b"{}", scope=scope, store=store)).tokens)
    with r.api_errors("messages", plain):
        fields = msgspec.json.encode(chat_body(engine_fields(plain, 0)))
        rendered = await context.chat.render("chat", fields, scope=scope, store=store)
    start = reply_start([(span.role, span.begin) for span in rendered.spans])
    return unpack(rendered.tokens)[:start]


def _array(tokens: tuple[int, ...]) -> Tokens:
    return plain(np.array(tokens, np.int32))
