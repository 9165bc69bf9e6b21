"""Tokens: where those of prompts came from, how many were sampled, and how fast prompts are computed.

When nothing runs or waits, submitted = computed + vram + shared + ram + disk + abandoned, exactly.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from lcpd.metrics.definition import Topic

REUSED = ("vram", "shared", "ram", "disk")
SOURCES = ("computed", *REUSED, "anticipated")


class TokenFigures(Topic):
    """See the module."""

    title = "Tokens"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.prompt = self.counter(
            "lcpd_prompt_tokens_total",
            "tokens",
            "Where did prompt tokens come from: computed, the slot itself (vram), another slot (shared), RAM (ram), or"
            " RAM after they were read from disk for this request (disk)? Each token of a request counts once, where it"
            " came from first. And how many were computed before anybody asked for them (anticipated, on top)?",
            {"source": SOURCES},
        )
        self.submitted = self.counter(
            "lcpd_prompt_tokens_submitted_total", "tokens", "How many prompt tokens came into the queue?"
        )
        self.abandoned = self.counter(
            "lcpd_prompt_tokens_abandoned_total",
            "tokens",
            "How many of them were needed no more before they were computed or brought back, because their request was"
            " over?",
        )
        self.generation = self.counter("lcpd_generation_tokens_total", "tokens", "How many tokens were sampled?")
        self.embedded = self.counter(
            "lcpd_embedded_tokens_total", "tokens", "How many tokens had texts that were embedded?"
        )
        self.prefill = self.counter(
            "lcpd_prefill_tokens_total",
            "tokens",
            "How many tokens did prefill batches compute: prompts, anticipations, and what had to be computed again"
            " after a park or a crash?",
        )
        self.prefill_seconds = self.counter(
            "lcpd_prefill_seconds_total",
            "seconds",
            "How long did these batches take? Tokens over seconds is the speed of prefill.",
        )
        self.spared_seconds = self.counter(
            "lcpd_prefill_spared_seconds_total",
            "seconds",
            "How long would the prompt tokens that were reused have taken to compute, at the speed of prefill then?",
        )
        self.prewarmed = self.counter(
            "lcpd_prewarmed_tokens_total",
            "tokens",
            "How many tokens of earlier conversations were brought back to slots before anybody asked for them"
            " (cache.prewarm)?",
        )
