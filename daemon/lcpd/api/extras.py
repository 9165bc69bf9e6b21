"""What llama-server offers beside generating: tokens of texts and back, the prompt of a chat, and its properties.

Shapes and defaults are llama-server's (tools/server/README.md of llama.cpp); docs/api.md lists what differs.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from aiohttp import web
from msgspec import Meta

from lcpd.api import requests as r
from lcpd.api.bodies import ChatBody, TokenId
from lcpd.api.context import CONTEXT
from lcpd.api.errors import ApiError, unavailable
from lcpd.api.normalise import chat_body
from lcpd.api.sampling import engine_fields
from lcpd.engine.protocol import unpack
from lcpd.engine.supervisor import State

Json = dict[str, Any]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize"""

    content: str | list[str | TokenId]
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize"""

    tokens: Annotated[list[TokenId], Meta(max_length=2**24)]


async def tokenize(request: web.Request) -> web.Response:
    """The tokens of a text; with their texts where that is asked for."""
    chat = request.app[CONTEXT].chat
    body, plain = await r.read_body(request, TokenizeBody)
    with r.api_errors("content", plain):
        parse_special = body.parse_special is not False
        tokens = unpack(await chat.tokenize(body.content, bool(body.add_special), parse_special))
        if not body.with_pieces:
            return web.json_response({"tokens": tokens.tolist()})
        pieces = await chat.spell(tokens)
    told = [{"id": token, "piece": _piece(data)} for token, data in zip(tokens.tolist(), pieces, strict=True)]
    return web.json_response({"tokens": told})


async def detokenize(request: web.Request) -> web.Response:
    """The text of tokens, special ones included."""
    body, plain = await r.read_body(request, DetokenizeBody)
    with r.api_errors("tokens", plain):
        pieces = await request.app[CONTEXT].chat.spell(np.array(body.tokens, np.int32))
    return web.json_response({"content": b"".join(pieces).decode("utf-8", "replace")})


async def apply_template(request: web.Request) -> web.Response:
    """The prompt that a chat with this body would begin with, as text."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, ChatBody)
    r.check_model(context, body.model)
    plain, _ = r.normalised(request, plain)
    with r.api_errors("messages", plain):
        prompt = await context.chat.template(msgspec.json.encode(chat_body(engine_fields(plain, 0))))
    return web.json_response({"prompt": prompt})


async def props(request: web.Request) -> web.Response:
    """What the server runs and how it generates where a request says nothing."""
    context = request.app[CONTEXT]
    info, chat = context.supervisor.info, context.chat.info
    if info is None:
        raise unavailable("The model is being loaded; GET /health tells how far it is.")
    answer: Json = {
        "default_generation_settings": {"params": chat.get("settings", {}), "n_ctx": info.n_ctx},
        "total_slots": context.settings.model.slots,
        "model_alias": context.model_id,
        # Where the file lies is nobody's business; clients show the last part of this.
        "model_path": context.model_id,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": chat.get("source", ""),
        "chat_template_caps": chat.get("caps", {}),
        "bos_token": chat.get("bos_token", ""),
        "eos_token": chat.get("eos_token", ""),
        "build_info": info.build,
        "is_sleeping": context.supervisor.state is State.SLEEPING,
    }
    return web.json_response(answer)


async def set_props(_: web.Request) -> web.Response:
    """Refused: a running daemon keeps its settings."""
    raise ApiError(
        405,
        "The properties of a running server cannot be changed; change lcpd.toml and start it again.",
        headers={"Allow": "GET"},
    )


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are only part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
