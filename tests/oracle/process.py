"""The oracle in a process of its own: libllama stays out of the process that runs the tests.

with Oracle(model_path, ctx=2048) as oracle:
    assert oracle.gap(prompt, reply) < oracle.delta
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lcpd.build import require_active
from oracle.replay import SEQUENCES, Replay
from oracle.tables import table

_CALIBRATION = (9001, 9002)
"""Seeds of the tables on which delta is measured."""
_CALIBRATION_LINES, _CALIBRATION_REPLY = 6, 20
_TESTS = Path(__file__).parents[1]


class Oracle:
    """For greedy replies with `ignore_eos`.

    Asks a child process, which lives until the end of the with block.  Calls block until they are answered.
    """

    def __init__(self, model: Path, ctx: int = 2048, kv_type: str = "f16", flash_attn: str = "off") -> None:
        """`ctx`: cells of its context; at least four times the longest prompt with its reply."""
        self._command = [sys.executable, "-m", "oracle.process", str(model), str(ctx), kv_type, flash_attn]
        self._environment = {
            **os.environ,
            "LLAMA_CPP_LIB_PATH": str(require_active().lib_dir),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(_TESTS),
        }

    def __enter__(self) -> Oracle:
        self._child = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._delta: float | None = None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait(30)

    @property
    def delta(self) -> float:
        """The largest gap that different cuts explain on this model."""
        if self._delta is None:
            self._delta = self._ask("delta")
        return self._delta

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text, as a prompt."""
        return self._ask("tokenize", text)

    def gap(self, prompt: Sequence[int], reply: Sequence[int]) -> float:
        """The worst gap of the reply's tokens."""
        return self._ask("gap", list(prompt), list(reply))

    def least_gap(self, prompt: Sequence[int], reply: Sequence[int]) -> float:
        """As `gap`, but of each token the smallest gap over several shapes of batches; takes several times as long."""
        return self._ask("least_gap", list(prompt), list(reply))

    def lead(self, prompt: Sequence[int], reply: Sequence[int]) -> float:
        """By how much the best token beats the next one, where that is least."""
        return self._ask("lead", list(prompt), list(reply))

    def greedy(self, prompt: Sequence[int], length: int, cuts: Iterable[int] = ()) -> list[int]:
        """The best reply, alone, its prompt computed with these cuts; ends at `length`."""
        return self._ask("greedy", list(prompt), length, list(cuts))

    def _ask(self, *question: Any) -> Any:
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise AssertionError(f"the oracle died with status {self._child.wait()}; it wrote why to stderr")
        return json.loads(answer)


def main() -> None:
    """The child: answers one JSON line with another until there are no more."""
    import llama_cpp.llama_cpp as llama

    from lcpd.native.context import Context, ContextSettings
    from lcpd.native.log import LogCapture
    from lcpd.native.model import Model, ModelSettings

    path, ctx, kv_type, flash_attn = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    log = LogCapture()
    llama.llama_backend_init()
    model = Model(path, log, ModelSettings())
    settings = ContextSettings(
        n_ctx=ctx,
        n_seq=SEQUENCES,
        n_batch=ctx,
        n_ubatch=min(512, ctx),
        threads=1,
        kv_type=kv_type,
        flash_attn=flash_attn,  # type: ignore[arg-type]
    )
    context = Context(model, settings, log)
    replay = Replay(context, model.n_vocab, never=model.end_tokens)

    def tokenize(text: str) -> list[int]:
        return model.tokenize(text, add_special=True, parse_special=False).tolist()

    def answer(question: str, *arguments: Any) -> Any:
        match question:
            case "delta":
                prompts = [tokenize(table(seed, _CALIBRATION_LINES)) for seed in _CALIBRATION]
                return max(replay.delta(prompt, _CALIBRATION_REPLY) for prompt in prompts)
            case "tokenize":
                return tokenize(*arguments)
            case "gap":
                return float(replay.gaps(*arguments).max())
            case "least_gap":
                return float(replay.least_gaps(*arguments).max())
            case "lead":
                best = np.sort(replay.rows(*arguments), axis=1)
                return float((best[:, -1] - best[:, -2]).min())
            case "greedy":
                prompt, length, cuts = arguments
                return replay.greedy(prompt, length, cuts=cuts)
        raise ValueError(f"there is no question {question!r}")

    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
    context.close()
    model.close()


if __name__ == "__main__":
    main()
