"""Replies that come back as history, through real templates, tokenisers and parsers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lcpd.chat.client import ChatClient
from lcpd.chat.replay import digest, reply_start
from lcpd.engine.protocol import unpack
from native.test_chat_service import chat_settings

pytestmark = pytest.mark.native

EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Edit a file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "object"}},
            "required": ["path"],
        },
    },
}
JSON_CALLS = """
{%- if tools %}{{ '<|im_start|>system\\nYou may call tools, each as JSON in tool_call tags:\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
"""A template in the style of Hermes and Qwen: calls are JSON, and written anew from their values."""
JSON_RAW = '<tool_call>\n{"name": "edit", "arguments": {"path":"a.py","lines":{"to":2.0,"from":1}}}\n</tool_call>'
XML_RAW = (
    "I edit.\n</think>\n\n<tool_call>\n<function=edit>\n<parameter=path>\na.py\n</parameter>\n"
    '<parameter=lines>\n{"to":2.0,"from":1}\n</parameter>\n</function>\n</tool_call>'
)
VALUE = {"path": "a.py", "lines": {"to": 2, "from": 1}}
MODELS = {"json": ("attention", JSON_CALLS, JSON_RAW, None), "xml": ("hybrid", None, XML_RAW, "I edit.")}
WRITTEN = {
    "compact": json.dumps(VALUE, separators=(",", ":")),
    "indented": json.dumps(VALUE, indent=2),
}


class Conversation:
    """A user asks for an edit; the model's reply is `raw`."""

    def __init__(self, chat: ChatClient, raw: str, thought: str | None, **fields: object) -> None:
        self._chat = chat
        self._raw = raw
        self._thought = thought
        self._fields = {"tools": [EDIT], **fields}
        self.held: list[int] = []
        """What the slot holds after the reply."""

    async def begin(self, tokens: list[int] | None = None) -> None:
        """The reply is generated, as these tokens or as the tokeniser would cut it, and remembered."""
        rendered = await self._render([])
        prompt = unpack(rendered.tokens)
        start = reply_start([(span.role, span.begin) for span in rendered.spans])
        assert start is not None
        reply = unpack(await self._chat.tokenize(self._raw, False, True)) if tokens is None else tokens
        self.held = [*prompt.tolist(), *reply]
        self._chat.remember(digest(prompt[:start]), np.array(self.held[start:], np.int32))

    async def forget(self) -> None:
        await self._chat.forget()

    async def next(self, arguments: str, **message: object) -> list[int]:
        """The prompt after the edit's result."""
        call = {"id": "call00001", "type": "function", "function": {"name": "edit", "arguments": arguments}}
        reply = {"role": "assistant", "content": "", "tool_calls": [call], **message}
        if self._thought and "reasoning_content" not in message:
            reply["reasoning_content"] = self._thought
        rendered = await self._render([reply, {"role": "tool", "tool_call_id": "call00001", "content": "done"}])
        tokens = unpack(rendered.tokens)
        last = rendered.spans[-1]
        assert last.begin + last.length == len(tokens)
        return tokens.tolist()

    async def _render(self, more: list[dict]):
        messages = [{"role": "user", "content": "Edit the file"}, *more]
        return await self._chat.render("chat", json.dumps({"messages": messages, **self._fields}).encode())


@pytest.fixture(params=MODELS)
async def conversation(request):
    kind, template, raw, thought = MODELS[request.param]
    chat = ChatClient(chat_settings(kind, template=template))
    await chat.start()
    yield Conversation(chat, raw, thought)
    await chat.stop()


@pytest.mark.parametrize("written", WRITTEN)
async def test_arguments_written_anew_become_what_was_generated(conversation, written: str) -> None:
    await conversation.begin()
    tokens = await conversation.next(WRITTEN[written])
    assert tokens[: len(conversation.held)] == conversation.held


@pytest.mark.parametrize("conversation", ["json"], indirect=True)
async def test_so_do_arguments_whose_keys_were_sorted_where_the_model_may_write_them_in_any_order(conversation) -> None:
    await conversation.begin()
    tokens = await conversation.next(json.dumps(VALUE, sort_keys=True))
    assert tokens[: len(conversation.held)] == conversation.held


async def test_what_was_remembered_is_forgotten_when_that_is_wanted(conversation) -> None:
    unknown = await conversation.next(WRITTEN["compact"])
    await conversation.begin()
    await conversation.forget()
    assert await conversation.next(WRITTEN["compact"]) == unknown


async def test_without_it_the_template_writes_them_otherwise(conversation) -> None:
    """This is what replaying is for."""
    unknown = await conversation.next(WRITTEN["compact"])
    await conversation.begin()
    assert unknown[: len(conversation.held)] != conversation.held


async def test_other_arguments_are_the_clients(conversation) -> None:
    other = json.dumps({**VALUE, "path": "b.py"})
    before = await conversation.next(other)
    await conversation.begin()
    assert await conversation.next(other) == before


async def test_other_words_are_the_clients(conversation) -> None:
    before = await conversation.next(WRITTEN["compact"], content="I have changed my mind.")
    await conversation.begin()
    assert await conversation.next(WRITTEN["compact"], content="I have changed my mind.") == before


async def test_text_that_the_model_cut_otherwise_than_the_tokeniser_does_keeps_its_cuts() -> None:
    chat = ChatClient(chat_settings("attention"))
    await chat.start()
    try:
        first = await chat.render("chat", b'{"messages": [{"role": "user", "content": "hi"}]}')
        prompt = unpack(first.tokens)
        start = reply_start([(span.role, span.begin) for span in first.spans])
        letters = [int(t) for letter in "hello" for t in unpack(await chat.tokenize(letter, False, False))]
        assert len(letters) == 5
        held = [*prompt.tolist(), *letters]
        chat.remember(digest(prompt[:start]), np.array(held[start:], np.int32))
        turns = [("user", "hi"), ("assistant", "hello"), ("user", "and?")]
        messages = [{"role": role, "content": content} for role, content in turns]
        second = unpack((await chat.render("chat", json.dumps({"messages": messages}).encode())).tokens)
        assert second[: len(held)].tolist() == held
    finally:
        await chat.stop()


async def test_reasoning_that_the_template_leaves_out_stays_out() -> None:
    chat = ChatClient(chat_settings("hybrid"))
    await chat.start()
    try:
        one = Conversation(chat, XML_RAW, "I edit.", chat_template_kwargs={"preserve_reasoning": False})
        await one.begin()
        call = {"id": "c", "type": "function", "function": {"name": "edit", "arguments": WRITTEN["compact"]}}
        reply = {"role": "assistant", "content": "", "reasoning_content": "I edit.", "tool_calls": [call]}
        rendered = await one._render([reply, {"role": "user", "content": "Now something else"}])
        (text,) = await chat.detokenize([unpack(rendered.tokens)])
        assert text.count("<think>") == 1  # the one that opens the reply
        assert "<function=edit>" in text
    finally:
        await chat.stop()


async def test_detokenising_gives_the_text_with_its_special_tokens() -> None:
    chat = ChatClient(chat_settings("hybrid"))
    await chat.start()
    try:
        text = "<|im_start|>user\nhé<|im_end|>"
        tokens = unpack(await chat.tokenize(text, False, True))
        assert await chat.detokenize([tokens, tokens[:1], tokens[:0]]) == [text, "<|im_start|>", ""]
    finally:
        await chat.stop()
