"""The plan: every part of the memory that a model and its context take, and where.

Sizes are bytes.  `device` is the GPU, or the host's memory where there is none; `host` is the host's beside a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lcpd.inspect.shape import ModelShape
from lcpd.planning.compute import Compute, estimate, output_bytes
from lcpd.planning.context import Context, Wanted, resolve
from lcpd.planning.kv import Cache, caches
from lcpd.planning.recurrent import State, share_in, state
from lcpd.planning.weights import Placed, offloaded, place, repacked

MIB = 2**20

GPU_RUNTIME = 400 * MIB
"""What a process takes of a GPU beside its buffers: the CUDA context, loaded kernels, the workspaces of cuBLAS.  An
estimate: 250 to 500 MiB, by the driver and the card."""
MARGIN = 256 * MIB
"""What stays free, for what cannot be foreseen: a driver that aligns allocations, a display."""


@dataclass(frozen=True)
class Machine:
    """Where it is to run."""

    gpu: bool
    device_bytes: int | None
    """Memory of the device that may be used; None: no limit is known."""
    cpu_flags: frozenset[str] = frozenset()
    """Features of the CPU, as /proc/cpuinfo names them."""
    overhead: int = GPU_RUNTIME
    """Taken of a GPU beside what is planned."""
    margin: int = MARGIN


@dataclass(frozen=True)
class Part:
    """One line of the plan."""

    name: str
    device: int
    host: int = 0
    detail: str = ""
    estimated: bool = False
    """False: to the byte what libllama allocates."""
    unread: int = 0
    """Bytes of `device` that are mapped from a file and not read any more, which the kernel can take back."""


@dataclass(frozen=True)
class MemoryPlan:
    """All of it."""

    shape: ModelShape
    wanted: Wanted
    machine: Machine
    context: Context
    caches: tuple[Cache, ...]
    state: State
    parts: tuple[Part, ...] = field(default=())

    @property
    def device(self) -> int:
        """Bytes on the device."""
        return sum(part.device for part in self.parts)

    @property
    def host(self) -> int:
        """Bytes on the host beside a GPU."""
        return sum(part.host for part in self.parts)

    @property
    def needed(self) -> int:
        """Bytes of the device that must stay."""
        return self.device - sum(part.unread for part in self.parts)

    @property
    def free(self) -> int | None:
        """What the device has left beside the margin, negative where it does not fit; None: it is not known."""
        limit = self.machine.device_bytes
        return None if limit is None else limit - self.machine.margin - self.needed

    @property
    def fits(self) -> bool:
        """Whether the device holds it, with the margin; true where its size is not known."""
        return self.free is None or self.free >= 0

    @property
    def kv_bytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)


def make(
    shape: ModelShape,
    wanted: Wanted,
    machine: Machine,
    compute: Compute | None = None,
    *,
    projector: int = 0,
    arena: int = 0,
) -> MemoryPlan:
    """Plan the memory for these settings.

    `compute`: the buffers as a dry run found them for just these settings; None: they are estimated.  `projector`:
    bytes of the weights of a vision projector.  `arena`: bytes of the prompt cache in RAM.
    """
    context = resolve(shape, wanted)
    found = caches(shape, context)
    rows = state(shape, context)
    placed = place(shape, wanted.gpu_layers if machine.gpu else 0, draft_heads=wanted.drafts > 0)
    buffers = compute or estimate(shape, context, machine.gpu)
    copies = 0 if machine.gpu else repacked(shape, machine.cpu_flags, wanted.drafts > 0)
    # Without a GPU all layers are on the device of the plan, which is the host then.
    here = offloaded(shape, wanted.gpu_layers if machine.gpu else None)
    parts = [_on_cards(placed, wanted, shape) if machine.gpu else _on_the_host(placed, copies, wanted.mmap)]
    if copies:
        parts.append(
            Part("weights, repacked", copies, detail="copies in the order of the CPU's kernels", estimated=True)
        )
    if projector:
        parts.append(Part("projector", projector, detail="its weights; what an image takes to compute comes on top"))
    for cache, part in zip(found, caches(shape, context, here), strict=True):
        detail = f"{cache.layers} layers x {cache.cells} cells, {context.kv}"
        parts.append(Part(f"KV, {cache.name}", part.nbytes, cache.nbytes - part.nbytes, detail))
    if rows.nbytes:
        snapshots = f" x {1 + context.snapshots} states" if context.snapshots else ""
        detail = f"{context.sequences} sequences{snapshots}, one of them scratch"
        part_here = int(rows.nbytes * share_in(shape, here))
        parts.append(Part("recurrent state", part_here, rows.nbytes - part_here, detail))
    parts.append(
        Part("compute", buffers.device, buffers.host, f"batches of {context.ubatch} tokens", estimated=compute is None)
    )
    if context.drafts and shape.mtp_layers:
        # The context of the heads has a graph of its own, which ends in logits too.
        heads = estimate(shape, context, machine.gpu)
        parts.append(Part("compute, drafts", heads.device, heads.host, "the heads' own context", estimated=True))
    parts.append(_on_host("output", output_bytes(shape, context), machine.gpu, "logits of a token of each sequence"))
    if machine.gpu:
        parts.append(Part("runtime", machine.overhead, detail="context, kernels, workspaces", estimated=True))
    if arena:
        parts.append(_on_host("prompt cache", arena, machine.gpu, "cache.ram, taken as it fills"))
    return MemoryPlan(shape, wanted, machine, context, found, rows, tuple(parts))


def _on_host(name: str, size: int, has_gpu: bool, detail: str = "") -> Part:
    """In the host's memory, which is the device where there is no GPU."""
    return Part(name, 0, size, detail) if has_gpu else Part(name, size, 0, detail)


def _on_cards(placed: Placed, wanted: Wanted, shape: ModelShape) -> Part:
    total = len(shape.layers) + 1
    count = total if wanted.gpu_layers is None else min(wanted.gpu_layers, total)
    detail = f"{count} of {total} layers on the GPU, token embeddings on the host"
    return Part("weights", placed.gpu, placed.host, detail)


def _on_the_host(placed: Placed, copies: int, mmap: bool) -> Part:
    """What is copied need not be read again: its pages of a mapped file are free to go, and else it is not kept."""
    if not mmap:
        return Part("weights", placed.host - copies)
    detail = f"mapped; {copies // MIB} MiB are not read any more" if copies >= MIB else "mapped"
    return Part("weights", placed.host, detail=detail, unread=copies)
