"""What a client asked of the daemon, as its scheduler saw it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from aiohttp.test_utils import TestClient

from fakes import vocab
from fakes.api import context_of
from lcpd.api import errors, requests
from lcpd.api.errors import ApiError
from lcpd.cache.isolation import plain
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import Generation, Prompt


@dataclass(frozen=True)
class Asked:
    """A prompt, with the daemon's report of it."""

    text: str
    tokens: int
    reused: int
    """Tokens that were not computed again."""


class Traffic:
    """Records the prompts of a daemon with fakes from now on."""

    def __init__(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self._dispatcher: Dispatcher = context_of(client).dispatcher
        self._prompts: list[Prompt] = []
        self.refused: list[int] = []
        """The lengths of prompts that did not fit, of any daemon."""
        submit = self._dispatcher.submit

        def record(prompt: Prompt) -> Generation:
            self._prompts.append(prompt)
            return submit(prompt)

        def refuse(tokens: int, limit: int, param: str) -> ApiError:
            self.refused.append(tokens)
            return errors.too_long(tokens, limit, param)

        monkeypatch.setattr(self._dispatcher, "submit", record)
        monkeypatch.setattr(requests, "too_long", refuse)

    def __call__(self, mark: str = "") -> list[Asked]:
        """The prompts that have a text in them and were begun, oldest first."""
        found = []
        for prompt in self._prompts:
            report, text = self._dispatcher.report(prompt.name), vocab.decode(plain(prompt.tokens).tolist())
            if report is not None and mark in text:
                found.append(Asked(text, len(prompt.tokens), report.begin))
        return found


def exactly(count: int, prompts: list[Asked]) -> list[Asked]:
    """So many prompts, or an AssertionError that tells what each of them begins and ends with."""
    ends = "\n".join(
        f"{one.tokens} tokens, {one.reused} reused: {one.text[:200]!r} ... {one.text[-300:]!r}" for one in prompts
    )
    assert len(prompts) == count, f"{len(prompts)} prompts instead of {count}:\n{ends}"
    return prompts
