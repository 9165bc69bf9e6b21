"""A decode loop with an arena, as tests drive it: commands in, messages out."""

from __future__ import annotations

import json
from itertools import pairwise

from lcpd.cache.arena import Arena, ArenaView
from lcpd.engine import protocol as p

ARENA = 128 << 20
KINDS = ["attention", "swa", "hybrid", "recurrent"]
"""Of state; one model each."""


class Engine:
    """A decode loop and what it said."""

    def __init__(self, model, context, **changes):
        from lcpd.engine.loop import DecodeLoop
        from lcpd.native import bridge

        self.model = model
        self.context = context
        self.said = []
        self.arena = Arena(ARENA)
        view = ArenaView(self.arena.fd, ARENA)
        self.loop = DecodeLoop(model, context, bridge.Params("--jinja"), self.said.append, arena=view, **changes)

    # ---- commands --------------------------------------------------------------------------------------

    def start(self, request, tokens, *, seq=0, checkpoints=(), fields=None, embeddings=(), **more):
        """Start a greedy, endless request; `checkpoints` are positions, and anything unknown is a request field."""
        own = {name: more.pop(name) for name in list(more) if name in p.Start.__struct_fields__}
        size = 64 if self.model.kind == "attention" else 9 << 20
        command = p.Start(
            model="m",
            request=request,
            seq=seq,
            tokens=p.pack(tokens),
            begin=own.pop("begin", 0),
            checkpoints={at: self.arena.allocate(size) for at in checkpoints},
            fields=json.dumps({"temperature": 0, "ignore_eos": True, **more}).encode(),
            max_tokens=own.pop("max_tokens", 16),
            embeddings=list(embeddings),
            **own,
        )
        self.loop.start(command)

    def save(self, seq, *ranges, checkpoint=False, size=24 << 10):
        """Export ranges of a sequence, into `size` bytes for each token; returns Saved."""
        cuts = [p.Cut(begin, end, self.arena.allocate(size * (end - begin))) for begin, end in ranges]
        return self.save_into(seq, cuts, self.arena.allocate(9 << 20) if checkpoint else None)

    def save_into(self, seq, cuts, checkpoint=None):
        """Export into given extents; returns Saved."""
        before = len(self.of(p.Saved))
        self.loop.save(p.Save("m", seq, cuts, checkpoint))
        while len(self.of(p.Saved)) == before:
            self.loop.step()
        return self.of(p.Saved)[-1]

    def run(self, steps=10_000):
        """Step until nothing is left to do."""
        for _ in range(steps):
            if not self.loop.busy:
                return self
            self.loop.step()
        raise AssertionError("the loop does not come to an end")

    def forget(self):
        """Empty all sequences, of which none runs."""
        for seq in range(self.context.scratch):
            self.loop.clear(seq)
            assert self.context.last_position(seq) == -1

    # ---- what it said ----------------------------------------------------------------------------------

    def of(self, kind, request=None):
        found = [m for m in self.said if isinstance(m, kind)]
        return found if request is None else [m for m in found if m.request == request]

    def outputs(self, request):
        return [o for step in self.of(p.Step) for o in step.outputs if o.request == request]

    def tokens(self, request):
        return [t for o in self.outputs(request) for t in o.tokens]

    def text(self, request):
        return "".join(o.text for o in self.outputs(request)) + self.of(p.Finished, request)[0].text

    def prefill_cuts(self, request):
        return [m.done for m in self.of(p.Prefilled, request)]

    def begin_of(self, request):
        return self.of(p.Started, request)[-1].begin

    def problem_of(self, request):
        return self.of(p.Started, request)[-1].problem

    def damage_seen(self, request):
        return self.of(p.Started, request)[-1].damaged

    def checkpoint_at(self, position):
        return [m.piece for m in self.of(p.Checkpointed) if m.position == position][-1]

    def logits(self):
        """Those of the last batch's last row."""
        return self.context.logits(-1, self.model.n_vocab)

    # ---- a request alone -------------------------------------------------------------------------------

    def first_logits(self, request, tokens, **more):
        """Run a request for one token; the logits that it was sampled from."""
        self.start(request, tokens, max_tokens=1, **more)
        self.run()
        return self.logits()

    def reply_of_running(self, request):
        """Let everything that runs come to its end; the tokens of one request."""
        self.run()
        return self.tokens(request)

    def reply(self, request, tokens, **more):
        """Run a request; its tokens."""
        self.start(request, tokens, **more)
        self.run()
        return self.tokens(request)


def prompt_for(engine, length=200, seed=0):
    """A prompt of `length` tokens whose continuation is beyond doubt: counting on.

    Where the cells of a sequence lie changes the order of sums and so the last bits of logits; in a text without ties
    that changes no token.
    """
    numbers = ", ".join(str(100 * seed + i) for i in range(length))
    return engine.model.tokenize(numbers, add_special=True, parse_special=False)[:length]


def ranges(engine, *ends):
    """The cuts to export tokens [0, ends[-1]), as far as the model has anything to export."""
    return [] if engine.model.kind == "recurrent" else list(pairwise((0, *ends)))
