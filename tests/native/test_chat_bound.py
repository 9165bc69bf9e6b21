"""Texts that are too long by their size alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lcpd.build import require_active
from lcpd.chat.bound import bound_of
from lcpd.chat.client import ChatClient, ChatSettings, ChatTooLong
from lcpd.engine.protocol import unpack
from support import model_path

pytestmark = pytest.mark.native
KINDS = ("attention", "hybrid")


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_has_fewer_tokens_than_its_size_tells(kind, models):
    model = models(kind)
    bound = bound_of(model)
    texts = (
        st.text()
        | st.text("\0\x01\x04\x06\U000f0000a", min_size=50, max_size=400)
        | st.text(" \n\t=-#▁Ġ", min_size=50, max_size=400)
        | st.sampled_from(["  " * 999, "=" * 999])
    )

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(texts)
    def check(text):
        assert len(model.tokenize(text, False, True)) >= bound.least(text)

    check()


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(models):
    longest = bound_of(models("attention")).longest
    assert longest, "the vocabulary has a limit"
    settings = ChatSettings(model_path("attention"), None, require_active().lib_dir, 2 << 30, 60.0)
    client = ChatClient(settings)
    await client.start()
    try:
        body = json.dumps({"messages": [{"role": "user", "content": "word " * longest * 100}]}).encode()
        with pytest.raises(ChatTooLong) as caught:
            await client.render("chat", body, context=500)
        assert (caught.value.context, 500 <= caught.value.tokens < 600) == (500, True)
        with pytest.raises(ChatTooLong):
            await client.complete("word " * longest * 100, b"{}", context=500)
        assert len(unpack((await client.render("chat", body)).tokens)) > caught.value.tokens
    finally:
        await client.stop()
