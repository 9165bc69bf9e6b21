"""``lcpd key``: make API keys."""

from __future__ import annotations

import click

from lcpd.keys import LONGEST_NAME, OPTIONS, digest_of, is_name, new_key


@click.group()
def key() -> None:
    """Make API keys."""


@key.command(epilog=f"Options that may follow on the line: {OPTIONS}.")
@click.argument("name")
def new(name: str) -> None:
    """Print a fresh key, and the line for the key file, which does not show it.

    The file is that of server.api_key_file (or server.admin_key_file); it is read at the start and on
    SIGHUP (systemctl reload lcpd).
    """
    if not is_name(name):
        raise click.UsageError(f"a key's name has at most {LONGEST_NAME} of A-Z a-z 0-9 . _ -, not {name!r}")
    secret = new_key()
    click.echo("# for the client; it is not shown again")
    click.echo(secret)
    click.echo("# for the key file")
    click.echo(f"{name} sha256:{digest_of(secret)}")
