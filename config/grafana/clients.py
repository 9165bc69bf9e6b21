"""Who asks: by API key, and by program (User-Agent)."""

from __future__ import annotations

from config.grafana.overview import NOT_COLD, REUSED
from config.grafana.panels import Dashboard, Panel, Query, Row
from config.grafana.promql import grown, grown_new, named, quantile, rate, ratio

_TTFT = "lcpd_client_time_to_first_token_seconds"
_ERRORS = 'code=~"[45].."'
_WHO = {"client": "program", "key": "key"}
_NOBODY = "(no key)"


def _reused(by: str) -> str:
    return ratio(
        rate("lcpd_client_prompt_tokens_total", by, REUSED, over="5m"),
        rate("lcpd_client_prompt_tokens_total", by, over="5m"),
    )


def _named(expr: str, by: str) -> str:
    return named(expr, "key", _NOBODY) if by == "key" else expr


def _row(by: str) -> Row:
    """The same questions for keys and programs."""
    who, legend = _WHO[by], f"{{{{{by}}}}}"
    return Row(
        f"By {who}",
        (
            Panel(
                f"Which {who} sends how many requests?",
                "HTTP requests of all kinds.",
                (Query(_named(rate("lcpd_client_requests_total", by), by), legend),),
                unit="reqps",
                kind="stacked",
                width=6,
            ),
            Panel(
                f"Which {who} makes the engine compute prompts?",
                "Prompt tokens computed, not reused: what others wait for.",
                (Query(_named(rate("lcpd_client_prompt_tokens_total", by, 'source="computed"'), by), legend),),
                unit="ops",
                kind="stacked",
                width=6,
            ),
            Panel(
                f"Which {who} gets how many tokens?",
                "Tokens generated.",
                (Query(_named(rate("lcpd_client_generation_tokens_total", by), by), legend),),
                unit="ops",
                kind="stacked",
                width=6,
            ),
            Panel(
                f"For which {who} does reuse work?",
                "Share of its prompt tokens that were reused, over five minutes. A program far below the others changes"
                " its prompts early on: see why below.",
                (Query(_named(_reused(by), by), legend),),
                unit="percentunit",
                limit=1,
                width=6,
            ),
        ),
    )


_WHY = Row(
    "What goes wrong for whom?",
    (
        Panel(
            "Whose prompts are computed again, and why?",
            "Tokens in the time shown, of prompts that were not cold.",
            (
                Query(
                    f"topk(10, {grown_new('lcpd_client_miss_tokens_total', 'client, reason', NOT_COLD)} > 0)",
                    "{{client}}: {{reason}}",
                ),
            ),
            kind="bars",
            whole=True,
            nothing="Nothing was computed again",
        ),
        Panel(
            "Who gets errors?",
            "Replies with a status of 400 or above, by program and status, in the time shown. 499: it left.",
            (
                Query(
                    f"topk(10, {grown_new('lcpd_client_requests_total', 'client, code', _ERRORS)} > 0)",
                    "{{client}}: {{code}}",
                ),
            ),
            kind="bars",
            whole=True,
            nothing="No errors",
        ),
        Panel(
            "Which keys run into their limits?",
            "Requests refused in the time shown, by limit: concurrency, or rate (docs/api.md).",
            (Query(grown("lcpd_key_refusals_total", "key, limit") + " > 0", "{{key}}: {{limit}}"),),
            kind="bars",
            whole=True,
            nothing="None",
        ),
        Panel(
            "How long does which program wait for its first token?",
            "The median and 95 of 100.",
            (
                Query(quantile(0.5, _TTFT, "client"), "{{client}} 50 %"),
                Query(quantile(0.95, _TTFT, "client"), "{{client}} 95 %"),
            ),
            unit="s",
            log=True,
            width=12,
        ),
        Panel(
            "How many tokens did which key take?",
            "Prompt and generated tokens together, in the time shown.",
            (
                Query(
                    _named(
                        f"{grown_new('lcpd_client_prompt_tokens_total', 'key')}"
                        f" + {grown_new('lcpd_client_generation_tokens_total', 'key')}",
                        "key",
                    ),
                    "{{key}}",
                ),
            ),
            kind="bars",
            whole=True,
            width=12,
        ),
    ),
)

DASHBOARD = Dashboard(
    "clients",
    "clients",
    "Who asks for how much, for whom does reuse work, and what goes wrong for whom?",
    (_row("key"), _row("client"), _WHY),
)
