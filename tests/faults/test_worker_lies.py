"""A worker that answers garbage, slowly or not at all, over the whole API: a fake one, which does so on command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import product
from pathlib import Path

import httpx
import pytest
from benchmarks.harm.load import Ask, Said, ask

from api.conftest import MakeClient
from fakes.worker import Fault

pytestmark = pytest.mark.faults
PROMPTS = [[*b"what the fake worker says depends on every token of this: ", 65 + number] for number in range(4)]
POINTS = ("request:1", "prefill:1", "token:1", "token:39")
ACTIONS = ("kill", "exit:7", "garbage", "nonsense", "hang", "stall")
LENGTH = 40


async def ask_all(url: str, prompts: Sequence[list[int]]) -> list[Said]:
    async with httpx.AsyncClient() as client:
        return await asyncio.gather(*(ask(client, url, Ask(prompt, LENGTH, ids=False)) for prompt in prompts))


@pytest.fixture
def start(make_client: MakeClient) -> Callable[..., Awaitable[str]]:
    """Start a daemon whose worker follows a script, and give its URL."""

    async def start(fault: Fault | None = None, **script: object) -> str:
        script = {"faults": [fault] if fault else [], "decode_seconds": 0.002, **script}
        client = await make_client(script, model__slots=4, engine__crash_limit=50, engine__heartbeat_timeout=1.0)
        return str(client.make_url("")).rstrip("/")

    return start


@pytest.fixture
async def undisturbed(start: Callable[..., Awaitable[str]]) -> list[str]:
    """What the worker says to each of the prompts when nothing goes wrong."""
    replies = await ask_all(await start(), PROMPTS)
    assert [said.error for said in replies] == [""] * len(PROMPTS)
    assert len({said.text for said in replies}) == len(PROMPTS)
    return [said.text for said in replies]


@pytest.mark.parametrize(("point", "action"), [*product(POINTS, ["kill"]), *product(["token:17"], ACTIONS)])
async def test_whatever_the_worker_does_at_any_point_the_client_gets_its_whole_reply(
    start: Callable[..., Awaitable[str]], undisturbed: list[str], tmp_path: Path, point: str, action: str
) -> None:
    url = await start(Fault(point, action, once=str(tmp_path / "happened")))
    (said,) = await ask_all(url, PROMPTS[:1])
    assert said.error == ""
    assert said.text == undisturbed[0]
    assert (tmp_path / "happened").exists()


async def test_a_slow_worker_is_waited_for(start: Callable[..., Awaitable[str]], undisturbed: list[str]) -> None:
    (said,) = await ask_all(await start(prefill_seconds=0.6, decode_seconds=0.03), PROMPTS[:1])
    assert (said.error, said.text) == ("", undisturbed[0])


@pytest.mark.parametrize("action", ["kill", "nonsense", "hang"])
async def test_replies_under_way_together_all_go_on(
    start: Callable[..., Awaitable[str]], undisturbed: list[str], tmp_path: Path, action: str
) -> None:
    replies = await ask_all(await start(Fault("token:50", action, once=str(tmp_path / "happened"))), PROMPTS)
    assert [said.error for said in replies] == [""] * len(PROMPTS)
    assert [said.text for said in replies] == undisturbed
    assert (tmp_path / "happened").exists()
