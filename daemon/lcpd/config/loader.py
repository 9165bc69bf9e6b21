"""Where settings come from: defaults, credentials that systemd passes, ``lcpd.toml``, the environment and flags.

Each beats the one before.  All problems of all sources are reported at once, one line each.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from lcpd.config.describe import allowed
from lcpd.config.settings import Settings, leaves, sections
from lcpd.paths import dirs

PREFIX = "LCPD_"
CLIENT_KEY = "LCPD_API_KEY"
"""The variable that clients, and lcpd's own commands, take the key from that they send."""
KEY_VARIABLES = {"server.api_key_file": "LCPD_API_KEYS", "server.admin_key_file": "LCPD_ADMIN_KEYS"}
"""Settings that are a key file, and the variable that may hold the text of another one.  It is no setting: those are
shown."""
NOT_SETTINGS = frozenset({"LCPD_HOME", "LCPD_CONFIG", CLIENT_KEY, *KEY_VARIABLES.values()})
"""Variables that are no settings: where files are, and keys."""

CREDENTIALS = {"server.api_key_file": "lcpd.api-keys", "server.admin_key_file": "lcpd.admin-keys"}
"""Settings that are a file which the service manager may pass (LoadCredential=), and its name there."""

FLAGS = {
    "server.host": "--host",
    "server.port": "--port",
    "model.ref": "--model",
    "model.ctx": "--ctx",
    "model.slots": "--slots",
    "model.kv": "--kv",
    "model.threads": "--threads",
    "model.gpu_layers": "--gpu-layers",
    "model.flash_attn": "--flash-attn",
    "model.batch": "--batch",
    "model.ubatch": "--ubatch",
    "model.alias": "--alias",
    "cache.ram": "--cache-ram",
    "cache.dir": "--cache-dir",
    "cache.disk": "--cache-disk",
    "server.api_key_file": "--api-key-file",
    "server.insecure": "--insecure",
}
"""The settings that have a flag of ``lcpd serve``."""

Tree = dict[str, dict[str, Any]]


class ConfigError(Exception):
    """The configuration is wrong.  ``problems`` has one line for each mistake; ``str()`` joins them."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Loaded:
    """Effective settings, and where each came from."""

    settings: Settings
    origins: dict[str, str]
    """For every ``section.key``: "default", "credential NAME", "file PATH", "environment LCPD_...", "flag --..." or
    "argument ..."."""


def load(
    config_file: Path | None,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    arguments: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """Merge all sources into one set of settings.

    ``config_file`` is what ``--config`` said; without it ``$LCPD_CONFIG`` of ``environ``, then
    ``lcpd.toml`` in lcpd's configuration folder if there is one.  ``flags`` maps the names of ``FLAGS`` to
    values; ``None`` means not given.  ``arguments``: those of them that the command takes as an argument, and what its
    usage calls it.  Raises ``ConfigError`` with every problem found.
    """
    problems: list[str] = []
    values: Tree = {}
    origins = dict.fromkeys(leaves(), "default")

    def add(tree: Tree, origin: Mapping[str, str]) -> None:
        for section, keys in tree.items():
            values.setdefault(section, {}).update(keys)
        origins.update(origin)

    for name, file in _credentials(environ).items():
        section, key = name.split(".")
        add({section: {key: file}}, {name: f"credential {file.name}"})
    path = _config_path(config_file, environ)
    if path is not None:
        tree = _read_file(path, problems)
        add(tree, {f"{section}.{key}": f"file {path}" for section, keys in tree.items() for key in keys})
    variables = _variables(environ, problems)
    add(_Environment(variables)(), {name: f"environment {variable_of(name)}" for name in variables})
    for name, value in flags.items():
        if value is not None:
            section, key = name.split(".")
            origin = f"argument {arguments[name]}" if name in arguments else f"flag {FLAGS[name]}"
            add({section: {key: value}}, {name: origin})

    try:
        settings = Settings(**values)  # type: ignore[arg-type]  # validated here
    except ValidationError as error:
        problems.extend(_explain(error, origins))
    if problems:
        raise ConfigError(problems)
    return Loaded(settings, origins)


def _credentials(environ: Mapping[str, str]) -> dict[str, Path]:
    """The files among ``CREDENTIALS`` that were passed."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    files = {name: Path(folder) / file for name, file in CREDENTIALS.items()} if folder else {}
    return {name: file for name, file in files.items() if file.is_file()}


def _config_path(config_file: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = config_file or (Path(environ["LCPD_CONFIG"]) if environ.get("LCPD_CONFIG") else None)
    if named is not None:
        return named
    usual = dirs().config / "lcpd.toml"
    return usual if usual.exists() else None


def _read_file(path: Path, problems: list[str]) -> Tree:
    """The known keys of the file; unknown ones, and all that makes it unreadable, go to ``problems``."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(f"{path}: is not valid TOML: {error}")
        return {}
    known = leaves()
    tree: Tree = {}
    for section, keys in document.items():
        if section not in sections():
            where = _place(path, text, section, None)
            names = [*sections(), *known] if not isinstance(keys, dict) else list(sections())
            what = "section" if isinstance(keys, dict) else "key"
            problems.append(f"{where}: unknown {what} {section!r}{_nearest(section, names)}")
        elif not isinstance(keys, dict):
            problems.append(f"{_place(path, text, section, None)}: {section} must be a section: [{section}]")
        else:
            for key in keys:
                if f"{section}.{key}" not in known:
                    where = _place(path, text, section, key)
                    hint = _nearest(f"{section}.{key}", known)
                    problems.append(f"{where}: unknown key '{section}.{key}'{hint}")
            tree[section] = {key: value for key, value in keys.items() if f"{section}.{key}" in known}
    return tree


def _place(path: Path, text: str, section: str, key: str | None) -> str:
    """``PATH:LINE`` of a section or key; only ``PATH`` where its spelling is not the plain one."""
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([\w-]+)\s*\]", line)
        if header:
            current = header[1]
            found = key is None and current == section
        else:
            assigned = re.match(r"\s*([\w-]+)\s*=", line)
            expected = (section, key) if key is not None else ("", section)
            found = assigned is not None and (current, assigned[1]) == expected
        if found:
            return f"{path}:{number}"
    return str(path)


def _nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the valid name closest to ``name``: the same key of another section first."""
    candidates = list(names)
    same_key = [
        each for each in candidates if re.split(r"\.|__", each)[-1] == re.split(r"\.|__", name.removeprefix(PREFIX))[-1]
    ]
    nearest = same_key or difflib.get_close_matches(name, candidates, n=1, cutoff=0.0)
    return f"; did you mean {nearest[0]!r}?"


def _variables(environ: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """What the environment sets, as ``section.key`` to the text of the variable; unknown ones are problems.

    An empty variable counts as not set.
    """
    known = {variable_of(name): name for name in leaves()}
    found: dict[str, str] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in known:
            hint = _nearest(variable, known)
            problems.append(f"environment: unknown variable {variable}{hint}")
        elif value:
            found[known[variable]] = value
    return found


def variable_of(name: str) -> str:
    """The environment variable of the setting ``section.key``."""
    return PREFIX + name.upper().replace(".", "__")


class _Environment(EnvSettingsSource):
    """Reads settings from the given variables instead of those of this process."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._given = {variable_of(name).lower(): value for name, value in values.items()}
        super().__init__(Settings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._given


def _explain(error: ValidationError, origins: Mapping[str, str]) -> list[str]:
    """One line for each setting with a wrong value."""
    lines: dict[str, str] = {}
    for each in error.errors(include_url=False):
        name = ".".join(str(part) for part in each["loc"][:2])
        own = each["type"] == "value_error"
        reason = str(each["ctx"]["error"]) if own else f"must be {allowed(name)}"
        value = each["input"]
        lines.setdefault(name, f"{name} = {_spell(value)}: {reason} (from {origins[name]})")
    return list(lines.values())


def _spell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else repr(str(value))
