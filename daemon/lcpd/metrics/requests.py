"""Requests: how many there are, how they end, and how long each of their phases takes.

A request with n choices counts n times, once for each reply; only `lcpd_requests_total` and `lcpd_errors_total` count
what came over HTTP.  Anticipations are no requests: nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from lcpd.metrics.definition import LATENCY, TOKEN_LATENCY, TOKENS, Topic

CLASSES = ("interactive", "background")
OUTCOMES = (
    "stop",
    "stop-string",
    "length",
    "cancelled",
    "timed-out",
    "refused",
    "failed",
    "quarantined",
    "engine-failed",
)
CODES = ("200", "400", "429", "499", "500", "503")
ERRORS = (
    "client_gone",
    "engine_error",
    "engine_unavailable",
    "internal_error",
    "queue_full",
    "queue_timeout",
    "request_quarantined",
)
"""Those that tell of the daemon, or of its load, and not of what was sent."""
PHASES = ("waiting", "restore", "prefill", "decode")
_CLASS = {"class": CLASSES}
_BEGUN = " (from the start on, on routes that need the engine: {})"


class RequestFigures(Topic):
    """See the module."""

    title = "Requests"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.answered = self.counter(
            "lcpd_requests_total",
            "HTTP requests",
            "How many HTTP requests ended, where, and how (status)? A client that left counts as 499.",
            {
                "endpoint": "the API's routes, and unknown",
                "code": f"HTTP status codes{_BEGUN.format(', '.join(CODES))}",
            },
        )
        self.errors = self.counter(
            "lcpd_errors_total",
            "HTTP requests",
            "How many of them were answered with an error, where, and with which one (the error's code, or else its"
            " type; see docs/api.md)?",
            {
                "endpoint": "the API's routes, and unknown",
                "error": f"the API's error codes{_BEGUN.format(', '.join(ERRORS))}",
            },
        )
        self.running = self.gauge(
            "lcpd_num_requests_running", "requests", "How many requests hold a slot, by class?", _CLASS
        )
        self.waiting = self.gauge(
            "lcpd_num_requests_waiting",
            "requests",
            "How many requests wait for a slot, parked ones too, by class?",
            _CLASS,
        )
        self.outcomes = self.counter(
            "lcpd_request_outcomes_total",
            "requests",
            "How did requests end: by the model's own stop, a stop string, max_tokens or the context's end (length);"
            " cancelled, because the client left; timed-out in the queue; refused by the sampler; failed in the engine;"
            " quarantined, because they crash it; or because it will not come back (engine-failed)?",
            {"outcome": OUTCOMES},
        )
        self.cancels = self.counter(
            "lcpd_cancels_total",
            "requests",
            "In which phase were requests when their clients left?",
            {"phase": PHASES},
        )
        self.preemptions = self.counter(
            "lcpd_num_preemptions_total",
            "parks",
            "How often was a running request parked, and for want of what: a slot, or cells?",
            {"reason": ("slot", "cells")},
        )
        self.follows = self.counter(
            "lcpd_follows_total",
            "waits",
            "How often did a request wait for another one that was computing what both begin with?",
        )
        self.time_to_first_token = self.histogram(
            "lcpd_time_to_first_token_seconds",
            "seconds",
            "How long from a request's arrival to its first token, by class?",
            LATENCY,
            _CLASS,
        )
        self.inter_token_latency = self.histogram(
            "lcpd_inter_token_latency_seconds",
            "seconds",
            "How long did each further token of a reply take? (Tokens that come together share the time.) The inverse"
            " of the mean is the speed of decoding for one reader.",
            TOKEN_LATENCY,
        )
        self.latency = self.histogram(
            "lcpd_e2e_request_latency_seconds",
            "seconds",
            "How long from a request's arrival to the end of its reply, by class?",
            LATENCY,
            _CLASS,
        )
        self.render_time = self.histogram(
            "lcpd_request_render_time_seconds",
            "seconds",
            "How long from a request's arrival until its prompt stood in the queue: body, template, tokens (and the"
            " load of the model, for those that came before it was ready)?",
            LATENCY,
        )
        self.queue_time = self.histogram(
            "lcpd_request_queue_time_seconds",
            "seconds",
            "How long did a request wait for a slot, all stays in the queue together and whatever became of it, by"
            " class? Those of the others that follow are of requests that were done.",
            LATENCY,
            _CLASS,
        )
        self.restore_time = self.histogram(
            "lcpd_request_restore_time_seconds",
            "seconds",
            "How long from when a request got its slot until the engine could begin with it: what it was to go on from"
            " was brought there?",
            LATENCY,
        )
        self.prefill_time = self.histogram(
            "lcpd_request_prefill_time_seconds",
            "seconds",
            "How long from there to its first token: what computing its prompt took beside the other requests?",
            LATENCY,
        )
        self.decode_time = self.histogram(
            "lcpd_request_decode_time_seconds",
            "seconds",
            "How long from its first token to its last one?",
            LATENCY,
        )
        self.prompt_tokens = self.histogram(
            "lcpd_request_prompt_tokens", "tokens", "How long are the prompts of requests that were done?", TOKENS
        )
        self.generation_tokens = self.histogram(
            "lcpd_request_generation_tokens", "tokens", "How long are their replies?", TOKENS
        )

    def begin(self, endpoints: Iterable[str]) -> None:
        """Have these endpoints' series of `CODES` and `ERRORS` begin at 0; any others begin with their first event."""
        for endpoint in endpoints:
            for code in CODES:
                self.answered.labels(endpoint, code)
            for error in ERRORS:
                self.errors.labels(endpoint, error)
