"""Asking a running daemon: its address, the key, and what is said when nobody answers; shared by the commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx

from lcpd.cli.flags import load_settings
from lcpd.config.loader import CLIENT_KEY, KEY_VARIABLES
from lcpd.config.settings import ServerSettings
from lcpd.keys import KeyFileError, read_keys

Json = dict[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])
_TIMEOUT = 60.0
"""Seconds; rendering a long conversation takes some."""


def daemon_flags(command: Command) -> Command:
    """Add ``--url`` and ``--api-key-file`` to a command; `Daemon` takes their values."""
    key_file = click.option(
        "--api-key-file",
        "key_file",
        metavar="F",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file with a key; default: that of the settings (server.admin_key_file, else server.api_key_file),"
        " else $LCPD_API_KEY, unless --url is given.",
    )
    url = click.option("--url", metavar="URL", help="The daemon's address; default: that of the settings.")
    return url(key_file(command))


@dataclass(frozen=True)
class KnownKey:
    """A key to send."""

    secret: str = field(repr=False)
    word: str
    """A shell word that gives it."""


class Daemon:
    """A running daemon."""

    def __init__(self, url: str | None, key_file: Path | None, admin: bool = True) -> None:
        """`admin`: an admin's key does as well.  Raises click.ClickException where settings or key file are wrong."""
        server = load_settings(None, {}).settings.server
        self.address = (url or _own_address(server.host, server.port)).rstrip("/")
        self.known: KnownKey | None = None
        if key_file:
            self.known = _required(key_file)
        elif not url:
            # A key is for the daemon of the settings alone: others are not to learn it.
            self.known = _own_key(server, admin)
        self.key = self.known.secret if self.known else None

    def get(self, path: str, expected: str) -> Json:
        """The JSON object at `path`, which has the field `expected`.  Raises click.ClickException."""
        return self._ask("GET", path, None, expected)

    def post(self, path: str, body: Json, expected: str, timeout: float = _TIMEOUT) -> Json:
        """What a POST answers; as `get`.  `timeout` in seconds."""
        return self._ask("POST", path, body, expected, timeout)

    def _ask(self, method: str, path: str, body: Json | None, expected: str, timeout: float = _TIMEOUT) -> Json:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            response = httpx.request(method, f"{self.address}{path}", json=body, headers=headers, timeout=timeout)
        except httpx.InvalidURL as error:
            raise click.ClickException(f"{self.address} is no address: {error}") from error
        except httpx.HTTPError as error:
            raise click.ClickException(
                f"no daemon answers at {self.address} ({error}): start one with `lcpd serve`, or name its address"
                " with --url"
            ) from error
        if response.status_code == 401:
            raise click.ClickException(
                f"the daemon at {self.address} wants an API key: name a file with one with --api-key-file"
            )
        return _checked(response, self.address, expected)


def _checked(response: httpx.Response, address: str, expected: str) -> Json:
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if isinstance(answer, dict) and response.status_code == 200 and expected in answer:
        return answer
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict) and "message" in error:
        raise click.ClickException(str(error["message"]))
    raise click.ClickException(f"what answers at {address} is no lcpd daemon: status {response.status_code}")


def _own_address(host: str, port: int) -> str:
    """Where this machine reaches a daemon that listens on `host`."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"


def _required(file: Path) -> KnownKey:
    if known := _first_key(file):
        return known
    raise click.ClickException(f"{file} holds no key, or hashes of keys only: write a key itself to a file of its own")


def _own_key(server: ServerSettings, admin: bool) -> KnownKey | None:
    """A key of the settings' daemon; an admin's if it may be one.  Their files and variables can have hashes only."""
    settings = ("server.admin_key_file", "server.api_key_file") if admin else ("server.api_key_file",)
    for setting in settings:
        file = getattr(server, setting.partition(".")[2])
        if known := (_first_key(file) if file else None) or _first_key_in(KEY_VARIABLES[setting]):
            return known
    secret = os.environ.get(CLIENT_KEY)
    return KnownKey(secret, f'"${CLIENT_KEY}"') if secret else None


def _first_key(file: Path) -> KnownKey | None:
    """The first key that a file has itself, not its hash.  Raises click.ClickException."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from error
    return _first_of(text, str(file), lambda program: f"awk '{program}' {shlex.quote(str(file))}")


def _first_key_in(variable: str) -> KnownKey | None:
    """The same for a variable."""
    text = os.environ.get(variable, "")
    return _first_of(
        text, f"environment {variable}", lambda program: f"printf '%s\\n' \"${variable}\" | awk '{program}'"
    )


def _first_of(text: str, where: str, awk: Callable[[str], str]) -> KnownKey | None:
    """`awk`: the command that runs a program over the text."""
    try:
        lines = read_keys(text, where)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    for line in lines:
        if line.secret is not None:
            place = f'$1 == "{line.key.name}" {{print $2}}' if line.named else f"NR == {line.number} {{print $1}}"
            return KnownKey(line.secret, f'"$({awk(place)})"')
    return None
