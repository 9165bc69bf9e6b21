"""/v1/embeddings, /embedding and /v1/rerank over the fakes: shapes, limits, errors, and what a crash does to them."""

from __future__ import annotations

import asyncio
import base64
import json
import math

import numpy as np
import pytest

from fakes import vocab
from fakes.api import chat_body, context_of, until, use_keys
from fakes.chat import refuse
from fakes.worker import fake_vector
from lcpd.api.bodies import separate
from lcpd.api.embeddings import AT_ONCE, normalised


async def post(client, path, body, status=200, **headers):
    response = await client.post(path, json=body, headers=headers)
    answer = await response.json()
    assert response.status == status, answer
    return answer


def unit(text: str) -> np.ndarray:
    """The vector of a text in the API's answer."""
    vector = fake_vector(vocab.encode(text), "mean")
    return vector / np.linalg.norm(vector)


async def test_texts_and_tokens_become_vectors_of_length_one_in_their_order(make_client):
    client = await make_client()
    answer = await post(client, "/v1/embeddings", {"input": "hello", "model": "alias", "dimensions": 8})
    assert (answer["object"], answer["model"]) == ("list", "fake")
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert [(data["object"], data["index"]) for data in answer["data"]] == [("embedding", 0)]
    many = [f"text {number}" for number in range(20)]
    for given, texts in [
        ("hello", ["hello"]),
        (many, many),
        ([97, 98], ["ab"]),
        ([[97], [98, "c"]], ["a", "bc"]),
        (["a", 98], ["ab"]),
    ]:
        answer = await post(client, "/embeddings", {"input": given})
        assert [data["embedding"] for data in answer["data"]] == [pytest.approx(unit(text)) for text in texts]
        assert [data["index"] for data in answer["data"]] == list(range(len(texts)))


async def test_vectors_come_in_the_shape_that_is_asked_for(make_client):
    client = await make_client()
    plain = await post(client, "/v1/embeddings", {"input": "x", "encoding_format": "float"})
    packed = await post(client, "/v1/embeddings", {"input": "x", "encoding_format": "base64"})
    data = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    assert data.tolist() == plain["data"][0]["embedding"]
    for path, body in [("/embedding", {"input": ["a", "b"]}), ("/v1/embeddings", {"content": ["a", "b"]})]:
        answer = await post(client, path, body)  # llama-server's
        assert [one["index"] for one in answer] == [0, 1]
        assert answer[1]["embedding"] == [pytest.approx(unit("b"))]
    (answer,) = await post(client, "/embedding", {"content": "a", "embd_normalize": -1})
    assert answer["embedding"] == [fake_vector([97], "mean").tolist()]


WRONG = [
    ({}, "input", "must be given"),
    ({"input": ""}, "input", "empty"),
    ({"input": []}, "input", "length >= 1"),
    ({"input": ["a", ""]}, "input[1]", "empty"),
    ({"input": [[]]}, "input[0]", "empty"),
    ({"input": 5}, "input", "Expected"),
    ({"input": [1.5]}, "input[0]", "Expected"),
    ({"input": [-1]}, "input[0]", ">= 0"),
    ({"input": [10**6]}, "input", "outside the vocabulary"),
    ({"input": [1, [2]]}, "input", "mixed"),
    ({"input": ["a"] * 2049}, "input", "at most 2048"),
    ({"input": {"content": []}}, "input", "Expected"),
    ({"input": "x" * 65}, "input", "maximum context length is 64 tokens"),
    ({"content": ["a", "x" * 65]}, "content[1]", "model.embeddings_ctx"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format", "hex"),
    ({"input": "a", "dimensions": 4}, "dimensions", "must be 8"),
    ({"input": "a", "dimensions": 0}, "dimensions", ">= 1"),
    ({"input": "a", "embd_normalize": -2}, "embd_normalize", ">= -1"),
    ({"input": refuse("no such text")}, "input", "no such text"),
]


async def test_what_is_wrong_with_a_body_is_named(make_client):
    client = await make_client(model__embeddings_ctx=64)
    for body, param, words in WRONG:
        error = (await post(client, "/v1/embeddings", body, 400))["error"]
        assert error["param"] == param, body
        assert words in error["message"], body
    answer = await post(client, "/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}, 404)
    assert answer["error"]["code"] == "model_not_found"


async def test_embeddings_that_are_switched_off_name_the_setting(make_client):
    client = await make_client(model__embeddings="off")
    for path, body in [("/v1/embeddings", {"input": "a"}), ("/v1/rerank", {"query": "a", "documents": ["b"]})]:
        error = (await post(client, path, body, 501))["error"]
        assert "model.embeddings" in error["message"]
        assert error["type"] == "not_supported_error"


async def test_texts_are_embedded_beside_a_running_chat(make_client):
    client = await make_client({"decode_seconds": 0.01})
    chat = asyncio.create_task(post(client, "/v1/chat/completions", chat_body("hi", ignore_eos=True, max_tokens=100)))
    await until(lambda: context_of(client).dispatcher.running > 0)
    await post(client, "/v1/embeddings", {"input": ["a", "b"]})
    assert not chat.done()
    assert (await chat)["usage"]["completion_tokens"] == 100


async def test_a_client_that_goes_away_leaves_nothing_to_embed(make_client):
    client = await make_client({"embed_seconds": 0.05})
    asking = asyncio.create_task(client.post("/v1/embeddings", json={"input": ["a"] * 1000}))
    embeddings = context_of(client).embeddings
    await until(lambda: embeddings.running > 0)
    asking.cancel()
    await until(lambda: not embeddings.running)
    await post(client, "/v1/embeddings", {"input": "b"})


async def test_a_crash_is_not_noticed(make_client, tmp_path):
    fault = {"at": "token:1", "do": "kill", "once": str(tmp_path / "crashed")}
    client = await make_client({"faults": [fault], "embed_seconds": 0.02})
    texts = [f"text {number}" for number in range(30)]
    asking = asyncio.create_task(post(client, "/v1/embeddings", {"input": texts}))
    await until(lambda: context_of(client).embeddings.running > 0)
    await post(client, "/v1/chat/completions", chat_body("hi", max_tokens=2))
    answer = await asking
    assert [data["embedding"] for data in answer["data"]] == [pytest.approx(unit(text)) for text in texts]
    assert context_of(client).supervisor.restarts == 1


async def test_texts_that_crash_the_engine_are_refused_the_second_time_and_others_go_on(make_client):
    client = await make_client({"poison": "arsenic"}, engine__crash_limit=4)
    good = [asyncio.create_task(post(client, "/v1/embeddings", {"input": [f"good {n}"] * 3})) for n in range(3)]
    error = (await post(client, "/v1/embeddings", {"input": ["good", "arsenic"]}, 500))["error"]
    assert error["code"] == "request_quarantined"
    for answer in await asyncio.gather(*good):
        assert len(answer["data"]) == 3


async def test_a_full_queue_says_when_to_come_again_and_who_waits_hears_signs_of_life(make_client):
    client = await make_client({"embed_seconds": 0.1}, server__queue_size=1, server__heartbeat_interval=0.02)
    asking = asyncio.create_task(client.post("/v1/embeddings", json={"input": ["a"] * 2}))
    await until(lambda: context_of(client).embeddings.running > 0)
    response = await client.post("/v1/embeddings", json={"input": "b"})
    assert (response.status, (await response.json())["error"]["code"]) == (429, "queue_full")
    assert "Retry-After" in response.headers
    text = await (await asking).text()
    assert text.startswith(" ")  # a sign of life
    assert len(json.loads(text)["data"]) == 2


async def test_a_model_that_is_no_reranker_says_so_and_an_engine_that_sleeps_wakes_up_to_embed(make_client):
    client = await make_client()
    error = (await post(client, "/v1/rerank", {"query": "a", "documents": ["b"]}, 501))["error"]
    assert "no reranker" in error["message"]
    use_keys(client)
    await post(client, "/sleep", {}, Authorization="Bearer the-admins")
    assert len((await post(client, "/v1/embeddings", {"input": "a"}))["data"]) == 1


async def test_keys_have_their_limits_here_too(make_client):
    client = await make_client()
    use_keys(client, "ada secret-of-ada rate=1/h")
    await post(client, "/v1/embeddings", {"input": "a"}, 401)
    await post(client, "/v1/embeddings", {"input": "a"}, Authorization="Bearer secret-of-ada")
    await post(client, "/v1/rerank", {"query": "a", "documents": ["a"]}, 429, Authorization="Bearer secret-of-ada")


async def test_documents_come_best_first_in_the_shapes_of_jina_and_tei(make_client):
    client = await make_client({"pooling": "rank"})
    documents = ["blue moon", "red rose garden", "a red rose"]
    answer = await post(client, "/v1/rerank", {"query": "a red rose", "documents": documents})
    assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [(2, 3.0), (1, 2.0), (0, 0.0)]
    assert answer["usage"]["prompt_tokens"] == sum(len(f"a red rose|{document}") for document in documents)
    best = await post(client, "/reranking", {"query": "a red rose", "documents": documents, "top_n": 1})
    assert [one["index"] for one in best["results"]] == [2]
    body = {"query": "red", "texts": ["blue", "red"]}
    assert await post(client, "/rerank", body) == [{"index": 1, "score": 1.0}, {"index": 0, "score": 0.0}]
    told = await post(client, "/rerank", {**body, "return_text": True, "top_n": 1})
    assert told == [{"index": 1, "score": 1.0, "text": "red"}]


WRONG_DOCUMENTS = [
    ({"documents": ["a"]}, "query"),
    ({"query": 1, "documents": ["a"]}, "query"),
    ({"query": "a"}, "documents"),
    ({"query": "a", "documents": []}, "documents"),
    ({"query": "a", "documents": "b"}, "documents"),
    ({"query": "a", "documents": [{"text": "b"}]}, "documents[0]"),
    ({"query": "a", "texts": [1]}, "texts[0]"),
    ({"query": "a", "documents": ["b", "x" * 64]}, "documents[1]"),
    ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
]


async def test_what_is_wrong_with_documents_is_named(make_client):
    client = await make_client({"pooling": "rank"}, model__embeddings_ctx=64)
    for body, param in WRONG_DOCUMENTS:
        assert (await post(client, "/v1/rerank", body, 400))["error"]["param"] == param, body
    error = (await post(client, "/v1/embeddings", {"input": "a"}, 501))["error"]
    assert "/v1/rerank" in error["message"]


async def test_a_query_that_cannot_fit_is_refused_before_it_is_paired_with_anything(make_client, monkeypatch):
    client = await make_client({"pooling": "rank"}, model__embeddings_ctx=64)
    asked = counted_calls(context_of(client).chat, monkeypatch)
    error = (await post(client, "/v1/rerank", {"query": "x" * 65, "documents": ["a"] * 2048}, 400))["error"]
    assert (error["param"], error["code"]) == ("query", "context_length_exceeded")
    assert asked.pairs == 0


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/rerank", {"query": "x", "documents": []}), ("/v1/embeddings", {"input": []})]
)
async def test_the_chat_process_is_asked_for_few_texts_at_a_time(make_client, monkeypatch, path, body):
    client = await make_client({"pooling": "rank" if "query" in body else "mean"})
    asked = counted_calls(context_of(client).chat, monkeypatch)
    field = "documents" if "query" in body else "input"
    answer = await post(client, path, {**body, field: [f"text {number}" for number in range(50)]})
    assert len(answer.get("results") or answer["data"]) == 50
    assert asked.most == AT_ONCE


@pytest.mark.parametrize("wrong", ["x" * 64, refuse("no such text")])
async def test_no_more_pairs_are_asked_for_when_one_is_refused(make_client, monkeypatch, wrong):
    client = await make_client({"pooling": "rank"}, model__embeddings_ctx=64)
    asked = counted_calls(context_of(client).chat, monkeypatch)
    await post(client, "/v1/rerank", {"query": "q", "documents": ["a", wrong, *["b"] * 100]}, 400)
    assert asked.pairs <= 1 + AT_ONCE
    assert asked.now == 0


class Calls:
    """What is asked of the chat process: at this time, at a time at most, and pairs in all."""

    now = most = pairs = 0


def counted_calls(chat, monkeypatch) -> Calls:
    """Counts, which go up from now on."""
    calls = Calls()

    def counted(method, is_pair):
        async def call(*args, **kwargs):
            calls.pairs += is_pair
            calls.now += 1
            calls.most = max(calls.most, calls.now)
            try:
                return await method(*args, **kwargs)
            finally:
                calls.now -= 1

        return call

    monkeypatch.setattr(chat, "pair", counted(chat.pair, True))
    monkeypatch.setattr(chat, "tokenize", counted(chat.tokenize, False))
    return calls


async def test_a_model_that_only_embeds_generates_nothing_and_says_so(make_client):
    client = await make_client({"generates": False})
    for path, body in [
        ("/v1/chat/completions", chat_body("hi")),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", chat_body("hi", max_tokens=3)),
    ]:
        assert "only embeds" in (await post(client, path, body, 501))["error"]["message"]
    await post(client, "/v1/embeddings", {"input": "a"})


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (-1, [3.0, -4.0, 0.0]),
        (0, [3 / 4 * 32760, -32760.0, 0.0]),
        (1, [3 / 7, -4 / 7, 0.0]),
        (2, [0.6, -0.8, 0.0]),
        (3, [3 / math.cbrt(91), -4 / math.cbrt(91), 0.0]),
    ],
)
def test_vectors_are_scaled_as_asked(norm, expected):
    assert normalised(np.array([3.0, -4.0, 0.0], np.float32), norm) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("norm", [0, 1, 2, 100])
def test_a_vector_of_zeros_stays_one(norm):
    assert normalised(np.zeros(3, np.float32), norm).tolist() == [0, 0, 0]


def test_a_list_with_numbers_is_one_text():
    assert separate(["a", "b"], "input") == ["a", "b"]
    assert separate(["a", 1], "input") == [["a", 1]]
    assert separate([[1, 2], "a"], "input") == [[1, 2], "a"]
