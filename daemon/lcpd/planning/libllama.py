"""A model as the libllama of a build sees it: compute buffers without loading it, all sizes by loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lcpd.config.settings import Settings
from lcpd.inspect.shape import ModelShape
from lcpd.planning.compute import Compute
from lcpd.planning.context import Wanted, resolve
from lcpd.planning.dry_run import Request, Run, ask
from lcpd.planning.loglines import Logged
from lcpd.planning.plan import MIB


@dataclass(frozen=True)
class Libllama:
    """Asks in a process of its own; see :mod:`lcpd.planning.dry_run`.  Its methods raise DryRunFailed."""

    lib_dir: Path
    path: Path
    """The model's (first) file."""
    shape: ModelShape
    settings: Settings

    def compute(self, wanted: Wanted) -> Compute:
        """The compute buffers that a context takes, from a load that is only simulated."""
        buffers = self._ask(wanted, real=False).buffers.get("compute", {})
        host = sum(mib for device, mib in buffers.items() if _is_host(device))
        device = sum(mib for device, mib in buffers.items() if not _is_host(device))
        if not device:
            device, host = host, 0.0  # no GPU: the host is the device
        return Compute(round(device * MIB), round(host * MIB))

    def load(self, wanted: Wanted) -> Logged:
        """The sizes of everything, from a real load."""
        return self._ask(wanted, real=True)

    def _ask(self, wanted: Wanted, real: bool) -> Logged:
        context = resolve(self.shape, wanted)
        model = self.settings.model
        run = Run(
            n_ctx=context.cells,
            n_seq=context.sequences,
            n_batch=min(wanted.batch, context.ctx),
            n_ubatch=context.ubatch,
            kv_type=wanted.kv,
            flash_attn=model.flash_attn,
        )
        request = Request(
            path=str(self.path),
            runs=[run],
            real=real,
            gpu_layers=-1 if wanted.gpu_layers is None else wanted.gpu_layers,
            tensor_split=list(model.tensor_split),
            main_gpu=model.main_gpu,
            mmap=model.mmap,
        )
        (logged,), _ = ask(request, self.lib_dir)
        return logged


def _is_host(device: str) -> bool:
    """Whether a buffer of that name is in the host's memory: CPU, CPU_Mapped, CUDA_Host."""
    return device.startswith("CPU") or device.endswith("_Host")
