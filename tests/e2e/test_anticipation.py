"""What a conversation's next turn computes, with the real hybrid, when its reasoning is left out of the history."""

from __future__ import annotations

import json
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support import READ_FILE, text_of

pytestmark = pytest.mark.native

UBATCH = 512
WITHIN = 60
"""Seconds; computing ahead takes a fraction of one, but the machine may be busy."""
STRIPPED = {"chat_template_kwargs": {"preserve_reasoning": False}}


def metrics(daemon) -> dict:
    text = httpx.get(f"{daemon.url}/metrics", timeout=30).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(sample.name, sample.labels.get("source")): sample.value for sample in samples}


def anticipated(daemon) -> float:
    return metrics(daemon)[("lcpd_prompt_tokens_total", "anticipated")]


class Agent:
    """A client that reads files: it sends its conversation, the model's replies as they came."""

    def __init__(self, daemon, dialect: str = "chat", **fields: object) -> None:
        self._daemon = daemon
        self._fields = {"tools": [READ_FILE], "temperature": 0, "max_tokens": 300, **STRIPPED, **fields}
        self.messages: list[dict] = [{"role": "system", "content": text_of(150)}]

    def ask(self, *messages: dict) -> dict:
        """Send messages on top of the conversation; the reply becomes part of it."""
        self.messages += messages
        body = {**self._fields, "messages": self.messages}
        response = httpx.post(f"{self._daemon.url}/v1/chat/completions", json=body, timeout=120)
        assert response.status_code == 200, response.text
        self.reply = response.json()["choices"][0]["message"]
        self.messages.append(self.reply)
        return response.json()["timings"]["cache"]

    def write_arguments_anew(self) -> None:
        """As clients do that parse them and write them with other white space."""
        for call in self.reply["tool_calls"]:
            function = call["function"]
            function["arguments"] = json.dumps(json.loads(function["arguments"]), indent=3)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def result(agent: Agent, text: str) -> dict:
    return {"role": "tool", "tool_call_id": agent.reply["tool_calls"][0].get("id") or "", "content": text}


def a_task(agent: Agent) -> dict:
    """A call with a long result and an answer; returns the report of the last turn."""
    agent.ask(user("Read the file src/cache.py"))
    agent.write_arguments_anew()
    return agent.ask(result(agent, text_of(800)))


def wait(condition, what: str) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def lost(report: dict) -> int:
    """Tokens that were computed although they are not new."""
    return sum(part["end"] - part["begin"] for part in report["why"] if part["reason"] not in ("new", "last token"))


def test_a_tool_result_computes_only_itself_whatever_white_space_the_client_wrote(start_daemon):
    report = a_task(Agent(start_daemon()))
    assert report["computed"] > 800
    assert lost(report) == 0


def test_the_turn_after_reasoning_was_left_out_computes_only_what_is_new(start_daemon):
    daemon = start_daemon()
    agent = Agent(daemon)
    a_task(agent)
    wait(lambda: anticipated(daemon) > 800, "the conversation was computed ahead")
    wait(lambda: not daemon.health()["slots"]["busy"], "it is over")
    report = agent.ask(user("Read the file src/other.py"))
    assert lost(report) == 0
    assert report["computed"] < 40 < UBATCH
    assert report["vram"] == report["hit"] > 1000


def test_so_does_a_turn_in_anthropics_dialect(start_daemon):
    daemon = start_daemon()
    tool = {"name": "read_file", "input_schema": READ_FILE["function"]["parameters"]}
    body = {"tools": [tool], "temperature": 0, "max_tokens": 300, "system": text_of(150), **STRIPPED}
    messages: list[dict] = []

    def ask(content: object) -> dict:
        messages.append({"role": "user", "content": content})
        response = httpx.post(f"{daemon.url}/v1/messages", json={**body, "messages": messages}, timeout=120)
        assert response.status_code == 200, response.text
        messages.append({"role": "assistant", "content": response.json()["content"]})
        return response.json()["timings"]["cache"]

    ask("Read the file src/cache.py")
    (call,) = [block for block in messages[-1]["content"] if block["type"] == "tool_use"]
    report = ask([{"type": "tool_result", "tool_use_id": call["id"], "content": text_of(800)}])
    assert lost(report) == 0
    wait(lambda: anticipated(daemon) > 800, "the conversation was computed ahead")
    wait(lambda: not daemon.health()["slots"]["busy"], "it is over")
    report = ask("Read the file src/other.py")
    assert lost(report) == 0
    assert report["computed"] < 40


def test_without_it_that_turn_computes_the_whole_task_again(start_daemon):
    daemon = start_daemon(LCPD_CACHE__ANTICIPATE="false")
    agent = Agent(daemon)
    a_task(agent)
    report = agent.ask(user("Read the file src/other.py"))
    assert lost(report) > 800
    assert anticipated(daemon) == 0


def test_the_reply_is_the_same_with_and_without_it(start_daemon):
    replies = []
    for switch in ("true", "false"):
        daemon = start_daemon(LCPD_CACHE__ANTICIPATE=switch)
        agent = Agent(daemon)
        a_task(agent)
        if switch == "true":
            wait(lambda daemon=daemon: anticipated(daemon) > 800, "the conversation was computed ahead")
        agent.ask(user("Read the file src/other.py"))
        replies.append([agent.reply.get(key) for key in ("content", "reasoning_content")])
        replies[-1] += [call["function"] for call in agent.reply.get("tool_calls") or []]
    assert replies[0] == replies[1]


def test_a_request_that_comes_meanwhile_is_answered_at_once_and_the_rest_is_done_later(start_daemon):
    daemon = start_daemon("--slots", "2")
    agent = Agent(daemon)
    a_task(agent)
    other = Agent(daemon, tools=[])
    other.messages = []
    other.ask(user("Hello"))
    wait(lambda: anticipated(daemon) > 800, "what was cut off is computed after the other reply")


def test_a_cancelled_reply_is_followed_by_nothing(start_daemon):
    daemon = start_daemon()
    body = {"messages": [user(text_of(300))], "stream": True, "ignore_eos": True, **STRIPPED}
    with httpx.stream("POST", f"{daemon.url}/v1/chat/completions", json=body, timeout=60) as response:
        next(response.iter_bytes())
    wait(lambda: not daemon.health()["slots"]["busy"], "the reply is over")
    assert anticipated(daemon) == 0
