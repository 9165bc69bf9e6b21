"""What is decided before anything is started."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from lcpd.build import Build, require_active
from lcpd.chat.client import ChatSettings
from lcpd.config import ConfigError, Settings
from lcpd.engine.supervisor import WorkerSettings
from lcpd.key_sources import KeySources
from lcpd.keys import Keyring
from lcpd.models import resolve
from lcpd.paths import dirs
from lcpd.planning.at_load import DoesNotFit, Unreadable, plan_load
from lcpd.planning.plan import MemoryPlan


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first process starts."""

    settings: Settings
    """With nothing automatic left in `model.ctx` and `model.kv`."""
    build: Build
    model: Path
    model_id: str
    template: str | None
    key_sources: KeySources
    keys: Keyring
    """Of these sources, brought up to date on SIGHUP."""
    memory: MemoryPlan | None
    """What the model is going to take; None where its header says too little."""
    worker_command: tuple[str, ...] = WorkerSettings.command
    chat_command: tuple[str, ...] = ChatSettings.command


def make_plan(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> Plan:
    """Find the build, the model and the files that the settings name, and choose what is automatic in them.

    Keys are taken out of `environment`, which the child processes inherit.
    Raises BuildMissing, ModelMissing, BadReference or ConfigError.
    """
    model = resolve(settings.model.ref, dirs())
    sources = KeySources(settings, environment)
    is_file = settings.model.ref.endswith(".gguf")
    template = settings.model.chat_template_file
    build = require_active()
    try:
        at_load = plan_load(settings, model, build)
    except DoesNotFit as error:
        raise ConfigError(str(error).splitlines()) from error
    except Unreadable as error:
        raise ConfigError([f"model.ref: {error}"]) from error
    return Plan(
        settings=at_load.settings,
        build=build,
        model=model,
        model_id=settings.model.alias or (model.stem if is_file else settings.model.ref),
        template=_read("model.chat_template_file", template) if template else None,
        key_sources=sources,
        keys=sources.read(),
        memory=at_load.plan,
    )


def _read(setting: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{setting}: {path} cannot be read: {error}"]) from error
