"""Where the prompt cache is: its RAM, its disk, and what tells whose bytes may be used."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lcpd.assembly.plan import Plan
from lcpd.cache.arena import Arena, ArenaError
from lcpd.cache.cache import PromptCache
from lcpd.cache.figures import Limits
from lcpd.cache.fingerprint import Fingerprint, fingerprint, read_model
from lcpd.cache.isolation import Isolation
from lcpd.cache.store import DiskStore
from lcpd.cache.tier import DiskTier
from lcpd.carry_over import open_arena
from lcpd.config import ConfigError, Settings
from lcpd.engine import protocol as p
from lcpd.fdstore import ServiceManager
from lcpd.paths import dirs
from lcpd.room import SPARE, available

log = logging.getLogger("lcpd")


def make_arena(plan: Plan, manager: ServiceManager) -> tuple[Arena, bool]:
    """The arena, and whether it is one that an earlier daemon has used.  Raises ConfigError."""
    on_cpu = plan.build.backend == "cpu" or plan.settings.model.gpu_layers == 0
    room = available() - SPARE - (plan.model.stat().st_size if on_cpu else 0)
    try:
        return open_arena(manager, plan.settings.cache.ram, room)
    except ArenaError as error:
        raise ConfigError([f"cache.ram: {error}"]) from error


def make_isolation(plan: Plan) -> Isolation | None:
    """None where all may use what any of them has computed.  Raises ConfigError."""
    if plan.settings.cache.isolate == "off":
        return None
    if not plan.keys.asked_for:
        raise ConfigError(["cache.isolate: there are no keys to keep apart; set server.api_key_file"])
    try:
        return Isolation([key.digest for key in plan.keys.keys])
    except ValueError as error:
        raise ConfigError([f"cache.isolate: {error}"]) from error


def make_stamp(plan: Plan, isolation: Isolation | None) -> Callable[[p.ModelInfo], Fingerprint]:
    """What tells whether state bytes are interchangeable, once the model is loaded."""
    settings = plan.settings
    if not settings.cache.ram:
        return lambda _: {}
    file = read_model(plan.model)
    keys = {"isolation": f"keys {isolation.field}"} if isolation else {}
    return lambda info: {**fingerprint(file, plan.build, settings.model, info), **keys}


def make_disk(settings: Settings, cache: PromptCache, busy: Callable[[], bool]) -> DiskTier | None:
    """None where nothing is to be written to disk.  `busy`: whether requests run, before which writing stands back."""
    wanted = settings.cache
    if not wanted.disk:
        return None
    if not wanted.ram:
        log.warning("nothing is written to disk (cache.disk): that needs a prompt cache in RAM (cache.ram)")
        return None
    limits = Limits(
        size=wanted.disk,
        floor=wanted.disk_floor,
        budget=wanted.write_budget,
        ttl=wanted.ttl * 86400,
        interval=wanted.checkpoint_interval,
    )
    return DiskTier(DiskStore(wanted.dir or dirs().cache / "prompts"), cache, limits, busy)
