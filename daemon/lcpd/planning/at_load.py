"""The plan of a daemon before it loads its model: what is automatic is chosen, and what cannot fit is refused.

A plan has estimates in it, and libllama may do with less; so settings that somebody wrote down are refused only where
the parts that are known to the byte are more than there is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from lcpd.build.record import Build
from lcpd.config.settings import ModelSettings, Settings
from lcpd.inspect.header import GgufError
from lcpd.inspect.metadata import NotAModel
from lcpd.inspect.parts import read_model
from lcpd.inspect.shape import ModelShape, ShapeError, shape_of
from lcpd.planning.automatic import LEAST, chooser
from lcpd.planning.context import Wanted
from lcpd.planning.devices import arena_on, machine_for
from lcpd.planning.dry_run import DryRunFailed
from lcpd.planning.kv import refusal, types_that_work
from lcpd.planning.libllama import Libllama
from lcpd.planning.plan import MIB, Machine, MemoryPlan
from lcpd.planning.remedies import remedies
from lcpd.planning.settle import settle

log = logging.getLogger("lcpd")


class DoesNotFit(Exception):
    """The model cannot run with these settings on this machine; one line for the fact, one for each remedy."""


class Unreadable(Exception):
    """The file is cut off, damaged or no model at all; the message says where it is so, and the remedy."""


@dataclass(frozen=True)
class AtLoad:
    """What a daemon starts with."""

    settings: Settings
    """With nothing automatic left."""
    plan: MemoryPlan | None
    """None where the model's header says too little."""


def plan_load(settings: Settings, path: Path, build: Build) -> AtLoad:
    """Plan the load of the model at `path`.  Raises DoesNotFit or Unreadable.

    With automatic settings libllama lays out what is chosen, without loading the model: a second or two.
    """
    model = settings.model
    automatic = model.ctx == "auto" or model.kv == "auto"
    shape, problem = _shape(path)
    if shape is None:
        if automatic:
            raise DoesNotFit(f'model.ctx, model.kv: "auto" needs a model that can be planned: {problem}')
        log.info("the memory of the model is not planned: %s", problem)
        return AtLoad(settings, None)
    machine = machine_for(build, None if model.gpu_layers == "auto" else model.gpu_layers, model.tensor_split)
    arena = arena_on(machine, settings.cache.ram, shape.weights.nbytes)
    wanted = wanted_of(model, 0)
    if reason := refusal(shape, wanted.kv, wanted.flash_attn):
        raise DoesNotFit(f"model.kv: {reason}; choose one of {', '.join(types_that_work(shape, wanted.flash_attn))}")
    if not automatic:
        plan, planner = settle(shape, wanted, machine, None, arena=arena)
        if machine.device_bytes is not None and _certain(plan, model) > machine.device_bytes:
            raise DoesNotFit("\n".join([_missing(plan), *(f"  {each}" for each in remedies(plan, planner))]))
        return AtLoad(settings, plan)
    if machine.device_bytes is None:
        raise DoesNotFit('model.ctx, model.kv: "auto" needs a GPU that tells its free memory; set them')
    return _chosen(settings, path, build, shape, machine, arena)


def _shape(path: Path) -> tuple[ModelShape | None, str]:
    """The shape of the model, or why it cannot be planned.  Raises Unreadable for what llama.cpp would not open."""
    try:
        gguf = read_model(path)
    except GgufError as error:
        raise Unreadable(str(error)) from None
    try:
        shape = shape_of(gguf.metadata, gguf.tensors)
    except NotAModel as error:
        raise Unreadable(f"{path}: {error}") from None
    except ShapeError as error:
        return None, str(error)
    if shape.unmodelled:
        return None, f"{shape.architecture} keeps {shape.unmodelled}"
    return shape, ""


def _chosen(settings: Settings, path: Path, build: Build, shape: ModelShape, machine: Machine, arena: int) -> AtLoad:
    model = settings.model
    wanted = wanted_of(model, LEAST)
    choose = chooser(shape, wanted, model.ctx == "auto", model.kv == "auto")
    libllama = Libllama(build.lib_dir, path, shape, settings)
    try:
        plan, planner = settle(shape, wanted, machine, libllama.compute, choose, arena=arena)
    except DryRunFailed as error:
        log.warning("compute buffers are estimated: %s", error)
        plan, planner = settle(shape, wanted, machine, None, choose, arena=arena)
    if not plan.fits:
        raise DoesNotFit("\n".join([_missing(plan), *(f"  {each}" for each in remedies(plan, planner))]))
    chosen = model.model_copy(update={"ctx": plan.context.ctx, "kv": plan.context.kv})
    log.info(
        "automatic: model.ctx = %d, model.kv = %s; %d of %d MiB stay free beside a margin of %d MiB",
        plan.context.ctx,
        plan.context.kv,
        (plan.free or 0) / MIB,
        (machine.device_bytes or 0) / MIB,
        machine.margin / MIB,
    )
    return AtLoad(settings.model_copy(update={"model": chosen}), plan)


def wanted_of(model: ModelSettings, automatic_ctx: int, drafts: int = 0) -> Wanted:
    """The settings that decide about memory; automatic ones at their least, for a start."""
    return Wanted(
        ctx=automatic_ctx if model.ctx == "auto" else model.ctx,
        slots=model.slots,
        kv="f16" if model.kv == "auto" else model.kv,
        batch=model.batch,
        ubatch=model.ubatch,
        flash_attn=model.flash_attn != "off",
        drafts=drafts,
        gpu_layers=None if model.gpu_layers == "auto" else model.gpu_layers,
        mmap=model.mmap,
    )


def _certain(plan: MemoryPlan, model: ModelSettings) -> int:
    """Bytes that will be taken of the device, whatever else.

    On the host a mapped file need not be in memory as a whole, and the prompt cache takes what there is.
    """
    left_out = {"prompt cache"}
    if not plan.machine.gpu and model.mmap and not model.mlock:
        left_out.add("weights")
    return sum(part.device for part in plan.parts if not part.estimated and part.name not in left_out)


def _missing(plan: MemoryPlan) -> str:
    where = "the GPU has" if plan.machine.gpu else "there are"
    free = (plan.machine.device_bytes or 0) / MIB
    return (
        f"the model needs {plan.device / MIB:.0f} MiB with model.ctx = {plan.context.ctx}, model.slots ="
        f" {plan.wanted.slots} and model.kv = {plan.context.kv}, and {where} {free:.0f} MiB free; lcpd plan shows more."
        " What would help:"
    )
