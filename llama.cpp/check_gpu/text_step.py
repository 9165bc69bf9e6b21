"""The device's greedy replies against the CPU's, and its logits for the CPU's replies."""

from __future__ import annotations

import numpy as np

from check_gpu.child import Options, run
from check_gpu.compare import CONTROL_MIN, GAP_BOUND, first_difference, gaps, tie
from check_gpu.engine import Backend, Setting, difference
from check_gpu.outcome import Findings
from check_gpu.prompts import CONVERSATIONS
from check_gpu.reference_step import FILE, MAX_TOKENS


def check_text(options: Options, findings: Findings) -> None:
    backend = Backend(gpu=options.gpu)
    engine = backend.engine(Setting())
    equal, tokens, worst_tie, worst_gap, worst_logit = 0, 0, 0.0, 0.0, 0.0
    controls = []
    count = len(CONVERSATIONS)
    with np.load(options.work / FILE) as reference:
        prompts, replies, rows = ([reference[f"{k}{i}"] for i in range(count)] for k in ("prompt", "reply", "rows"))
    for number in range(count):
        mine = engine.generate(number, prompts[number], MAX_TOKENS)
        at = first_difference(replies[number], mine)
        if at is None:
            equal += 1
        else:
            worst_tie = max(worst_tie, tie(rows[number], replies[number], mine))
            findings.notes.append(f"reply {number} differs from the CPU's at token {at} of {len(replies[number])}")
        tokens += len(mine)
        replayed = engine.replay(prompts[number], replies[number])
        worst_gap = max(worst_gap, float(gaps(replayed, replies[number]).max()))
        worst_logit = max(worst_logit, difference(replayed, rows[number]))
        # The same rows judged by the reply to another conversation.
        stranger = replies[(number + 1) % count]
        shared = min(len(replayed), len(stranger))
        controls.append(float(gaps(replayed[:shared], stranger[:shared]).max()))
    findings.check(
        "greedy replies are the CPU's, or part from them at a tie",
        worst_tie <= GAP_BOUND,
        f"{equal} of {count} equal, {tokens} tokens; gap of differing tokens {worst_tie:.3g}, bound {GAP_BOUND}",
    )
    findings.check(
        "every token of the CPU's replies is the device's choice, or at a tie with it",
        worst_gap <= GAP_BOUND,
        f"largest gap {worst_gap:.3g}, bound {GAP_BOUND}",
    )
    findings.check(
        "control: replies to other prompts are told apart",
        min(controls) >= CONTROL_MIN,
        f"smallest gap {min(controls):.3g}, at least {CONTROL_MIN}",
    )
    findings.figure("largest difference of a logit from the CPU's", worst_logit, "logits")
    engine.close()


if __name__ == "__main__":
    run(check_text)
