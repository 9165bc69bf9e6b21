"""The engine: the worker process, its slots and cells; and the chat process beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from prometheus_client import CollectorRegistry

from lcpd.engine.supervisor import State
from lcpd.metrics.definition import Topic
from lcpd.scheduler.view import SlotState

STATES = tuple(str(state) for state in State)
SLOT_STATES: tuple[str, ...] = get_args(SlotState)
MEMORY = ("weights", "KV", "recurrent state", "compute", "output")
CAUSES = ("crash", "killed", "hang", "memory", "start", "load", "internal")


class EngineFigures(Topic):
    """See the module."""

    title = "Engine"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.state = self.gauge("lcpd_engine_state", "", "In which state is the engine (1)?", {"state": STATES})
        self.shrunk = self.gauge(
            "lcpd_engine_shrunk",
            "",
            "Does the engine run with a smaller context or batch than it was to have, for want of memory (1)?",
        )
        self.restarts = self.counter(
            "lcpd_worker_restarts_total",
            "deaths",
            "How often did the worker have to be started again, and why (see docs/dashboards.md#lcpdworkercrashloop)?",
            {"cause": CAUSES},
        )
        self.load_seconds = self.gauge(
            "lcpd_model_load_seconds", "seconds", "How long did loading the model take the last time?"
        )
        self.slots = self.gauge("lcpd_slots", "slots", "What do the slots do?", {"state": SLOT_STATES})
        self.cells = self.gauge(
            "lcpd_kv_cells", "cells", "How many cells does the KV cache have? One holds a token; 0: nothing is loaded."
        )
        self.cells_used = self.gauge(
            "lcpd_kv_cells_used", "cells", "How many of them are held or reserved, shared ones once?"
        )
        self.slot_evictions = self.counter(
            "lcpd_slot_evictions_total", "slots", "How often was an idle slot emptied for its cells?"
        )
        self.chat_restarts = self.counter(
            "lcpd_chat_restarts_total", "deaths", "How often was the chat process started again?"
        )

        self.memory = self.gauge(
            "lcpd_memory_bytes",
            "bytes",
            "How much memory does the engine take for what, as planned before and as allocated when it was loaded?",
            {"what": MEMORY, "source": ("planned", "loaded")},
        )

    def show_state(self, now: State) -> None:
        """Which state it is in."""
        for state in State:
            self.state.labels(str(state)).set(state is now)

    def show_slots(self, states: Sequence[SlotState]) -> None:
        """What each slot does."""
        counts = Counter[str](states)
        for state in SLOT_STATES:
            self.slots.labels(state).set(counts[state])
