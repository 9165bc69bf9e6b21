"""A second turn computes only what is new, on every kind of model, and says the same as a cold run."""

from __future__ import annotations

import pytest

from support import MODELS, text_of

pytestmark = pytest.mark.native


@pytest.fixture(params=["attention", "swa", "hybrid"])
def start_model(request, start_daemon):
    def start(*flags: str):
        return start_daemon("--model", MODELS[request.param], "--ctx", "4096", "--flash-attn", "off", *flags)

    return start


def count(begin: int, end: int) -> str:
    return ", ".join(map(str, range(begin, end)))


def counts(response) -> tuple[int, int]:
    usage = response.json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_the_next_turn_reuses_the_previous_prompt(start_model):
    daemon = start_model()
    first = daemon.chat(text_of(700))
    reply = first.json()["choices"][0]["message"]["content"] or "Done."
    second = daemon.chat(text_of(700), reply, "And what else?")
    length, _ = counts(first)
    _, cached = counts(second)
    # What the next turn shares: everything before the beginning of the reply.
    assert length - 12 <= cached <= length + 24


def test_an_edited_last_message_reuses_what_comes_before_it(start_model):
    daemon = start_model()
    history = (text_of(500), "I see.")
    length, _ = counts(daemon.chat(*history, text_of(60, seed=1)))
    _, cached = counts(daemon.chat(*history, text_of(60, seed=2)))
    assert 400 < cached < length - 40


def test_a_reply_on_a_reused_prefix_equals_the_cold_one(start_model):
    """Greedy text after resuming equals the text of a daemon that never saw the conversation before."""
    # Counting on leaves no ties that the last bits of a logit could decide.
    turns = (count(1, 120), "I see.", "Count!", count(1, 60) + ",")
    warm, cold = start_model(), start_model()
    warm.chat(*turns[:1])
    warm.chat(*turns[:2], "No more of this.")
    resumed, computed = warm.chat(*turns), cold.chat(*turns)
    assert counts(resumed)[1] > 200
    assert counts(computed)[1] == 0
    texts = []
    for response in (resumed, computed):
        message = response.json()["choices"][0]["message"]
        texts.append((message.get("reasoning_content") or "") + (message.get("content") or ""))
    assert texts[0] == texts[1]


def test_prompt_tokens_are_counted_by_where_they_came_from(start_model):
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    daemon = start_model()
    total = cached = 0
    for turns in ((text_of(200),), (text_of(200),), (text_of(200), "ok", "more")):
        length, reused = counts(daemon.chat(*turns))
        total, cached = total + length, cached + reused
    text = httpx.get(f"{daemon.url}/metrics").text
    samples = {
        (s.name, s.labels.get("source") or s.labels.get("class")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    sources = ("vram", "shared", "ram")
    assert sum(samples[("lcpd_prompt_tokens_total", source)] for source in sources) == cached
    assert samples[("lcpd_prompt_tokens_total", "computed")] == total - cached
    assert samples[("lcpd_time_to_first_token_seconds_count", "interactive")] == 3
