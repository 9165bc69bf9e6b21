"""How the two child processes are started and watched, as the plan says."""

from __future__ import annotations

from lcpd.assembly.plan import Plan
from lcpd.cache.arena import Arena
from lcpd.chat.client import ChatSettings
from lcpd.config.settings import ModelSettings
from lcpd.engine import protocol as p
from lcpd.engine.policy import RestartPolicy
from lcpd.engine.supervisor import WorkerSettings
from lcpd.engine.threads import free_cores

_DEFAULT_CTX_CAP = 32768
"""Tokens; the context when none is configured: a model's full length could need more memory than there is."""


def worker_settings(plan: Plan, arena: Arena) -> WorkerSettings:
    """How this plan's worker is started and watched."""
    engine = plan.settings.engine
    return WorkerSettings(
        load=p.Load(
            model=plan.model_id,
            path=str(plan.model),
            context=_context(plan),
            arena_bytes=arena.mapped,
            embeddings=_embeddings(plan.settings.model),
        ),
        environment={
            "LLAMA_CPP_LIB_PATH": str(plan.build.lib_dir),
            # Otherwise an abort in ggml starts a debugger on the process before it ends.
            "GGML_NO_BACKTRACE": "1",
            # numpy only moves arrays here; its idle threads would be in the way of libllama's.
            "OPENBLAS_NUM_THREADS": "1",
        },
        start_timeout=engine.start_timeout,
        load_timeout=engine.load_timeout,
        heartbeat_timeout=engine.heartbeat_timeout,
        stop_timeout=engine.stop_timeout,
        restart=RestartPolicy(
            backoff=engine.restart_backoff,
            backoff_max=engine.restart_backoff_max,
            crash_limit=engine.crash_limit,
            crash_window=engine.crash_window,
        ),
        log_lines=engine.log_lines,
        echo_log=plan.settings.log.level == "debug",
        command=plan.worker_command,
        descriptors=(arena.fd,) if arena.mapped else (),
    )


def _context(plan: Plan) -> p.ContextSettings:
    model = plan.settings.model
    assert model.ctx != "auto" and model.kv != "auto", "make_plan has chosen them"
    return p.ContextSettings(
        n_ctx=model.ctx,
        n_ctx_cap=_DEFAULT_CTX_CAP,
        slots=model.slots,
        n_batch=model.batch,
        n_ubatch=model.ubatch,
        threads=model.threads or free_cores(),
        kv_type=model.kv,
        flash_attn=model.flash_attn,
        gpu_layers=-1 if model.gpu_layers == "auto" else model.gpu_layers,
        tensor_split=list(model.tensor_split),
        main_gpu=model.main_gpu,
        mmap=model.mmap,
        mlock=model.mlock,
        emit_interval=plan.settings.engine.emit_interval,
        max_stall=plan.settings.scheduler.max_stall_ms / 1000,
        verify_once=plan.settings.cache.verify == "once",
    )


def _embeddings(model: ModelSettings) -> p.EmbeddingSettings | None:
    """None where nothing is to be embedded."""
    if model.embeddings == "off":
        return None
    return p.EmbeddingSettings(pooling=model.embeddings, n_ctx=model.embeddings_ctx)


def chat_settings(plan: Plan) -> ChatSettings:
    """How this plan's chat process is started and limited."""
    return ChatSettings(
        model=plan.model,
        template=plan.template,
        lib_dir=plan.build.lib_dir,
        memory_limit=plan.settings.chat.memory_limit,
        call_timeout=plan.settings.chat.call_timeout,
        command=plan.chat_command,
    )
