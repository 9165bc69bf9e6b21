"""Asking a running daemon: its address, the key, and what is said when nobody answers; shared by the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx

from lcpd.api.guard import read_keys
from lcpd.cli.flags import load_settings

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
        " unless --url is given.",
    )
    url = click.option("--url", metavar="URL", help="The daemon's address; default: that of the settings.")
    return url(key_file(command))


class Daemon:
    """A running daemon."""

    def __init__(self, url: str | None, key_file: Path | None, admin: bool = True) -> None:
        """`admin`: an admin's key does as well.  Raises click.ClickException where settings or key file are wrong."""
        server = load_settings(None, {}).settings.server
        self.address = (url or _own_address(server.host, server.port)).rstrip("/")
        # A key is for the daemon of the settings alone: others are not to learn it.
        known = None if url else (admin and server.admin_key_file) or server.api_key_file
        self.key = _key(key_file or known)

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


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        keys = read_keys(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from error
    if not keys:
        raise click.ClickException(f"{file} holds no key")
    return min(keys)
