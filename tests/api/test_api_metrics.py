"""GET /metrics of the whole daemon over the fakes: figures of scripted runs whose token counts are known."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fakes.api import context_of, until, use_keys
from lcpd.api.metrics_port import metrics_app
from lcpd.metrics.requests import CODES, ERRORS

PATH = "/v1/completions"
ONE_SLOT = {"model__slots": 1}
BACKGROUND = {"x-lcpd-priority": "background"}


class Books:
    """What a daemon's figures say."""

    def __init__(self, client: TestClient) -> None:
        self._context = context_of(client)

    def figure(self, name: str, /, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        families = self._context.metrics.registry.collect()
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def sources(self) -> dict[str, float]:
        """Prompt tokens by source, without those of which there are none."""
        names = ("computed", "vram", "shared", "ram", "disk", "anticipated")
        counts = {source: self.figure("lcpd_prompt_tokens_total", source=source) for source in names}
        return {source: count for source, count in counts.items() if count}

    async def settle(self) -> None:
        """Wait until nothing runs or waits."""
        await until(lambda: not self._context.dispatcher.running and not self._context.dispatcher.waiting)

    def balance(self, prompts: list[int]) -> None:
        """All requests are over, which had prompts of these lengths."""
        sources = {source: count for source, count in self.sources().items() if source != "anticipated"}
        assert self.figure("lcpd_prompt_tokens_submitted_total") == sum(prompts)
        assert sum(sources.values()) + self.figure("lcpd_prompt_tokens_abandoned_total") == sum(prompts)
        assert self.figure("lcpd_client_prompt_tokens_total") == sum(sources.values())
        assert self.figure("lcpd_request_outcomes_total") == len(prompts)
        assert self.figure("lcpd_generation_tokens_total") == sum(
            self.figure(f"lcpd_{name}_seconds_count") for name in ("time_to_first_token", "inter_token_latency")
        )
        assert self.figure("lcpd_num_requests_running") == self.figure("lcpd_num_requests_waiting") == 0


def prompt(length: int, first: int = 0) -> list[int]:
    """Token ids; those of another `first` have nothing in common."""
    return [first, *(10 + at % 200 for at in range(length - 1))]


async def ask(client: TestClient, tokens: list[int], headers: dict[str, str] | None = None, **fields: Any) -> dict:
    response = await client.post(PATH, json={"prompt": tokens, **fields}, headers=headers)
    assert response.status == 200, await response.text()
    return await response.json()


async def begin(client: TestClient, tokens: list[int], headers: dict[str, str] | None = None) -> Any:
    """A reply that goes on for ever."""
    body = {"prompt": tokens, "stream": True, "ignore_eos": True}
    return await client.post(PATH, json=body, headers=headers)


async def test_a_scripted_run_gives_exactly_these_figures(make_client):
    """Reuse, parks, cancels in every phase and crashes, one after the other on one slot."""
    long = ("\x06", "x" * 40)  # the reply to the prompt that begins with token 6
    script = {"reply": "abc", "replies": [long], "prefill_seconds": 0.01, "decode_seconds": 0.003}
    client = await make_client(script, **ONE_SLOT, cache__anticipate=False)
    books = Books(client)
    await reuse(client, books)
    await park(client, books)
    await cancel(client, books)
    await crash(client, books)
    assert books.figure("lcpd_cache_lookups_total") == 8, "of all but the one that never began"
    books.balance([100, 120, 120, 40, 60, 30, 50, 640, 200])


async def reuse(client: TestClient, books: Books) -> None:
    """The first time all is computed, then what is new, then the last token, which is always computed."""
    talk = prompt(100)
    for tokens in (talk, [*talk, *range(200, 220)], [*talk, *range(200, 220)]):
        usage = (await ask(client, tokens))["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(tokens), 4)
    await books.settle()
    assert books.sources() == {"computed": 100 + 20 + 1, "vram": 100 + 119}
    assert books.figure("lcpd_prefill_tokens_total") == 121
    assert books.figure("lcpd_prefill_spared_seconds_total") > 0
    assert books.figure("lcpd_generation_tokens_total") == 3 * 4
    assert books.figure("lcpd_request_prompt_tokens_sum") == 340
    assert books.figure("lcpd_request_generation_tokens_sum") == 12
    assert books.figure("lcpd_request_outcomes_total", outcome="stop") == 3
    assert [books.figure("lcpd_cache_lookups_total", result=result) for result in ("hit", "partial", "miss")] == [
        1,
        1,
        1,
    ]
    # The phases of a request fill its time.
    phases = [f"lcpd_request_{phase}_time_seconds" for phase in ("render", "queue", "restore", "prefill", "decode")]
    assert [books.figure(f"{phase}_count") for phase in phases] == [3] * 5
    whole = books.figure("lcpd_e2e_request_latency_seconds_sum", **{"class": "interactive"})
    assert sum(books.figure(f"{phase}_sum") for phase in phases) == pytest.approx(whole)
    first = books.figure("lcpd_time_to_first_token_seconds_sum")
    assert first + books.figure("lcpd_inter_token_latency_seconds_sum") == pytest.approx(whole, rel=0.2)
    books.balance([100, 120, 120])


async def park(client: TestClient, books: Books) -> None:
    """A background request makes place for an interactive one, goes on, and is left by its client."""
    before = books.sources()
    patient = await begin(client, prompt(40, first=1), BACKGROUND)
    await patient.content.readline()
    assert books.figure("lcpd_num_requests_running", **{"class": "background"}) == 1
    assert books.figure("lcpd_slots", state="decode") == 1
    await ask(client, prompt(60, first=2))
    assert books.figure("lcpd_num_preemptions_total", reason="slot") == 1
    await until(lambda: books.figure("lcpd_slots", state="decode") == 1)
    patient.close()
    await books.settle()
    assert books.sources() == {**before, "computed": before["computed"] + 100}
    assert books.figure("lcpd_request_outcomes_total", outcome="cancelled") == 1
    assert books.figure("lcpd_cancels_total") == 1
    books.balance([100, 120, 120, 40, 60])


async def cancel(client: TestClient, books: Books) -> None:
    """Clients leave while their requests are decoded, wait, and are computed."""
    before = books.sources()
    runs = await begin(client, prompt(30, first=3))
    await runs.content.readline()
    waits = await begin(client, prompt(50, first=4))
    assert books.figure("lcpd_num_requests_waiting", **{"class": "interactive"}) == 1
    waits.close()
    await until(lambda: books.figure("lcpd_cancels_total", phase="waiting") == 1)
    decoding = books.figure("lcpd_cancels_total", phase="decode")
    runs.close()
    await books.settle()
    assert books.figure("lcpd_cancels_total", phase="decode") == decoding + 1
    assert books.sources() == {**before, "computed": before["computed"] + 30}
    assert books.figure("lcpd_prompt_tokens_abandoned_total") == 50
    computes = await begin(client, prompt(640, first=5))
    await until(lambda: books.sources()["computed"] > before["computed"] + 30)
    computes.close()
    await books.settle()
    assert books.figure("lcpd_cancels_total", phase="prefill") == 1
    assert books.figure("lcpd_request_prompt_tokens_count") == 4, "of done ones only"
    books.balance([100, 120, 120, 40, 60, 30, 50, 640])


async def crash(client: TestClient, books: Books) -> None:
    """The worker is killed in the middle of a prompt, and again in the middle of its reply."""
    before, prefilled = books.sources(), books.figure("lcpd_prefill_tokens_total")
    sampled = books.figure("lcpd_generation_tokens_total")
    supervisor = context_of(client).supervisor
    response = await client.post(PATH, json={"prompt": prompt(200, first=6), "stream": True})
    await until(lambda: books.sources()["computed"] > before["computed"])
    first = supervisor.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.pid not in (None, first) and books.figure("lcpd_slots", state="decode") == 1)
    os.kill(supervisor.pid, signal.SIGKILL)
    assert b"[DONE]" in await response.read()
    await books.settle()
    assert books.figure("lcpd_worker_restarts_total", cause="killed") == 2
    assert books.sources() == {**before, "computed": before["computed"] + 200}
    assert books.figure("lcpd_prefill_tokens_total") > prefilled + 200, "what died was computed again"
    assert books.figure("lcpd_request_generation_tokens_sum") == 4 * 4 + 41
    assert books.figure("lcpd_generation_tokens_total") == sampled + 41


async def test_requests_are_counted_by_who_asked_and_errors_by_where_and_what(make_client):
    client = await make_client({"reply": "abc", "poison": "poison"}, **ONE_SLOT, engine__crash_limit=5)
    use_keys(client, "ada one\nbob two")
    books = Books(client)
    as_ada = {"x-api-key": "one", "User-Agent": "claude-cli/2.0.1 (external, cli)"}
    as_bob = {"x-api-key": "two", "User-Agent": "my own script"}
    await ask(client, prompt(30), as_ada)
    await ask(client, prompt(31), as_bob)
    ada, bob = {"key": "ada", "client": "claude-code"}, {"key": "bob", "client": "other"}
    assert books.figure("lcpd_client_prompt_tokens_total", source="computed", **ada) == 30
    assert books.figure("lcpd_client_prompt_tokens_total", source="vram", **bob) == 30
    assert books.figure("lcpd_client_miss_tokens_total", reason="cold", **ada) == 30
    assert books.figure("lcpd_client_generation_tokens_total", **bob) == 4
    assert books.figure("lcpd_client_requests_total", code="200", **ada) == 1
    assert books.figure("lcpd_client_time_to_first_token_seconds_count", client="claude-code") == 1

    long = list(range(200)) * 50
    for wrong in ({"prompt": long}, {"prompt": "hi", "model": "nobody's"}, {"prompt": 7}, {"prompt": "poison"}):
        assert (await client.post(PATH, json=wrong, headers=as_bob)).status >= 400
    await client.get("/nowhere", headers=as_bob)
    leaves = await client.post(PATH, json={"prompt": [9], "stream": True, "ignore_eos": True}, headers=as_bob)
    await leaves.content.readline()
    leaves.close()
    await until(lambda: books.figure("lcpd_errors_total", endpoint="/completions", error="client_gone") == 1)
    for endpoint, error in (
        ("/completions", "context_length_exceeded"),
        ("/completions", "model_not_found"),
        ("/completions", "invalid_request_error"),
        ("/completions", "request_quarantined"),
        ("unknown", "not_found"),
    ):
        assert books.figure("lcpd_errors_total", endpoint=endpoint, error=error) == 1, error
    assert books.figure("lcpd_request_outcomes_total", outcome="quarantined") == 1
    await books.settle()
    books.balance([30, 31, len("poison"), 1])


async def test_the_exposition_shows_how_things_stand_in_both_formats_and_on_a_port_of_its_own(make_client):
    client = await make_client({"reply": "abc"}, **ONE_SLOT)
    books = Books(client)
    assert books.figure("lcpd_engine_state", state="ready") == 1
    assert books.figure("lcpd_slots", state="idle") == books.figure("lcpd_slots") == 1
    assert books.figure("lcpd_kv_cells") == 4096
    assert books.figure("lcpd_build_info", llama_cpp="fake") == 1
    assert books.figure("lcpd_model_info", model="fake", kind="attention", n_ctx="4096") == 1
    assert books.figure("lcpd_config_info", slots="1", kv="f16") == 1
    for process in ("process", "lcpd_worker_process", "lcpd_chat_process"):
        assert books.figure(f"{process}_resident_memory_bytes") > 2**20, process
        assert books.figure(f"{process}_open_fds") > 2, process

    text = await client.get("/metrics")
    assert text.headers["Content-Type"].startswith("text/plain")
    families = {family.name for family in parse_text(await text.text())}
    assert {"lcpd_prompt_tokens", "lcpd_time_to_first_token_seconds", "process_resident_memory_bytes"} <= families

    await ask(client, prompt(10), {"x-lcpd-cache": "no-store"})
    openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
    exposition = await client.get("/metrics", headers=openmetrics)
    assert exposition.headers["Content-Type"].startswith("application/openmetrics-text")
    assert "request_id" not in await exposition.text(), "of this request nothing is to be kept"
    name = (await client.post(PATH, json={"prompt": "hello"})).headers["x-lcpd-request-id"]
    exposition = await client.get("/metrics", headers=openmetrics)
    families = {family.name: family for family in parse_openmetrics(await exposition.text())}
    for family in ("lcpd_time_to_first_token_seconds", "lcpd_e2e_request_latency_seconds"):
        exemplars = [sample.exemplar for sample in families[family].samples if sample.exemplar]
        assert [exemplar.labels for exemplar in exemplars] == [{"request_id": name}]
    assert books.figure("lcpd_kv_cells_used") >= len("hello")

    use_keys(client, "ada one")
    async with TestClient(TestServer(metrics_app(context_of(client)))) as scraper:
        assert "lcpd_num_requests_running" in await (await scraper.get("/metrics")).text()
        assert (await scraper.get("/slots")).status == 404
        assert (await scraper.get("/metrics", headers={"Host": "evil.example"})).status == 403
    assert (await client.get("/metrics")).status == 401

    await context_of(client).supervisor.stop()
    assert books.figure("lcpd_worker_process_resident_memory_bytes") == 0
    assert books.figure("lcpd_engine_state", state="stopped") == 1


async def test_series_that_alerts_look_at_are_there_before_anything_is_asked(make_client):
    client = await make_client()
    use_keys(client, "ada one rate=1/h\nbob two concurrency=2\ncarl three")
    figure = context_of(client).metrics.registry.get_sample_value
    assert [figure("lcpd_requests_total", {"endpoint": "/messages", "code": code}) for code in CODES] == [0] * 6
    assert [figure("lcpd_errors_total", {"endpoint": "/messages", "error": error}) for error in ERRORS] == [0] * 7
    series = [
        (name, limit)
        for name in ("ada", "bob", "carl")
        for limit in ("concurrency", "rate")
        if figure("lcpd_key_refusals_total", {"key": name, "limit": limit}) == 0
    ]
    assert series == [("ada", "rate"), ("bob", "concurrency")], "a key's own limits, and no others"
