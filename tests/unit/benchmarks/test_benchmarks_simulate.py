"""The simulated day: traffic, the least work, the engine's clock, llama-server's policy, and the figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from benchmarks import sim_traffic as traffic
from benchmarks.sim_engine import DECODE_SHARE, Economics, Job, Placement, Simulation
from benchmarks.sim_lcpd import LcpdPolicy, Tuning, segment
from benchmarks.sim_novelty import Everything
from benchmarks.sim_peer import MIN_STEP, PeerPolicy, checkpoint_stops
from benchmarks.sim_traffic import Client, Conversation, Message, Pause, Request, Spawn, Tokens
from benchmarks.simulate import main, run_lcpd

from lcpd.cache.blob import layout
from lcpd.cache.trie import common_prefix

GIB = 2**30
PLAIN = Economics(prefill=1000.0, decode=50.0, copy=1e9)


def text(count: int, seed: int = 0) -> Tokens:
    return traffic.words(np.random.default_rng(seed), count)


def request(tokens: Tokens, reply: int = 100, client: str = "c", users: Sequence[int] = ()) -> Request:
    spans = tuple(traffic.Span("user", at, 1) for at in users)
    return Request(client, "main", tokens, spans, text(reply, 99))


def job(tokens: Tokens, id: int = 1, **options: Sequence[int]) -> Job:
    return Job(id, request(tokens, **options), iter(()), 0.0, 0)  # type: ignore[arg-type]


def asks(*requests: Request) -> Client:
    yield from requests


# ---- traffic -----------------------------------------------------------------------------------------------


def drain(client: Client) -> list[Request]:
    """All requests of a client and of those that it spawns, one after the other."""
    found = []
    for action in client:
        if isinstance(action, Request):
            found.append(action)
        elif isinstance(action, Spawn):
            for child in action.clients:
                found.extend(drain(child))
    return found


def test_the_same_seed_gives_the_same_day() -> None:
    first, second, other = (
        [r.tokens for client in traffic.day(seed, projects=1, sessions=1) for r in drain(client)] for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_sessions_of_a_project_share_a_head_of_20_to_30_thousand_tokens() -> None:
    requests = [r for client in traffic.day(3, projects=2, sessions=2) for r in drain(client) if r.kind == "main"]
    starts: dict[str, list[Tokens]] = {}
    for one in requests:
        starts.setdefault(one.client.split("/")[0], []).append(one.tokens)
    for prompts in starts.values():
        assert min(common_prefix(prompts[0], prompt) for prompt in prompts) > 19_000


def test_conversations_stay_within_the_context() -> None:
    requests = [r for client in traffic.day(1, projects=2, sessions=2) for r in drain(client)]
    assert 60_000 < max(len(r.tokens) + len(r.reply) for r in requests) < Economics().cells


def test_a_turn_extends_the_one_before_until_the_user_speaks_and_thinking_goes() -> None:
    now, later = text(50, 1), text(20, 2)
    talk = Conversation(
        text(100), [Message("user", text(30, 3), text(30, 3), asked=True), Message("assistant", now, later)]
    )
    talk.messages.append(Message("user", text(10, 4), text(10, 4)))
    before = talk.render()[0]
    assert np.array_equal(before[130:180], now)
    talk.messages.append(Message("user", text(10, 5), text(10, 5), asked=True))
    assert np.array_equal(talk.render()[0][130:150], later)


def test_turns_of_a_client_that_writes_tool_calls_differently_go_on_from_replies_only_where_these_are_mapped() -> None:
    def extending(mapped: bool) -> int:
        requests = [r for r in drain(traffic.day(1, 2, 1, mapped)[1]) if r.kind == "main"]
        grown = [(np.concatenate([a.tokens, a.reply]), b.tokens) for a, b in pairwise(requests)]
        return sum(common_prefix(before, after) == len(before) for before, after in grown)

    assert extending(mapped=True) > 10
    assert extending(mapped=False) < 5


def test_spans_cover_the_messages_and_the_generation_prompt_but_not_the_head() -> None:
    talk = Conversation(text(100), [Message("user", text(30), text(30), asked=True)])
    tokens, spans = talk.render()
    assert [(s.role, s.begin, s.length) for s in spans] == [("user", 100, 30), ("assistant", 130, 3)]
    assert len(tokens) == 133


# ---- the least work ----------------------------------------------------------------------------------------


def test_the_longest_known_prefix_is_that_of_the_nearest_sequence() -> None:
    rng = np.random.default_rng(5)
    known = [rng.integers(0, 2, int(rng.integers(1, 1600)), np.int32) for _ in range(20)]
    known += [np.concatenate([a[: int(rng.integers(0, len(a)))], b]) for a in known[:5] for b in known[:5]]
    everything = Everything()
    for sequence in known:
        everything.add(sequence)
    for _ in range(50):
        base = known[int(rng.integers(len(known)))]
        asked = np.concatenate([base[: int(rng.integers(0, len(base) + 1))], rng.integers(0, 2, 700, np.int32)])
        assert everything.known(asked) == max(common_prefix(asked, one) for one in known)


# ---- the engine --------------------------------------------------------------------------------------------


class Cold:
    """Starts everything at once, from nothing."""

    def __init__(self, stops: Sequence[int] = (), copied: int = 0) -> None:
        self.stops = list(stops)
        self.copied = copied
        self.reached_at: list[tuple[int, float]] = []

    def start(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> tuple[Job, Placement] | None:
        return waiting[0], Placement(0, "nothing", 0, 0, list(self.stops))

    def reached(self, job: Job, position: int, now: float) -> int:
        self.reached_at.append((position, now))
        return self.copied

    def finished(self, job: Job, now: float) -> int:
        return 0


def test_a_request_takes_its_prefill_and_its_decode() -> None:
    tally = Simulation(Cold(), PLAIN).run([asks(request(text(2000), reply=100))])
    assert tally.seconds == pytest.approx(2000 / 1000 + 100 / 50)
    assert tally.first_token == [pytest.approx(2.0)]


def test_prefills_share_the_speed() -> None:
    tally = Simulation(Cold(), PLAIN).run([asks(request(text(1000))), asks(request(text(1000, 1)))])
    assert tally.first_token == [pytest.approx(2.0), pytest.approx(2.0)]


def test_a_stream_slows_down_beside_a_prefill() -> None:
    def late() -> Client:
        yield Pause(1.0)
        yield request(text(850, 1), reply=1)

    tally = Simulation(Cold(), PLAIN).run([asks(request(text(500), reply=100)), late()])
    # Half a second of prefill, half a second of decoding; one second beside the other's prefill; the rest.
    assert tally.first_token[1] == pytest.approx(850 / (1000 * (1 - DECODE_SHARE)))
    assert tally.seconds == pytest.approx(2.0 + (100 - 25 - 50 * DECODE_SHARE) / 50)


def test_a_policy_is_told_of_its_positions_and_copies_hold_up_everything() -> None:
    policy = Cold([400, 800], copied=500_000_000)
    tally = Simulation(policy, PLAIN).run([asks(request(text(1000), reply=50))])
    assert policy.reached_at == [(400, pytest.approx(0.4)), (800, pytest.approx(1.3))]
    assert tally.seconds == pytest.approx(1.0 + 2 * 0.5 + 1.0)
    assert (tally.saved, tally.copy_seconds, tally.stall_seconds) == (1_000_000_000, pytest.approx(1.0), 0.0)


def test_copies_count_as_stall_for_the_streams_that_wait() -> None:
    clients = [asks(request(text(1000), reply=50)), asks(request(text(1000, 1), reply=50))]
    assert Simulation(Cold([400], copied=500_000_000), PLAIN).run(clients).stall_seconds == pytest.approx(1.0)


def test_a_client_that_joins_others_goes_on_after_the_last() -> None:
    def parent() -> Client:
        yield Spawn((asks(request(text(500, 1), reply=50)), asks(request(text(500, 2), reply=50))), join=True)
        yield request(text(100), reply=50)

    tally = Simulation(Cold(), PLAIN).run([parent()])
    assert tally.seconds == pytest.approx(1.0 + 1.0 + 0.1 + 1.0)


def test_novel_tokens_are_those_that_no_prompt_or_reply_began_with() -> None:
    first = request(text(1000), reply=10)
    turn = np.concatenate([first.tokens, first.reply[:-1], text(200, 7)])
    tally = Simulation(Cold(), PLAIN).run([asks(first, request(turn), request(turn))])
    assert tally.novel == 1000 + 200 + 1  # the last token is always computed
    assert tally.computed == 1000 + 2 * len(turn)
    assert tally.again["evicted or not yet computed"] == tally.computed - tally.novel


# ---- llama-server ------------------------------------------------------------------------------------------


def test_llama_server_takes_checkpoints_at_the_last_user_message_and_near_the_end() -> None:
    assert checkpoint_stops(0, 10_000, [1000, 9000], None) == [1000, 9000, 10_000 - 516, 10_000 - 4]


def test_llama_server_passes_over_user_messages_that_follow_closely() -> None:
    far = 1000 + MIN_STEP + 1
    assert checkpoint_stops(0, 30_000, [1000, 1500, far, 25_000], None) == [1000, far, 25_000, 30_000 - 516, 30_000 - 4]


def test_llama_server_takes_one_where_a_short_turn_begins() -> None:
    assert checkpoint_stops(5000, 5400, [5100], 4900) == [5000, 5100, 5396]


def started(policy: PeerPolicy, one: Job) -> Placement:
    found = policy.start([one], [], 0.0)
    assert found is not None
    for stop in found[1].stops:
        if found[1].begin < stop:
            policy.reached(one, stop, 0.0)
    return found[1]


def served(policy: PeerPolicy, one: Job, now: float) -> Placement:
    placement = started(policy, one)
    policy.finished(one, now)
    return placement


def test_llama_server_goes_on_at_a_slots_live_end() -> None:
    policy, first = PeerPolicy(Economics(), 8 * GIB), job(text(1000))
    served(policy, first, 1.0)
    placement = served(policy, job(np.concatenate([first.held, text(50, 1)]), id=2), 2.0)
    assert (placement.begin, placement.tier) == (len(first.held), "slot")


def test_llama_server_rolls_back_to_a_checkpoint() -> None:
    policy, first = PeerPolicy(Economics(), 8 * GIB), job(text(3000), users=[2500])
    served(policy, first, 1.0)
    placement = served(policy, job(np.concatenate([text(3000)[:2600], text(50, 1)]), id=2), 2.0)
    assert (placement.begin, placement.held) == (2500, 2600)


def test_llama_server_computes_a_shared_head_again_while_its_slot_is_busy() -> None:
    policy, head = PeerPolicy(Economics(), 8 * GIB), text(3000)
    started(policy, job(np.concatenate([head, text(100, 1)])))
    placement = started(policy, job(np.concatenate([head, text(100, 2)]), id=2))
    assert (placement.begin, placement.anywhere) == (0, 3000)


def test_llama_server_takes_a_prompt_out_of_the_cache_when_it_restores_it() -> None:
    policy, first, other = PeerPolicy(Economics(), 8 * GIB), job(text(1000)), job(text(1000, 1), id=2)
    served(policy, first, 1.0)
    started(policy, other)  # the idle slot is saved and emptied
    placement = started(policy, job(np.concatenate([first.held, text(50, 3)]), id=3))
    assert (placement.begin, placement.tier) == (len(first.held), "ram")
    assert started(policy, job(np.concatenate([first.held, text(50, 4)]), id=4)).begin == 0


def test_llama_server_drops_the_oldest_prompts() -> None:
    size = 1000 * Economics().token_bytes + 4 * Economics().checkpoint_bytes
    policy = PeerPolicy(Economics(), int(1.5 * size))
    jobs = [job(text(1000, n), id=n, users=[400]) for n in range(3)]
    for n, one in enumerate(jobs):
        served(policy, one, float(n))
    assert served(policy, job(np.concatenate([jobs[0].held, text(9, 8)]), id=8), 8.0).begin == 0


# ---- lcpd --------------------------------------------------------------------------------------------------


def test_simulated_segments_have_the_format_of_real_ones() -> None:
    data = segment(begin=300, count=70, token_bytes=136)
    assert layout(data).cells == 70
    assert len(data) <= 64 + 70 * 136


def test_sub_agents_at_once_compute_their_head_once() -> None:
    head = text(20_000)
    clients = [asks(request(np.concatenate([head, text(500, n)]), client=str(n))) for n in range(1, 5)]
    policy = LcpdPolicy(Economics(), 8 * GIB, Tuning())
    tally = Simulation(policy, Economics()).run(clients)
    policy.close()
    assert tally.computed == tally.novel == 20_000 + 4 * 500


def test_what_was_evicted_from_the_slots_comes_back_from_ram() -> None:
    prompts = [text(40_000, n) for n in range(5)]
    again = [np.concatenate([prompt, text(100, 50 + n)]) for n, prompt in enumerate(prompts)]
    spans = (traffic.Span("user", 0, 39_990), traffic.Span("assistant", 39_990, 10))
    clients = [asks(*(replace(request(tokens), spans=spans) for tokens in [*prompts, *again]))]
    policy = LcpdPolicy(Economics(), 16 * GIB, Tuning())
    tally = Simulation(policy, Economics()).run(clients)
    policy.close()
    assert tally.tiers["ram"] > 0
    assert tally.restored >= 40_000 * Economics().token_bytes
    assert tally.computed < 1.1 * tally.novel


def test_a_day_is_the_same_every_time_and_computes_at_least_what_is_new() -> None:
    first, second = (run_lcpd(2, projects=1, sessions=1, ram=2 * GIB, tuning=Tuning()) for _ in range(2))
    assert first.tally == second.tally
    assert first.tally.computed == first.tally.novel + sum(first.tally.again.values())


# ---- the report --------------------------------------------------------------------------------------------


def test_the_figures_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "day.json"
    assert main(["--projects", "1", "--sessions", "1", "--ram", "2", "--json", str(file)]) == 0
    assert "computed / novel" in capsys.readouterr().out
    report = json.loads(file.read_text())
    peer, ours = report["results"]
    assert (peer["policy"], ours["policy"]) == ("llama-server", "lcpd")
    assert peer["prompt"] == ours["prompt"]
    assert peer["ssd_bytes"] is None and ours["ssd_bytes"] >= 0
