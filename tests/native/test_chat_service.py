"""The real chat process: rendering, tokenising by prefix, parsing, limits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.api import until
from lcpd.build import require_active
from lcpd.chat import protocol as p
from lcpd.chat.client import ChatClient, ChatRefused, ChatSettings, ChatUnavailable
from lcpd.chat.memory import SPARE
from lcpd.engine.protocol import unpack
from native.test_bridge import CALL
from support import READ_FILE, model_path, text_of

pytestmark = pytest.mark.native


def chat_settings(kind="hybrid", **changes):
    defaults = {
        "model": model_path(kind),
        "template": None,
        "lib_dir": require_active().lib_dir,
        "memory_limit": 2 << 30,
        "call_timeout": 60.0,
    }
    return ChatSettings(**{**defaults, **changes})


@pytest.fixture
async def chat():
    client = ChatClient(chat_settings())
    await client.start()
    yield client
    await client.stop()


def body(*messages, **fields):
    return json.dumps({"messages": [{"role": r, "content": c} for r, c in messages], **fields}).encode()


async def test_a_chat_comes_back_as_tokens_spans_and_fields(chat, models):
    rendered = await chat.render("chat", body(("user", "hello"), max_tokens=7))
    text = b"".join(models("hybrid").piece(int(t), special=True) for t in unpack(rendered.tokens)).decode()
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert (rendered.spans[0].role, rendered.spans[0].begin) == ("user", 0)
    assert rendered.max_tokens == 7


async def test_the_engine_is_not_sent_what_only_the_parser_needs(chat):
    rendered = await chat.render("chat", body(("user", "hello"), tools=[READ_FILE]))
    assert "chat_parser" in json.loads(rendered.fields)
    assert not {"chat_parser", "message_delimiters", "prompt"} & json.loads(rendered.sampling).keys()


@pytest.fixture
def service(log):
    """What answers in the chat process, in this one."""
    from lcpd.chat.service import Service

    return Service(p.Open(0, str(model_path("hybrid")), None, 2 << 30), log)


@pytest.fixture
def tokenised(monkeypatch):
    """How many characters each text has that goes to the tokeniser."""
    from lcpd.native.model import Model

    real = Model.tokenize
    lengths = []

    def counted(self, text, *args, **kwargs):
        lengths.append(len(text))
        return real(self, text, *args, **kwargs)

    monkeypatch.setattr(Model, "tokenize", counted)
    return lengths


LONG = ("user", text_of(400))


def test_a_growing_conversation_tokenises_only_what_is_new(service, tokenised):
    turns = [LONG, ("assistant", "done"), ("user", "and now?")]
    service.answer(p.Render(1, "chat", body(*turns[:1])))
    assert sum(tokenised) > len(LONG[1])
    tokenised.clear()
    service.answer(p.Render(2, "chat", body(*turns)))
    assert 0 < sum(tokenised) < 200


def renderings(**terms):
    return [p.Render(1, "chat", body(LONG), **terms), p.Complete(1, f"<|im_start|>{LONG[1]}", b"{}", **terms)]


@pytest.mark.parametrize("number", [0, 1])
def test_what_was_tokenised_for_one_scope_is_tokenised_again_for_another(service, tokenised, number):
    for scope, again in ((1, True), (2, True), (1, False)):
        tokenised.clear()
        service.answer(renderings(scope=scope)[number])
        assert (sum(tokenised) > len(LONG[1])) is again


@pytest.mark.parametrize("number", [0, 1])
def test_a_prompt_that_is_not_to_be_stored_is_not_remembered_but_finds_what_is(service, tokenised, number):
    for store, again in ((False, True), (False, True), (True, True), (False, False)):
        tokenised.clear()
        service.answer(renderings(store=store)[number])
        assert (sum(tokenised) > len(LONG[1])) is again


@pytest.fixture
def evaluated(monkeypatch):
    """The fields that are evaluated, in order."""
    from lcpd.native import bridge

    real = bridge.Request.__init__
    fields = []

    def counted(self, params, model, data):
        fields.append(data)
        real(self, params, model, data)

    monkeypatch.setattr(bridge.Request, "__init__", counted)
    return fields


def many_tools(*turns):
    return body(*turns, tools=tools(10, 20))


def test_large_fields_are_evaluated_once_for_all_turns_and_replies(service, evaluated):
    turns = [LONG, ("assistant", "done"), ("user", "and now?")]
    first = service.answer(p.Render(1, "chat", many_tools(*turns[:1])))
    second = service.answer(p.Render(2, "chat", many_tools(*turns)))
    assert first.fields == second.fields
    service.answer(p.Push(3, 1, "hello", final=True, fields=second.fields))
    assert evaluated.count(first.fields) == 1


def test_no_evaluated_fields_are_kept_of_what_is_not_to_be_stored(service, evaluated):
    call = p.Render(1, "chat", many_tools(LONG), store=False)
    fields = service.answer(call).fields
    service.answer(call)
    service.answer(p.Push(3, 1, "hello", final=True, fields=fields))
    assert evaluated.count(fields) == 3


def test_what_was_evaluated_for_one_scope_is_evaluated_again_for_another(service, evaluated):
    fields = service.answer(p.Render(1, "chat", many_tools(LONG), scope=1)).fields
    service.answer(p.Push(2, 1, "hello", final=True, fields=fields, scope=2))
    assert evaluated.count(fields) == 2
    service.answer(p.Push(3, 1, "hello", final=True, fields=fields, scope=1))
    assert evaluated.count(fields) == 2


def test_small_fields_take_no_room_from_large_ones(service, evaluated):
    call = p.Render(1, "chat", body(LONG))
    fields = service.answer(call).fields
    service.answer(call)
    assert evaluated.count(fields) == 2


def test_an_error_in_the_service_costs_one_request_and_tells_nothing_of_it(service, monkeypatch, capfd):
    def fails(*_):
        raise KeyError("secret")

    monkeypatch.setattr(service, "_rendered", fails)
    problem = service.answer(renderings()[0])
    assert isinstance(problem, p.Problem)
    assert (problem.call, problem.message) == (1, "internal error in the chat process (KeyError): see its log")
    assert "in fails" in capfd.readouterr().err
    monkeypatch.undo()
    assert isinstance(service.answer(renderings()[0]), p.Rendered)


def test_a_lack_of_memory_ends_the_process(service, monkeypatch):
    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(service, "_rendered", fails)
    with pytest.raises(MemoryError):
        service.answer(renderings()[0])


async def test_a_reply_streams_and_ends_as_one_message(chat):
    rendered = await chat.render("chat", body(("user", "x"), tools=[READ_FILE]))
    reply = chat.open_reply(rendered.fields)
    deltas, message = await chat.push(reply, "Reading.\n</think>\n\n", final=False)
    assert deltas[0]["reasoning_content"].startswith("Reading.")
    assert message is None
    _, message = await chat.push(reply, CALL, final=True)
    assert message["tool_calls"][0]["function"]["name"] == "read_file"
    assert isinstance(message["tool_calls"][0]["function"]["arguments"], str)


async def test_text_that_breaks_the_tool_format_is_passed_on_and_not_lost(chat):
    from lcpd.chat.replies import add_delta

    rendered = await chat.render("chat", body(("user", "x"), tools=[READ_FILE], tool_choice="required"))
    reply = chat.open_reply(rendered.fields)
    built = {"role": "assistant", "content": None}
    text = "thinking\n</think>\n\n<tool_call>\n<function=no_such_tool>\n<parameter=zzz>1</para"
    for at in range(0, len(text), 5):
        deltas, message = await chat.push(reply, text[at : at + 5], final=at + 5 >= len(text))
        for delta in deltas:
            add_delta(built, delta)
    assert message is not None
    shown = json.dumps([built.get("content"), built.get("tool_calls")])
    assert "no_such_tool" in shown


def tools(count, properties):
    """Of 2 MB for 200 with 100 each."""
    described = {f"p{i}": {"type": "string", "description": "x" * 80} for i in range(properties)}
    parameters = {"type": "object", "properties": described}
    return [{"type": "function", "function": {"name": f"t{i}", "parameters": parameters}} for i in range(count)]


async def test_a_tool_with_too_many_properties_is_refused_by_its_name(chat):
    with pytest.raises(ChatRefused, match=r"^Field 'tools': an object of tools\[0\] \('t0', at #\) has 20000 prop"):
        await chat.render("chat", body(("user", "x"), tools=tools(1, 20_000)))
    with pytest.raises(ChatRefused, match=r"has 20000 prop"):
        await chat.template(body(("user", "x"), tools=tools(1, 20_000)))


async def test_a_grammar_of_tools_that_does_not_compile_is_blamed_on_them(chat):
    listed = {"type": "array", "items": {"type": "string"}, "minItems": 3000}
    parameters = {"type": "object", "properties": {"list": listed}, "required": ["list"]}
    tool = {"type": "function", "function": {"name": "t", "parameters": parameters}}
    with pytest.raises(ChatRefused, match=r"^Field 'tools': .* \(failed to parse grammar\): leave out tools"):
        await chat.render("chat", body(("user", "x"), tools=[tool]))


async def test_memory_that_a_large_call_took_is_given_back(chat):
    def in_memory():
        return int(Path(f"/proc/{chat.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = in_memory()
    await chat.render("chat", body(("user", "x"), tools=tools(200, 100)))
    assert in_memory() > before + SPARE
    await until(lambda: in_memory() <= before + SPARE)


def schema(**keywords):
    return {"json_schema": {"type": "object", "properties": {"a": {"type": "string", **keywords}}}}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"json_schema": {"type": "nonsense"}}, "nonsense"),
        ({"json_schema": {"$ref": "#/nowhere"}}, "nowhere"),
        ({"json_schema": {"not": {"type": "string"}}}, "keyword not"),
        ({"json_schema": {"type": "number", "maximum": 1}}, r"keyword maximum \(at #\)"),
        ({"json_schema": {"type": "object", "required": ["a"]}}, "keyword required"),
        (schema(pattern="^(a$"), "pattern"),
        (schema(required=5), r"keyword required \(at #/properties/a\) must be a list of texts"),
        (schema(required=True), "keyword required"),
        ({"json_schema": {"allOf": 5}}, r"allOf.* must be an? \w+ of schemas"),
        (schema(pattern="unanchored"), "must begin with"),
        (schema(pattern="^(?=a)b$"), "must begin with"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": 'start ::= "a"'}, "grammar"),
        ({"grammar": "root ::= missing"}, "grammar"),
        ({"grammar": 'root ::= root "a"'}, "grammar"),
        ({"grammar": "%llguidance {}"}, "llguidance"),
        ({"logit_bias": {"999999": 1}}, "token 999999 is outside the vocabulary"),
        ({"logit_bias": [[-1, 1]]}, "token -1 is outside the vocabulary"),
    ],
)
@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_what_cannot_be_obeyed_is_refused_and_the_process_lives(chat, kind, fields, word):
    pid = chat.pid
    with pytest.raises(ChatRefused, match=word):
        if kind == "chat":
            await chat.render("chat", body(("user", "x"), **fields))
        else:
            await chat.complete("x", json.dumps(fields).encode())
    await chat.render("chat", body(("user", "x")))
    assert chat.pid == pid


async def test_a_response_format_that_cannot_be_obeyed_is_refused(chat):
    wrapped = {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}
    with pytest.raises(ChatRefused, match="nonsense"):
        await chat.render("chat", body(("user", "x"), response_format=wrapped))
    # Nothing made a grammar of this one: a text completion's has to be made a schema before.
    with pytest.raises(ChatRefused, match="no way to obey a response_format"):
        await chat.complete("x", json.dumps({"response_format": {"type": "json_object"}}).encode())


@pytest.mark.parametrize("fields", [schema(pattern="^[a-z]+$"), schema(minLength=2), {"json_schema": {}}])
@pytest.mark.parametrize("kind", ["hybrid", "attention"])
async def test_schemas_that_can_be_obeyed_become_grammars(fields, kind):
    client = ChatClient(chat_settings(kind))
    await client.start()
    try:
        rendered = await client.render("chat", body(("user", "x"), **fields))
        assert "root ::=" in json.loads(rendered.sampling)["grammar"]
        await client.complete("x", json.dumps(fields).encode())
    finally:
        await client.stop()


async def test_a_schema_that_eats_memory_ends_in_an_error_within_the_limit(chat):
    client = ChatClient(chat_settings(memory_limit=64 << 20, call_timeout=30))
    await client.start()
    try:
        schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 5000} for i in range(2000)}}
        fields = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        from lcpd.chat.client import ChatCrashed

        with pytest.raises((ChatRefused, ChatCrashed)):
            await client.render("chat", body(("user", "x"), **fields))
        assert unpack((await client.render("chat", body(("user", "x")))).tokens).size > 0
    finally:
        await client.stop()


async def test_a_file_that_is_no_model_is_reported(tmp_path: Path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    client = ChatClient(chat_settings(model=broken))
    with pytest.raises(ChatUnavailable, match=r"broken\.gguf"):
        await client.start()


@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"])
def test_tokenising_by_prefix_equals_tokenising_the_whole(kind, models):
    """For every vocabulary: prompts that share prefixes, with special tokens, white space and other scripts around."""
    from lcpd.chat.memo import TokenMemo
    from lcpd.chat.service import border_tokens

    model = models(kind)
    specials = border_tokens(model)
    assert specials
    shortest = sorted(specials.values(), key=len)[:6]
    marks = ["<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|im_", "start|>", "_of_turn>"]
    blanks = ["\n", "\n\n", "  ", " ", "\t"]
    words = ["user\n", "hello world", "d\u00e9j\u00e0 vu", "\u65e5\u672c\u8a9e", "x" * 40]
    pieces = st.sampled_from([*shortest, *marks, *blanks, *words])

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(pieces, max_size=12), st.lists(st.lists(pieces, max_size=6), min_size=1, max_size=4))
    def check(shared, tails):
        memo = TokenMemo(lambda text, start: model.tokenize(text, start, True), specials)
        for tail in tails:
            text = "".join(shared + tail)
            tokens = memo.tokens(text)
            assert tokens.tolist() == model.tokenize(text, True, True).tolist()

    check()
