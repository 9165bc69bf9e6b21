"""``lcpd inspect``: what a model is, from the header of its file."""

from __future__ import annotations

import json

import click
from rich.console import Console

from lcpd.cli.flags import ConfigurationFailure
from lcpd.inspect.header import GgufError
from lcpd.inspect.report import as_json, inspect_file
from lcpd.inspect.text import rendered
from lcpd.models.locate import ModelMissing, resolve
from lcpd.models.reference import BadReference
from lcpd.paths import dirs


@click.command()
@click.argument("ref")
@click.option("--json", "as_data", is_flag=True, help="Print JSON.")
def inspect(ref: str, as_data: bool) -> None:
    """Show what the model or projector REF is: a .gguf file, demo:NAME or hf:OWNER/REPO[:QUANT].

    Only the header of the file is read, and nothing of it is executed.
    """
    try:
        report = inspect_file(resolve(ref, dirs()))
    except BadReference as error:
        raise ConfigurationFailure(str(error)) from None
    except (ModelMissing, GgufError) as error:
        raise click.ClickException(str(error)) from None
    if as_data:
        click.echo(json.dumps(as_json(report), indent=2))
    else:
        Console().print(rendered(report), markup=False, highlight=False)
