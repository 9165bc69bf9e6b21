"""Vectors and scores are those of llama-server, within what other batches change."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from benchmarks.servers import Equal, Server, run_lcpd, run_peer
from peer_pair import Json

from lcpd.models import resolve
from lcpd.paths import dirs
from support import text_of
from tiny_variants import encoder_model, reranker_model

pytestmark = pytest.mark.peer

TEXTS = [
    "hello",
    "naïve 😀 \u4f60\u597d\n\tdef f():",
    text_of(40),
    text_of(40, seed=1),
    "<|im_start|>user\nx<|im_end|>",
]
DOCUMENTS = [*TEXTS, "the cache keeps what was computed once"]


@contextmanager
def servers(model: Path, folder: Path, binary: Path, flags: tuple[str, ...], **settings: str) -> Iterator[list[Server]]:
    """lcpd and llama-server with the same model."""
    environment = {"OMP_NUM_THREADS": "1", **settings}
    equal = Equal(model, threads=1, ctx=512, batch=256, ubatch=256, flash_attn="off", environment=environment)
    with run_lcpd(equal, folder) as lcpd, run_peer(equal, binary, folder, flags) as peer:
        yield [lcpd, peer]


def both(pair: list[Server], path: str, body: Json) -> tuple[Json, Json]:
    answers = [httpx.post(server.url + path, json=body, timeout=120) for server in pair]
    assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
    ours, theirs = (answer.json() for answer in answers)
    return ours, theirs


def distance(ours: list[float], theirs: list[float]) -> float:
    """Between vectors of length one."""
    return float(np.linalg.norm(np.array(ours) - np.array(theirs)))


@pytest.mark.parametrize(
    ("ref", "pooling"),
    [
        ("demo:smollm2", "mean"),
        ("demo:gemma3", "mean"),
        ("demo:hybrid", "mean"),
        ("demo:hybrid", "last"),
        ("demo:hybrid", "cls"),
    ],
)
def test_vectors_are_the_same(ref: str, pooling: str, peer_binary: Path, tmp_path: Path) -> None:
    model = resolve(ref, dirs())
    flags = ("--embeddings", "--pooling", pooling)
    with servers(model, tmp_path, peer_binary, flags, LCPD_MODEL__EMBEDDINGS=pooling) as pair:
        ours, theirs = both(pair, "/v1/embeddings", {"input": TEXTS})
        assert ours["usage"] == theirs["usage"]
        distances = [
            distance(a["embedding"], b["embedding"]) for a, b in zip(ours["data"], theirs["data"], strict=True)
        ]
        assert max(distances) < 1e-5
        for norm in (-1, 0, 1, 3):
            ours, theirs = both(pair, "/embedding", {"content": TEXTS[2], "embd_normalize": norm})
            np.testing.assert_allclose(ours[0]["embedding"], theirs[0]["embedding"], rtol=1e-3, atol=1e-5)
        ours, theirs = both(pair, "/v1/embeddings", {"input": [[5, 6], [7]], "encoding_format": "base64"})
        for a, b in zip(ours["data"], theirs["data"], strict=True):
            vectors = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() for one in (a, b)]
            assert distance(*vectors) < 1e-5


RERANKERS: dict[str, Callable[[Path], Path]] = {
    "template": lambda folder: reranker_model(folder, template=True),
    "plain": lambda folder: reranker_model(folder, template=False),
    "encoder": lambda folder: encoder_model(folder, ranks=True),
}


def test_vectors_of_a_model_that_only_embeds_are_the_same(peer_binary: Path, tmp_path: Path) -> None:
    model = encoder_model(dirs().cache / "tests", ranks=False)
    with servers(model, tmp_path, peer_binary, ("--embeddings", "--ubatch-size", "512", "-b", "512")) as pair:
        long = text_of(190)  # more tokens than lcpd decodes at once for other models
        ours, theirs = both(pair, "/v1/embeddings", {"input": [*TEXTS, long]})
        assert ours["usage"] == theirs["usage"]
        for a, b in zip(ours["data"], theirs["data"], strict=True):
            assert distance(a["embedding"], b["embedding"]) < 1e-5


@pytest.mark.parametrize("kind", RERANKERS)
def test_scores_are_the_same(kind: str, peer_binary: Path, tmp_path: Path) -> None:
    model = RERANKERS[kind](dirs().cache / "tests")
    with servers(model, tmp_path, peer_binary, ("--reranking",)) as pair:
        ours, theirs = both(pair, "/v1/rerank", {"query": "what is kept?", "documents": DOCUMENTS})
        assert ours["usage"] == theirs["usage"]
        assert [one["index"] for one in ours["results"]] == [one["index"] for one in theirs["results"]]
        scores = [[one["relevance_score"] for one in answer["results"]] for answer in (ours, theirs)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
        body = {"query": "kept?", "texts": DOCUMENTS, "return_text": True, "top_n": 2}
        ours, theirs = both(pair, "/reranking", body)
        assert [(one["index"], one["text"]) for one in ours] == [(one["index"], one["text"]) for one in theirs]
        assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-5)


def test_what_is_refused_is_refused_alike(peer_binary: Path, tmp_path: Path) -> None:
    model = resolve("demo:hybrid", dirs())
    flags = ("--embeddings", "--pooling", "mean")
    with servers(model, tmp_path, peer_binary, flags, LCPD_MODEL__EMBEDDINGS="mean") as pair:
        for path, body, status in [
            ("/v1/embeddings", {}, 400),
            ("/v1/embeddings", {"input": []}, 400),
            ("/v1/embeddings", {"input": ""}, 400),
            ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400),
            ("/v1/rerank", {"query": "a", "documents": ["b"]}, 501),
            ("/infill", {"input_prefix": "a", "input_suffix": "b"}, 501),
        ]:
            answers = [httpx.post(server.url + path, json=body, timeout=60) for server in pair]
            assert [answer.status_code for answer in answers] == [status] * 2, [answer.text for answer in answers]
            types = [answer.json()["error"]["type"] for answer in answers]
            assert types[0] == types[1]
