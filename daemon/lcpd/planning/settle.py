"""From a choice by estimates to a plan by measured figures.

Measuring a context takes a second or more, so that a search for the largest one goes by estimates.  What was chosen is
measured, and chosen again with the estimates corrected where it proves too large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lcpd.inspect.shape import ModelShape
from lcpd.planning.compute import Compute
from lcpd.planning.context import Wanted
from lcpd.planning.plan import Machine, MemoryPlan, make
from lcpd.planning.solve import Planner

Measure = Callable[[Wanted], Compute]
"""Finds the compute buffers of settings."""
Choose = Callable[[Planner], Wanted | None]
"""Finds the settings to have, among those that a planner says fit; None: none do."""

_TRIES = 3


def settle(
    shape: ModelShape,
    wanted: Wanted,
    machine: Machine,
    measure: Measure | None,
    choose: Choose | None = None,
    *,
    projector: int = 0,
    arena: int = 0,
) -> tuple[MemoryPlan, Planner]:
    """The plan for what is chosen, or for `wanted` where nothing is, and a planner that looks for other settings.

    `measure` None: estimates are all there is.
    """

    def exact(settings: Wanted) -> MemoryPlan:
        compute = measure(settings) if measure else None
        return make(shape, settings, machine, compute, projector=projector, arena=arena)

    def corrected(off_by: int) -> Planner:
        with_less = replace(machine, margin=machine.margin + off_by)
        return lambda settings: make(shape, settings, with_less, projector=projector, arena=arena)

    plan = exact(wanted)
    off_by = plan.device - corrected(0)(wanted).device
    for _ in range(_TRIES if choose else 0):
        settings = choose(corrected(off_by)) if choose else None
        if settings is None:
            break
        plan = exact(settings)
        if plan.fits:
            break
        off_by -= plan.free or 0
    return plan, corrected(off_by)
