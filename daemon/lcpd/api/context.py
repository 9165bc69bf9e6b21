"""What every route needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from lcpd.anticipation.driver import Anticipator
from lcpd.api.clients import ToolUsers
from lcpd.api.key_limits import KeyLimits
from lcpd.api.known_tools import KnownTools
from lcpd.cache.cache import PromptCache
from lcpd.cache.isolation import Isolation
from lcpd.cache.tier import DiskTier
from lcpd.chat.client import ChatClient
from lcpd.config import Settings
from lcpd.engine.supervisor import Supervisor
from lcpd.keys import Key, Keyring
from lcpd.metrics import Metrics
from lcpd.metrics.live import Live
from lcpd.planning.loaded import LoadedMemory
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.embeddings import Embeddings
from lcpd.sleep import Sleeper


@dataclass(frozen=True)
class Context:
    """The parts of a running daemon, and what clients call its model."""

    settings: Settings
    supervisor: Supervisor
    dispatcher: Dispatcher
    embeddings: Embeddings
    cache: PromptCache
    chat: ChatClient
    metrics: Metrics
    live: Live
    sleeper: Sleeper
    model_id: str
    model_names: frozenset[str]
    """Every name that a request's `model` may have."""
    created: int
    """Unix seconds."""
    anticipator: Anticipator | None = None
    """None where nothing is to be computed ahead."""
    disk: DiskTier | None = None
    """None where nothing is written to disk."""
    isolation: Isolation | None = None
    """None where all keys share what was computed."""
    keys: Keyring = field(default_factory=Keyring)
    key_limits: KeyLimits = field(default_factory=KeyLimits)
    tool_users: ToolUsers = field(default_factory=ToolUsers)
    known_tools: KnownTools = field(default_factory=KnownTools)
    memory: LoadedMemory = field(default_factory=LoadedMemory)


CONTEXT: web.AppKey[Context] = web.AppKey("context", Context)
STATUS: web.RequestKey[int] = web.RequestKey("status", int)
"""The status that a reply deserves whose headers were out before it failed; for the log and the metrics."""
BEGUN: web.RequestKey[float] = web.RequestKey("begun", float)
"""When the request came, in monotonic seconds."""
ERROR: web.RequestKey[str] = web.RequestKey("error", str)
"""The word for the error that it was answered with, for the metrics."""
CORS: web.RequestKey[dict[str, str]] = web.RequestKey("cors", dict)
"""Headers for the answer to a page of an allowed origin."""
KEY: web.RequestKey[Key] = web.RequestKey("key", Key)
"""The API key that the request carries, where keys are asked for."""
ADMIN: web.RequestKey[bool] = web.RequestKey("admin", bool)
"""Whether the request carries an admin key."""
