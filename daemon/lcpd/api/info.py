"""What the server is and how it does: models, health, version, metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from lcpd import __version__
from lcpd.api.accept import wanted_format
from lcpd.api.context import CONTEXT, Context
from lcpd.api.errors import unknown_model
from lcpd.api.limits import limits_of
from lcpd.engine.supervisor import State

Json = dict[str, Any]


async def health(request: web.Request) -> web.Response:
    """200 when a token can be generated or the engine sleeps, 503 with the reason until then."""
    context = request.app[CONTEXT]
    body = health_report(context)
    if "verbose" in request.query:
        body["memory"] = {row.name: {"planned": row.planned, "loaded": row.loaded} for row in context.memory.rows}
    return web.json_response(body, status=200 if body["status"] in ("ok", "degraded", "sleeping") else 503)


def health_report(context: Context) -> Json:
    """The state of the engine and the chat process, in one word and in detail."""
    supervisor = context.supervisor
    status = {State.READY: "ok", State.STARTING: "loading"}.get(supervisor.state, str(supervisor.state))
    reason = supervisor.reason
    if status == "ok" and not context.chat.ready:
        status = "failed" if context.chat.failure else "degraded"
        reason = context.chat.failure or "the chat process is being restarted"
    elif status == "degraded":
        reason = "the decode loop makes no progress"
    if status == "ok" and supervisor.shrunk:
        status, reason = "degraded", supervisor.shrunk
    report: Json = {
        "status": status,
        "model": context.model_id,
        "slots": {"total": len(context.dispatcher.slots), "busy": context.dispatcher.running},
        "waiting": context.dispatcher.waiting,
        "restarts": supervisor.restarts,
        "chat": "ready" if context.chat.ready else "down",
    }
    if context.disk is not None:
        disk = context.disk.stats()
        report["disk"] = {"status": disk.state, **({"reason": disk.reason} if disk.reason else {})}
    if status == "loading":
        report["progress"] = round(supervisor.progress, 3)
    if status in ("restarting", "failed", "degraded"):
        report["reason"] = reason
    if supervisor.info:
        report["engine"] = {
            "description": supervisor.info.description,
            "kind": supervisor.info.kind,
            "layers": supervisor.info.devices,
            "n_ctx": supervisor.info.n_ctx,
            "n_batch": supervisor.info.n_batch,
            "n_ubatch": supervisor.info.n_ubatch,
            "threads": supervisor.info.threads,
            "build": supervisor.info.build,
            "system": supervisor.info.system,
        }
    return report


async def models(request: web.Request) -> web.Response:
    """The list of models, which is the one that runs."""
    context = request.app[CONTEXT]
    return web.json_response({"object": "list", "data": [_model(context)]})


async def model(request: web.Request) -> web.Response:
    """One model by its name."""
    context = request.app[CONTEXT]
    name = request.match_info["name"]
    if name not in context.model_names:
        raise unknown_model(name, context.model_id)
    return web.json_response(_model(context))


def _model(context: Context) -> Json:
    entry: Json = {"id": context.model_id, "object": "model", "created": context.created, "owned_by": "lcpd"}
    if info := context.supervisor.info:
        # Clients look for the context's length under different names.
        entry |= {
            "context_length": info.n_ctx,
            "max_model_len": info.n_ctx,
            "limits": asdict(limits_of(info.n_ctx, context.settings.server.max_tokens)),
            "meta": {
                "n_ctx": info.n_ctx,
                "n_ctx_train": info.n_ctx_train,
                "n_vocab": info.n_vocab,
                "n_embd": info.n_embd,
                "n_params": info.n_params,
                "size": info.size_bytes,
            },
        }
    return entry


async def version(request: web.Request) -> web.Response:
    """Which lcpd and which llama.cpp."""
    info = request.app[CONTEXT].supervisor.info
    return web.json_response({"version": __version__, "llama_cpp": info.build if info else None})


async def metrics(request: web.Request) -> web.Response:
    """Prometheus exposition; OpenMetrics for those who ask for it."""
    body, content_type = await request.app[CONTEXT].live.expose(wanted_format(request.headers.get("Accept", "")))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def slots(request: web.Request) -> web.Response:
    """What each slot holds and does, and who waits; never what a prompt says."""
    return web.json_response(asdict(request.app[CONTEXT].dispatcher.snapshot()))


async def alive(_: web.Request) -> web.Response:
    """HEAD and GET of the base URL: Claude Code asks whether somebody is there."""
    return web.Response(text="lcpd\n")
