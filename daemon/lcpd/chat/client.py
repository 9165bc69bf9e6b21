"""The daemon's half of the chat process: calls with a deadline, and a process that is replaced when it fails.

The process answers one call after the other, so the oldest unanswered call is the one it works on.  It is sent one
more meanwhile; the others wait here, where those that nobody waits for any more are dropped.

    what happens                        the oldest call             the calls behind it
    ------------                        ---------------             -------------------
    the process dies                    sent once more to a new     sent to the new process
    (or speaks nonsense)                process; dies again:
                                        ChatCrashed
    no answer within the deadline       the process is killed;      sent to the new process
                                        ChatCrashed
    the process cannot be started       ChatUnavailable             ChatUnavailable

Reply parsers live in the process, so the client keeps each one's text and replays it after a restart, before the
push that was not answered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lcpd.chat import protocol as p
from lcpd.chat.infill import Gap, Room
from lcpd.engine.protocol import Tokens, pack
from lcpd.ipc.channel import ChannelClosed, DaemonChannel
from lcpd.ipc.child import Child, describe_exit
from lcpd.ipc.frames import FrameError
from lcpd.ipc.handshake import VERSION, Hello, Refused
from lcpd.ipc.launch import launch

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer", bound=p.Message)
_KILLS = "rendering or parsing this request kills the chat process"
_STOP_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
_QUICK_DEATH = 10.0
"""Seconds; an idle process that dies within them would probably do so again."""
_SENT = 2
"""Calls on their way: one is worked on, and the next is at hand."""
# One thread, and no debugger on the process when llama.cpp aborts.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GGML_NO_BACKTRACE": "1"}
_START_TIMEOUT = 120.0
"""Seconds for a large vocabulary on a slow disk."""


class ChatRefused(ValueError):
    """The request cannot be rendered, tokenised or parsed; the text says why."""


class ChatTooLong(ValueError):
    """The prompt does not fit a context of `context` tokens: it has `tokens` at least."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(f"the prompt has at least {tokens} tokens, and {context} fit")
        self.tokens = tokens
        self.context = context


class ChatCrashed(RuntimeError):
    """Working on this very request killed the chat process or took too long."""


class ChatUnavailable(RuntimeError):
    """There is no chat process and none can be started."""


class _ParserLost(Exception):
    """The process that held a reply's parser is gone; `blamed`: it died while it worked on this push."""

    def __init__(self, blamed: bool) -> None:
        super().__init__()
        self.blamed = blamed


@dataclass(frozen=True)
class ChatSettings:
    """How to run the chat process."""

    model: Path
    template: str | None
    lib_dir: Path
    memory_limit: int
    """Bytes on top of what the process needs when idle."""
    call_timeout: float
    """Seconds of work on one call."""
    command: tuple[str, ...] = (sys.executable, "-m", "lcpd.chat.service")


@dataclass
class _Pending:
    """A call without its answer."""

    message: p.ToChat
    answer: asyncio.Future[p.FromChat]
    deaths: int = 0


@dataclass
class Reply:
    """A reply parser in the chat process, which can be rebuilt from this."""

    id: int
    fields: bytes
    scope: int = 0
    text: str = ""
    """What was pushed so far."""
    process: int = 0
    """The generation of the process that holds the parser; 0: none."""


@dataclass
class _Process:
    child: Child
    channel: DaemonChannel[p.FromChat]
    generation: int
    started: float = field(default_factory=time.monotonic)
    pending: dict[int, _Pending] = field(default_factory=dict)
    """Sent, in that order: the first is being worked on."""
    line: deque[_Pending] = field(default_factory=deque)
    """To be sent, oldest first."""

    @property
    def calls(self) -> list[_Pending]:
        """All that have no answer yet, oldest first."""
        return [*self.pending.values(), *self.line]


class ChatClient:
    """One model's chat process.  `start` it, then call; `stop` ends it."""

    def __init__(self, settings: ChatSettings, on_restart: Callable[[str], None] = lambda reason: None) -> None:
        self._settings = settings
        self._on_restart = on_restart
        self._ids = itertools.count(1)
        self._generations = itertools.count(1)
        self._process: _Process | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadline: asyncio.TimerHandle | None = None
        self._starting = asyncio.Lock()
        self._stopped = False
        self.failure: str | None = None
        """Why the last start failed; None when it did not."""
        self.info: dict[str, Any] = {}
        """The facts of `Opened.info`, from the process: ``caps``, ``supports_thinking``, ``source``..."""

    @property
    def ready(self) -> bool:
        """Whether a process is up."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The process id, for tests and the admin view."""
        return self._process.child.process.pid if self._process else None

    async def start(self) -> None:
        """Start the process; raises ChatUnavailable with the reason."""
        async with self._starting:
            if self._process is None and not self._stopped:
                try:
                    process = await self._spawn()
                except ChatUnavailable as error:
                    self.failure = str(error)
                    raise
                self.failure = None
                if self._stopped:
                    process.channel.close()
                    await process.child.stop(grace=_STOP_GRACE)
                else:
                    self._process = process

    async def stop(self) -> None:
        """End the process; calls in flight raise ChatUnavailable."""
        self._stopped = True
        if process := self._process:
            self._process = None
            process.channel.close()
            await process.child.stop(grace=_STOP_GRACE)
            _fail_all(process, ChatUnavailable("the chat process was stopped"))
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # ---- calls -----------------------------------------------------------------------------------------

    async def render(
        self,
        dialect: p.Dialect,
        body: bytes,
        overrides: bytes | None = None,
        more: bytes | None = None,
        scope: int = 0,
        context: int = 0,
        store: bool = True,
    ) -> p.Rendered:
        """A chat body as tokens and fields; `overrides` win over fields converted from another dialect.

        `more`: a JSON list of messages in OpenAI's shape that follow on the body's; `scope`: that of the key that asks
        (:mod:`lcpd.cache.isolation`), which gets nothing that was remembered for others; `context`: tokens of the
        model's context, where it is known: then a text that is longer by its size alone raises ChatTooLong; `store`:
        whether the text and its tokens may be remembered.
        """
        call = p.Render(next(self._ids), dialect, body, overrides, more, scope, context, store)
        return await self._call(call, p.Rendered)

    async def complete(
        self, prompt: str | list[int], body: bytes, context: int = 0, scope: int = 0, store: bool = True
    ) -> p.Rendered:
        """A text completion's prompt as tokens, its fields checked; `context`, `scope`, `store`: as in `render`."""
        return await self._call(p.Complete(next(self._ids), prompt, body, context, scope, store), p.Rendered)

    async def infill(self, gap: Gap, room: Room, body: bytes) -> p.Rendered:
        """The prompt for code between two pieces of code as tokens, its fields checked."""
        files = list(gap.files)
        call = p.Infill(
            next(self._ids), gap.prefix, gap.suffix, gap.prompt, files, room.context, room.batch, room.reply, body
        )
        return await self._call(call, p.Rendered)

    async def pair(self, query: str, document: str) -> bytes:
        """The tokens that a reranker is given of a query and a document, packed."""
        return (await self._call(p.Pair(next(self._ids), query, document), p.Tokenized)).tokens

    async def tokenize(self, text: str | list[str | int], add_special: bool, parse_special: bool) -> bytes:
        """The tokens of a text, or of texts and tokens in turn, packed."""
        call = p.Tokenize(next(self._ids), text, add_special, parse_special)
        return (await self._call(call, p.Tokenized)).tokens

    async def detokenize(self, runs: Sequence[Tokens]) -> list[str]:
        """The texts of runs of tokens, special tokens included."""
        call = p.Detokenize(next(self._ids), [pack(run) for run in runs])
        return (await self._call(call, p.Texts)).texts

    async def spell(self, tokens: Tokens) -> list[bytes]:
        """The bytes of each token, special tokens included; raises ChatRefused for what is no token."""
        return (await self._call(p.Spell(next(self._ids), pack(tokens)), p.Spelled)).pieces

    async def template(self, body: bytes) -> str:
        """The prompt's text for a chat body, as the template writes it."""
        return (await self._call(p.Template(next(self._ids), body), p.Templated)).prompt

    def remember(self, prompt: bytes, reply: Tokens) -> None:
        """Have later renderings repeat a reply as it was generated (:mod:`lcpd.chat.replay`).

        Does not wait, and does nothing where there is no process: what it remembers goes with it anyway.
        """
        if process := self._process:
            pending = _Pending(p.Remember(next(self._ids), prompt, pack(reply)), _unawaited())
            self._send(process, pending)

    async def forget(self) -> None:
        """Have the process forget all prompts and replies that it remembers; where there is none, nothing is."""
        if self._process is not None:
            with suppress(ChatCrashed, ChatUnavailable):  # its memory went with it
                await self._call(p.Forget(next(self._ids)), p.Done)

    def open_reply(self, fields: bytes, scope: int = 0) -> Reply:
        """A parser for one reply to a request with these fields (of `Rendered`); `scope`: as in `render`."""
        return Reply(next(self._ids), fields, scope)

    async def push(
        self, reply: Reply, text: str, final: bool, cut: bool = False
    ) -> tuple[list[Any], dict[str, Any] | None]:
        """Add text to a reply; returns the new deltas and, when final, the whole message.

        `cut`: the reply ended before its end, so what is open in it is left open.
        """
        deaths = 0
        while True:
            try:
                answer = await self._push(reply, text, final, cut)
            except _ParserLost as lost:
                deaths += lost.blamed
                if deaths > 1:
                    raise ChatCrashed(_KILLS) from None
                continue
            reply.text += text
            reply.process = 0 if final else reply.process
            message = msgspec.json.decode(answer.message) if answer.message is not None else None
            return msgspec.json.decode(answer.deltas), message

    async def _push(self, reply: Reply, text: str, final: bool, cut: bool) -> p.Deltas:
        """One try at a push; raises _ParserLost when the process dies before it has answered."""
        await self.start()
        generation = self._process.generation if self._process else 0
        is_open = reply.process == generation
        if not is_open and reply.text:
            # The parser died with its process: replay what it knew, whose deltas were delivered already.
            again = p.Push(next(self._ids), reply.id, reply.text, False, reply.fields, scope=reply.scope)
            await self._call(again, p.Deltas, generation)
            is_open = True
        reply.process = generation
        fields = None if is_open else reply.fields
        call = p.Push(next(self._ids), reply.id, text, final, fields, cut, reply.scope)
        return await self._call(call, p.Deltas, generation)

    async def close_reply(self, reply: Reply) -> None:
        """Drop a reply's parser; nothing happens when it is gone, after the final push for instance."""
        if self._process and reply.process == self._process.generation:
            with suppress(ChatCrashed, ChatUnavailable):
                await self._call(p.Close(next(self._ids), reply.id), p.Done)

    async def _call(self, message: p.ToChat, kind: type[_Answer], generation: int | None = None) -> _Answer:
        """The answer to a call; with `generation` from that very process, else _ParserLost is raised."""
        await self.start()
        process = self._process
        if process is None:
            raise ChatUnavailable("the chat process is stopped")
        if generation not in (None, process.generation):
            raise _ParserLost(blamed=False)
        pending = _Pending(message, asyncio.get_running_loop().create_future())
        self._send(process, pending)
        answer = await pending.answer
        if isinstance(answer, p.Problem):
            raise ChatRefused(answer.message)
        if isinstance(answer, p.TooLong):
            raise ChatTooLong(answer.tokens, answer.context)
        if not isinstance(answer, kind):
            raise ChatUnavailable(f"the chat process answered {type(answer).__name__} to {type(message).__name__}")
        return answer

    # ---- the process -----------------------------------------------------------------------------------

    def _send(self, process: _Process, pending: _Pending) -> None:
        process.line.append(pending)
        self._advance(process)

    def _advance(self, process: _Process) -> None:
        """Send what is next, and leave out what nobody waits for any more."""
        while process.line and len(process.pending) < _SENT:
            pending = process.line.popleft()
            if pending.answer.done():
                continue
            try:
                process.channel.send(pending.message)
            except ChannelClosed:
                pass  # the reader notices, and sends all calls without an answer again
            except Exception as error:  # it cannot be encoded
                _fail(pending, error)
                continue
            process.pending[pending.message.call] = pending
            if len(process.pending) == 1:
                self._arm_deadline(process)

    def _arm_deadline(self, process: _Process) -> None:
        """The oldest call has just become the one that is worked on."""
        if self._deadline:
            self._deadline.cancel()
        self._deadline = None
        if process.pending:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._settings.call_timeout, self._on_deadline, process)

    def _on_deadline(self, process: _Process) -> None:
        if oldest := next(iter(process.pending.values()), None):
            seconds = self._settings.call_timeout
            _fail(oldest, ChatCrashed(f"rendering or parsing took more than {seconds:g} s (chat.call_timeout)"))
            # It stays the oldest, so that its death is not blamed on the next one.
        process.child.signal(signal.SIGKILL)

    async def _spawn(self) -> _Process:
        s = self._settings
        environment = {**os.environ, **_ENVIRONMENT, "LLAMA_CPP_LIB_PATH": str(s.lib_dir)}
        try:
            child, channel = await launch(list(s.command), environment, 50, p.FromChat | Hello | Refused)
        except OSError as error:
            raise ChatUnavailable(f"the chat process cannot be started: {error}") from error
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                channel.send(Hello(VERSION, "chat"))
                hello = await channel.receive()
                if not isinstance(hello, Hello):
                    raise ChatUnavailable(getattr(hello, "reason", f"the chat process said {hello!r}"))
                channel.send(p.Open(0, str(s.model), s.template, s.memory_limit))
                opened = await channel.receive()
            if not isinstance(opened, p.Opened):
                reason = getattr(opened, "message", f"the chat process said {opened!r}")
                blamed = "model.chat_template_file" if s.template else str(s.model)
                raise ChatUnavailable(f"the chat template cannot be used ({blamed}): {reason}")
        except BaseException as error:
            channel.close()
            status = await (child.reap() if isinstance(error, ChannelClosed) else child.kill())
            if isinstance(error, ChannelClosed | TimeoutError):
                tail = "\n".join(child.log) or "it wrote nothing"
                reason = "did not start in time" if isinstance(error, TimeoutError) else describe_exit(status)
                raise ChatUnavailable(f"the chat process {reason}: {tail}") from error
            if isinstance(error, FrameError | msgspec.DecodeError):
                raise ChatUnavailable(f"the chat process spoke nonsense: {error}") from error
            raise
        self.info = msgspec.json.decode(opened.info)
        process = _Process(child, channel, next(self._generations))
        task = asyncio.create_task(self._read(process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return process

    async def _read(self, process: _Process) -> None:
        """Deliver answers until the process dies; then start another one and send it what is left."""
        try:
            while True:
                answer = await process.channel.receive()
                pending = process.pending.pop(answer.call, None)
                self._arm_deadline(process)
                self._advance(process)
                if pending and not pending.answer.done():
                    pending.answer.set_result(answer)
        except (ChannelClosed, FrameError, msgspec.DecodeError) as error:
            if self._process is not process:
                return
            self._process = None
            if self._deadline:
                self._deadline.cancel()
            process.channel.close()
            if isinstance(error, ChannelClosed):
                reason = describe_exit(await process.child.reap())
            else:
                await process.child.kill()
                reason = f"spoke nonsense: {error}"
            log.warning("the chat process %s", reason)
            self._on_restart(reason)
            await self._recover(process)

    async def _recover(self, dead: _Process) -> None:
        calls = dead.calls
        if not calls and time.monotonic() - dead.started < _QUICK_DEATH:
            return  # the next call starts another one; doing so at once could turn in a circle
        if dead.pending:
            calls[0].deaths += 1
            if calls[0].deaths > 1:
                _fail(calls[0], ChatCrashed(_KILLS))
        for pending in calls:
            if isinstance(pending.message, p.Push):
                _fail(pending, _ParserLost(blamed=pending.deaths > 0))
        try:
            await self.start()
            if self._process is None:
                raise ChatUnavailable("the chat process was stopped")
        except ChatUnavailable as error:
            _fail_all(dead, error)
            log.error("%s", error)
            return
        except asyncio.CancelledError:
            _fail_all(dead, ChatUnavailable("the chat process was stopped"))
            raise
        for pending in calls:
            if not pending.answer.done():
                self._send(self._process, pending)


def _unawaited() -> asyncio.Future[p.FromChat]:
    """For the answer to a call that nobody waits for."""
    answer: asyncio.Future[p.FromChat] = asyncio.get_running_loop().create_future()
    answer.add_done_callback(lambda future: future.cancelled() or future.exception())
    return answer


def _fail(pending: _Pending, error: Exception) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(error)


def _fail_all(process: _Process, error: Exception) -> None:
    for pending in process.calls:
        _fail(pending, error)
