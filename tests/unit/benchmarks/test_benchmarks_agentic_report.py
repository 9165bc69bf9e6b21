"""Sums by phase, the goals, and what servers say about their memory."""

from __future__ import annotations

from benchmarks.agentic_memory import gauge, last_cache_state
from benchmarks.agentic_report import Goal, Memory, Phase, Record, memory_goal, phases, replay_goals, total
from benchmarks.agentic_trace import PUSHED_OUT, STRIPPED

NONE = Memory(0, None)


def record(phase: str, computed: int, novel: int, ttft: float = 1.0) -> Record:
    return Record(phase, "main", 1000, computed, novel, novel, ttft, 10, True)


def phase(name: str, computed: int, novel: int, fresh: int = 0, requests: int = 1, memory: Memory = NONE) -> Phase:
    return Phase(name, requests, 5000, computed, novel, fresh, 1.0, memory)


def goals(*parts: Phase) -> list[Goal]:
    return replay_goals(parts, ubatch=512)


QUIET = phase(STRIPPED, computed=300, novel=400, fresh=100)


def test_requests_of_a_phase_are_added_up_even_with_others_between() -> None:
    memory = {"warm": Memory(7, 5), "title": NONE}
    found = phases([record("warm", 50, 40, 1.0), record("title", 9, 9), record("warm", 70, 60, 3.0)], memory)
    assert [part.name for part in found] == ["warm", "title"]
    assert (found[0].requests, found[0].computed, found[0].novel, found[0].ttft) == (2, 120, 100, 2.0)
    assert found[0].memory == Memory(7, 5)


def test_the_ratio_is_computed_over_novel() -> None:
    assert total([phase("a", 100, 50), phase("b", 80, 50)]).ratio == 1.8


def test_the_whole_trace_may_compute_a_tenth_more_than_is_novel() -> None:
    assert goals(QUIET, phase("a", 1180, 1000))[0].met  # with QUIET 1480 for 1400
    assert not goals(QUIET, phase("a", 1300, 1000))[0].met


def test_a_phase_may_compute_one_and_a_half_micro_batches_more_than_is_novel() -> None:
    assert goals(QUIET, phase("a", 1768, 1000))[1].met
    missed = goals(QUIET, phase("a", 1769, 1000), phase("b", 100, 90))[1]
    assert (missed.met, missed.measured) == (False, "a: novel + 769")


def test_stripped_turns_are_compared_with_their_new_messages() -> None:
    def goal(computed: int) -> Goal:
        return goals(phase(STRIPPED, computed, novel=5000, fresh=300, requests=3))[2]

    assert goal(300 + 3 * 512).met
    assert not goal(301 + 3 * 512).met
    assert goal(600).measured == "new message + 100 a turn"


def test_memory_is_compared_after_the_sessions_left_the_slots() -> None:
    ours = [phase(PUSHED_OUT, 1, 1, memory=Memory(90, 30)), phase("return", 1, 1, memory=Memory(900, 900))]
    goal = memory_goal(ours, [phase(PUSHED_OUT, 1, 1, memory=Memory(100, 100))])
    assert goal.met
    assert goal.measured == "0.30 (kept beside the slots)"


def test_memory_is_that_of_the_processes_where_a_server_does_not_say() -> None:
    ours = [phase(PUSHED_OUT, 1, 1, memory=Memory(50, None))]
    goal = memory_goal(ours, [phase(PUSHED_OUT, 1, 1, memory=Memory(100, 100))])
    assert (goal.met, goal.measured) == (False, "0.50 (growth of the processes)")


def test_the_last_cache_state_of_a_log_counts() -> None:
    line = "srv update: - cache state: {} prompts, {} MiB (limits: 1024.000 MiB, 16384 tokens, 9 est)\n"
    assert last_cache_state(line.format(1, "2.000") + line.format(2, "3.500")) == round(3.5 * 2**20)
    assert last_cache_state("nothing") is None


def test_a_gauge_is_read_with_and_without_labels() -> None:
    text = '# TYPE a_bytes gauge\na_bytes{tier="ram"} 100.0\na_bytes{tier="disk"} 5.0\na_bytes_more 7.0\nb_bytes 1e3\n'
    assert gauge(text, "a_bytes") == 105
    assert gauge(text, "b_bytes") == 1000
    assert gauge(text, "c_bytes") is None
