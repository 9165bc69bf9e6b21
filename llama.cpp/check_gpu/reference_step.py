"""What the CPU says: greedy replies to all conversations, and the logits that they were chosen from.

The GPU is hidden from this process, because llama.cpp uses it for large matrix products even with no layer on it.
Flash attention is off here and left to lcpd's default on the other side, so that even without a GPU the two sides
compute in different ways.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from check_gpu.child import Options, run
from check_gpu.engine import Backend, Setting, render
from check_gpu.outcome import Findings
from check_gpu.prompts import CONVERSATIONS, TOOLS

FILE = "reference.npz"
MAX_TOKENS = 96


def write_reference(options: Options, findings: Findings) -> None:
    backend = Backend(gpu=False)
    engine = backend.engine(Setting(flash_attn="off"))
    arrays: dict[str, npt.NDArray[Any]] = {}
    ended = 0
    for number, messages in enumerate(CONVERSATIONS):
        prompt = render(backend.model, backend.params, messages, TOOLS)
        reply = engine.generate(number, prompt, MAX_TOKENS)
        arrays[f"prompt{number}"], arrays[f"reply{number}"] = prompt, reply
        arrays[f"rows{number}"] = engine.replay(prompt, reply)
        ended += engine.finished(number).reason == "stop"
        text = b"".join(backend.model.piece(int(t), special=True) for t in reply).decode("utf-8", "replace")
        print(f"reference {number}: {len(prompt)} tokens in, {len(reply)} out: {text!r}", flush=True)
    np.savez(options.work / FILE, allow_pickle=False, **arrays)
    where = ", ".join(sorted(backend.model.layers_by_device))
    findings.check("the reference is computed on the CPU alone", where == "CPU", f"layers on {where}")
    detail = f"{ended} of {len(CONVERSATIONS)} ended by themselves within {MAX_TOKENS} tokens"
    findings.check("the replies are whole", ended == len(CONVERSATIONS), detail)
    engine.close()


if __name__ == "__main__":
    run(write_reference)
