"""Where the daemon's keys come from: read at the start, and again on SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from pathlib import Path

from lcpd.config import ConfigError, Settings
from lcpd.config.loader import KEY_VARIABLES
from lcpd.keys import Key, KeyFileError, Keyring, read_keys

log = logging.getLogger(__name__)


class KeySources:
    """The files of the settings, and the variables, which are read once."""

    def __init__(self, settings: Settings, environment: MutableMapping[str, str]) -> None:
        """The variables are taken out of `environment`, which the child processes inherit.  Raises ConfigError."""
        server = settings.server
        self._files = {"server.api_key_file": server.api_key_file, "server.admin_key_file": server.admin_key_file}
        self._of_variables = {
            setting: _keys(f"environment {variable}", text)
            for setting, variable in KEY_VARIABLES.items()
            if (text := environment.pop(variable, None)) is not None
        }
        self._kept_apart = settings.cache.isolate != "off"
        self._known: frozenset[str] | None = None
        """Digests of the keys that there were at the start."""

    def read(self) -> Keyring:
        """All keys as they are now.  Raises ConfigError."""
        api, admin = (self._of(setting) for setting in KEY_VARIABLES)
        try:
            ring = Keyring(api, admin)
        except ValueError as error:
            raise ConfigError([f"server.api_key_file, server.admin_key_file: {error}"]) from error
        digests = frozenset(key.digest for key in ring.keys)
        if self._known is None:
            self._known = digests
        elif self._kept_apart and (new := digests - self._known):
            names = ", ".join(key.name for key in ring.keys if key.digest in new)
            raise ConfigError([f"cache.isolate: a cache of their own for new keys ({names}) needs a restart"])
        return ring

    def read_again(self, ring: Keyring) -> None:
        """Bring the keys of a running daemon up to date; where that is not possible they stay, and the log says why."""
        try:
            fresh = self.read()
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error)
            return
        before, now = ({key.digest for key in one.keys} for one in (ring, fresh))
        ring.become(fresh)
        log.info(
            "keys were read again: %d, of which %d are new; %d are gone", len(now), len(now - before), len(before - now)
        )

    def _of(self, setting: str) -> list[Key]:
        """The keys of a setting's file and of its variable together."""
        keys = list(self._of_variables.get(setting, ()))
        path = self._files[setting]
        for key in _keys(f"{setting}: {path}", _text(setting, path)) if path else ():
            if any(key.digest == other.digest or key.name == other.name for other in keys):
                variable = KEY_VARIABLES[setting]
                raise ConfigError([f"{setting} and {variable} both have the key {key.name}; remove one of them"])
            keys.append(key)
        return keys


def _keys(where: str, text: str) -> list[Key]:
    try:
        lines = read_keys(text, where)
    except KeyFileError as error:
        raise ConfigError(error.problems) from error
    if not lines:
        # No API key at all would mean that none is asked for.
        raise ConfigError([f"{where} holds no key; write one a line, as `lcpd key new NAME` prints it"])
    return [line.key for line in lines]


def _text(setting: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{setting}: {path} cannot be read: {error}"]) from error
