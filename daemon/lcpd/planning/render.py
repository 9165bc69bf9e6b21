"""A report for people: a table, a bar, and what follows from the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lcpd.planning.compare import Row
from lcpd.planning.plan import MIB, MemoryPlan
from lcpd.planning.report import Report
from lcpd.planning.versus import Versus

_COLOURS = ("blue", "cyan", "magenta", "green", "yellow", "red", "bright_blue", "bright_cyan", "bright_magenta")
_FILLS = "█▓▒▚░▞▤▥▦"
"""Told apart without colours, too."""
_WIDTH = 64
_TINY = 0.1
"""Share of the device below which a plan is drawn by itself: nothing would be seen of it."""


def render(report: Report) -> RenderableType:
    """All of it."""
    plan = report.plan
    sections: list[RenderableType] = [
        Text(_title(report), style="bold"),
        _table(plan),
        _bar(plan),
        Text(_verdict(plan)),
    ]
    sections.extend(Text(f"  {remedy}") for remedy in report.remedies)
    sections.append(Padding(Group(*(Text(line) for line in _facts(report))), (1, 0, 0, 0)))
    if report.choices:
        sections.append(_drafts(report))
    if report.versus is not None:
        sections.append(_versus(report.versus, plan))
    if plan.shape.unmodelled:
        sections.append(Text(f"Not planned: this architecture keeps {plan.shape.unmodelled}.", style="yellow"))
    return Group(*sections)


def _title(report: Report) -> str:
    plan, context = report.plan, report.plan.context
    name = plan.shape.name or plan.shape.architecture
    drafts = f", {context.drafts} drafts" if context.drafts else ""
    solved = f" (largest {report.solved} that fits)" if report.solved and plan.fits else ""
    return f"{name}: {context.ctx} tokens, {plan.wanted.slots} slots, KV {context.kv}{drafts}{solved}"


def _table(plan: MemoryPlan) -> Table:
    table = Table(box=None, pad_edge=False, show_footer=True)
    table.add_column("", footer="sum")
    table.add_column("GPU MiB" if plan.machine.gpu else "RAM MiB", justify="right", footer=_mib(plan.device))
    if plan.machine.gpu:
        table.add_column("RAM MiB", justify="right", footer=_mib(plan.host))
    table.add_column("", footer="~ estimated" if any(part.estimated for part in plan.parts) else "")
    for part in plan.parts:
        sizes = (part.device, part.host) if plan.machine.gpu else (part.device,)
        table.add_row(part.name, *(_cell(size, part.estimated) for size in sizes), part.detail)
    return table


def _cell(size: int, estimated: bool) -> str:
    if not size:
        return ""
    return f"~{size / MIB:.0f}" if estimated else f"{size / MIB:.2f}"


def _bar(plan: MemoryPlan) -> Text:
    """What the device holds, to scale; what does not fit reaches beyond its end."""
    limit = plan.machine.device_bytes
    if limit is not None and plan.device < _TINY * limit:
        limit = None
    scale = max(plan.device, limit or 0) / _WIDTH
    text, legend, at, drawn = Text("\n"), Text(), 0.0, 0
    for number, part in enumerate(part for part in plan.parts if part.device):
        fill, colour = _FILLS[number % len(_FILLS)], _COLOURS[number % len(_COLOURS)]
        at += part.device / scale
        cells = round(at) - drawn
        drawn = round(at)
        text.append(fill * cells, style=colour)
        legend.append(f" {fill} ", style=colour)
        legend.append(part.name)
    text.append("·" * (_WIDTH - drawn))
    if limit is not None:
        end = round(limit / scale)
        text.append("\n" + " " * max(0, end - 1) + "^" + f" {_mib(limit)} MiB")
    return text.append("\n").append(legend).append("\n")


def _verdict(plan: MemoryPlan) -> str:
    where = "GPU" if plan.machine.gpu else "RAM"
    if plan.free is None:
        return f"It takes {_mib(plan.device)} MiB of {where}."
    margin = f"beside a margin of {_mib(plan.machine.margin)} MiB"
    if plan.fits:
        return f"It fits: {_mib(plan.free)} MiB of {where} stay free {margin}."
    return f"It does not fit: {_mib(-plan.free)} MiB of {where} are missing {margin}.\nWhat must give:"


def _facts(report: Report) -> Iterator[str]:
    plan, talk = report.plan, report.conversation
    if report.token_bytes:
        yield f"A token takes {report.token_bytes / 1024:g} KiB of KV{_spared(plan)}."
    if report.sequence_bytes:
        yield f"A sequence takes {report.sequence_bytes / MIB:.3f} MiB of recurrent state, however long it is."
    if report.checkpoint_bytes:
        yield f"A checkpoint takes {report.checkpoint_bytes / MIB:.3f} MiB of RAM at most."
    kept = f" ({_mib(talk.segments)} MiB of KV, {talk.checkpoints} checkpoints)" if talk.checkpoints else ""
    yield f"A conversation of {talk.tokens} tokens takes {_mib(talk.nbytes)} MiB in the prompt cache{kept}."
    less = f", {talk.fit_at_least} with the last checkpoint alone" if talk.checkpoints else ""
    yield f"cache.ram of {_mib(report.policy.ram)} MiB holds {talk.fit_in_ram} such conversations{less}."
    yield (
        f"To have it back takes {_seconds(talk.from_ram)} from RAM, {_seconds(talk.from_disk)} from disk,"
        f" {_seconds(talk.cold)} to compute again"
    )
    yield (
        f"  (at {report.speeds.prefill:.0f} tokens/s, {report.speeds.copy / 1e9:g} GB/s to and from RAM,"
        f" {report.speeds.disk / 1e6:g} MB/s from disk)."
    )
    if text := report.embedding:
        ram = f"{_mib(text.device)} MiB of GPU and {_mib(text.host)}" if plan.machine.gpu else _mib(text.device)
        yield f"Not in the sum: the first text to embed takes about {ram} MiB of RAM until a minute after the last."
    if plan.context.ctx > plan.shape.n_ctx_train:
        yield f"The model was trained on {plan.shape.n_ctx_train} tokens, which is less."


def _spared(plan: MemoryPlan) -> str:
    """How much less that is than if all layers kept KV for the whole context."""
    shape = plan.shape
    kept, others = len(shape.attention_layers), len(shape.window_layers) + len(shape.recurrent_layers)
    if not kept or not others or kept == shape.n_layer:
        return ""
    return f": {kept} of {shape.n_layer} layers keep it, {shape.n_layer / kept:.1f} times less than all would"


def _drafts(report: Report) -> RenderableType:
    table = Table(box=None, pad_edge=False, title="Drafts and slots that fit together", title_justify="left")
    for name in ("drafts", "slots at this context", "context with these slots", "state MiB"):
        table.add_column(name, justify="right")
    for choice in report.choices:
        table.add_row(str(choice.drafts), _or_none(choice.slots), _or_none(choice.ctx), _mib(choice.state_bytes))
    return Padding(table, (1, 0, 0, 0))


def _versus(versus: Versus, plan: MemoryPlan) -> RenderableType:
    table = Table(box=None, pad_edge=False, title="Tokens in the same memory", title_justify="left")
    table.add_column("requests at once", justify="right")
    table.add_column(f"lcpd, KV {plan.context.kv}", justify="right")
    for other in versus.paged:
        table.add_column(f"unified pages, fp8, {other.drafts} drafts", justify="right")
    for side in versus.sides:
        table.add_row(str(side.requests), str(side.ours), *map(_or_none, side.paged))
    notes = [
        f"{other.drafts} drafts: {paging.blocks(versus.available)} blocks of {paging.block_tokens} tokens and"
        f" {_mib(paging.block_bytes)} MiB, {paging.padding_layers} padding layers,"
        f" {paging.state_blocks * paging.recurrent_groups} blocks of state for each request"
        for other in versus.paged
        for paging in (other.paging,)
    ]
    about = f"Of {_mib(versus.available)} MiB for KV and state. Unified pages (vLLM) with"
    return Padding(Group(table, Text("\n  ".join([about, *notes]))), (1, 0, 0, 0))


def comparison(rows: Sequence[Row]) -> RenderableType:
    """The plan beside what was allocated."""
    table = Table(box=None, pad_edge=False, title="Plan and truth, MiB", title_justify="left")
    for name in ("", "planned", "loaded", "difference"):
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        difference = "none" if row.equal else f"{(row.planned - row.loaded) / MIB:+.2f}"
        table.add_row(row.name, f"{row.planned / MIB:.2f}", f"{row.loaded / MIB:.2f}", difference)
    return Padding(table, (1, 0, 0, 0))


def _mib(size: int) -> str:
    return f"{size / MIB:.0f}" if size >= 100 * MIB or not size else f"{size / MIB:.2f}"


def _or_none(count: int) -> str:
    return str(count) if count else "none"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
