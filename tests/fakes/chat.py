"""A chat process without a model: it speaks :mod:`lcpd.chat.protocol`.

In a test::

    ChatSettings(model=Path("fake.gguf"), ..., command=chat_command())
    body = {"messages": [{"role": "user", "content": f"good until here {DIE}"}]}

It renders a body's messages with the marks of :mod:`fakes.vocab`, one span each, and the generation prompt as a last
one; text is tokenised to its bytes.  A body's ``tools`` become part of the system message.  ``max_completion_tokens``
or ``max_tokens``, ``stop`` (or ``stop_sequences``), ``ignore_eos``, ``n_probs`` and ``seed`` are passed on; the other
fields are not looked at.

Replies are parsed like this: ``<think>...</think>`` at the start is reasoning, ``<tool>NAME ARGUMENTS</tool>`` is a
tool call, the rest is content.  The history is rendered the same way, so a reply in it has the tokens that were
generated; reasoning is left out, as real templates do.  Replies that it was told to remember are put in place of those
that have the same calls and content (:mod:`lcpd.chat.replay`); white space around arguments does not count.

Magic text anywhere in a call makes it go wrong:

    text                what
    ----                ----
    DIE                 the process kills itself
    DIE_ONCE            the same, but only while the file `once` of the script does not exist; it is created
    HANG                the call is never answered
    GARBAGE             the answer is bytes that are no frame
    refuse("why")       the answer is Problem with this message
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fakes import command, vocab
from lcpd.chat import protocol as p
from lcpd.chat.replay import Replays, same_message
from lcpd.chat.replies import add_delta
from lcpd.engine.protocol import Tokens, pack, unpack
from lcpd.ipc.channel import ChannelClosed, ChildChannel
from lcpd.ipc.child import child_socket
from lcpd.ipc.handshake import Refused, answer

DIE = "[[die]]"
DIE_ONCE = "[[die-once]]"
HANG = "[[hang]]"
GARBAGE = "[[garbage]]"
Json = dict[str, Any]


def refuse(message: str) -> str:
    """Text that makes a call be refused with this message."""
    return f"[[refuse:{message}]]"


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """What the chat process is like."""

    once: str = ""
    """The marker file of DIE_ONCE."""
    die_at_start: bool = False
    """Exit with status 7 before the hello."""
    die_at_restart: bool = False
    """The same, but only when the file `once` exists: after DIE_ONCE."""
    restart_seconds: float = 0.0
    """How long it takes to say hello, when the file `once` exists."""
    problem: str = ""
    """Answer Open with Problem and this message."""
    refuse_hello: str = ""
    """Refuse the daemon's hello with this reason."""
    garbage_hello: bool = False
    """Answer the hello with bytes that are no frame."""
    supports_thinking: bool = False
    infill_lacks: list[str] = []
    """Names of the tokens that the vocabulary lacks for code between code."""


def chat_command(**script: Any) -> tuple[str, ...]:
    """`ChatSettings.command` for a fake chat process; the arguments are fields of `Script`."""
    return command("fakes.chat", Script(**script))


def render(body: Json) -> tuple[list[int], list[p.Span]]:
    """The tokens of a chat body (OpenAI's or Anthropic's shape) and where its messages are."""
    messages = [(_role(message["role"]), _text(message)) for message in body["messages"]]
    if system := body.get("system"):
        messages.insert(0, ("system", _text({"content": system})))
    if tools := body.get("tools"):
        head = messages.pop(0)[1] if messages[0][0] == "system" else ""
        messages.insert(0, ("system", head + msgspec.json.encode(tools).decode()))
    tokens: list[int] = []
    spans = []
    for role, text in messages:
        begin = len(tokens)
        tokens += [vocab.MARKS[role], *vocab.encode(text), vocab.END]
        spans.append(p.Span(role, begin, len(tokens) - begin))
    spans.append(p.Span("assistant", len(tokens), 1))
    return [*tokens, vocab.MARKS["assistant"]], spans


def _role(role: str) -> str:
    return {"developer": "system", "function": "tool"}.get(role, role)


def _text(message: Json) -> str:
    content = message.get("content") or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    text = ""
    for part in parts:
        if part.get("type") == "tool_use":
            text += _call(part["name"], msgspec.json.encode(part["input"]).decode())
        elif part.get("type") == "tool_result":
            text += _text(part)
        else:
            text += part.get("text", "")
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return text + "".join(_call(call["name"], call["arguments"]) for call in calls)


def _call(name: str, arguments: str) -> str:
    return f"<tool>{name} {arguments}</tool>"


class Parser:
    """One reply being parsed, after so many calls in the history: clients take the same id for the same call."""

    def __init__(self, earlier: int = 0) -> None:
        self._earlier = earlier
        self._text = ""
        self._message: Json = {"role": "assistant", "content": None}

    def push(self, text: str, final: bool) -> tuple[list[Json], Json | None]:
        """Add text; returns the new deltas and, when final, the whole message."""
        self._text += text
        reasoning, content, calls = _parse(self._text if final else _decided(self._text))
        deltas: list[Json] = []
        for key, whole in (("reasoning_content", reasoning), ("content", content)):
            if new := whole[len(self._message.get(key) or "") :]:
                deltas.append({key: new})
        for index in range(len(self._message.get("tool_calls", [])), len(calls)):
            name, arguments = calls[index]
            function = {"name": name, "arguments": arguments}
            call = {"index": index, "id": f"call_{self._earlier + index}", "type": "function", "function": function}
            deltas.append({"tool_calls": [call]})
        for delta in deltas:
            add_delta(self._message, delta)
        return deltas, self._message if final else None


def _decided(text: str) -> str:
    """The beginning of an unfinished reply whose meaning more text cannot change."""
    for opening, closing in (("<tool>", "</tool>"), ("<", ">")):
        at = text.rfind(opening)
        if at >= 0 and closing not in text[at:]:
            text = text[:at]
    return text


def _parse(text: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and tool calls (name, arguments)."""
    reasoning = ""
    if text.startswith("<think>"):
        reasoning, _, text = text.removeprefix("<think>").partition("</think>")
    pattern = r"<tool>(\S+) (.*?)</tool>"
    calls = [(str(name), str(arguments)) for name, arguments in re.findall(pattern, text, re.DOTALL)]
    return reasoning, re.sub(pattern, "", text, flags=re.DOTALL), calls


class Service:
    """Answers calls; see the module's docstring."""

    def __init__(self, script: Script, send_raw: Callable[[bytes], None]) -> None:
        self._script = script
        self._send_raw = send_raw
        self._parsers: dict[int, Parser] = {}
        self._replays = Replays()

    def answer(self, call: p.ToChat) -> p.FromChat:
        """The answer to a call, unless magic text prevents it."""
        text = _readable(call)
        if DIE in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if DIE_ONCE in text and not Path(self._script.once).exists():
            Path(self._script.once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if HANG in text:
            time.sleep(1e6)
        if GARBAGE in text:
            self._send_raw(b"\xff" * 64)
        if found := re.search(r"\[\[refuse:(.*?)\]\]", text):
            return p.Problem(call.call, found[1])
        match call:
            case p.Render():
                body = msgspec.json.decode(call.body)
                body["messages"] += msgspec.json.decode(call.more or b"[]")
                tokens, spans = render(body)
                if call.context and len(tokens) >= call.context:
                    return p.TooLong(call.call, len(tokens), call.context)
                array = np.array(tokens, np.int32)
                replayed, spans = self._replays.applied(array, spans, [vocab.END], _same, call.scope)
                return _rendered(call.call, replayed.tolist(), spans, body)
            case p.Complete():
                prompt = vocab.encode(call.prompt) if isinstance(call.prompt, str) else call.prompt
                return _rendered(call.call, prompt, [], msgspec.json.decode(call.body))
            case p.Tokenize():
                return p.Tokenized(call.call, _packed(_mixed(call.text)))
            case p.Infill():
                parts = [call.prefix, call.prompt, "[gap]", call.suffix]
                tokens = [token for part in parts for token in _mixed(part)]
                return _rendered(call.call, tokens, [], msgspec.json.decode(call.body))
            case p.Pair():
                return p.Tokenized(call.call, _packed(vocab.encode(f"{call.query}|{call.document}")))
            case p.Detokenize():
                return p.Texts(call.call, [vocab.decode(unpack(run).tolist()) for run in call.runs])
            case p.Spell():
                if any(not 0 <= token < vocab.N_VOCAB for token in unpack(call.tokens).tolist()):
                    return p.Problem(call.call, "that is no token")
                return p.Spelled(call.call, [vocab.piece(token) for token in unpack(call.tokens).tolist()])
            case p.Template():
                tokens, _ = render(msgspec.json.decode(call.body))
                return p.Templated(call.call, vocab.decode(tokens))
            case p.Remember():
                self._replays.remember(call.prompt, unpack(call.reply))
                return p.Done(call.call)
            case p.Forget():
                self._replays.forget()
                return p.Done(call.call)
            case p.Push():
                return self._push(call)
            case p.Close():
                self._parsers.pop(call.stream, None)
                return p.Done(call.call)
            case p.Open():
                return p.Problem(call.call, "a chat process holds one model")

    def _push(self, call: p.Push) -> p.FromChat:
        if call.fields is not None:
            self._parsers[call.stream] = Parser(msgspec.json.decode(call.fields).get("calls", 0))
        parser = self._parsers.get(call.stream)
        if parser is None:
            return p.Problem(call.call, f"reply {call.stream} is not open")
        deltas, message = parser.push(call.text, call.final)
        if call.final:
            del self._parsers[call.stream]
        whole = None if message is None else msgspec.json.encode(message)
        return p.Deltas(call.call, msgspec.json.encode(deltas), whole)


def _same(written: Tokens, generated: Tokens) -> bool:
    """Both begin with the mark of the assistant's messages."""
    first, second = (Parser().push(vocab.decode(tokens[1:].tolist()), True)[1] for tokens in (written, generated))
    return same_message(first or {}, second or {})


def _mixed(text: str | list[str | int]) -> list[int]:
    """Tokens of a text, or of texts and tokens in turn."""
    parts = [text] if isinstance(text, str) else text
    return [token for part in parts for token in ([part] if isinstance(part, int) else vocab.encode(part))]


def _readable(call: p.ToChat) -> str:
    """A call's text and JSON, to look for magic in."""
    values = msgspec.structs.asdict(call).values()
    return "\n".join(
        v if isinstance(v, str) else v.decode("utf-8", "replace") for v in values if isinstance(v, str | bytes)
    )


def _rendered(call: int, tokens: list[int], spans: list[p.Span], body: Json) -> p.Rendered:
    stop = body.get("stop") or body.get("stop_sequences") or []
    fields = {"stop": [stop] if isinstance(stop, str) else stop, "ignore_eos": bool(body.get("ignore_eos"))}
    fields |= {name: body[name] for name in ("n_probs", "seed", "temperature") if name in body}
    return p.Rendered(
        call=call,
        tokens=_packed(tokens),
        spans=spans,
        fields=msgspec.json.encode({**fields, "calls": _calls(body)}),
        sampling=msgspec.json.encode(fields),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens") or -1,
    )


def _calls(body: Json) -> int:
    """How many tools were called in a history, in the shapes of either API."""
    messages = body.get("messages") or []
    parts = [part for message in messages if isinstance(content := message.get("content"), list) for part in content]
    chat = sum(len(message.get("tool_calls") or []) for message in messages)
    return chat + sum(part.get("type") == "tool_use" for part in parts)


def _packed(tokens: list[int]) -> bytes:
    return pack(np.array(tokens, np.int32))


def main() -> int:
    """Run until the daemon closes the channel; returns the exit status."""
    script = msgspec.json.decode(sys.argv[1], type=Script)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = child_socket(sys.argv)
    channel: ChildChannel[p.ToChat] = ChildChannel(sock, p.ToChat)  # type: ignore[arg-type]
    again = bool(script.once) and Path(script.once).exists()
    if script.die_at_start or (script.die_at_restart and again):
        print("the fake was told not to start", flush=True)
        return 7
    if again:
        time.sleep(script.restart_seconds)
    try:
        payload = channel.receive_raw(timeout=None) or b""
        if script.garbage_hello:
            sock.sendall(b"\xff" * 64)
        reply = Refused(script.refuse_hello) if script.refuse_hello else answer(payload, "chat", os.getpid())
        channel.send(reply)
        if isinstance(reply, Refused):
            return 3
        call = channel.receive(timeout=None)
        assert isinstance(call, p.Open)
        if script.problem:
            channel.send(p.Problem(call.call, script.problem))
            return 4
        caps = {"supports_tools": True, "supports_system_role": True}
        info = {
            "infill_lacks": script.infill_lacks,
            "caps": caps,
            "supports_thinking": script.supports_thinking,
            "explicit": False,
            "source": "fake",
        }
        info["infill_lacks"] = script.infill_lacks
        channel.send(p.Opened(call.call, msgspec.json.encode(info), vocab.N_VOCAB))
        service = Service(script, sock.sendall)
        while True:
            if (request := channel.receive(timeout=None)) is not None:
                channel.send(service.answer(request))
    except ChannelClosed:
        return 0
