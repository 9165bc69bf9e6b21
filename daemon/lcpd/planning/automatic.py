"""`model.ctx = "auto"` and `model.kv = "auto"`: what they stand for on a machine.

ctx    kv     what is chosen
auto   fixed  the longest context that fits, at most the model's own
fixed  auto   the most exact type from f16 on with which the context fits
auto   auto   f16 where the model's whole context fits with it; else q8_0, which is hardly less exact, and the longest
              context that fits
"""

from __future__ import annotations

from dataclasses import replace

from lcpd.inspect.shape import ModelShape
from lcpd.planning.context import Wanted, padded
from lcpd.planning.kv import types_that_work
from lcpd.planning.settle import Choose
from lcpd.planning.solve import Planner, solve

LEAST = 2048
"""Tokens: a context that is chosen is not shorter; below that nothing useful can be done."""


def chooser(shape: ModelShape, wanted: Wanted, ctx: bool, kv: bool) -> Choose:
    """Finds the settings, with those automatic that are said to be; None where none fit."""

    def choose(planner: Planner) -> Wanted | None:
        if not ctx:
            return solve("kv", shape, wanted, planner)
        if not kv:
            return _longest(shape, wanted, planner)
        exact = _longest(shape, replace(wanted, kv="f16"), planner)
        if exact is not None and padded(exact.ctx) >= shape.n_ctx_train // 256 * 256:
            return exact
        if "q8_0" not in types_that_work(shape, wanted.flash_attn):
            return exact
        return _longest(shape, replace(wanted, kv="q8_0"), planner)

    return choose


def _longest(shape: ModelShape, wanted: Wanted, planner: Planner) -> Wanted | None:
    found = solve("ctx", shape, wanted, planner)
    return found if found is not None and found.ctx >= min(LEAST, shape.n_ctx_train // 256 * 256) else None
