"""What the fault tests have in common: an oracle for each model, and the API over a fake worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from api.conftest import make_client
from faults.corruption import strangers
from oracle.process import Oracle
from support import model_path

__all__ = ["make_client"]
SEED = int(os.environ.get("LCPD_FAULTS_SEED", "1"))
"""Of everything that is drawn."""


@pytest.fixture
def seed() -> int:
    return SEED


@pytest.fixture
def stranger(oracles: Callable[[str], Oracle], seed: int) -> Callable[[int], list[int]]:
    """Prompts for the hybrid that share nothing, by number."""
    return lambda number: strangers(oracles("hybrid").tokenize, seed, number)


@pytest.fixture(scope="session")
def oracles() -> Iterator[Callable[[str], Oracle]]:
    """The oracle of a kind of model, started when it is first needed."""
    running: dict[str, Oracle] = {}

    def get(kind: str) -> Oracle:
        if kind not in running:
            running[kind] = Oracle(model_path(kind), ctx=16384).__enter__()
        return running[kind]

    yield get
    for oracle in running.values():
        oracle.__exit__()
