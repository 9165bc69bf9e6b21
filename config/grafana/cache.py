"""The prompt cache: what it saves, why prompts were computed again all the same, what is kept and where."""

from __future__ import annotations

from config.grafana.overview import REUSED, REUSED_SHARE, SPARED
from config.grafana.panels import Dashboard, Panel, Query, Row
from config.grafana.promql import grown, grown_new, mean, quantile, rate, ratio, select, total

KNOWN = 'reason!~"cold|diverged"'
_REUSED = rate("lcpd_prompt_tokens_total", match=REUSED, over="5m")
_LOST = rate("lcpd_cache_miss_tokens_total", match=KNOWN, over="5m")
KNOWN_SHARE = ratio(_REUSED, f"({_REUSED} + {_LOST})")

_SAVES = Row(
    "What does it save?",
    (
        SPARED,
        Panel(
            "Prompt tokens reused",
            "Share of the last five minutes' prompts; the rest was new, or is explained below.",
            (Query(REUSED_SHARE),),
            unit="percentunit",
            kind="number",
            width=5,
        ),
        Panel(
            "Known tokens reused",
            "Of the tokens of the last five minutes' prompts that earlier prompts had, too: how many were reused? Near"
            " 100 % the cache has nothing to gain. Clients may: see `diverged` below.",
            (Query(KNOWN_SHARE),),
            unit="percentunit",
            kind="number",
            width=5,
            warn=0.9,
            bad=0.5,
            lowest_is_bad=True,
        ),
        Panel(
            "Conversations kept",
            "Different endings of the token paths in RAM and on disk.",
            (Query(total("lcpd_cache_conversations")),),
            whole=True,
            kind="number",
            width=5,
        ),
        Panel(
            "Sharing",
            "How many times as many tokens there would be if each conversation were kept by itself. 1: no two have"
            " anything in common.",
            (Query(f"avg({select('lcpd_cache_dedup_ratio')})"),),
            unit="none",
            kind="number",
            width=5,
        ),
        Panel(
            "Where do prompt tokens come from?",
            "`vram`: the slot had them; `shared`: another slot; `ram`, `disk`: brought back; `computed`: by prefill;"
            " `anticipated`: computed before anybody asked, on top.",
            (Query(rate("lcpd_prompt_tokens_total", "source"), "{{source}}"),),
            unit="ops",
            kind="stacked",
        ),
        Panel(
            "Prefill spent and spared, in seconds per second",
            "`spent` is the share of the time in which prompts were computed; without reuse it would have been both"
            " together: above 1 the machine could not have kept up.",
            (
                Query(rate("lcpd_prefill_seconds_total"), "spent"),
                Query(rate("lcpd_prefill_spared_seconds_total"), "spared"),
            ),
            unit="none",
            kind="stacked",
        ),
        Panel(
            "What do prompts find?",
            "`hit`: all that any cache could have; `partial`: less than that; `miss`: nothing.",
            (Query(rate("lcpd_cache_lookups_total", "result"), "{{result}}"),),
            unit="reqps",
            kind="stacked",
        ),
    ),
)

_WHY = Row(
    "Why was it computed again?",
    (
        Panel(
            "Tokens computed again, by reason",
            "`cold`: never seen. `diverged`: the prompt changed early on. `evicted`: give cache.ram or a disk. `no"
            " checkpoint`: a smaller checkpoint_interval. `busy`: more slots. docs/cache.md tells all.",
            (Query(rate("lcpd_cache_miss_tokens_total", "reason"), "{{reason}}"),),
            unit="ops",
            kind="stacked",
        ),
        Panel(
            "Which reason cost most?",
            "Tokens computed again in the time shown.",
            (Query(grown("lcpd_cache_miss_tokens_total", "reason") + " > 0", "{{reason}}"),),
            kind="bars",
            whole=True,
            nothing="Nothing was computed again",
        ),
        Panel(
            "Is it evicted too early?",
            "Conversations come back after the reuse gap. If what is evicted was idle for less than most gaps, more"
            " cache.ram or a disk (cache.disk) would pay.",
            (
                Query(
                    quantile(0.5, "lcpd_cache_idle_before_evict_seconds", over="$__range"), "idle when evicted, median"
                ),
                Query(quantile(0.9, "lcpd_cache_reuse_gap_seconds", over="$__range"), "gap before reuse, 90 %"),
                Query(quantile(0.5, "lcpd_cache_reuse_gap_seconds", over="$__range"), "gap before reuse, median"),
            ),
            unit="s",
            log=True,
        ),
    ),
)

_KEPT = Row(
    "What is kept, and where?",
    (
        Panel(
            "How full are the tiers?",
            "Share of cache.ram and cache.disk in use. Full RAM is normal: what saves the least time per byte goes"
            " first.",
            (Query(ratio(total("lcpd_cache_used_bytes", "tier"), total("lcpd_cache_size_bytes", "tier")), "{{tier}}"),),
            unit="percentunit",
            limit=1,
            width=6,
        ),
        Panel(
            "What takes the space?",
            "Segments are attention KV of a stretch of tokens; checkpoints are recurrent or sliding-window state.",
            (Query(total("lcpd_cache_bytes", "tier, kind"), "{{tier}}: {{kind}}"),),
            unit="bytes",
            kind="stacked",
            width=6,
        ),
        Panel(
            "How many pieces are there?",
            "Segments and checkpoints by tier.",
            (Query(total("lcpd_cache_pieces", "tier, kind"), "{{tier}}: {{kind}}"),),
            width=6,
        ),
        Panel(
            "What leaves RAM, and why?",
            "`room`: for others; `discarded`, `corrupt`: its bytes were not what was stored; `purged`: an admin said"
            " so.",
            (Query(rate("lcpd_cache_evictions_total", "kind, reason"), "{{kind}}: {{reason}}"),),
            unit="ops",
            kind="stacked",
            width=6,
        ),
        Panel(
            "How long was kept what had to go?",
            "Medians in the time shown, of what was evicted for want of room.",
            (Query(quantile(0.5, "lcpd_cache_lifetime_seconds", "kind", over="$__range"), "{{kind}}"),),
            unit="s",
            width=6,
            nothing="Nothing was evicted",
        ),
        Panel(
            "How large are checkpoints?",
            "Mean of those taken. On hybrids one weighs as much as thousands of tokens of KV.",
            (Query(mean("lcpd_checkpoint_size_bytes"), "mean size"),),
            unit="bytes",
            width=6,
        ),
        Panel(
            "How many checkpoints are taken?",
            "Per second.",
            (Query(rate("lcpd_checkpoint_size_bytes_count"), "checkpoints"),),
            unit="ops",
            width=6,
        ),
        Panel(
            "Is RAM in pieces?",
            "Share of the free RAM of the prompt cache outside of its largest free run: near 1 large segments are cut.",
            (Query(f"max({select('lcpd_cache_fragmentation_ratio')})", "fragmentation"),),
            unit="percentunit",
            limit=1,
            width=6,
        ),
    ),
)

_MOVES = Row(
    "How fast is it brought back?",
    (
        Panel(
            "How fast is state copied?",
            "Bytes per second of copying: from RAM to slots (restore), from slots to RAM (save), from disk to RAM"
            " (read).",
            (
                Query(
                    ratio(rate("lcpd_cache_restored_bytes_total"), rate("lcpd_cache_restore_seconds_total")), "restore"
                ),
                Query(ratio(rate("lcpd_cache_saved_bytes_total"), rate("lcpd_cache_save_seconds_total")), "save"),
                Query(
                    ratio(rate("lcpd_cache_disk_read_bytes_total"), rate("lcpd_cache_disk_read_seconds_total")), "read"
                ),
            ),
            unit="binBps",
            log=True,
        ),
        Panel(
            "How long do requests wait for restored state?",
            "From getting a slot until computing can begin.",
            (
                Query(quantile(0.5, "lcpd_request_restore_time_seconds"), "50 %"),
                Query(quantile(0.99, "lcpd_request_restore_time_seconds"), "99 %"),
            ),
            unit="s",
        ),
        Panel(
            "Is KV in many small runs?",
            "Runs of contiguous cells copied per second. The more runs for as many bytes, the slower.",
            (Query(rate("lcpd_cache_copy_runs_total"), "runs"),),
            unit="ops",
        ),
    ),
)

_DISK = Row(
    "Disk",
    (
        Panel(
            "Is the disk all right?",
            "No: it is full, read-only, in use or broken; GET /health says which. It is tried again by itself. Yes also"
            " where none is to be used (cache.disk = 0).",
            (Query(f"max({select('lcpd_cache_disk_degraded')})"),),
            kind="number",
            width=6,
            bad=1,
            words=((0, "Yes"), (1, "No")),
        ),
        Panel(
            "A power cut would lose the last",
            "How long the first conversation has waited to be written; what is younger is not on disk yet.",
            (Query(f"max({select('lcpd_cache_disk_lag_seconds')})"),),
            unit="s",
            kind="number",
            width=6,
            warn=60,
            bad=300,
        ),
        Panel(
            "Share of the write budget used",
            "Share of cache.write_budget that was written in the last 24 hours.",
            (Query(ratio(total("lcpd_cache_disk_written_today_bytes"), total("lcpd_cache_disk_write_budget_bytes"))),),
            unit="percentunit",
            kind="number",
            width=6,
            warn=0.8,
            bad=1,
            nothing="No limit",
        ),
        Panel(
            "Damaged pieces",
            "In the time shown, in RAM and on disk. They were not used, and computed again. Check memory and disk.",
            (Query(grown_new("lcpd_cache_corrupt_total")),),
            whole=True,
            kind="number",
            width=6,
            bad=1,
            nothing="None",
        ),
        Panel(
            "How many conversations wait to be written?",
            "They are written when they rest for some seconds.",
            (Query(total("lcpd_cache_disk_queue"), "waiting"),),
            width=6,
        ),
        Panel(
            "What goes to and from the disk?",
            "Bytes per second, over all of the time.",
            (
                Query(rate("lcpd_cache_disk_written_bytes_total"), "written"),
                Query(rate("lcpd_cache_disk_read_bytes_total"), "read"),
            ),
            unit="binBps",
            width=6,
        ),
        Panel(
            "Which files were removed, and why?",
            "`room`, `expired` and `purged` are as it should be; docs/cache.md explains the others.",
            (Query(grown("lcpd_cache_disk_removed_total", "reason") + " > 0", "{{reason}}"),),
            kind="bars",
            whole=True,
            nothing="None",
            width=6,
        ),
        Panel(
            "What was not written, and why?",
            "`budget`: cache.write_budget; `size`: cache.disk; `floor`: cache.disk_floor; `gone`: RAM gave it up first;"
            " `queue`: too much was waiting.",
            (Query(grown("lcpd_cache_disk_skipped_total", "reason") + " > 0", "{{reason}}"),),
            kind="bars",
            whole=True,
            nothing="All was written",
            width=6,
        ),
    ),
)

DASHBOARD = Dashboard(
    "cache",
    "prompt cache",
    "Why was it computed again? What is kept, and where? What did reuse save?",
    (_SAVES, _WHY, _KEPT, _MOVES, _DISK),
)
