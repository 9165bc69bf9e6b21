"""The engine (worker, slots, cells), the processes, and the GPU."""

from __future__ import annotations

from config.grafana.overview import PREFILL_SPEED
from config.grafana.panels import Dashboard, Panel, Query, Row
from config.grafana.promql import grown, rate, ratio, select, total

_WHAT = Row(
    "What runs here?",
    (
        Panel("Which lcpd and llama.cpp?", "The build.", (Query(select("lcpd_build_info")),), kind="table", width=8),
        Panel(
            "Which model?",
            "As it was loaded; empty while none is.",
            (Query(select("lcpd_model_info")),),
            kind="table",
            width=16,
        ),
        Panel(
            "With which settings?",
            "Those that matter for speed; `lcpd config show` prints all.",
            (Query(select("lcpd_config_info")),),
            kind="table",
            width=24,
        ),
    ),
)

_ENGINE = Row(
    "Engine",
    (
        Panel(
            "In which state is the engine?",
            "How many of the selected daemons are in each state.",
            (Query(total("lcpd_engine_state", "state"), "{{state}}"),),
            unit="none",
            kind="stacked",
        ),
        Panel(
            "What do the slots do?",
            "`idle` slots keep what they hold for the next turn.",
            (Query(total("lcpd_slots", "state"), "{{state}}"),),
            unit="none",
            kind="stacked",
        ),
        Panel(
            "How full is the KV cache?",
            "Share of the cells held or reserved, shared ones once. When it is full, idle slots are saved and emptied,"
            " then running requests are parked.",
            (Query(ratio(total("lcpd_kv_cells_used"), total("lcpd_kv_cells")), "cells used"),),
            unit="percentunit",
            limit=1,
        ),
        Panel(
            "How fast are prompts computed?",
            "Tokens per second of computing. It depends on model, device and length, not on load.",
            (Query(PREFILL_SPEED, "prefill, tokens/s"),),
        ),
        Panel(
            "How many tokens are generated?",
            "Tokens per second of all streams together.",
            (Query(rate("lcpd_generation_tokens_total"), "decode, tokens/s"),),
        ),
        Panel(
            "What share of the time goes to prefill?",
            "Near 100 % prompts keep the engine busy, and streams get what scheduler.max_stall_ms leaves them.",
            (Query(rate("lcpd_prefill_seconds_total"), "prefill"),),
            unit="percentunit",
        ),
        Panel(
            "What is taken from whom?",
            "Running requests parked for want of a slot or of cells, and idle slots emptied for their cells.",
            (
                Query(rate("lcpd_num_preemptions_total", "reason"), "parked for want of {{reason}}"),
                Query(rate("lcpd_slot_evictions_total"), "idle slot emptied"),
            ),
            unit="ops",
            kind="stacked",
        ),
        Panel(
            "In which phase do clients leave?",
            "Those that leave while they wait or prefill found it too slow.",
            (Query(rate("lcpd_cancels_total", "phase"), "{{phase}}"),),
            unit="reqps",
            kind="stacked",
        ),
        Panel(
            "What died, and why?",
            "Worker by cause, and the chat process, in the time shown. See the runbook of LcpdWorkerCrashLoop.",
            (
                Query(grown("lcpd_worker_restarts_total", "cause") + " > 0", "worker: {{cause}}"),
                Query(grown("lcpd_chat_restarts_total") + " > 0", "chat process"),
            ),
            kind="bars",
            whole=True,
            warn=0.5,
            bad=3,
            nothing="Nothing",
        ),
    ),
)


def _each_process(name: str, show: str) -> tuple[Query, ...]:
    """One line for each process; `show`: its expression with ``{}`` for the figure."""
    prefixes = {"": "daemon", "lcpd_worker_": "worker", "lcpd_chat_": "chat process"}
    return tuple(Query(show.format(select(f"{prefix}process_{name}")), who) for prefix, who in prefixes.items())


_PROCESSES = Row(
    "Processes",
    (
        Panel(
            "How much memory do they hold?",
            "Resident, with what they share: the arena counts for daemon and worker, a mapped model for the worker.",
            _each_process("resident_memory_bytes", "sum({})"),
            unit="bytes",
            width=6,
        ),
        Panel(
            "How many cores do they use?",
            "CPU seconds per second. The daemon should need little beside the worker.",
            _each_process("cpu_seconds_total", "sum(rate({}[$__rate_interval]))"),
            unit="none",
            width=6,
        ),
        Panel(
            "How many files are open?",
            "What only grows would be a leak.",
            _each_process("open_fds", "sum({})"),
            unit="none",
            width=6,
        ),
        Panel(
            "Load of the model",
            "How long it took the last time.",
            (Query(f"max({select('lcpd_model_load_seconds')})"),),
            unit="s",
            kind="number",
            width=6,
        ),
    ),
)

_GPU = Row(
    "GPU (NVIDIA)",
    (
        Panel("Which GPUs?", "As NVML tells.", (Query(select("lcpd_gpu_info")),), kind="table", width=24, gpu=True),
        Panel(
            "How busy is it?",
            "`computing`: share of the time with a kernel running. `memory`: with memory read or written, which is"
            " what bounds decoding.",
            (
                Query(f"avg by (gpu) ({select('lcpd_gpu_utilization_ratio')})", "GPU {{gpu}}: computing"),
                Query(f"avg by (gpu) ({select('lcpd_gpu_memory_utilization_ratio')})", "GPU {{gpu}}: memory"),
            ),
            unit="percentunit",
            limit=1,
            gpu=True,
        ),
        Panel(
            "How full is its memory?",
            "All processes, the worker's part, and what there is. The last GiB is what other programs live on.",
            (
                Query(total("lcpd_gpu_memory_used_bytes", "gpu"), "GPU {{gpu}}: used"),
                Query(total("lcpd_gpu_worker_memory_bytes", "gpu"), "GPU {{gpu}}: worker"),
                Query(total("lcpd_gpu_memory_total_bytes", "gpu"), "GPU {{gpu}}: all"),
            ),
            unit="bytes",
            gpu=True,
        ),
        Panel(
            "How much power does it take?",
            "With its limit. Near the limit clocks fall.",
            (
                Query(total("lcpd_gpu_power_watts", "gpu"), "GPU {{gpu}}"),
                Query(total("lcpd_gpu_power_limit_watts", "gpu"), "GPU {{gpu}}: limit"),
            ),
            unit="watt",
            gpu=True,
        ),
        Panel(
            "How hot is it?",
            "GPUs slow down above about 85 °C.",
            (Query(f"max by (gpu) ({select('lcpd_gpu_temperature_celsius')})", "GPU {{gpu}}"),),
            unit="celsius",
            gpu=True,
        ),
        Panel(
            "How fast are its clocks?",
            "They fall when it idles, is hot or short of power.",
            (Query(f"max by (gpu, clock) ({select('lcpd_gpu_clock_hertz')})", "GPU {{gpu}}: {{clock}}"),),
            unit="hertz",
            gpu=True,
        ),
        Panel(
            "What keeps clocks down?",
            "1 while it does. `idle` is harmless; `hw_thermal` and `sw_thermal`: cooling; `sw_power_cap`: the limit.",
            (Query(f"max by (gpu, reason) ({select('lcpd_gpu_throttled')})", "GPU {{gpu}}: {{reason}}"),),
            unit="none",
            kind="stacked",
            gpu=True,
        ),
    ),
)

DASHBOARD = Dashboard(
    "engine",
    "engine and GPU",
    "What runs here, what do the slots and processes do, and how is the GPU?",
    (_WHAT, _ENGINE, _PROCESSES, _GPU),
)
