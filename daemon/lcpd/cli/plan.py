"""``lcpd plan``: what memory a model takes, before it is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
from rich.console import Console, Group

from lcpd.build.record import active
from lcpd.cli.flags import ConfigurationFailure, load_settings
from lcpd.config.settings import Settings
from lcpd.config.sizes import parse_size
from lcpd.inspect.header import GgufError
from lcpd.inspect.parts import Gguf, read_model
from lcpd.inspect.shape import ModelShape, ShapeError, shape_of
from lcpd.models.locate import ModelMissing, resolve
from lcpd.models.reference import BadReference
from lcpd.paths import dirs
from lcpd.planning.at_load import wanted_of
from lcpd.planning.automatic import LEAST
from lcpd.planning.compare import compare as compare_with
from lcpd.planning.devices import arena_on, machine_for
from lcpd.planning.dry_run import DryRunFailed
from lcpd.planning.host import CachePolicy, Speeds
from lcpd.planning.libllama import Libllama
from lcpd.planning.plan import MARGIN, Machine
from lcpd.planning.render import comparison, render
from lcpd.planning.report import CannotPlan, Question, as_json, report
from lcpd.planning.solve import Goal
from lcpd.scheduler.speeds import guessed_prefill

DOES_NOT_FIT = 3
"""Exit status."""

MOST_TOKENS = 1 << 24
"""As many as ``model.ctx`` may have."""


class SizeOption(click.ParamType[int]):
    """An amount of memory: 24GiB."""

    name = "SIZE"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < self.least:
            self.fail(f"must be at least {self.least} bytes", param, ctx)
        return size


@click.command()
@click.argument("model", required=False)
@click.option("--config", "config_file", metavar="F", type=click.Path(path_type=Path), help="The settings file.")
@click.option("--vram", type=SizeOption(), help="Plan for a GPU with that much memory, instead of for this machine.")
@click.option("--ctx", metavar="auto|N", help="Context in tokens.")
@click.option("--slots", metavar="N", help="Sequences that can run at once.")
@click.option("--kv", metavar="TYPE", help="Type of the KV cache.")
@click.option("--ubatch", metavar="N", help="Tokens computed together.")
@click.option("--gpu-layers", metavar="auto|N", help="Layers on the GPU.")
@click.option(
    "--drafts",
    type=click.IntRange(0, 16),
    default=0,
    help="Plan for drafts of so many tokens; the daemon makes none yet.",
)
@click.option(
    "--mmproj",
    type=click.Path(path_type=Path),
    metavar="F",
    help="Plan for a vision projector, too; the daemon loads none yet.",
)
@click.option(
    "--solve",
    type=click.Choice(get_args(Goal)),
    help="Find the largest context, the most slots, or the most exact KV type that fit.",
)
@click.option(
    "--tokens", type=click.IntRange(1, MOST_TOKENS), help="Length of the conversation to cost; default: the context."
)
@click.option("--prefill-speed", type=click.IntRange(1), help="Tokens a second; default: guessed from the size.")
@click.option("--copy-speed", type=SizeOption(1), default="4GB", show_default=True, help="A second, to and from RAM.")
@click.option("--disk-speed", type=SizeOption(1), default="500MB", show_default=True, help="A second, from disk.")
@click.option("--margin", type=SizeOption(), default=MARGIN, help="Memory to leave free; default: 256MiB.")
@click.option("--estimate", is_flag=True, help="Do not ask libllama for the compute buffers.")
@click.option("--compare", is_flag=True, help="Load the model, and show the plan beside what was allocated.")
@click.option("--json", "as_data", is_flag=True, help="Print data for programs, in bytes, tokens and seconds.")
def plan(
    model: str | None,
    config_file: Path | None,
    vram: int | None,
    drafts: int,
    mmproj: Path | None,
    solve: Goal | None,
    tokens: int | None,
    prefill_speed: int | None,
    copy_speed: int,
    disk_speed: int,
    margin: int,
    estimate: bool,
    compare: bool,
    as_data: bool,
    **flags: str | None,
) -> int:
    """Show what memory MODEL takes with the settings, and whether it fits.

    Without MODEL that of the settings is planned.  Nothing is loaded, but for --compare.  Exit status 3: it does not
    fit.
    """
    given = {f"model__{name}": value for name, value in flags.items()}
    settings = load_settings(config_file, {**given, "model__ref": model}, {"model.ref": "MODEL"}).settings
    path, shape = _model(settings)
    if drafts and not shape.mtp_layers:
        raise click.UsageError("--drafts: the model has no layers to draft with")
    build = active()
    wanted = wanted_of(settings.model, LEAST, drafts)
    if vram is not None:
        machine = Machine(gpu=True, device_bytes=vram)
    else:
        machine = machine_for(build, wanted.gpu_layers, settings.model.tensor_split)
    speeds = Speeds(
        prefill=prefill_speed or guessed_prefill(shape.weights.elements, machine.gpu), copy=copy_speed, disk=disk_speed
    )
    question = Question(
        wanted=wanted,
        machine=replace(machine, margin=margin),
        policy=CachePolicy(settings.cache.ram, settings.cache.checkpoint_interval, settings.model.checkpoints),
        speeds=speeds,
        tokens=tokens or 0,
        goal=solve,
        automatic=(settings.model.ctx == "auto", settings.model.kv == "auto"),
        arena=arena_on(machine, settings.cache.ram, shape.weights.nbytes),
        embeddings_ctx=0 if settings.model.embeddings == "off" else settings.model.embeddings_ctx,
        projector=sum(tensor.nbytes for tensor in _header(mmproj).tensors) if mmproj else 0,
    )
    libllama = None if vram is not None or build is None else Libllama(build.lib_dir, path, shape, settings)
    if compare and libllama is None:
        raise click.UsageError("--compare loads the model here: it needs a build (lcpd build), and goes without --vram")
    try:
        found = report(shape, question, None if estimate or libllama is None else libllama.compute)
    except CannotPlan as error:
        raise click.ClickException(str(error)) from None
    except DryRunFailed as error:
        click.echo(f"lcpd: {error}; the compute buffers are estimated", err=True)
        found = report(shape, question)
    data, shown = as_json(found), render(found)
    if compare and libllama is not None:
        try:
            rows = compare_with(found.plan, libllama.load(found.plan.wanted))
        except DryRunFailed as error:
            raise click.ClickException(str(error)) from None
        data["compared"] = [{"name": row.name, "planned": row.planned, "loaded": row.loaded} for row in rows]
        shown = Group(shown, comparison(rows))
    if as_data:
        click.echo(msgspec.json.format(msgspec.json.encode(data)).decode())
    else:
        Console().print(shown, highlight=False)
    return 0 if found.plan.fits else DOES_NOT_FIT


def _model(settings: Settings) -> tuple[Path, ModelShape]:
    try:
        path = resolve(settings.model.ref, dirs())
    except BadReference as error:
        raise ConfigurationFailure(str(error)) from None
    except ModelMissing as error:
        raise click.ClickException(str(error)) from None
    gguf = _header(path)
    try:
        return path, shape_of(gguf.metadata, gguf.tensors)
    except ShapeError as error:
        raise click.ClickException(f"{path}: {error}") from None


def _header(path: Path) -> Gguf:
    try:
        return read_model(path)
    except GgufError as error:
        raise click.ClickException(str(error)) from None
