"""Figures that are looked up when they are asked for: states, facts, processes and GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from prometheus_client.exposition import choose_encoder

from lcpd import __version__
from lcpd.config import Settings
from lcpd.daemon_thread import DaemonThread
from lcpd.engine.protocol import ModelInfo
from lcpd.engine.supervisor import Supervisor
from lcpd.metrics import Metrics
from lcpd.metrics.nvml import Nvml, Reading

_WITHIN = 1.0
"""Seconds that a scrape waits for NVML, which can hang when a driver does; then it shows what was read last."""


class Process(Protocol):
    """Something with a process of its own."""

    @property
    def pid(self) -> int | None:
        """Its id while it runs."""


class Live:
    """Looks them up.  For one event loop."""

    def __init__(
        self,
        metrics: Metrics,
        settings: Settings,
        model_id: str,
        supervisor: Supervisor,
        chat: Process,
        nvml: Nvml | None = None,
    ) -> None:
        self._metrics = metrics
        self._model_id = model_id
        self._supervisor = supervisor
        self._nvml = nvml or Nvml()
        self._thread = DaemonThread("lcpd-nvml")
        """So that a driver that hangs does not hold up the end of the process either."""
        self._reading: asyncio.Task[list[Reading]] | None = None
        metrics.at_scrape(self._show)
        metrics.process.watch("lcpd_worker", lambda: supervisor.pid)
        metrics.process.watch("lcpd_chat", lambda: chat.pid)
        metrics.info.config.info(_config(settings))

    async def expose(self, accept: str) -> tuple[bytes, str]:
        """All figures in the format that an Accept header asks for, and its content type."""
        await self._look_at_gpus()
        encode, content_type = choose_encoder(accept)
        return encode(self._metrics.registry), content_type

    def _show(self) -> None:
        supervisor, info = self._supervisor, self._supervisor.info
        self._metrics.engine.show_state(supervisor.state)
        self._metrics.engine.shrunk.set(bool(supervisor.shrunk))
        self._metrics.engine.load_seconds.set(supervisor.load_seconds)
        self._metrics.info.build.info({"version": __version__, "llama_cpp": info.build if info else ""})
        self._metrics.info.model.info({"model": self._model_id, **_facts(info)})

    async def _look_at_gpus(self) -> None:
        if self._reading is None or self._reading.done():
            worker = self._supervisor.pid
            self._reading = asyncio.create_task(self._thread.call(lambda: self._nvml.read(worker)))
        reading = self._reading  # which scrapes at the same time share
        if (await asyncio.wait({reading}, timeout=_WITHIN))[0]:
            self._metrics.gpu.show(reading.result())


def _facts(info: ModelInfo | None) -> Mapping[str, str]:
    if info is None:
        return {}
    return {
        "description": info.description,
        "kind": info.kind,
        "devices": ", ".join(f"{device} {layers}" for device, layers in info.devices.items()),
        "n_ctx": str(info.n_ctx),
        "n_params": str(info.n_params),
        "size_bytes": str(info.size_bytes),
        "flash_attn": "" if info.flash_attn is None else str(info.flash_attn).lower(),
    }


def _config(settings: Settings) -> dict[str, str]:
    model, cache = settings.model, settings.cache
    return {
        "slots": str(model.slots),
        "kv": model.kv,
        "batch": str(model.batch),
        "ubatch": str(model.ubatch),
        "checkpoints": str(model.checkpoints),
        "cache_ram": str(cache.ram),
        "cache_disk": str(cache.disk),
        "anticipate": str(cache.anticipate).lower(),
        "prewarm": str(cache.prewarm),
    }
