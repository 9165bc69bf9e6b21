"""What must give where a plan does not fit: the cheapest remedies, and what each gains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lcpd.config.settings import KvType
from lcpd.inspect.shape import ModelShape
from lcpd.planning.context import Wanted
from lcpd.planning.kv import types_that_work
from lcpd.planning.plan import MIB, MemoryPlan
from lcpd.planning.rows import row_bytes
from lcpd.planning.solve import Planner, largest_ctx, largest_slots

SHOWN = 3
_UBATCH = 128
"""Tokens: smaller ones gain little and cost much speed."""


@dataclass(frozen=True)
class Remedy:
    """One change of the settings."""

    text: str
    """What to set, and what it costs."""
    wanted: Wanted
    gain: int
    """Bytes on the device."""
    suffices: bool
    """Whether the plan fits with this change alone."""
    tokens: int = 0
    """Tokens of context that are given up."""

    def __str__(self) -> str:
        given = f", {self.tokens} tokens of context less" if self.tokens else ""
        enough = "" if self.suffices else "; not enough alone"
        return f"{self.text}: gains {self.gain / MIB:.0f} MiB{given}{enough}"


def remedies(plan: MemoryPlan, planner: Planner) -> list[Remedy]:
    """At most three, the cheapest ones that suffice before those that do not; none for a plan that fits.

    Cheap is what costs least in use, in the order of `_candidates`.
    """
    if plan.fits:
        return []
    found = [remedy for remedy in _candidates(plan, planner) if remedy.gain > 0]
    enough = [remedy for remedy in found if remedy.suffices]
    others = sorted((remedy for remedy in found if not remedy.suffices), key=lambda remedy: -remedy.gain)
    return [*enough, *others][:SHOWN]


def _candidates(plan: MemoryPlan, planner: Planner) -> Iterator[Remedy]:
    """Single changes, those that hurt least first."""
    shape, wanted = plan.shape, plan.wanted
    before = planner(wanted).device  # by the same measure as after the change: the plan's own may be another

    def remedy(text: str, changed: Wanted, tokens: int = 0) -> Remedy:
        after = planner(changed)
        return Remedy(text, changed, before - after.device, after.fits, tokens)

    if wanted.drafts:
        yield remedy("no drafts (they cost a state each)", replace(wanted, drafts=0))
    if plan.context.ubatch > _UBATCH:
        yield remedy(f"model.ubatch = {_UBATCH} (slower prefill)", replace(wanted, ubatch=_UBATCH))
    smaller = _smaller_types(shape, wanted)
    if "q8_0" in smaller:
        yield remedy('model.kv = "q8_0" (hardly less exact)', replace(wanted, kv="q8_0"))
        smaller.remove("q8_0")
    if wanted.slots > 1:
        fewer = largest_slots(wanted, planner)
        slots = fewer if 0 < fewer < wanted.slots else 1
        yield remedy(f"model.slots = {slots} (fewer at once)", replace(wanted, slots=slots))
    ctx = largest_ctx(shape, wanted, planner)
    if 0 < ctx < plan.context.ctx:
        yield remedy(f"model.ctx = {ctx}", replace(wanted, ctx=ctx), tokens=plan.context.ctx - ctx)
    if smaller:
        kinds = [replace(wanted, kv=kind) for kind in smaller]
        changed = next((each for each in kinds if planner(each).fits), kinds[-1])
        yield remedy(f'model.kv = "{changed.kv}" (less exact)', changed)
    if plan.machine.gpu and wanted.gpu_layers != 0:
        changed = _fewer_on_gpu(shape, wanted, planner)
        yield remedy(f"model.gpu_layers = {changed.gpu_layers} (slower by far)", changed)


def _smaller_types(shape: ModelShape, wanted: Wanted) -> list[KvType]:
    """KV types with smaller rows, the largest first."""
    now = row_bytes(wanted.kv, 32)
    return [kind for kind in types_that_work(shape, wanted.flash_attn) if row_bytes(kind, 32) < now]


def _fewer_on_gpu(shape: ModelShape, wanted: Wanted, planner: Planner) -> Wanted:
    """As many layers on the GPU as fit; none of them if need be."""
    total = len(shape.layers) + 1
    counts = range(min(wanted.gpu_layers or total, total) - 1, 0, -1)
    options = (replace(wanted, gpu_layers=count) for count in counts)
    return next((each for each in options if planner(each).fits), replace(wanted, gpu_layers=0))
