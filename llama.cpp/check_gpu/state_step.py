"""Checkpoints, whole states and segments on the device: the call orders that lcpd relies on give bit-equal logits.

Everywhere the batches are cut at the same places, and restored cells come to lie where they lay before, so the device
has to compute the very same sums.  Wrong data must show in the logits, or equality would prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from check_gpu.blob import without_cells
from check_gpu.child import Options, run
from check_gpu.engine import PARTIAL, Backend, Engine, Logits, Setting, Tokens, difference, words
from check_gpu.outcome import Findings
from lcpd.native.context import Bytes

FIRST, SECOND, CHUNK, END = 200, 400, 450, 456
"""Positions: the ends of two segments, of one more batch, and of some single tokens after it."""
SCRATCH = 3
TOLERANCE = 0.2
"""Logits, where cells lie elsewhere than before and sums may be taken in another order."""
CONTROL_MIN = 2.0


@dataclass(frozen=True)
class Kept:
    """What is exported of a sequence that stands at `SECOND`."""

    segments: tuple[Bytes, Bytes]
    checkpoint: Bytes
    whole: Bytes


class Scene:
    """One context, a text that is continued in many ways, and another text for the controls."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.text = words(engine.model, 1, END)
        self.other = words(engine.model, 2, END)

    def stand(self, tokens: Tokens, seq: int = 0) -> None:
        """Bring an empty sequence to `SECOND`."""
        self.engine.decode(tokens, 0, FIRST, seq)
        self.engine.decode(tokens, FIRST, SECOND, seq)

    def go_on(self, seq: int) -> Logits:
        """Continue a sequence that stands at `SECOND`: one batch, then single tokens; all their logits."""
        rows = [self.engine.decode(self.text, SECOND, CHUNK, seq, rows=CHUNK - SECOND)]
        rows += [self.engine.decode(self.text, at, at + 1, seq) for at in range(CHUNK, END)]
        return np.concatenate(rows)

    def empty(self) -> None:
        for seq in range(SCRATCH + 1):
            self.engine.context.clear(seq)

    def fresh(self, tokens: Tokens) -> None:
        """Only sequence 0 holds something: these tokens, up to `SECOND`."""
        self.empty()
        self.stand(tokens)

    def keep(self) -> Kept:
        """Export all there is of sequence 0, which stands at `SECOND` and is left as it is."""
        checkpoint = self.engine.context.take_checkpoint(0)
        segments = (self.segment(0, FIRST, checkpoint), self.segment(FIRST, SECOND, checkpoint))
        return Kept(segments, checkpoint, self.engine.get(0))

    def segment(self, begin: int, end: int, checkpoint: Bytes) -> Bytes:
        """The attention cells of sequence 0 at [begin, end), without its recurrent state."""
        self.engine.share(0, SCRATCH, begin, end)
        nothing = np.frombuffer(without_cells(checkpoint.tobytes()), np.uint8).copy()
        if not self.engine.put(SCRATCH, nothing, PARTIAL):
            raise RuntimeError("a recurrent section without cells was refused")
        data = self.engine.get(SCRATCH)
        self.engine.context.clear(SCRATCH)
        return data

    def assemble(self, segments: tuple[Bytes, Bytes], checkpoint: Bytes, seq: int) -> None:
        """Bring an empty sequence to `SECOND` from segments and a checkpoint."""
        for data in segments:
            if not self.engine.put(SCRATCH, data):
                raise RuntimeError("a segment was refused")
            self.engine.share(SCRATCH, seq, -1, -1)
            self.engine.context.clear(SCRATCH)
        self.engine.context.restore_checkpoint(seq, checkpoint, SECOND)


def check_state(options: Options, findings: Findings) -> None:
    backend = Backend(gpu=options.gpu)
    for kv_type in ("f16", "q8_0"):
        engine = backend.engine(Setting(n_ctx=2048, n_batch=512, kv_type=kv_type))
        _check_kv(Scene(engine), kv_type, findings)
        engine.close()


def _check_kv(scene: Scene, kv: str, findings: Findings) -> None:
    engine = scene.engine
    scene.fresh(scene.text)
    expected = scene.go_on(0)
    scene.fresh(scene.text)
    spread = difference(scene.go_on(0), expected)
    findings.check(f"{kv}: the same batches again give the same bits", spread == 0, f"difference {spread:.3g}")

    def same(name: str, got: Logits) -> None:
        off = difference(got, expected)
        findings.check(f"{kv}: {name}: bit-equal", off == 0, f"difference {off:.3g}")

    def wrong(name: str, got: Logits) -> None:
        off = float(np.abs(got - expected).max())
        findings.check(f"{kv}: control: {name}", not off <= CONTROL_MIN, f"difference {off:.3g}, over {CONTROL_MIN}")

    scene.fresh(scene.other)
    stranger = scene.keep()
    scene.fresh(scene.text)
    kept = scene.keep()
    same("exporting leaves the live sequence as it is", scene.go_on(0))

    # Sequence 0 stands at END now.
    engine.context.restore_checkpoint(0, kept.checkpoint, SECOND)
    same("rolled back with a checkpoint", scene.go_on(0))
    engine.context.restore_checkpoint(0, stranger.checkpoint, SECOND)
    wrong("another text's checkpoint shows", scene.go_on(0))

    scene.empty()
    if not engine.put(1, kept.whole):
        raise RuntimeError("a whole state was refused")
    same(f"whole state of {len(kept.whole)} B in another sequence", scene.go_on(1))
    scene.empty()
    scene.assemble(kept.segments, kept.checkpoint, 1)
    sizes = " + ".join(str(len(s)) for s in kept.segments)
    same(f"segments of {sizes} B and a checkpoint of {len(kept.checkpoint)} B", scene.go_on(1))
    scene.empty()
    scene.assemble(stranger.segments, kept.checkpoint, 1)
    wrong("another text's segments show", scene.go_on(1))

    scene.fresh(scene.text)
    engine.put(1, kept.whole)
    off = difference(scene.go_on(1), expected)
    findings.check(f"{kv}: whole state beside a live one", off <= TOLERANCE, f"difference {off:.3g}, bound {TOLERANCE}")
    scene.empty()
    half = kept.whole[: len(kept.whole) // 2].copy()
    findings.check(f"{kv}: half a state is refused", not engine.put(1, half), "llama.cpp read 0 bytes")


if __name__ == "__main__":
    run(check_state)
