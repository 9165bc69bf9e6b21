"""Moves the state of sequences: between sequences, into the arena and out of it.

The call orders here are the ones that are right on attention, sliding-window, hybrid and recurrent models; others
give wrong logits without any error.  ``tests/native/test_loop_state.py`` proves each of them.

    to do                               order
    -----                               -----
    share [0, n) of another sequence    empty the target; share the cells; take the rolling state off the target
    append segments                     for each: read it into scratch, share its cells with the target; empty scratch
    go to position n                    *last* the checkpoint at n, then remove what lies beyond n
    export [begin, end)                 share the cells with scratch; take the rolling state off scratch, or it would
                                        travel along; write scratch; empty scratch

What takes long is a *piece*: one segment, one checkpoint.  The methods here are generators that yield before each of
them, so that the decode loop can put a step between two.

Nothing is computed with a piece before its checksum was compared (with `verify_once`: at its first use): libllama does
not validate.  How that is done while it is copied, and what becomes of a damaged one, is in :mod:`lcpd.engine.damage`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from lcpd.cache.arena import ArenaError, ArenaView, checksum
from lcpd.engine import protocol as p
from lcpd.engine.commands import Pieces
from lcpd.engine.damage import Checker, DamagedPiece, overwrite_free_cells
from lcpd.engine.job import Job
from lcpd.native.context import Context, StateError
from lcpd.native.segment import Bytes


class Stopwatch:
    """Seconds at work; those of the pauses between pieces are left out."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._paused = 0.0

    def pause(self) -> Pieces:
        """Yield once."""
        paused = time.monotonic()
        yield
        self._paused += time.monotonic() - paused

    @property
    def seconds(self) -> float:
        """So far."""
        return time.monotonic() - self._begun - self._paused


class StateMover:
    """Moves state for the decode loop; the scratch sequence is empty when a generator has come to its end."""

    def __init__(self, context: Context, arena: ArenaView | None, verify_once: bool = False) -> None:
        """`verify_once`: pieces that were found right once are not checked again."""
        self._context = context
        self._arena = arena
        self._checker = Checker(verify_once)

    # ---- into a sequence -------------------------------------------------------------------------------

    def bring(self, command: p.Start, job: Job, watch: Stopwatch, given_up: Callable[[], bool]) -> Pieces:
        """Bring the sequence of a Start to its `begin`, which is checked against the job already.

        Raises StateError where that is impossible (DamagedPiece where a piece is not what was stored), or `given_up()`
        before a piece; the sequence is empty then.
        """
        try:
            self._check(command)
            segments = [segment for segment in command.segments if segment.end > command.shared]
            for segment in segments:
                self._look_at(segment)
            self._share(command, job)
            held, checkpoint, intact = command.shared, command.restore, None
            for segment in segments:
                yield from watch.pause()
                _stop_if(given_up)
                check = self._checker.begin(segment.piece, self._array(segment.piece.extent), _name(segment))
                if checkpoint is not None and segment is segments[-1]:
                    intact = self._checker.begin(checkpoint, self._array(checkpoint.extent), "checkpoint")
                self._append(command.seq, segment, held, check)
                held = segment.end
            self._context.clear(self._context.scratch)
            if checkpoint is not None:
                yield from watch.pause()
                _stop_if(given_up)
                data = self._array(checkpoint.extent)
                intact = intact or self._checker.begin(checkpoint, data, "checkpoint")
                intact()
                try:
                    self._context.restore_checkpoint(command.seq, data, job.end_position(command.begin))
                except StateError:
                    self._checker.look_again(checkpoint, data, "checkpoint")
                    raise
            else:
                self._end_at(command.seq, job.end_position(command.begin))
        except StateError:
            self._give_up(command.seq)
            raise
        except ArenaError as error:
            self._give_up(command.seq)
            raise StateError(str(error)) from error

    def _give_up(self, seq: int) -> None:
        self._context.clear(self._context.scratch)
        self._context.clear(seq)

    def _check(self, command: p.Start) -> None:
        held = command.shared
        if command.shared and not 0 <= command.source < self._context.scratch:
            raise StateError(f"source {command.source} is no sequence to share with")
        if command.segments and len(command.positions):
            raise StateError("segments of a prompt whose positions are not its indexes")
        for segment in command.segments:
            if not segment.begin <= held:
                raise StateError(f"the segment [{segment.begin}, {segment.end}) leaves a gap after {held}")
            held = max(held, segment.end)
        if held < command.begin and self._context.kind != "recurrent":  # there a checkpoint is all of the state
            raise StateError(f"{held} items are given where {command.begin} are to be held")
        needs_checkpoint = not self._context.rolls_back and (command.segments or command.begin != command.shared)
        if command.restore is None and needs_checkpoint:
            raise StateError(f"there is no checkpoint at {command.begin}")
        if command.source not in (-1, command.seq) and command.shared == 0:
            raise StateError(f"nothing of source {command.source} is used")

    def _share(self, command: p.Start, job: Job) -> None:
        """Let the sequence hold [0, shared) of the source, without its rolling state unless it is the one wanted."""
        context, seq, source = self._context, command.seq, command.source
        if source == -1 or command.shared == 0:
            context.clear(seq)
            return
        length = job.end_position(command.shared)
        if (last := context.last_position(source)) < length - 1:
            raise StateError(f"sequence {source} ends at position {last}, before {length - 1}")
        goes_on = command.restore is None and not context.rolls_back
        if goes_on and last != length - 1:
            raise StateError(f"sequence {source} ends at position {last} instead of {length - 1}: no checkpoint")
        if source != seq:
            context.clear(seq)
            context.share(source, seq, 0, length)
        if not goes_on:
            context.drop_rolling(seq, length)
        elif source != seq:
            # Window cells that two sequences hold could not be used again when the window has passed them.
            context.read_state(seq, context.take_checkpoint(source), partial=True)

    def _look_at(self, segment: p.Segment) -> None:
        """Raises StateError where libllama must not believe what a segment says about itself, DamagedPiece where that
        is why."""
        data = self._array(segment.piece.extent)
        if not self._context.believable(data, segment.begin, segment.end):
            self._checker.look_again(segment.piece, data, _name(segment))
            count = self._context.cells_in(data)
            raise StateError(f"the bytes of the {_name(segment)} describe another one, which holds {count} tokens")

    def _append(self, seq: int, segment: p.Segment, held: int, check: Callable[[], None]) -> None:
        """Add the part of a segment that lies beyond `held`; `check` tells whether it is damaged.

        An empty sequence gets its cells as they are.  Otherwise scratch is left with them: reading the next segment
        empties scratch, and to do so twice would cost another walk over all cells of the context.
        """
        context = self._context
        data = self._array(segment.piece.extent)
        into = context.scratch if held else seq
        self._read(into, seq, segment, data, check)
        context.runs.cut(into, 0)
        context.runs.wrote(into, segment.begin, segment.end)
        if into != seq:
            context.share(into, seq, held, segment.end)

    def _read(self, into: int, seq: int, segment: p.Segment, data: Bytes, check: Callable[[], None]) -> None:
        """Read a segment into `seq` or, on behalf of it, into scratch.

        Raises StateError, or DamagedPiece where that is why; no cell that is free then has anything of the segment.
        """
        context = self._context
        try:
            context.read_state(into, data, partial=False)
        except StateError:  # of what it refuses libllama leaves nothing
            self._checker.look_again(segment.piece, data, _name(segment))
            raise
        try:
            check()
        except DamagedPiece:
            self._give_up(seq)
            overwrite_free_cells(context, seq, data)
            raise

    def _end_at(self, seq: int, length: int) -> None:
        self._context.cut(seq, length)
        if (last := self._context.last_position(seq)) != length - 1:
            raise StateError(f"sequence {seq} ends at position {last} instead of {length - 1}")

    # ---- out of a sequence -----------------------------------------------------------------------------

    def save(self, command: p.Save, idle: Callable[[], bool]) -> Generator[None, None, p.Saved]:
        """Export the cuts of a Save, and a checkpoint if the sequence is `idle()` then; what went wrong is in Saved."""
        watch = Stopwatch()
        runs = 0
        segments: list[p.Segment] = []
        point: p.Piece | None = None
        problem = ""
        try:
            for cut in command.cuts:
                yield from watch.pause()
                segments.append(p.Segment(cut.begin, cut.end, self._export(command.seq, cut)))
                runs += self._context.runs.count(command.seq, cut.begin, cut.end)
            if command.checkpoint is not None:
                yield from watch.pause()
                if not idle():
                    raise StateError(f"sequence {command.seq} runs a request: its checkpoint would be of anywhere")
                point = self.checkpoint(command.seq, command.checkpoint)
                if point is None:
                    raise StateError(f"a checkpoint does not fit into {command.checkpoint.size} bytes")
        except (StateError, ArenaError) as error:
            problem = str(error)
        return p.Saved(command.seq, segments, point, problem, watch.seconds, runs)

    def _export(self, seq: int, cut: p.Cut) -> p.Piece:
        context, scratch = self._context, self._context.scratch
        into = self._array(cut.extent)
        name = f"[{cut.begin}, {cut.end}) of sequence {seq}"
        try:
            context.share(seq, scratch, cut.begin, cut.end)
            context.drop_rolling(scratch, cut.end)
            size = context.state_size(scratch, partial=False)
            if size > len(into):
                raise StateError(f"{name} has {size} bytes, {len(into)} are given")
            context.write_state(scratch, into[:size], partial=False)
        finally:
            context.clear(scratch)
        if (cells := context.cells_in(into[:size])) != cut.end - cut.begin:
            raise StateError(f"{name} holds {cells} tokens")
        return self._piece(cut.extent, size)

    def checkpoint(self, seq: int, extent: p.Extent) -> p.Piece | None:
        """Write the rolling state of a sequence as it stands; None where it does not fit.  Raises StateError."""
        into = self._array(extent)
        size = self._context.state_size(seq, partial=True)
        if size > len(into):
            return None
        self._context.write_state(seq, into[:size], partial=True)
        return self._piece(extent, size)

    def _piece(self, extent: p.Extent, size: int) -> p.Piece:
        front = p.Extent(extent.offset, size)
        self._checker.written(front)
        return p.Piece(front, checksum(self._array(front)))

    def _array(self, extent: p.Extent) -> Bytes:
        if self._arena is None:
            raise StateError("this worker was given no arena")
        return self._arena.array(extent)


def _name(segment: p.Segment) -> str:
    return f"segment [{segment.begin}, {segment.end})"


def _stop_if(given_up: Callable[[], bool]) -> None:
    if given_up():
        raise StateError("the request was cancelled before its state was there")
