"""The chat process: ``python -m lcpd.chat.service PARENT_PID FD``.

Holds a model's vocabulary and template, no weights.  Answers one call after the other, in order, so that the daemon
knows which call a crash or a time-out belongs to.  Started by :mod:`lcpd.chat.client`, never by hand.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lcpd.chat import protocol as p
from lcpd.chat.bound import bound_of
from lcpd.chat.infill import Gap, Marks, Mixed, Room, lay_out
from lcpd.chat.memo import TokenMemo
from lcpd.chat.memory import IDLE, Spare
from lcpd.chat.parser import Comparison, ReplyParser
from lcpd.chat.ranking import Ends, pair
from lcpd.chat.recent import Recent
from lcpd.chat.replay import Replays
from lcpd.chat.schema import asked_schema, ignored_keyword, malformed, patterns
from lcpd.chat.tool_memo import ToolMemo
from lcpd.chat.tool_schemas import blamed_on_tools, too_large
from lcpd.engine.protocol import pack, unpack
from lcpd.ipc.channel import ChannelClosed, ChildChannel
from lcpd.ipc.child import child_socket
from lcpd.ipc.handshake import Refused, answer
from lcpd.native import bridge
from lcpd.native.log import LogCapture
from lcpd.native.model import Model, ModelError, Tokens

Channel = ChildChannel[p.ToChat]
_GRAMMARS = 1000
_EVALUATED = 32_000_000
"""Bytes of requests that are kept in their evaluated form, which takes 5 ms to make with 25 tools and 20 with 100."""
_WORTH_KEEPING = 16_000
"""Bytes of fields from which on that is worth it."""
_EMPTY_GRAMMAR = re.compile(r"\s*root\s*::=\s*")
"""What llama.cpp makes of a schema beside tools where the template has no way to write both."""
_UNSUPPORTED_PATTERN = "unanchored"
"""A pattern that llama.cpp takes for any string, as it does with all that it cannot express."""
_NUMBER = re.compile(r"\s*[-+]?[0-9]{1,20}")
"""What llama.cpp takes for a token id among the keys of an object."""
_TRIGGERS = (0, 1)
"""Kinds of grammar triggers that are a text: llama.cpp's TOKEN and WORD."""
_PARSER_ONLY = ("chat_parser", "message_delimiters")
"""Fields that the engine has no use for; the parser's description can be 100 KB."""
# llama.h, LLAMA_TOKEN_ATTR_*: the tokeniser cuts the text at control and user-defined tokens first of all.
_ATTR_CUTS = 1 << 3 | 1 << 4
_ATTR_LSTRIP = 1 << 7


class Service:
    """Answers calls about one model."""

    def __init__(self, call: p.Open, log: LogCapture) -> None:
        """Raises ModelError or BridgeError when the model or its template is of no use."""
        self._model = Model(Path(call.path), log)
        self._params = bridge.Params("--jinja")
        self._chat = bridge.Chat(self._params, self._model.handle, call.template)
        self._good_grammars: dict[bytes, None] = {}
        """Hashes of grammars that have passed, in the order they came."""
        self._parsers: dict[int, ReplyParser] = {}
        self._memo = TokenMemo(self._tokenize_prompt, border_tokens(self._model))
        self._tool_memo = ToolMemo(self._chat.apply)
        self._requests: Recent[tuple[int, bytes], bridge.Request] = Recent(_EVALUATED)
        """By scope and fields."""
        self._replays = Replays()
        self._bound = bound_of(self._model)
        self._gap_marks = gap_marks(self._model)
        self._rank_layout = rank_layout(self._model)

    def opened(self, call: int) -> p.Opened:
        """The answer to Open."""
        bos, eos = self._model.text_marks
        settings = bridge.Request(self._params, self._model.handle, b"{}").info()["settings"]
        info = {**self._chat.info(), "bos_token": bos, "eos_token": eos, "settings": settings}
        info["infill_lacks"] = self._gap_marks.lacking
        return p.Opened(call, msgspec.json.encode(info), self._model.n_vocab)

    def answer(self, call: p.ToChat) -> p.FromChat:
        """The answer to any later call; refusals are Problem, and so are errors in here, but for a lack of memory.

        That one ends the process, which then begins anew with all the memory it may have.
        """
        try:
            return self._answer(call)
        except (bridge.BridgeError, ModelError) as error:
            return p.Problem(call.call, str(error))
        except MemoryError:
            raise
        except Exception as error:
            # The words of the error may hold some of the request, so they are for the log alone.
            traceback.print_exc()
            return p.Problem(call.call, f"internal error in the chat process ({type(error).__name__}): see its log")

    def _answer(self, call: p.ToChat) -> p.FromChat:
        match call:
            case p.Render():
                body = call.body if call.dialect == "chat" else bridge.convert(call.dialect, call.body)
                if call.overrides or call.more:
                    body = _changed(body, call.overrides or b"{}", call.more or b"[]")
                try:
                    fields = self._applied(body, call.scope, call.store)
                    return self._rendered(call, fields.pop("prompt"), fields)
                except bridge.BridgeError as error:
                    raise ModelError(blamed_on_tools(str(error), body)) from error
            case p.Complete():
                return self._rendered(call, call.prompt, msgspec.json.decode(call.body))
            case p.Infill():
                files, code = self._infill(call)
                # The files stay while the code changes: where they end is worth a checkpoint, as after a system text.
                spans = [p.Span("system", 0, len(files)), p.Span("user", len(files), len(code))]
                return self._rendered(call, files + code, msgspec.json.decode(call.body), spans)
            case p.Pair():
                tokens = pair(call.query, call.document, *self._rank_layout, self._plain)
                return p.Tokenized(call.call, pack(np.array(tokens, np.int32)))
            case p.Tokenize():
                return p.Tokenized(call.call, pack(self._mixed(call.text, call.add_special, call.parse_special)))
            case p.Detokenize():
                return p.Texts(call.call, [self._bytes(unpack(run)).decode("utf-8", "replace") for run in call.runs])
            case p.Spell():
                return p.Spelled(call.call, self._spelled(self._checked(unpack(call.tokens).tolist())))
            case p.Template():
                return p.Templated(call.call, self._applied(call.body, 0, False)["prompt"])
            case p.Remember():
                self._replays.remember(call.prompt, unpack(call.reply))
                return p.Done(call.call)
            case p.Forget():
                self._memo.forget()
                self._tool_memo.forget()
                self._requests.clear()
                self._replays.forget()
                return p.Done(call.call)
            case p.Push():
                return self._push(call)
            case p.Close():
                self._parsers.pop(call.stream, None)
                return p.Done(call.call)
            case p.Open():
                return p.Problem(call.call, "a chat process holds one model")

    def _applied(self, body: bytes, scope: int, store: bool) -> dict[str, Any]:
        """The prompt and the fields that the template makes of a chat.  Raises ModelError for tools that would take too
        long."""
        if problem := too_large(body):
            raise ModelError(problem)
        return self._tool_memo.applied(body, scope, remember=store)

    def _request(self, fields: bytes, scope: int = 0, remember: bool = False) -> bridge.Request:
        """The evaluated form of a request's fields, which must not be closed."""
        key = (scope, fields)
        known = self._requests.get(key, use=remember)
        request = known or bridge.Request(self._params, self._model.handle, fields)
        if remember and known is None and len(fields) >= _WORTH_KEEPING:
            self._requests.put(key, request, 4 * len(fields))  # measured: 3.2 bytes of memory for each
        return request

    def _rendered(
        self,
        call: p.Render | p.Complete | p.Infill,
        prompt: str | list[int],
        fields: dict[str, Any],
        spans: list[p.Span] | None = None,
    ) -> p.Rendered | p.TooLong:
        """`spans`: where they are known already.  Only a chat repeats replies."""
        data = msgspec.json.encode(fields)
        scope, remember = (call.scope, call.store) if isinstance(call, p.Render) else (0, False)
        request = self._request(data, scope, remember)
        self._check_biases(fields.get("logit_bias") or {})
        self._check_grammar(request, fields)
        if isinstance(prompt, str):
            assert not isinstance(call, p.Infill), "its prompt is tokens"
            if call.context and (least := self._bound.least(prompt)) >= call.context:
                return p.TooLong(call.call, least, call.context)
            tokens = self._memo.tokens(prompt, call.scope, remember=call.store)
        else:
            tokens = self._checked(prompt)
        spans = spans or [p.Span(*span) for span in request.spans(tokens)]
        if isinstance(call, p.Render):
            comparison = Comparison(request, str(fields.get("generation_prompt") or ""), self._bytes)
            tokens, spans = self._replays.applied(tokens, spans, self._model.end_tokens, comparison, call.scope)
        return p.Rendered(
            call=call.call,
            tokens=pack(tokens),
            spans=spans,
            fields=data,
            sampling=msgspec.json.encode({k: v for k, v in fields.items() if k not in _PARSER_ONLY}),
            max_tokens=request.info()["n_predict"],
        )

    def _check_grammar(self, request: bridge.Request, fields: dict[str, Any]) -> None:
        """Find out here, under the time limit, what would fail or take for ever in the engine."""
        grammar = fields.get("grammar") or ""
        if _EMPTY_GRAMMAR.fullmatch(grammar):
            raise ModelError("response_format cannot be combined with tools on this model: leave one of them out")
        schema = asked_schema(fields)
        if not grammar and schema is None:
            return
        if not grammar and "json_schema" not in fields:
            raise ModelError("the chat template of this model has no way to obey a response_format")
        key = hashlib.blake2b(msgspec.json.encode([grammar, schema]), digest_size=16).digest()
        if key in self._good_grammars:
            return
        if schema is not None:
            self._check_schema(schema)
        bridge.Sampler(request, self._model.handle).close()
        request.probe_grammar()
        self._good_grammars[key] = None
        while len(self._good_grammars) > _GRAMMARS:
            del self._good_grammars[next(iter(self._good_grammars))]

    def _check_schema(self, schema: dict[str, Any]) -> None:
        """Refuse what is no schema, and what llama.cpp would leave out."""
        if wrong := malformed(schema):
            keyword, path, wanted = wrong
            raise ModelError(f"the schema's keyword {keyword} (at {path}) must be {wanted}")
        if ignored := ignored_keyword(schema):
            raise ModelError(f"the schema's keyword {ignored[0]} (at {ignored[1]}) is not supported: leave it out")
        for pattern, path in patterns(schema):
            if self._grammar_of(pattern) == self._grammar_of(_UNSUPPORTED_PATTERN):
                raise ModelError(
                    f"the schema's pattern {pattern!r} (at {path}) is not supported: it must begin with ^ and end with "
                    "$, and have no look-around or named groups"
                )

    def _grammar_of(self, pattern: str) -> str:
        fields = msgspec.json.encode({"json_schema": {"type": "string", "pattern": pattern}})
        return str(bridge.Request(self._params, self._model.handle, fields).info()["settings"]["grammar"])

    def _check_biases(self, biases: dict[str, Any] | list[list[Any]]) -> None:
        """llama.cpp leaves out tokens that there are not, without a word."""
        named = biases if isinstance(biases, dict) else [token for token, _ in biases]
        for token in named:
            if isinstance(token, int) or _NUMBER.fullmatch(token):
                self._check_token(int(token), "Field 'logit_bias': ")

    def _check_token(self, token: int, where: str = "") -> None:
        if not 0 <= token < self._model.n_vocab:
            raise ModelError(f"{where}token {token} is outside the vocabulary of {self._model.n_vocab}")

    def _checked(self, prompt: list[int]) -> Tokens:
        for token in prompt:
            self._check_token(token)
        return np.array(prompt, np.int32)

    def _push(self, call: p.Push) -> p.FromChat:
        if call.fields is not None:
            request = self._request(call.fields, call.scope)
            fields = msgspec.json.decode(call.fields)
            end_tags = fields.get("reasoning_budget_end_tags") or []
            openings = [
                trigger["value"] for trigger in fields.get("grammar_triggers") or [] if trigger["type"] in _TRIGGERS
            ]
            self._parsers[call.stream] = ReplyParser(request, end_tags, openings)
        parser = self._parsers.get(call.stream)
        if parser is None:
            return p.Problem(call.call, f"reply {call.stream} is not open")
        deltas, message = parser.push(call.text, call.final, call.cut)
        if call.final:
            del self._parsers[call.stream]
        return p.Deltas(
            call.call, msgspec.json.encode(deltas), None if message is None else msgspec.json.encode(message)
        )

    def _bytes(self, tokens: Tokens) -> bytes:
        """Of what the daemon sends; all of it once came from this process or from the model."""
        return b"".join(self._model.piece(token, special=True) for token in tokens.tolist())

    def _infill(self, call: p.Infill) -> tuple[list[int], list[int]]:
        if lacking := self._gap_marks.lacking:
            raise ModelError(f"the vocabulary has no {' and no '.join(lacking)} token")
        gap = Gap(call.prefix, call.suffix, call.prompt, call.files)
        return lay_out(gap, Room(call.context, call.batch, call.reply), self._gap_marks, self._plain)

    def _plain(self, text: Mixed, parse_special: bool) -> list[int]:
        tokens: list[int] = self._mixed(text, False, parse_special).tolist()
        return tokens

    def _mixed(self, text: Mixed, add_special: bool, parse_special: bool) -> Tokens:
        parts = [text] if isinstance(text, str) else text
        tokens = [
            self._model.tokenize(part, add_special and not index, parse_special)
            if isinstance(part, str)
            else np.array([part], np.int32)
            for index, part in enumerate(parts)
        ]
        return np.concatenate(tokens) if tokens else np.empty(0, np.int32)

    def _spelled(self, tokens: Tokens) -> list[bytes]:
        values = tokens.tolist()
        pieces = {token: self._model.piece(token, special=True) for token in set(values)}
        return [pieces[token] for token in values]

    def _tokenize_prompt(self, text: str, at_start: bool) -> Tokens:
        return self._model.tokenize(text, add_special=at_start, parse_special=True)


def _changed(body: bytes, overrides: bytes, more: bytes) -> bytes:
    """A chat body with other fields, and further messages at its end."""
    changed = {**msgspec.json.decode(body), **msgspec.json.decode(overrides)}
    changed["messages"] = [*changed["messages"], *msgspec.json.decode(more)]
    return msgspec.json.encode(changed)


def gap_marks(model: Model) -> Marks:
    """The vocabulary's tokens for Infill."""
    import llama_cpp.llama_cpp as llama

    vocab = model.vocab
    bos = llama.llama_vocab_bos(vocab) if llama.llama_vocab_get_add_bos(vocab) else -1
    return Marks(
        pre=llama.llama_vocab_fim_pre(vocab),
        suf=llama.llama_vocab_fim_suf(vocab),
        mid=llama.llama_vocab_fim_mid(vocab),
        rep=llama.llama_vocab_fim_rep(vocab),
        sep=llama.llama_vocab_fim_sep(vocab),
        bos=bos,
    )


def rank_layout(model: Model) -> tuple[str | None, Ends]:
    """The model's template for pairs, if it has one, and how its vocabulary marks the ends of texts."""
    import llama_cpp.llama_cpp as llama

    vocab = model.vocab
    template = llama.llama_model_chat_template(model.handle, b"rerank")
    eos = llama.llama_vocab_eos(vocab)
    ends = Ends(
        bos=llama.llama_vocab_bos(vocab) if llama.llama_vocab_get_add_bos(vocab) else -1,
        eos=(eos if eos >= 0 else llama.llama_vocab_sep(vocab)) if llama.llama_vocab_get_add_eos(vocab) else -1,
        sep=llama.llama_vocab_sep(vocab) if llama.llama_vocab_get_add_sep(vocab) else -1,
    )
    return template.decode("utf-8", "replace") if template else None, ends


def border_tokens(model: Model) -> dict[int, str]:
    """Special tokens (id -> text) at which a prompt can be cut without changing the tokens on either side."""
    import llama_cpp.llama_cpp as llama

    if llama.llama_vocab_get_add_eos(model.vocab):
        return {}  # the end of a whole prompt would get an extra token that the end of a part does not
    texts = {}
    for token in range(model.n_vocab):
        attributes = llama.llama_vocab_get_attr(model.vocab, token)
        if attributes & _ATTR_CUTS and not attributes & _ATTR_LSTRIP:
            # The vocabulary's own text is what the tokeniser looks for; the piece can differ (SentencePiece's spaces).
            texts[token] = (llama.llama_vocab_get_text(model.vocab, token) or b"").decode("utf-8", "replace")
    every = "\0".join(texts.values())
    # A token whose text lies inside another's could turn out to be part of that one as the text goes on.
    return {token: text for token, text in texts.items() if text and every.count(text) == 1}


def main() -> int:
    """Run until the daemon closes the channel; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel: Channel = ChildChannel(child_socket(sys.argv), p.ToChat)  # type: ignore[arg-type]
    try:
        reply = answer(channel.receive_raw(timeout=None) or b"", "chat", os.getpid())
        channel.send(reply)
        if isinstance(reply, Refused):
            return 3
        return _serve(channel)
    except ChannelClosed:
        return 0


def _serve(channel: Channel) -> int:
    import llama_cpp.llama_cpp as llama

    log = LogCapture()
    bridge.set_log_verbosity(0)
    llama.llama_backend_init()
    call = channel.receive(timeout=None)
    if not isinstance(call, p.Open):
        raise RuntimeError(f"the first call must be open, not {call!r}")
    try:
        service = Service(call, log)
    except (ModelError, bridge.BridgeError) as error:
        channel.send(p.Problem(call.call, str(error)))
        return 4
    channel.send(service.opened(call.call))
    _limit_memory(call.memory_limit)
    spare = Spare()
    tidy = True
    while True:
        request = channel.receive(timeout=None if tidy else IDLE)
        if request is None:
            spare.give_back()
        else:
            channel.send(service.answer(request))
        tidy = request is None


def _limit_memory(more: int) -> None:
    """Let the address space grow by `more` bytes and no further; allocations beyond fail."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # A core dump of a process that is expected to die now and then would only fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main())
