"""Every figure that lcpd exports, defined once, with its unit and the question it answers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from lcpd import __version__

# Seconds; from a warm short prompt on a GPU to a cold 100K-token one on a CPU.
_LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Metrics:
    """One daemon's figures, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.build = Info("lcpd_build", "Which lcpd and llama.cpp are these?", registry=r)
        self.build.info({"version": __version__})
        self.requests = Counter(
            "lcpd_requests",
            "How many requests ended, where, and how (HTTP status)?",
            ["endpoint", "code"],
            registry=r,
        )
        self.running = Gauge("lcpd_requests_running", "How many requests hold a slot?", registry=r)
        self.waiting = Gauge("lcpd_requests_waiting", "How many requests wait for a slot?", registry=r)
        self.time_to_first_token = Histogram(
            "lcpd_time_to_first_token_seconds",
            "How long from a request's arrival to its first token?",
            buckets=_LATENCY_BUCKETS,
            registry=r,
        )
        self.prefill = Histogram(
            "lcpd_prefill_seconds",
            "How long did computing a request's prompt take?",
            buckets=_LATENCY_BUCKETS,
            registry=r,
        )
        self.prompt_tokens = Counter(
            "lcpd_prompt_tokens",
            "Where did prompt tokens come from: computed, the slot itself (vram), another slot (shared), or RAM (ram)?",
            ["source"],
            registry=r,
        )
        for source in ("computed", "vram", "shared", "ram"):
            self.prompt_tokens.labels(source)
        self.preemptions = Counter(
            "lcpd_preemptions",
            "How often was a running request parked, and for want of what: a slot, or cells?",
            ["reason"],
            registry=r,
        )
        for reason in ("slot", "cells"):
            self.preemptions.labels(reason)
        self.evictions = Counter("lcpd_slot_evictions", "How often was an idle slot emptied for its cells?", registry=r)
        self.queue_timeouts = Counter(
            "lcpd_queue_timeouts", "How many requests were given up because they waited too long?", registry=r
        )
        self.generation_tokens = Counter("lcpd_generation_tokens", "How many tokens were sampled?", registry=r)
        self.worker_restarts = Counter(
            "lcpd_worker_restarts", "How often was the worker started again, and why?", ["cause"], registry=r
        )
        self.chat_restarts = Counter("lcpd_chat_restarts", "How often was the chat process started again?", registry=r)
        self.checkpoint_bytes = Counter(
            "lcpd_checkpoint_bytes", "How many bytes of checkpoints were taken?", registry=r
        )
