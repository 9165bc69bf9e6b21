"""``lcpd slots``: what each slot of a running daemon holds and does, and who waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.table import Table

from lcpd.cli.remote import Daemon, daemon_flags

Json = dict[str, Any]


@click.command()
@daemon_flags
def slots(url: str | None, key_file: Path | None) -> None:
    """Show what each slot of a running daemon holds and does, and which requests wait.

    Prompts and replies are not shown.
    """
    Console().print(tables(Daemon(url, key_file).get("/slots", "slots")))


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
            age(slot["age"]),
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
        table.add_row(str(one["request"]), one["state"], one["priority"], age(one["waited"]), *numbers, one["client"])
    return table


def age(seconds: float) -> str:
    """A time in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
