"""``lcpd slots``: what each slot of a running daemon holds and does, and who waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import httpx
from rich.console import Console, Group
from rich.table import Table

from lcpd.api.guard import read_keys
from lcpd.cli.flags import load_settings

Json = dict[str, Any]
_TIMEOUT = 10.0
"""Seconds."""


@click.command()
@click.option("--url", metavar="URL", help="The daemon's address; default: that of the settings.")
@click.option(
    "--api-key-file",
    "key_file",
    metavar="F",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with an API key; default: that of the settings (server.api_key_file), unless --url is given.",
)
def slots(url: str | None, key_file: Path | None) -> None:
    """Show what each slot of a running daemon holds and does, and which requests wait.

    Prompts and replies are not shown.
    """
    server = load_settings(None, {}).settings.server
    address = (url or _own_address(server.host, server.port)).rstrip("/")
    key = _key(key_file or (None if url else server.api_key_file))
    Console().print(tables(_fetch(address, key)))


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


def _fetch(address: str, key: str | None) -> Json:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.get(f"{address}/slots", headers=headers, timeout=_TIMEOUT)
    except httpx.InvalidURL as error:
        raise click.ClickException(f"{address} is no address: {error}") from error
    except httpx.HTTPError as error:
        raise click.ClickException(
            f"no daemon answers at {address} ({error}): start one with `lcpd serve`, or name its address with --url"
        ) from error
    if response.status_code == 401:
        raise click.ClickException(
            f"the daemon at {address} wants an API key: name a file with one with --api-key-file"
        )
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code != 200 or not isinstance(body, dict) or "slots" not in body:
        raise click.ClickException(f"what answers at {address} is no lcpd daemon: status {response.status_code}")
    return body


def tables(view: Json) -> Group:
    """What ``GET /slots`` answered, to be printed."""
    shown = [_slots(view)]
    if view["waiting"]:
        shown.append(_waiting(view["waiting"]))
    return Group(*shown)


def _slots(view: Json) -> Table:
    table = Table(title=f"slots: {view['cells_used']} of {view['cells']} cells used")
    for heading in ("slot", "state", "tokens", "shared", "request", "prompt", "reply", "tokens/s", "age", "priority"):
        table.add_column(heading, justify="left" if heading in ("state", "priority") else "right")
    table.add_column("client")
    for slot in view["slots"]:
        busy = slot["request"] is not None
        table.add_row(
            str(slot["id"]),
            slot["state"],
            str(slot["n_tokens"]),
            str(slot["shared"]),
            str(slot["request"]) if busy else "",
            f"{slot['done']}/{slot['prompt_tokens']}" if busy else "",
            str(slot["generated"]) if busy else "",
            f"{slot['tokens_per_second']:.1f}" if busy else "",
            _age(slot["age"]),
            slot["priority"] or "",
            slot["client"],
        )
    return table


def _waiting(waiting: list[Json]) -> Table:
    table = Table(title="waiting, in the order in which they will be served")
    for heading in ("request", "state", "priority", "waited", "prompt", "reply"):
        table.add_column(heading, justify="left" if heading in ("state", "priority") else "right")
    table.add_column("client")
    for one in waiting:
        numbers = (str(one["prompt_tokens"]), str(one["generated"]))
        table.add_row(str(one["request"]), one["state"], one["priority"], _age(one["waited"]), *numbers, one["client"])
    return table


def _age(seconds: float) -> str:
    """A time in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
