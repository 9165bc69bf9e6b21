"""``lcpd sleep``: free the engine's memory and keep the prompt cache."""

from __future__ import annotations

from pathlib import Path

import click

from lcpd.cli.remote import Daemon, daemon_flags

_TIMEOUT = 3600.0
"""Seconds; running requests finish first."""


@click.command()
@click.option("--wake", is_flag=True, help="Start the engine again, before a request does.")
@daemon_flags
def sleep(wake: bool, url: str | None, key_file: Path | None) -> None:
    """Put a running daemon's engine to sleep: its memory is freed, the prompt cache is kept.

    Running requests finish first.  The next request wakes the engine.  An admin key is needed (server.admin_key_file).
    """
    answer = Daemon(url, key_file).post("/wake" if wake else "/sleep", {}, "asleep", _TIMEOUT)
    if wake:
        click.echo("the engine is being started")
    elif answer["asleep"]:
        click.echo("the engine sleeps; the next request wakes it")
    else:
        raise click.ClickException("the engine stays awake: a request came")
