"""``lcpd config``: the settings as text."""

from __future__ import annotations

from pathlib import Path

import click

from lcpd.cli.flags import load_settings, settings_flags
from lcpd.config import render


@click.group()
def config() -> None:
    """Show the settings and where they come from."""


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: sizes in bytes, names as section.key.")
@settings_flags
def show(as_json: bool, config_file: Path | None, **values: str | None) -> None:
    """Print the effective values, and where each came from.

    With the flags of `lcpd serve`: the values that it would use.  No setting is a secret: API keys are in
    a file, of which only the path is shown.
    """
    loaded = load_settings(config_file, values)
    click.echo(render.show_json(loaded) if as_json else render.show(loaded), nl=False)


@config.command()
def schema() -> None:
    """Print the JSON schema of lcpd.toml (for editors)."""
    click.echo(render.schema_text(), nl=False)


@config.command()
def example() -> None:
    """Print a commented lcpd.toml with every key and its default."""
    click.echo(render.example(), nl=False)
