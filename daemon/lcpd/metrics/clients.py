"""Who asks: by API key (its name; empty where no keys are asked for) and by program, as its User-Agent tells."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from lcpd.keys import Key
from lcpd.metrics.definition import LATENCY, Topic

_KEY = "names of the API keys"
_CLIENT = "a fixed list (api/clients.py), and other"


class ClientFigures(Topic):
    """See the module."""

    title = "Clients"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        who = {"client": _CLIENT, "key": _KEY}
        self.answered = self.counter(
            "lcpd_client_requests_total",
            "HTTP requests",
            "How many HTTP requests of whom ended, and how (status)?",
            {**who, "code": "HTTP status codes"},
        )
        self.refusals = self.counter(
            "lcpd_key_refusals_total",
            "HTTP requests",
            "How many requests were refused because of an API key's limits, and of which: concurrency, rate? Those of a"
            " limit that a key has are there from the start.",
            {"key": _KEY, "limit": "concurrency, rate"},
        )
        self.prompt_tokens = self.counter(
            "lcpd_client_prompt_tokens_total",
            "tokens",
            "Whose prompt tokens came from where (as lcpd_prompt_tokens_total, of which this is a division)?",
            {**who, "source": "computed, vram, shared, ram, disk"},
        )
        self.miss_tokens = self.counter(
            "lcpd_client_miss_tokens_total",
            "tokens",
            "Whose prompts were computed again, and why (a division of lcpd_cache_miss_tokens_total)?",
            {**who, "reason": "those of lcpd_cache_miss_tokens_total"},
        )
        self.generation_tokens = self.counter(
            "lcpd_client_generation_tokens_total", "tokens", "How many tokens were sampled for whom?", who
        )
        self.time_to_first_token = self.histogram(
            "lcpd_client_time_to_first_token_seconds",
            "seconds",
            "How long did which program wait for the first token?",
            LATENCY,
            {"client": _CLIENT},
        )

    def begin(self, keys: Iterable[Key]) -> None:
        """Have the refusals that these keys can meet with begin at 0; those that are there stay."""
        for key in keys:
            if key.concurrency:
                self.refusals.labels(key.name, "concurrency")
            if key.rate is not None:
                self.refusals.labels(key.name, "rate")
