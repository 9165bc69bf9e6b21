"""Prefill and decode through lcpd's decode loop, and where the layers are."""

from __future__ import annotations

import time

from check_gpu.child import Options, run
from check_gpu.engine import Backend, Engine, Setting, words
from check_gpu.outcome import Findings

PROMPT = {"cuda": 16384, "cpu": 2048}
SHORT = 512
REPLY = {"cuda": 256, "cpu": 64}
SLOTS = 4


def check_speed(options: Options, findings: Findings) -> None:
    backend = Backend(gpu=options.gpu)
    layers = backend.model.layers_by_device
    wanted = "CUDA" if options.gpu else "CPU"
    findings.check(
        f"all layers are on {wanted}",
        bool(layers) and all(device.startswith(wanted) for device in layers),
        ", ".join(f"{device}: {count}" for device, count in layers.items()) or "none reported",
    )
    prompt, reply = PROMPT[options.backend], REPLY[options.backend]
    engine = backend.engine(Setting(n_ctx=prompt + SLOTS * (SHORT + reply) + 512, n_seq=SLOTS + 1))
    _one_stream(engine, 0, SHORT, reply, None)  # warms up
    _one_stream(engine, 1, SHORT, reply, findings)
    _one_stream(engine, 2, prompt, reply, findings)
    _streams(engine, 3, reply, findings)
    engine.close()


def _one_stream(engine: Engine, request: int, length: int, reply: int, findings: Findings | None) -> None:
    """One request alone; measures nothing without `findings`."""
    engine.start(request, 0, words(engine.model, request, length), reply, ignore_eos=True)
    engine.run()
    engine.context.clear(0)
    if findings is not None:
        done = engine.finished(request)
        findings.figure(f"prefill of {length} tokens", length / done.prefill_seconds, "tokens/s")
        # The first token comes out of the prefill.
        findings.figure(f"decode after {length} tokens", (done.generated - 1) / done.decode_seconds, "tokens/s")


def _streams(engine: Engine, first: int, reply: int, findings: Findings) -> None:
    """All slots decode at once."""
    for slot in range(SLOTS):
        engine.start(first + slot, slot, words(engine.model, slot, SHORT), reply, ignore_eos=True)
    while any(engine.prefilled(first + slot) < SHORT for slot in range(SLOTS)):
        engine.loop.step()
    begun, tokens = time.perf_counter(), engine.loop.tokens
    engine.run()
    rate = (engine.loop.tokens - tokens) / (time.perf_counter() - begun)
    findings.figure(f"decode of {SLOTS} streams together", rate, "tokens/s")
    finished = [engine.finished(first + slot) for slot in range(SLOTS)]
    detail = ", ".join(f"{f.generated} ({f.reason})" for f in finished)
    findings.check(f"{SLOTS} streams end whole", all(f.generated == reply for f in finished), detail)


if __name__ == "__main__":
    run(check_speed)
