"""Several replies to one request, and how probable their tokens were; over generations that the tests drive by hand."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from lcpd.api import completions as text
from lcpd.api.chat_completions import _Reply as ChatReply
from lcpd.api.chat_completions import wanted_logprobs
from lcpd.api.errors import ApiError
from lcpd.api.logprobs import Columns, content
from lcpd.api.stream import merged
from lcpd.api.turn import Turn, Usage, total
from lcpd.scheduler.generation import Begun, Done, Generation, Prompt, QueueTimedOut, Text, TokenProbs

PROMPT = Prompt(np.arange(10, dtype=np.int32), (), b"{}", 8)


def prob(piece, logprob=-0.5, *others):
    """A token's probability; the tokens are the lengths of the pieces, which no test looks at."""
    raw = piece if isinstance(piece, bytes) else piece.encode()
    top = [(len(raw), logprob, raw), *((1, other, name.encode()) for name, other in others)]
    return TokenProbs(len(raw), logprob, raw, top)


def generation():
    return Generation(1, PROMPT, 0.0, lambda _: None)


def done(reason="stop", generated=2, rest=""):
    return Done(reason, rest, "", 4, generated, 0.5, 0.5)


class PlainChat:
    """A chat process that takes all text for content; `held` characters of it are not given out before the end."""

    def __init__(self, held=0):
        self._held = held
        self._text = {}

    def open_reply(self, fields, scope=0):
        return SimpleNamespace(fields=fields)

    async def push(self, reply, text, final, cut=False):
        before = self._text.get(id(reply), "")
        whole = self._text[id(reply)] = before + text
        shown = len(before) - self._held, (len(whole) if final else len(whole) - self._held)
        new = whole[max(shown[0], 0) : max(shown[1], 0)]
        return [{"content": new}] if new else [], {"role": "assistant", "content": whole} if final else None

    async def close_reply(self, reply):
        pass


def chat_reply(generations, fields=(), chat=None, **asked):
    context = SimpleNamespace(model_id="fake")
    chat = chat or PlainChat()
    rendered = SimpleNamespace(fields=b"{}")
    turns = [Turn.begin(chat, generation, rendered) for generation in generations]
    return ChatReply(context, "chatcmpl-1", turns, fields, wanted_logprobs(asked))


def text_reply(generations, **asked):
    choices = [text._Choice(i, g, text._Logprobs(asked)) for i, g in enumerate(generations)]
    return text._Reply("fake", "cmpl-1", choices, asked)


async def payloads(chunks):
    return [json.loads(chunk.decode()[6:]) async for chunk in chunks if chunk.startswith(b"data: {")]


def run(*replies):
    """Generations that have said everything already."""
    generations = []
    for events in replies:
        generations.append(generation())
        for event in (Begun(4), *events):
            generations[-1].emit(event)
    return generations


# ---- several replies -------------------------------------------------------------------------------------


async def test_a_chat_has_its_choices_in_order_and_counts_the_prompt_once():
    whole = await chat_reply(run([Text((1,), "one"), done()], [Text((2,), "two"), done("length", 5)])).whole()
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in whole["choices"]] == [
        (0, "one", "stop"),
        (1, "two", "length"),
    ]
    usage = whole["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 7, 17)


async def test_a_text_completion_has_its_choices_in_order_and_counts_the_prompt_once():
    whole = await text_reply(run([Text((1,), "one"), done()], [Text((2,), "two"), done("length", 5)])).whole()
    assert [(c["index"], c["text"], c["finish_reason"]) for c in whole["choices"]] == [
        (0, "one", "stop"),
        (1, "two", "length"),
    ]
    assert whole["usage"]["completion_tokens"] == 7
    assert whole["usage"]["prompt_tokens"] == 10


@pytest.mark.parametrize("make", [chat_reply, text_reply])
async def test_streamed_choices_come_as_they_are_made_each_with_its_index_and_one_end(make):
    first, second = generation(), generation()
    chunks = make([first, second]).chunks(include_usage=True)
    reader = asyncio.create_task(payloads(chunks))
    for source, event in [
        (second, Text((1,), "b1 ")),
        (first, Text((1,), "a1 ")),
        (second, Text((1,), "b2")),
        (second, done()),
        (first, Text((1,), "a2")),
        (first, done()),
    ]:
        source.emit(event)
        await asyncio.sleep(0.001)
    received = await reader
    choices = [event["choices"][0] for event in received if event["choices"]]
    texts = {0: "", 1: ""}
    for choice in choices:
        texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    assert texts == {0: "a1 a2", 1: "b1 b2"}
    assert [c["index"] for c in choices if c["finish_reason"]] == [1, 0]
    assert received[-1]["usage"]["completion_tokens"] == 4


async def test_an_error_of_one_choice_ends_the_stream():
    first, second = generation(), generation()
    chunks = text_reply([first, second]).chunks(False)
    first.emit(Text((1,), "a"))
    second.emit(QueueTimedOut("waited 60 s", 7))
    with pytest.raises(ApiError) as caught:
        await payloads(chunks)
    assert (caught.value.status, caught.value.code, caught.value.headers["Retry-After"]) == (503, "queue_timeout", "7")


def test_what_was_cached_for_several_replies_is_what_the_first_one_found():
    usages = [Usage(10, cached=3, generated=1), Usage(10, cached=9, generated=2)]
    assert total(usages) == Usage(10, 3, 3)


async def test_merged_sources_are_stopped_with_their_reader():
    stopped = []

    async def endless(name):
        try:
            yield name
            await asyncio.sleep(1000)
        finally:
            stopped.append(name)

    both = merged([endless("a"), endless("b")])
    assert [await anext(both), await anext(both)] == [(0, "a"), (1, "b")]
    await asyncio.sleep(0)  # the sources go on
    await both.aclose()
    assert sorted(stopped) == ["a", "b"]


async def test_merging_keeps_the_items_of_each_source_in_order():
    async def count(n):
        for item in range(n):
            await asyncio.sleep(0)
            yield item

    items = [item async for item in merged([count(3), count(0), count(5)])]
    assert [item for number, item in items if number == 0] == [0, 1, 2]
    assert [item for number, item in items if number == 2] == [0, 1, 2, 3, 4]


# ---- probabilities ---------------------------------------------------------------------------------------


def test_a_chats_logprobs_have_bytes_and_as_many_alternatives_as_asked():
    (entry,) = content([prob("né", -0.25, ("no", -2.0), ("na", -3.0))], top=2, post=False)
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("né", -0.25, list("né".encode()))
    assert [(t["token"], t["logprob"]) for t in entry["top_logprobs"]] == [("né", -0.25), ("no", -2.0)]
    assert content([prob("x")], top=0, post=False)[0]["top_logprobs"] == []


def test_probabilities_after_sampling_have_llama_servers_names_and_no_logarithm():
    (entry,) = content([prob("a", 0.0, ("b", -9999.0))], top=2, post=True)
    assert entry["prob"] == 1
    assert [(t["token"], t["prob"]) for t in entry["top_probs"]] == [("a", 1), ("b", 0)]
    assert "logprob" not in entry


def test_columns_go_on_where_the_text_stands_and_split_characters_have_names():
    columns = Columns(top=1)
    first = columns.add([prob("a"), prob(b"\xc3")])
    second = columns.add([prob(b"\xa9"), prob("z", -1.0, ("y", -0.1))])
    assert first["tokens"] == ["a", "bytes:\\xc3"]
    assert [*first["text_offset"], *second["text_offset"]] == [0, 1, 1, 2]
    assert second["token_logprobs"] == [-0.5, -1.0]


def test_columns_always_have_the_sampled_token_among_the_best():
    unlikely = TokenProbs(1, -7.0, b"z", [(2, -0.1, b"y"), (1, -7.0, b"z")])
    assert Columns(top=1).add([unlikely])["top_logprobs"] == [{"y": -0.1, "z": -7.0}]
    assert Columns(top=0).add([unlikely])["top_logprobs"] == [{"z": -7.0}]


@pytest.mark.parametrize(
    ("asked", "top"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"n_probs": 3, "post_sampling_probs": True}, 3),
        ({"logprobs": True, "n_probs": 3}, 3),
        ({"n_probs": 0}, None),
    ],
)
def test_chats_take_openais_fields_and_llama_servers(asked, top):
    wanted = wanted_logprobs(asked)
    assert (wanted.top if wanted else None) == top


def test_top_logprobs_alone_are_refused():
    with pytest.raises(ApiError) as caught:
        wanted_logprobs({"top_logprobs": 2})
    assert caught.value.param == "top_logprobs"


async def test_a_whole_chat_tells_every_tokens_probability():
    events = [Text((1,), "a", (prob("a"),)), Text((2, 3), "b", (prob("b"), prob(b""))), done()]
    whole = await chat_reply(run(events), logprobs=True).whole()
    assert [e["token"] for e in whole["choices"][0]["logprobs"]["content"]] == ["a", "b", ""]


async def test_a_streamed_chat_tells_each_tokens_probability_once_even_where_its_text_is_held_back():
    source = generation()
    reader = asyncio.create_task(payloads(chat_reply([source], chat=PlainChat(held=2), logprobs=True).chunks(False)))
    for letter in "abcd":
        source.emit(Text((1,), letter, (prob(letter),)))
        await asyncio.sleep(0.001)
    source.emit(done())
    choices = [event["choices"][0] for event in await reader]
    told = [entry["token"] for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert told == list("abcd")
    assert "".join(c["delta"].get("content") or "" for c in choices) == "abcd"


async def test_without_asking_nobody_is_told():
    (chunk, *_) = await payloads(chat_reply(run([Text((1,), "a"), done()])).chunks(False))
    assert "logprobs" not in chunk["choices"][0]
    whole = await text_reply(run([Text((1,), "a"), done()])).whole()
    assert whole["choices"][0]["logprobs"] is None


async def test_text_completions_have_openais_columns_and_llama_servers_list():
    events = [Text((1,), "a", (prob("a", -0.5, ("b", -1.0)),)), done()]
    columns = (await text_reply(run(events), logprobs=0).whole())["choices"][0]["logprobs"]
    assert columns == {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0]}
    listed = (await text_reply(run(events), n_probs=2).whole())["choices"][0]["logprobs"]
    assert [t["token"] for t in listed["content"][0]["top_logprobs"]] == ["a", "b"]
    assert "tokens" not in listed


async def test_streamed_columns_add_up_to_the_whole_ones():
    events = [Text((1,), "é", (prob("é"),)), Text((2,), "b", (prob("b"),)), done()]
    whole = (await text_reply(run(events), logprobs=1).whole())["choices"][0]["logprobs"]
    source = generation()
    reader = asyncio.create_task(payloads(text_reply([source], logprobs=1).chunks(False)))
    for event in events:
        source.emit(event)
        await asyncio.sleep(0.001)
    parts = [event["choices"][0]["logprobs"] for event in await reader]
    assert {name: [item for part in parts for item in part[name]] for name in whole} == whole


# ---- slow clients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [chat_reply, text_reply])
async def test_a_client_that_stalls_gets_fewer_and_larger_deltas_and_the_same_text(make):
    letters = "größer 🚂 " * 30

    async def read(pause):
        source = generation()
        received = []

        async def reader():
            async for chunk in make([source]).chunks(False):
                if chunk.startswith(b"data: {"):
                    received.append(json.loads(chunk.decode()[6:])["choices"][0])
                    await pause()

        task = asyncio.create_task(reader())
        for letter in letters:
            source.emit(Text((1,), letter))
            for _ in range(8):
                await asyncio.sleep(0)
        source.emit(done())
        stalled.set()
        await task
        return [c.get("text") or c.get("delta", {}).get("content") or "" for c in received]

    stalled = asyncio.Event()
    prompt = await read(lambda: asyncio.sleep(0))
    stalled.clear()
    slow = await read(stalled.wait)
    assert "".join(prompt) == "".join(slow) == letters
    assert len(slow) <= 5 < len(prompt)
