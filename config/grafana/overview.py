"""Is it fast, busy, healthy?"""

from __future__ import annotations

from config.grafana.panels import Dashboard, Panel, Query, Row
from config.grafana.promql import grown, mean, quantile, rate, ratio, select, total

REUSED = 'source=~"vram|shared|ram|disk"'
ASKED = 'source!="anticipated"'
NOT_COLD = 'reason!="cold"'
ANSWERING = 'state=~"ready|degraded|sleeping"'


def quantiles(histogram: str, by: str = "", match: str = "", exemplars: bool = False) -> tuple[Query, ...]:
    """Three lines that say how most and how the worst requests fare."""
    name = f"{{{{{by}}}}} " if by else ""
    return tuple(
        Query(quantile(share, histogram, by, match), f"{name}{100 * share:g} %", exemplars)
        for share in (0.5, 0.95, 0.99)
    )


PREFILL_SPEED = ratio(rate("lcpd_prefill_tokens_total"), rate("lcpd_prefill_seconds_total"))
READING_SPEED = ratio(rate("lcpd_inter_token_latency_seconds_count"), rate("lcpd_inter_token_latency_seconds_sum"))
REUSED_SHARE = ratio(
    rate("lcpd_prompt_tokens_total", match=REUSED, over="5m"), rate("lcpd_prompt_tokens_total", match=ASKED, over="5m")
)

SPARED = Panel(
    "Computing spared",
    "In the time shown: what computing the reused prompt tokens would have taken, at the speed of prefill then.",
    (Query(grown("lcpd_prefill_spared_seconds_total")),),
    unit="s",
    kind="number",
    width=4,
)
_NOW = Row(
    "Now",
    (
        Panel(
            "Does it answer?",
            "Yes while each selected daemon's engine is ready, degraded (with less memory than it was to have) or"
            " asleep (the next request wakes it). No: it starts, loads, or has failed; GET /health says why.",
            (Query(f"min(max by (instance) ({select('lcpd_engine_state', ANSWERING)}))"),),
            kind="number",
            width=4,
            bad=1,
            lowest_is_bad=True,
            words=((0, "No"), (1, "Yes")),
        ),
        Panel(
            "Running and waiting",
            "Running ones hold a slot. If some wait for long, look at `Where does the time to the first token go?`.",
            (
                Query(total("lcpd_num_requests_running"), "running"),
                Query(total("lcpd_num_requests_waiting"), "waiting"),
            ),
            kind="number",
            whole=True,
            width=4,
        ),
        Panel(
            "First token, 95 of 100",
            "How long do 95 of 100 interactive requests wait at most, from arrival to first token? Of the last five"
            " minutes.",
            (Query(quantile(0.95, "lcpd_time_to_first_token_seconds", match='class="interactive"', over="5m")),),
            unit="s",
            kind="number",
            width=4,
            warn=10,
            bad=60,
        ),
        Panel(
            "Prompt tokens reused",
            "What share of the last five minutes' prompts was reused? Coding agents send nearly all of a conversation"
            " again: 90 % and more is usual. The cache dashboard says what the rest was.",
            (Query(REUSED_SHARE),),
            unit="percentunit",
            kind="number",
            width=4,
        ),
        SPARED,
        Panel(
            "Failed requests",
            "In the time shown: replies with a status of 500 or above. /health does not count, which says 503 while"
            " a model is loaded. The panels on health say which they were.",
            (Query(grown("lcpd_requests_total", match='code=~"5..", endpoint!="/health"')),),
            kind="number",
            width=4,
            whole=True,
            warn=1,
            bad=10,
        ),
    ),
)

_FAST = Row(
    "Is it fast?",
    (
        Panel(
            "How long until the first token?",
            "From a request's arrival, by class. A point of the OpenMetrics exemplars is one request; its id goes to"
            " `lcpd cache why`.",
            (
                *quantiles("lcpd_time_to_first_token_seconds", match='class="interactive"', exemplars=True),
                Query(
                    quantile(0.95, "lcpd_time_to_first_token_seconds", match='class="background"'), "background 95 %"
                ),
            ),
            unit="s",
            log=True,
        ),
        Panel(
            "Where does the time to the first token go?",
            "Means. Rendering: template and tokens. Queue: no slot was free. Restore: cached state was copied to the"
            " slot. Prefill: computing what was not cached, beside the other requests.",
            (
                Query(mean("lcpd_request_render_time_seconds"), "render"),
                Query(mean("lcpd_request_queue_time_seconds"), "queue"),
                Query(mean("lcpd_request_restore_time_seconds"), "restore"),
                Query(mean("lcpd_request_prefill_time_seconds"), "prefill"),
            ),
            unit="s",
            kind="stacked",
        ),
        Panel(
            "How are times to the first token distributed?",
            "Darker: more requests. Two bands are usual: warm prompts below, cold ones above.",
            (Query(rate("lcpd_time_to_first_token_seconds_bucket", "le"), "{{le}}"),),
            unit="s",
            kind="heatmap",
        ),
        Panel(
            "How fast are prompts computed?",
            "Tokens per second of computing, prefill alone; it says nothing of reused tokens. It falls with the length"
            " of prompts, and does not depend on the load.",
            (Query(PREFILL_SPEED, "prefill, tokens/s"),),
            width=6,
        ),
        Panel(
            "How fast does a reader get a reply?",
            "Tokens per second of one stream. It falls when more streams run, and while others' prompts are computed.",
            (Query(READING_SPEED, "decode, tokens/s per stream"),),
            width=6,
        ),
        Panel(
            "How long between two tokens?",
            "The 99 % line shows pauses: prefill of other requests (scheduler.max_stall_ms bounds it), parking,"
            " crashes.",
            quantiles("lcpd_inter_token_latency_seconds"),
            unit="s",
            log=True,
            width=6,
        ),
        Panel(
            "How long until the whole reply is there?",
            "From a request's arrival to the end of its reply. Most of it is the reply's length.",
            quantiles("lcpd_e2e_request_latency_seconds"),
            unit="s",
            log=True,
            width=6,
        ),
    ),
)

_BUSY = Row(
    "Is it busy?",
    (
        Panel(
            "Who runs, who waits?",
            "By class. What waits for long is served by more `model.slots`, if cells of the KV cache are free.",
            (
                Query(total("lcpd_num_requests_running", "class"), "running, {{class}}"),
                Query(total("lcpd_num_requests_waiting", "class"), "waiting, {{class}}"),
            ),
            kind="stacked",
            width=6,
        ),
        Panel(
            "How many tokens per second go through?",
            "Prompt tokens computed and reused, tokens generated, tokens of embeddings; all requests together.",
            (
                Query(rate("lcpd_prompt_tokens_total", match='source="computed"'), "computed"),
                Query(rate("lcpd_prompt_tokens_total", match=REUSED), "reused"),
                Query(rate("lcpd_generation_tokens_total"), "generated"),
                Query(rate("lcpd_embedded_tokens_total"), "embedded"),
            ),
            unit="ops",
            width=6,
        ),
        Panel(
            "How do requests end?",
            "`cancelled`: the client left; `length`: max_tokens or the end of the context; `timed-out`: in the queue.",
            (Query(rate("lcpd_request_outcomes_total", "outcome"), "{{outcome}}"),),
            unit="reqps",
            kind="stacked",
            width=6,
        ),
        Panel(
            "How long are prompts and replies?",
            "In tokens: the median, and what 95 of 100 stay below.",
            (
                Query(quantile(0.5, "lcpd_request_prompt_tokens"), "prompts 50 %"),
                Query(quantile(0.95, "lcpd_request_prompt_tokens"), "prompts 95 %"),
                Query(quantile(0.5, "lcpd_request_generation_tokens"), "replies 50 %"),
                Query(quantile(0.95, "lcpd_request_generation_tokens"), "replies 95 %"),
            ),
            log=True,
            width=6,
        ),
    ),
)

_HEALTHY = Row(
    "Is it healthy?",
    (
        Panel(
            "Which errors do clients get?",
            "By the API's error code; 4xx are the clients' own mistakes, limits or a full queue. docs/api.md has them.",
            (Query(rate("lcpd_errors_total", "error", 'endpoint!="/health"') + " > 0", "{{error}}"),),
            unit="reqps",
            nothing="No errors",
            kind="stacked",
            width=6,
        ),
        Panel(
            "How often did the worker die, and why?",
            "In the five minutes before. Requests go on after it; see the runbook of LcpdWorkerCrashLoop.",
            (Query(grown("lcpd_worker_restarts_total", "cause", over="5m"), "{{cause}}"),),
            kind="stacked",
            whole=True,
            width=6,
        ),
        Panel(
            "Which alerts are on?",
            "Those of config/prometheus/lcpd.rules.yml: pending ones have not lasted long enough yet. None is best.",
            (
                Query(
                    'count by (alertname, alertstate) (ALERTS{alertname=~"Lcpd.+"})', "{{alertname}} ({{alertstate}})"
                ),
            ),
            kind="bars",
            whole=True,
            width=6,
            warn=0,
            nothing="No alerts",
        ),
        Panel(
            "How much memory do the processes hold?",
            "Resident, with what they share: the arena of the prompt cache counts for daemon and worker, a mapped model"
            " for the worker.",
            (
                Query(total("process_resident_memory_bytes"), "daemon"),
                Query(total("lcpd_worker_process_resident_memory_bytes"), "worker"),
                Query(total("lcpd_chat_process_resident_memory_bytes"), "chat"),
            ),
            unit="bytes",
            width=6,
        ),
    ),
)

DASHBOARD = Dashboard("overview", "overview", "Is it fast, busy, healthy?", (_NOW, _FAST, _BUSY, _HEALTHY))
