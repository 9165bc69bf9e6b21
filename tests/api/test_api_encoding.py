"""Compressed bodies."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from lcpd.api.encoding import decoded
from lcpd.api.errors import ApiError

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
PLAIN = b"a text " * 20


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("", PLAIN),
        ("identity", PLAIN),
        ("gzip", gzip.compress(PLAIN)),
        (" X-GZIP", gzip.compress(PLAIN)),
        ("deflate", zlib.compress(PLAIN)),
        ("deflate", raw_deflate(PLAIN)),
    ],
    ids=["none", "identity", "gzip", "x-gzip", "zlib", "raw-deflate"],
)
def test_a_body_is_read_as_it_was_before_it_was_encoded(encoding: str, data: bytes) -> None:
    assert decoded(data, encoding, most=len(PLAIN)) == PLAIN


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip"])
def test_an_encoding_that_is_not_known_is_refused_with_those_that_are(encoding: str) -> None:
    with pytest.raises(ApiError, match="cannot be read here, only gzip, deflate") as caught:
        decoded(b"", encoding, most=10)
    assert (caught.value.status, caught.value.param) == (415, "Content-Encoding")
    assert caught.value.headers == {"Accept-Encoding": "gzip, deflate"}


@pytest.mark.parametrize(
    "data",
    [b"", b"no gzip", gzip.compress(PLAIN)[:-9], gzip.compress(PLAIN) + b"more"],
    ids=["empty", "something-else", "cut", "more-behind-it"],
)
def test_what_is_not_in_its_encoding_is_a_bad_request(data: bytes) -> None:
    with pytest.raises(ApiError, match="The body cannot be read") as caught:
        decoded(data, "gzip", most=1000)
    assert (caught.value.status, caught.value.param) == (400, "Content-Encoding")


def test_no_more_than_the_limit_is_decoded() -> None:
    with pytest.raises(ApiError, match="larger than 1000 bytes") as caught:
        decoded(gzip.compress(bytes(10_000_000)), "gzip", most=1000)
    assert caught.value.status == 413


async def test_a_compressed_chat_is_answered_and_one_in_brotli_gets_an_error_in_the_dialect(make_client) -> None:
    client = await make_client({"reply": "hi"})
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert (await client.post(CHAT, data=gzip.compress(BODY), headers=headers)).status == 200
    for encoding in ("br", "zstd"):
        response = await client.post(CHAT, data=BODY, headers={**headers, "Content-Encoding": encoding})
        assert (response.status, response.content_type) == (415, "application/json")
        assert (await response.json())["error"]["param"] == "Content-Encoding"
        response = await client.post("/v1/messages", data=BODY, headers={**headers, "Content-Encoding": encoding})
        assert (await response.json())["type"] == "error"
