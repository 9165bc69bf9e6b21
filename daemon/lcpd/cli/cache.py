"""``lcpd cache``: what the prompt cache of a running daemon holds, why a request computed what it did, and pins."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import click
import msgspec
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from lcpd.cli.remote import Daemon, daemon_flags
from lcpd.cli.slots import age
from lcpd.config.sizes import readable_size

Json = dict[str, Any]
_NOT_LOST = ("new", "last token")
"""Reasons for which no cache could do better."""


@click.group(invoke_without_command=True)
@daemon_flags
@click.pass_context
def cache(ctx: click.Context, url: str | None, key_file: Path | None) -> None:
    """Show what the prompt cache of a running daemon holds, as a tree.

    Texts are shown only with an admin key (server.admin_key_file).
    """
    daemon = ctx.obj = Daemon(url, key_file)
    if ctx.invoked_subcommand is None:
        Console().print(tree(daemon.get("/cache", "branches")))


@cache.command()
@click.argument("request_id", metavar="REQUEST_ID")
@click.pass_obj
def why(daemon: Daemon, request_id: str) -> None:
    """Say where the prompt of a request came from, and why the rest was computed.

    REQUEST_ID is the reply's id, also in its header x-lcpd-request-id.
    """
    Console().print(
        explained(daemon.get(f"/cache/requests/{quote(request_id, safe='')}", "why")), markup=False, highlight=False
    )


@cache.command()
@click.argument("file", type=click.File("rb"))
@click.pass_obj
def pin(daemon: Daemon, file: IO[bytes]) -> None:
    """Never give up a conversation for want of room.  Needs an admin key.

    FILE (or -) holds the body of a chat request; what is no JSON object is the text of a prompt.
    """
    answer = daemon.post("/cache/pin", _body(file), "pin")
    click.echo(f"pin {answer['pin']}: {answer['tokens']} tokens, of which {answer['ram']} are in RAM now")


@cache.command()
@click.argument("number", type=click.IntRange(1))
@click.pass_obj
def unpin(daemon: Daemon, number: int) -> None:
    """Undo a pin.  Needs an admin key."""
    daemon.post("/cache/unpin", {"pin": number}, "unpinned")
    click.echo(f"pin {number} is undone")


@cache.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def purge(daemon: Daemon, yes: bool) -> None:
    """Forget all prompts and replies: in RAM, pinned ones too, on disk, in idle slots, and stored responses.

    Needs an admin key.
    """
    if not yes:
        click.confirm(f"Remove everything that the daemon at {daemon.address} has cached?", abort=True)
    purged = daemon.post("/cache/purge", {}, "purged")["purged"]
    click.echo(f"RAM: {readable_size(purged['ram']['bytes'])} removed")
    if "disk" in purged:
        click.echo(f"disk: {purged['disk']['files']:,} files ({readable_size(purged['disk']['bytes'])}) removed")
    click.echo(f"stored responses: {purged['responses']['count']:,} removed")


def _body(file: IO[bytes]) -> Json:
    data = file.read()
    if not data.strip():
        raise click.ClickException(f"{file.name} is empty; it must hold the body of a chat request, or text")
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError:
        body = None
    if isinstance(body, dict):
        return body
    try:
        return {"prompt": data.decode()}
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file.name} is neither JSON nor text: {error}") from error


def tree(view: Json) -> Group:
    """What ``GET /cache`` answered, to be printed."""
    shown: list[Any] = [_totals(view["ram"])]
    if "disk" in view:
        shown.append(escape(_on_disk(view["disk"])))
    root = Tree("prompts")
    nodes = {None: root}
    for branch in view["branches"]:
        nodes[branch["id"]] = nodes[branch["parent"]].add(_branch(branch))
    shown.append(root)
    if view["omitted"]:
        shown.append(f"{view['omitted']:,} smaller branches are not shown")
    if view["pins"]:
        shown.append(_pins(view["pins"]))
    return Group(*shown)


def _totals(ram: Json) -> str:
    share = 100 * ram["used"] / ram["size"] if ram["size"] else 0
    return (
        f"RAM: {readable_size(ram['used'])} of {readable_size(ram['size'])} used ({share:.0f} %):"
        f" {ram['tokens']:,} tokens in {ram['segments']:,} segments ({readable_size(ram['segment_bytes'])}),"
        f" {ram['checkpoints']:,} checkpoints ({readable_size(ram['checkpoint_bytes'])})"
    )


def _on_disk(disk: Json) -> str:
    share = 100 * disk["used"] / disk["size"]
    used = f"{readable_size(disk['used'])} of {readable_size(disk['size'])} used ({share:.0f} %)"
    line = f"disk: {used} in {disk['files']:,} files"
    if disk["queue"]:
        line += f", {disk['queue']:,} conversations wait to be written"
    return line + (f"; {disk['state']}: {disk['reason']}" if disk["reason"] else "")


def _branch(branch: Json) -> str:
    parts = [f"{branch['begin']:,} + {branch['tokens']:,} tokens"]
    tiers = [f"{tier} {branch[tier]:,}" for tier in ("vram", "ram") if branch[tier]]
    parts.append(", ".join(tiers) or "forgotten")
    if branch["bytes"]:
        parts.append(readable_size(branch["bytes"]))
    if branch["checkpoints"]:
        parts.append(f"checkpoints {len(branch['checkpoints'])}")
    if branch["hits"]:
        parts.append(f"hits {branch['hits']}")
    if branch["age"] is not None:
        parts.append(f"{age(branch['age'])} ago")
    if branch["held"]:
        parts.append("pinned")
    if "text" in branch:
        parts.append(quoted(branch["text"]))
    return escape(" · ".join(parts))


def _pins(pins: list[Json]) -> Table:
    table = Table(title="pinned")
    table.add_column("pin", justify="right")
    table.add_column("tokens", justify="right")
    for one in pins:
        table.add_row(str(one["pin"]), f"{one['tokens']:,}")
    return table


def explained(report: Json) -> str:
    """What ``GET /cache/requests/ID`` answered, in words."""
    tiers = [f"{report[tier]:,} {where}" for tier, where in _TIERS if report.get(tier)]
    lines = [
        f"{report['id']}: {report['prompt']:,} tokens in the prompt, {report['hit']:,} of them not computed again"
        + (f" ({', '.join(tiers)})" if tiers else "")
    ]
    for part in report["why"]:
        lines.append(f"computed {part['begin']:,} to {part['end']:,} ({part['end'] - part['begin']:,}): {_why(part)}")
    lost = sum(part["end"] - part["begin"] for part in report["why"] if part["reason"] not in _NOT_LOST)
    lines.append(f"lost: {lost:,} tokens" if lost else "nothing was lost: no cache could have done better")
    lines += [_NORMALISED.get(rule, rule) for rule in report.get("normalised", [])]
    return "\n".join(lines)


_NORMALISED = {
    "tool-order": "the tools came in another order than before and were rendered in the old one",
    "attribution": "a line in front of the system text, which differs from session to session, was left out",
    "tool-keys": "tools had their keys in another order than before and were rendered as they were written then",
}
_TIERS = (("vram", "in its slot"), ("shared", "shared with another slot"), ("ram", "from RAM"), ("disk", "from disk"))


def _why(part: Json) -> str:
    if "position" not in part:
        return f"{part['reason']}: {part['detail']}" if part["detail"] else part["reason"]
    message = f" in the {part['role']} message" if part["role"] else ""
    where = f"token {part['position']:,}{message}"
    if "text" not in part:
        return f"diverged at {where} (an admin key shows the texts)"
    before, ours, theirs = (part["text"][name] for name in ("before", "ours", "theirs"))
    return f"{where}: {quoted(before + theirs)} became {quoted(before + ours)}"


def quoted(text: str) -> str:
    """A text on one line."""
    return msgspec.json.encode(text).decode()
