"""Embeddings, reranking and infill of a real daemon, through the openai SDK where it knows them."""

from __future__ import annotations

import base64
import os
import signal
import threading

import httpx
import numpy as np
import openai
import pytest

from lcpd.paths import dirs
from support import text_of
from tiny_variants import encoder_model, infill_model, reranker_model

pytestmark = pytest.mark.native


def post(daemon, path, body, status=200):
    response = httpx.post(daemon.url + path, json=body, timeout=120)
    assert response.status_code == status, response.text
    return response.json()


@pytest.fixture
def client(daemon):
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_sdk_gets_vectors_of_texts_and_tokens(client):
    model = client.models.list().data[0].id
    texts = ["hello", text_of(30), text_of(30)]
    plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
    packed = client.embeddings.create(model=model, input=texts, encoding_format="base64")
    default = client.embeddings.create(model=model, input=texts)  # base64, which the SDK reads itself
    assert [data.index for data in plain.data] == [0, 1, 2]
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 30
    vectors = np.array([data.embedding for data in plain.data])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1])
    assert vectors[1].tolist() == vectors[2].tolist() != vectors[0].tolist()
    assert np.array([data.embedding for data in default.data]) == pytest.approx(vectors)
    assert np.frombuffer(base64.b64decode(packed.data[0].embedding), "<f4") == pytest.approx(vectors[0])
    one = client.embeddings.create(model=model, input=[5, 6, 7], dimensions=vectors.shape[1], encoding_format="float")
    assert len(one.data[0].embedding) == vectors.shape[1]


@pytest.mark.parametrize("given", ["", [], [""], [[]], [10**6], [5, [6]], {"a": 1}, "x " * 5000, ["a"] * 3000])
def test_nothing_that_is_given_harms_the_worker(daemon, given):
    worker = daemon.child("lcpd.engine.worker")
    assert post(daemon, "/v1/embeddings", {"input": given}, 400)["error"]["param"].startswith("input")
    assert len(post(daemon, "/v1/embeddings", {"input": "a"})["data"]) == 1
    assert daemon.child("lcpd.engine.worker") == worker


def test_a_text_that_is_too_long_names_the_limit(client):
    with pytest.raises(openai.BadRequestError, match=r"2048 tokens.*model\.embeddings_ctx") as caught:
        client.embeddings.create(model=client.models.list().data[0].id, input="word " * 4000)
    assert caught.value.code == "context_length_exceeded"


def test_a_chat_and_its_cache_are_the_same_with_texts_embedded_beside_it(daemon):
    question = "Count from one to ninety. " + text_of(300)
    alone = daemon.chat(question, max_tokens=48).json()
    stop = threading.Event()
    answers = []

    def embed():
        while not stop.is_set():
            answers.append(post(daemon, "/v1/embeddings", {"input": [text_of(200)] * 4})["data"][3]["embedding"])

    thread = threading.Thread(target=embed)
    thread.start()
    try:
        beside = daemon.chat(question, max_tokens=48).json()
    finally:
        stop.set()
        thread.join()
    assert beside["choices"] == alone["choices"]
    assert beside["usage"]["prompt_tokens_details"]["cached_tokens"] > 300
    assert len(answers) >= 1
    assert np.array(answers) == pytest.approx(np.array([answers[0]] * len(answers)), abs=1e-4)


def test_the_worker_may_die_while_texts_are_embedded(daemon):
    expected = post(daemon, "/v1/embeddings", {"input": [text_of(40, seed) for seed in range(40)]})
    told = {}
    thread = threading.Thread(
        target=lambda: told.update(post(daemon, "/v1/embeddings", {"input": [text_of(40, s) for s in range(40)]}))
    )
    thread.start()
    os.kill(daemon.child("lcpd.engine.worker"), signal.SIGKILL)
    thread.join()
    for ours, before in zip(told["data"], expected["data"], strict=True):
        assert ours["embedding"] == pytest.approx(before["embedding"], abs=1e-5)


def test_a_chat_model_is_no_reranker_and_fills_no_gaps_and_says_so(daemon):
    error = post(daemon, "/v1/rerank", {"query": "a", "documents": ["b"]}, 501)["error"]
    assert "no reranker" in error["message"]
    error = post(daemon, "/infill", {"input_prefix": "a", "input_suffix": "b"}, 501)["error"]
    assert "prefix token is missing" in error["message"]


def test_a_reranker_ranks(start_daemon):
    daemon = start_daemon("--model", str(reranker_model(dirs().cache / "tests", template=True)), "--ctx", "512")
    documents = [text_of(20, seed) for seed in range(5)]
    answer = post(daemon, "/v1/rerank", {"query": "what is kept?", "documents": documents})
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 5
    again = post(daemon, "/v1/rerank", {"query": "what is kept?", "documents": documents[::-1]})
    assert [4 - one["index"] for one in again["results"]] == [one["index"] for one in answer["results"]]
    long = post(daemon, "/v1/rerank", {"query": "a", "documents": ["b", text_of(2000)]}, 400)
    assert long["error"]["param"] == "documents[1]"
    assert "/v1/rerank" in post(daemon, "/v1/embeddings", {"input": "a"}, 501)["error"]["message"]
    assert daemon.stop() == 0


def test_a_model_that_only_embeds_does_that_and_refuses_the_rest(start_daemon):
    daemon = start_daemon("--model", str(encoder_model(dirs().cache / "tests", ranks=False)), "--ctx", "512")
    vector = post(daemon, "/v1/embeddings", {"input": [text_of(190)]})["data"][0]["embedding"]
    assert np.linalg.norm(vector) == pytest.approx(1)
    assert "only embeds" in post(daemon, "/v1/completions", {"prompt": "a"}, 501)["error"]["message"]
    assert "only embeds" in daemon.chat("hi").json()["error"]["message"]
    assert post(daemon, "/v1/embeddings", {"input": "a"})["usage"]["prompt_tokens"] == 1
    assert daemon.stop() == 0


def test_an_editors_request_is_answered_and_its_other_files_are_reused(start_daemon):
    """As llama.vim sends it: first with nothing to generate, to have the files computed, then for the gap."""
    daemon = start_daemon(
        "--model", str(infill_model(dirs().cache / "tests")), "--ctx", "2048", LCPD_MODEL__BATCH="512"
    )
    common = {
        "input_extra": [{"filename": "cache.py", "text": text_of(150)}],
        "samplers": ["top_k", "top_p", "infill"],
        "top_k": 40,
        "top_p": 0.9,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "stream": False,
    }
    warm = {"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "t_max_predict_ms": 1}
    assert post(daemon, "/infill", {**common, **warm, "response_fields": [""]}) == {}
    gap = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n\n", "prompt": "    ", "n_predict": 16}
    answer = post(daemon, "/infill", {**common, **gap, "n_indent": 4, "t_max_predict_ms": 2000})
    assert answer["stop"] is True
    assert answer["timings"]["cache_n"] > 100
    assert daemon.stop() == 0
