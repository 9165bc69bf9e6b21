"""Between the engine and the prompt cache: the room in the arena that commands in flight write to or read from.

    room                       given out by      goes back by
    ----                       -------------     ------------
    checkpoint of a request    planned, marked   Checkpointed; passed (the engine went past it); left, lost
    export of a slot           saving            Saved; lost
    what a Start reads         reading           started, left; lost

`left`: the request has left its slot (Finished, Failed, Parked).  `lost`: the engine is gone with all its commands.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lcpd.cache import checkpoints
from lcpd.cache.cache import Pin, PromptCache
from lcpd.cache.history import Past
from lcpd.engine import protocol as p
from lcpd.metrics import Metrics
from lcpd.scheduler.placement import Costs, costs_of
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.saving import SHARE
from lcpd.scheduler.slots import Known, Resume, Span, Tokens
from lcpd.scheduler.speeds import Speeds, guessed


@dataclass
class _Export:
    """A Save in flight."""

    tokens: Tokens
    cuts: list[p.Cut]
    checkpoint: p.Extent | None
    pin: Pin
    """What was in RAM of these tokens before, without which the rest would be of no use."""


@dataclass
class _Commands:
    """What the commands of one request hold."""

    tokens: Tokens
    shared: int
    """Tokens that come from a slot."""
    store: bool
    """Whether anything of it may be kept."""
    room: dict[int, p.Extent] = field(default_factory=dict)
    """Position -> where its checkpoint is written."""
    pin: Pin | None = None
    reading: int = 0
    """Bytes in the arena that its Start reads."""


class Keeper:
    """The dispatcher's hands in the prompt cache; the only one that reserves room there."""

    def __init__(self, cache: PromptCache, policy: Policy, metrics: Metrics) -> None:
        self._cache = cache
        self._policy = policy
        self._metrics = metrics
        self._rolls_back = True
        self._alignment = 1
        self._token_bytes = self._checkpoint_bytes = 0
        self._speeds = Speeds()
        self._guessed_for: tuple[str, dict[str, int]] | None = None
        self._commands: dict[int, _Commands] = {}
        self._exports: defaultdict[int, deque[_Export]] = defaultdict(deque)
        self._private: set[int] = set()
        """Sequences of whose contents nothing is to be kept."""

    def configure(self, info: p.ModelInfo) -> None:
        """A model is there; what was measured before holds on if it is the same one."""
        self._rolls_back = info.rolls_back
        self._alignment = info.alignment
        self._token_bytes, self._checkpoint_bytes = info.segment_bytes[1], info.checkpoint_bytes
        if self._guessed_for != (info.description, info.devices):
            self._guessed_for = info.description, info.devices
            self._speeds = guessed(info)
        self._cache.configure(segment_bytes=info.segment_bytes, checkpoint_bytes=info.checkpoint_bytes)

    @property
    def rolls_back(self) -> bool:
        """Whether a sequence can be truncated anywhere."""
        return self._rolls_back

    @property
    def takes_checkpoints(self) -> bool:
        """Whether they are of use, and wanted."""
        return self._policy.checkpoints > 0 and not self._rolls_back

    @property
    def exporting(self) -> list[Tokens]:
        """The tokens whose state is on its way into the arena."""
        return [export.tokens for exports in self._exports.values() for export in exports]

    @property
    def alignment(self) -> int:
        """Prefill is cut at multiples of this."""
        return self._alignment

    @property
    def saves(self) -> bool:
        """Whether what slots hold can be saved and resumed from."""
        return self._cache.size > 0 and (self._rolls_back or self.takes_checkpoints)

    def costs(self) -> Costs:
        """What computing and copying costs, as far as it has been measured."""
        return costs_of(self._speeds, self._token_bytes, self._checkpoint_bytes, self.saves)

    def affordable(self, tokens: int, checkpoint: bool) -> bool:
        """Whether it would not push out too much to save so many tokens before that is necessary."""
        needed = tokens * self._token_bytes + checkpoint * self._checkpoint_bytes
        return needed * SHARE <= self._cache.size

    def past(self, tokens: Tokens) -> Past:
        """What is remembered of a prompt, whether or not anything is left of its state."""
        return self._cache.past(tokens)

    def known(self, tokens: Tokens) -> Known:
        """What the cache can contribute to a prompt.  Changes nothing."""
        checkpoints = () if self._rolls_back else tuple(self._cache.checkpoints_on(tokens))
        covered = self._cache.covered(tokens)
        segments = tuple((segment.begin, segment.end) for segment in self._cache.segments(tokens, 0, covered))
        return Known(covered, checkpoints, segments)

    def covered(self, tokens: Tokens) -> int:
        """How many of these tokens are in RAM."""
        return self._cache.covered(tokens)

    # ---- a request's commands --------------------------------------------------------------------------

    def read(
        self, request: int, tokens: Tokens, resume: Resume, hit: bool = True, store: bool = True
    ) -> tuple[list[p.Segment], p.Piece | None]:
        """What a Start needs from the arena, which stays there until the engine has begun.

        To be called first: room that is reserved later cannot push it out any more.  `hit`: it counts as a use.
        `store`: checkpoints may be taken.
        """
        commands = self._commands[request] = _Commands(tokens, resume.shared, store)
        if hit:
            self._cache.touch(tokens)
        if not resume.restored and not resume.restore:
            return [], None
        commands.pin = self._cache.pin(tokens, resume.begin)
        segments = self._cache.segments(tokens, resume.shared, resume.begin) if resume.restored else []
        checkpoint = self._cache.checkpoint(tokens, resume.begin) if resume.restore else None
        pieces = [segment.piece for segment in segments] + ([checkpoint] if checkpoint else [])
        commands.reading = sum(piece.extent.size for piece in pieces)
        return segments, checkpoint

    def plan(self, request: int, spans: Sequence[Span], begin: int) -> dict[int, p.Extent]:
        """Where a request takes checkpoints while it computes from `begin` on; as many as there is room for."""
        commands = self._commands[request]
        if not self.takes_checkpoints or not commands.store:
            return {}
        there = max(begin, self._cache.covered(commands.tokens))
        positions = checkpoints.plan(
            spans,
            begin,
            len(commands.tokens),
            interval=self._policy.checkpoint_interval,
            alignment=self._alignment,
            limit=self._policy.checkpoints,
            # One further on without the segments below it (the engine died between the two) is of no use, and taken
            # again: what lies below it is saved then.
            known=[at for at in self._cache.checkpoints_on(commands.tokens) if at <= there],
            branches=self._cache.branches_on(commands.tokens),
            gap=checkpoints.minimum_gap(self._checkpoint_bytes, self._speeds.save.value, self._speeds.prefill.value),
        )
        for position in positions:
            if (extent := self._cache.reserve_checkpoint()) is not None:
                commands.room[position] = extent
        return dict(commands.room)

    def started(self, message: p.Started) -> None:
        """The engine has read what it was told to, unless there was a problem."""
        commands = self._commands.get(message.request)
        if commands is None or commands.pin is None:
            return
        if message.damaged:
            self._cache.discard(commands.pin, commands.shared)
        elif not message.problem:
            self._speeds.restore.observe(commands.reading, message.restore_seconds)
            self._metrics.cache.restored_bytes.inc(commands.reading)
            self._metrics.cache.restore_seconds.inc(message.restore_seconds)
            self._metrics.cache.copy_runs.inc(message.runs)
        self._has_read(commands)

    @property
    def token_bytes(self) -> int:
        """What the attention state of one takes, at most."""
        return self._token_bytes

    @property
    def seconds_per_token(self) -> float:
        """What computing one takes, as far as it has been measured."""
        return 1 / self._speeds.prefill.value

    def prefilled(self, tokens: int, seconds: float) -> None:
        """So many tokens were computed in one batch."""
        self._speeds.prefill.observe(tokens, seconds)
        self._cache.measured(self.seconds_per_token)

    def _has_read(self, commands: _Commands) -> None:
        if commands.pin is not None:
            self._cache.unpin(commands.pin)
            commands.pin = None

    def mark(self, request: int, position: int) -> p.Extent | None:
        """Room for one more checkpoint of a running request; None where there is none, or nothing of it is kept."""
        if not self._commands[request].store:
            return None
        extent = self._cache.reserve_checkpoint()
        if extent is not None:
            self._commands[request].room[position] = extent
        return extent

    def pending(self, request: int) -> tuple[int, ...]:
        """Positions of checkpoints that a running request still has to take, ascending."""
        commands = self._commands.get(request)
        return tuple(sorted(commands.room)) if commands else ()

    def checkpointed(self, message: p.Checkpointed, reply: Sequence[int] = ()) -> None:
        """A checkpoint is there, taken at a place in the tokens of the request's start or in its `reply` after them."""
        commands = self._commands.get(message.request)
        if commands is None or commands.room.pop(message.position, None) is None:
            return
        if message.piece is not None:
            self._metrics.cache.checkpoint_size.observe(message.piece.extent.size)
        tokens = commands.tokens
        if message.position > len(tokens):
            tokens = np.concatenate([tokens, np.array(reply, np.int32)])
        self._cache.add_checkpoint(tokens[: message.position], message.extent, message.piece)

    def passed(self, request: int, done: int) -> None:
        """The engine holds `done` tokens: checkpoints before that are not going to be taken any more."""
        if commands := self._commands.get(request):
            for position in [at for at in commands.room if at < done]:
                self._cache.give_back(commands.room.pop(position))

    def left(self, request: int) -> None:
        """The request has left its slot."""
        if commands := self._commands.pop(request, None):
            self._has_read(commands)
            for extent in commands.room.values():
                self._cache.give_back(extent)

    # ---- exports ---------------------------------------------------------------------------------------

    def set_private(self, seq: int, private: bool) -> None:
        """Whether nothing of what a sequence holds from now on is to be kept elsewhere."""
        (self._private.add if private else self._private.discard)(seq)

    def forget_exports(self) -> None:
        """Of what is on its way into the arena nothing is to be kept."""
        for exports in self._exports.values():
            for export in exports:
                export.tokens = export.tokens[:0]

    def save(self, model: str, seq: int, tokens: Tokens, early: bool = False) -> p.Save | None:
        """The command that brings what an idle slot holds to RAM; None where all is there, or there is no room.

        `early`: it is not necessary yet, so it is left alone where it would push out too much.
        """
        covered = self._cache.covered(tokens)
        if seq in self._private or (early and not self.affordable(len(tokens) - covered, checkpoint=True)):
            return None
        return self._export(model, seq, tokens, covered, self.takes_checkpoints)

    def save_front(self, model: str, seq: int, tokens: Tokens) -> p.Save | None:
        """The command that brings the beginning of what a running sequence holds to RAM, without a checkpoint.

        None where all is there, or it would push out too much.
        """
        covered = self._cache.covered(tokens)
        if seq in self._private or not self.affordable(len(tokens) - covered, checkpoint=False):
            return None
        return self._export(model, seq, tokens, covered, checkpointed=False)

    def _export(self, model: str, seq: int, tokens: Tokens, covered: int, checkpointed: bool) -> p.Save | None:
        """`covered`: how many are in RAM.  `checkpointed`: with a checkpoint at the end, if there is none yet."""
        # Nothing that is reserved now may push out what it builds on.
        pin = self._cache.pin(tokens, covered)
        checkpoint = None
        if checkpointed and self._cache.checkpoint(tokens, len(tokens)) is None:
            # Reserved first: segments without a checkpoint at their end are worth less than fewer with one.
            checkpoint = self._cache.reserve_checkpoint()
        cuts = self._cache.plan_save(tokens, len(tokens))
        end = cuts[-1].end if cuts else covered
        if not self._cache.needs_segments:
            end = len(tokens)
        if checkpoint is not None and end < len(tokens):
            # A checkpoint without the segments below it would be of no use.
            self._cache.give_back(checkpoint)
            checkpoint = None
        if not cuts and checkpoint is None:
            self._cache.unpin(pin)
            return None
        self._exports[seq].append(_Export(tokens[:end], cuts, checkpoint, pin))
        return p.Save(model, seq, cuts, checkpoint)

    def saved(self, message: p.Saved) -> None:
        """An export is complete; the engine answers in the order in which it was told."""
        export = self._exports[message.seq].popleft()
        self._cache.add_segments(export.tokens, export.cuts, message.segments)
        if export.checkpoint is not None:
            whole = len(message.segments) == len(export.cuts)
            self._cache.add_checkpoint(export.tokens, export.checkpoint, message.checkpoint if whole else None)
        self._cache.unpin(export.pin)
        pieces = [segment.piece for segment in message.segments] + ([message.checkpoint] if message.checkpoint else [])
        copied = sum(piece.extent.size for piece in pieces)
        self._speeds.save.observe(copied, message.seconds)
        if message.checkpoint is not None:
            self._metrics.cache.checkpoint_size.observe(message.checkpoint.extent.size)
        self._metrics.cache.saved_bytes.inc(copied)
        self._metrics.cache.save_seconds.inc(message.seconds)
        self._metrics.cache.copy_runs.inc(message.runs)

    def remember(self, held: Tokens, prompt: int) -> None:
        """A request has left its slot, which holds `held`; the first `prompt` of these tokens were its prompt."""
        self._cache.remember(held, prompt)

    def lost(self, slots: Mapping[int, Tokens]) -> None:
        """The engine is gone with what its slots held: nobody writes or reads any more."""
        for seq, tokens in slots.items():
            if seq not in self._private:
                self._cache.remember(tokens, len(tokens))
                self._cache.lose(tokens, 0, "engine restarted")
        self._private.clear()
        for request in list(self._commands):
            self.left(request)
        for exports in self._exports.values():
            for export in exports:
                self._cache.add_segments(export.tokens, export.cuts, [])
                if export.checkpoint is not None:
                    self._cache.give_back(export.checkpoint)
                self._cache.unpin(export.pin)
        self._exports.clear()
