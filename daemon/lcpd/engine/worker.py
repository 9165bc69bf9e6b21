"""The worker process: ``python -m lcpd.engine.worker PARENT_PID FD``.

Holds one model and one context, and runs the decode loop.  While sequences run it looks for commands between
batches; while idle it waits for them.  Started by :mod:`lcpd.engine.supervisor`, never by hand.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

from lcpd.cache.arena import ArenaError, ArenaView
from lcpd.engine import protocol as p
from lcpd.engine.embedder import BATCH, Embedder
from lcpd.engine.loop import DecodeLoop
from lcpd.engine.probe import Measured, measure
from lcpd.ipc.channel import ChannelClosed, ChildChannel
from lcpd.ipc.child import child_socket
from lcpd.ipc.handshake import Refused, answer
from lcpd.native import bridge
from lcpd.native.context import Context, ContextSettings
from lcpd.native.log import LogCapture
from lcpd.native.model import Model, ModelError, ModelSettings, Pooling
from lcpd.native.segment import Bytes
from lcpd.planning import loglines

BEAT_INTERVAL = 1.0
"""Seconds between two signs of life of the loop."""

Channel = ChildChannel[p.ToWorker]


def main() -> int:
    """Run until told to quit; returns the exit status."""
    # The daemon decides when to stop; a terminal's Ctrl-C is meant for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel: Channel = ChildChannel(child_socket(sys.argv), p.ToWorker)  # type: ignore[arg-type]
    try:
        payload = channel.receive_raw(timeout=None)
        reply = answer(payload or b"", "engine", os.getpid())
        channel.send(reply)
        if isinstance(reply, Refused):
            return 3
        command = channel.receive(timeout=None)
        if not isinstance(command, p.Load):
            raise RuntimeError(f"the first command must be load, not {command!r}")
        return _serve(channel, command)
    except ChannelClosed:
        return 0


def _serve(channel: Channel, load: p.Load) -> int:
    import llama_cpp.llama_cpp as llama

    log = LogCapture(verbose=bool(os.environ.get("LCPD_WORKER_VERBOSE")))
    llama.llama_backend_init()
    begun = time.monotonic()
    try:
        arena = _arena(channel, load)
        model, context, cells = _load(channel, load, log)
        measured = measure(model, context)
    except (ModelError, ArenaError, RuntimeError) as error:
        channel.send(p.LoadFailed(load.model, str(error)))
        return 4
    pinned = _pin(arena, model)
    embedder = _embedder(channel, load, model, context.generates, log)
    loop = DecodeLoop(
        model,
        context,
        bridge.Params("--jinja"),
        channel.send,
        arena=arena,
        emit_interval=load.context.emit_interval,
        max_stall=load.context.max_stall,
        alignment=measured.alignment,
        verify_once=load.context.verify_once,
        embedder=embedder,
    )
    channel.send(p.Loaded(load.model, _info(load, model, context, cells, measured, log), time.monotonic() - begun))
    gc.freeze()  # what is there now stays; collections need not walk over it
    _run(channel, loop, embedder)
    if pinned is not None:
        bridge.unpin_host(pinned)
    if embedder:
        embedder.close()
    context.close()
    model.close()
    return 0


def _arena(channel: Channel, load: p.Load) -> ArenaView | None:
    """The daemon's arena, whose descriptor came with the first message."""
    if not load.arena_bytes:
        return None
    if not channel.descriptors:
        raise ArenaError(f"an arena of {load.arena_bytes} bytes was announced, but its descriptor did not come")
    descriptor = channel.descriptors[0]
    try:
        return ArenaView(descriptor, load.arena_bytes)
    finally:
        os.close(descriptor)


def _pin(arena: ArenaView | None, model: Model) -> Bytes | None:
    """Pin the arena, so that copies between it and a GPU run at full speed; what was pinned.

    Without it they are slower and nothing else, so a failure is only logged.
    """
    if arena is None or all(device.startswith("CPU") for device in model.layers_by_device):
        return None
    data = arena.array(p.Extent(0, arena.size))
    try:
        pinned = bridge.pin_host(data)
    except bridge.BridgeError as error:
        _log(f"the arena of {arena.size} bytes is not pinned, copies to the GPU are slower (cache.ram): {error}")
        return None
    _log(f"the arena of {arena.size} bytes is {'pinned for the GPU' if pinned else 'not pinned: there is no CUDA'}")
    return data if pinned else None


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # the daemon keeps what its children write there


def _info(load: p.Load, model: Model, context: Context, cells: int, measured: Measured, log: LogCapture) -> p.ModelInfo:
    import llama_cpp.llama_cpp as llama

    return p.ModelInfo(
        description=model.description,
        kind=model.kind,
        n_params=llama.llama_model_n_params(model.handle),
        size_bytes=llama.llama_model_size(model.handle),
        n_ctx=cells,
        n_ctx_train=llama.llama_model_n_ctx_train(model.handle),
        n_vocab=model.n_vocab,
        n_embd=context.n_embd,
        n_batch=context.n_batch,
        n_ubatch=context.n_ubatch,
        threads=load.context.threads,
        devices=model.layers_by_device,
        system=llama.llama_print_system_info().decode("utf-8", "replace"),
        build=bridge.build_info(),
        alignment=measured.alignment,
        segment_bytes=measured.segment_bytes,
        checkpoint_bytes=measured.checkpoint_bytes,
        flash_attn=context.flash_attention,
        generates=context.generates,
        pooling=_pooling(load.embeddings, model) if load.embeddings else "",
        embedding_ctx=_longest_text(load.embeddings, model) if load.embeddings else 0,
        embedding_width=llama.llama_model_n_embd_out(model.handle),
        memory=loglines.read(log.memory).buffers,
    )


def _pooling(settings: p.EmbeddingSettings, model: Model) -> Pooling:
    return model.pooling or "mean" if settings.pooling == "auto" else settings.pooling


def _longest_text(settings: p.EmbeddingSettings, model: Model) -> int:
    import llama_cpp.llama_cpp as llama

    return min(settings.n_ctx, int(llama.llama_model_n_ctx_train(model.handle)))


def _embedder(channel: Channel, load: p.Load, model: Model, generates: bool, log: LogCapture) -> Embedder | None:
    """None where texts are not embedded."""
    if load.embeddings is None:
        return None
    c = load.context
    pooling, longest = _pooling(load.embeddings, model), _longest_text(load.embeddings, model)
    batch = min(c.n_ubatch, longest, BATCH) if generates else longest
    settings = ContextSettings(
        n_ctx=longest,
        n_seq=1,
        n_batch=batch,
        n_ubatch=batch,
        threads=c.threads,
        kv_type=c.kv_type,
        flash_attn=c.flash_attn,
        output="score" if pooling == "rank" else "vectors",
    )

    def make_context() -> Context:
        return Context(model, settings, log)

    return Embedder(make_context, channel.send, pooling, longest, c.max_stall, whole=not generates)


def _load(channel: Channel, load: p.Load, log: LogCapture) -> tuple[Model, Context, int]:
    """The model, its context, and the cells of it that requests may use."""
    reported = 0.0

    def progress(fraction: float) -> None:
        nonlocal reported
        if fraction >= 1 or time.monotonic() - reported >= 0.1:
            reported = time.monotonic()
            channel.send(p.LoadProgress(load.model, fraction))

    c = load.context
    model = Model(
        Path(load.path),
        log,
        ModelSettings(
            gpu_layers=c.gpu_layers,
            tensor_split=tuple(c.tensor_split),
            main_gpu=c.main_gpu,
            mmap=c.mmap,
            mlock=c.mlock,
        ),
        progress,
    )
    import llama_cpp.llama_cpp as llama

    n_ctx = c.n_ctx or min(llama.llama_model_n_ctx_train(model.handle), c.n_ctx_cap)
    settings = ContextSettings(
        n_ctx=max(n_ctx, _window_cells(model, c)),
        n_seq=c.slots + 1,
        n_batch=min(c.n_batch, n_ctx),
        n_ubatch=min(c.n_ubatch, n_ctx),
        threads=c.threads,
        kv_type=c.kv_type,
        flash_attn=c.flash_attn,
    )
    context = Context(model, settings, log)
    return model, context, n_ctx if context.n_ctx > n_ctx and model.kind == "swa" else context.n_ctx


def _window_cells(model: Model, c: p.ContextSettings) -> int:
    """Cells for the windows of all sequences and a batch; 0 on models without windows.

    libllama has no more window cells than cells of the other kind, and sequences that share those have a window each:
    in a smaller context one could be without, and could then neither be saved nor restored.
    """
    import llama_cpp.llama_cpp as llama

    return llama.llama_model_n_swa(model.handle) * (c.slots + 1) + c.n_ubatch if model.kind == "swa" else 0


def _run(channel: Channel, loop: DecodeLoop, embedder: Embedder | None) -> None:
    beaten = 0.0
    while True:
        timeout = 0.0 if loop.busy else BEAT_INTERVAL
        while (command := channel.receive(timeout)) is not None:
            if isinstance(command, p.Quit):
                return
            _obey(loop, command)
            timeout = 0.0
        if loop.busy:
            loop.step()
        if time.monotonic() - beaten >= BEAT_INTERVAL:
            beaten = time.monotonic()
            channel.send(p.Beat(loop.batches, loop.tokens, loop.running))
            if embedder:
                embedder.rest(beaten)


def _obey(loop: DecodeLoop, command: p.ToWorker) -> None:
    match command:
        case p.Start():
            loop.start(command)
        case p.Cancel():
            loop.cancel(command.request)
        case p.Park():
            loop.park(command.request)
        case p.Mark():
            loop.mark(command)
        case p.Save():
            loop.save(command)
        case p.Clear():
            loop.clear(command.seq)
        case p.Embed():
            loop.embed(command)
        case p.StopEmbedding():
            loop.stop_embedding(command.request)
        case p.Load() | p.Quit():
            raise RuntimeError(f"{command!r} is out of place: a worker holds one model")


if __name__ == "__main__":
    sys.exit(main())
