"""Which GPUs and drivers are there, and which backend that means.

A GPU with its driver decides, not an installed nvcc: the toolkit can be fetched, the card cannot.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lcpd.build.errors import BuildError

SMI_TIMEOUT_S = 30
BACKENDS = ("auto", "cuda", "vulkan", "cpu")

WSL_FOLDER = "/usr/lib/wsl/lib"
"""Where the Windows host puts its driver; not in every PATH."""
_DRIVER_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    WSL_FOLDER,
    "/usr/local/cuda/compat",
    "/usr/local/nvidia/lib64",  # where container runtimes mount the driver
    "/run/opengl-driver/lib",
)
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_ARCHITECTURE = re.compile(r"\d{2,3}[af]?(-real|-virtual)?")


@dataclass(frozen=True)
class Gpu:
    name: str
    compute_capability: str
    """As NVIDIA writes it: ``8.6``."""


@dataclass(frozen=True)
class Nvidia:
    gpus: tuple[Gpu, ...]
    driver: str | None
    """The driver's version, where nvidia-smi told it."""


def detect_nvidia() -> Nvidia | None:
    """The NVIDIA GPUs that a working driver shows, or None."""
    smi = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=WSL_FOLDER)
    if smi is not None:
        query = ["--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(
                [smi, *query], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SMI_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return None  # a driver that does not answer will not compute either
        found = parse_nvidia_smi(done.stdout) if done.returncode == 0 else None
        if found is not None:
            return found
    if driver_library() is not None and any(Path("/dev").glob("nvidia[0-9]*")):
        gpus = _ask_driver()
        return Nvidia(gpus, None) if gpus else None
    return None


def parse_nvidia_smi(text: str) -> Nvidia | None:
    """From lines of ``name, compute capability, driver version``; None where no line is one."""
    gpus, driver = [], None
    for line in text.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        if len(parts) == 3 and re.fullmatch(r"\d+\.\d", parts[1]):
            gpus.append(Gpu(parts[0], parts[1]))
            driver = parts[2]
    return Nvidia(tuple(gpus), driver) if gpus else None


def driver_library() -> Path | None:
    """``libcuda.so.1`` of the installed driver."""
    for folder in _DRIVER_FOLDERS:
        path = Path(folder) / "libcuda.so.1"
        if path.exists():
            return path
    return None


def _ask_driver() -> tuple[Gpu, ...]:
    """The driver's own answer, for machines without nvidia-smi (containers)."""
    library = driver_library()
    assert library is not None
    try:
        cuda = ctypes.CDLL(str(library))
    except OSError:
        return ()  # a library without its kernel module: no working driver
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    gpus = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(128)
        calls = (
            cuda.cuDeviceGet(ctypes.byref(device), index),
            cuda.cuDeviceGetName(name, len(name), device),
            cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device),
            cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device),
        )
        if not any(calls):
            gpus.append(Gpu(name.value.decode(errors="replace"), f"{major.value}.{minor.value}"))
    return tuple(gpus)


def vulkan_ready() -> bool:
    """Whether Vulkan has a GPU to run on and the tools to be compiled: nothing of it is fetched by lcpd."""
    header = any(Path(folder, "vulkan/vulkan.h").is_file() for folder in ("/usr/include", "/usr/local/include"))
    return bool(any(Path("/dev/dri").glob("renderD*")) and header and shutil.which("glslc"))


def choose_backend(asked: str, nvidia: Nvidia | None, vulkan: bool) -> tuple[str, str]:
    """The backend to compile and the reason, for the user."""
    if asked != "auto":
        return asked, "as asked"
    if nvidia is not None:
        return "cuda", "found " + ", ".join(gpu.name for gpu in nvidia.gpus)
    if vulkan:
        return "vulkan", "found a GPU with Vulkan and no NVIDIA driver"
    return "cpu", "no GPU with a working driver found"


def choose_architectures(asked: str | None, nvidia: Nvidia | None) -> tuple[str, ...]:
    """Values for CMAKE_CUDA_ARCHITECTURES: those asked for (``86`` or ``86,120``), else those of the cards found.

    Raises `BuildError` for a malformed one, and where there is neither wish nor card.
    """
    if asked is not None:
        architectures = [part for part in re.split(r"[,;\s]+", asked) if part]
        for part in architectures:
            if not _ARCHITECTURE.fullmatch(part):
                raise BuildError(f"--cuda-arch {part}: not an architecture; write 86 for compute capability 8.6")
        if not architectures:
            raise BuildError("--cuda-arch is empty; write 86 for compute capability 8.6")
    elif nvidia is not None:
        # Only machine code for the cards at hand: code for others would multiply the time of the build.
        architectures = [f"{gpu.compute_capability.replace('.', '')}-real" for gpu in nvidia.gpus]
    else:
        raise BuildError(
            "--backend cuda: no NVIDIA GPU with a working driver found to take the architecture from;"
            " say --cuda-arch (86 for an RTX 3090, 89 for an RTX 4090, 120 for an RTX 5090)"
        )
    return tuple(sorted(set(architectures), key=lambda a: (int(re.match(r"\d+", a).group()), a)))  # type: ignore[union-attr]
