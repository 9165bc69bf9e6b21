"""The CUDA toolkit to compile with: an installed one, one completed with cuBLAS, or one assembled from NVIDIA's wheels.

`identify` decides and is quick; `prepare` fetches and assembles where that is needed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lcpd.build.errors import BuildError
from lcpd.build.fetching import download
from lcpd.build.gpu import Nvidia
from lcpd.build.hashing import value_sha256
from lcpd.build.pin import Pin
from lcpd.build.report import Reporter
from lcpd.build.toolchain import parse_version

CUBLAS = "nvidia-cublas"
# What libggml-cuda.so needs at run time besides the driver.
RUNTIME_LIBRARIES = ("libcudart.so.*", "libcublas.so.*", "libcublasLt.so.*")


@dataclass(frozen=True)
class Toolkit:
    """A decision: ``how`` is ``installed``, ``completed`` (with cuBLAS wheels) or ``wheels``."""

    how: str
    version: str
    """As nvcc says it, or as pinned."""
    root: Path | None
    """The installed toolkit; None for ``wheels``."""

    @property
    def ident(self) -> str:
        """For the build key."""
        return f"{self.how}:{self.version}:{self.root or ''}"


@dataclass(frozen=True)
class Prepared:
    """A toolkit ready to compile with."""

    root: Path
    library_folder: Path
    bundle: tuple[Path, ...]
    """Libraries to put beside the build's own because they come from a folder that may be deleted."""

    @property
    def nvcc(self) -> Path:
        return self.root / "bin" / "nvcc"


def identify(asked: str, pin: Pin, nvidia: Nvidia | None) -> Toolkit:
    """What ``--cuda-toolkit auto|system|pip|DIR`` means on this machine.  Raises `BuildError`."""
    if asked == "pip":
        return _wheels(pin, nvidia)
    if asked not in ("auto", "system"):
        root = Path(asked).expanduser().resolve()
        if not (root / "bin" / "nvcc").is_file():
            raise BuildError(f"--cuda-toolkit {asked}: there is no bin/nvcc in {root}")
        return _installed(root, pin)
    found = find_system_root()
    if found is not None:
        try:
            return _installed(found, pin)
        except BuildError:
            if asked == "system":
                raise
    elif asked == "system":
        raise BuildError("--cuda-toolkit system: no nvcc found in PATH, CUDA_HOME or /usr/local/cuda; use pip instead")
    return _wheels(pin, nvidia)


def _wheels(pin: Pin, nvidia: Nvidia | None) -> Toolkit:
    machine = platform.machine()
    if machine not in pin.cuda_wheels[0].sha256:
        raise BuildError(f"--cuda-toolkit pip: there are no wheels for {machine}; install a CUDA toolkit")
    if nvidia is not None and nvidia.driver is not None:
        driver = parse_version(nvidia.driver)
        if driver and driver[0] < pin.cuda_minimum_driver:
            raise BuildError(
                f"the NVIDIA driver {nvidia.driver} is too old for CUDA {pin.cuda_version} (needs"
                f" {pin.cuda_minimum_driver}); update the driver, or install a CUDA toolkit that fits it and use"
                " --cuda-toolkit system"
            )
    wheels = value_sha256([[w.package, w.version] for w in pin.cuda_wheels])[:12]
    return Toolkit("wheels", f"{pin.cuda_version}-{wheels}", None)


def _installed(root: Path, pin: Pin) -> Toolkit:
    version = nvcc_version(root / "bin" / "nvcc")
    if cublas_folder(root) is not None:
        return Toolkit("installed", version, root)
    pinned = pin.cuda_version.split(".")[0]
    if version.split(".")[0] != pinned:
        raise BuildError(
            f"the CUDA toolkit {version} in {root} has no cuBLAS, and the pinned one is for CUDA {pinned};"
            " install libcublas-dev for it, or use --cuda-toolkit pip"
        )
    return Toolkit("completed", version, root)


def find_system_root() -> Path | None:
    """The folder above ``bin/nvcc``; asks nvcc itself, because the one in PATH may be a link or a wrapper script."""
    candidates = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    paths = [Path(c, "bin", "nvcc") for c in candidates if c]
    in_path = shutil.which("nvcc")
    if in_path:
        paths.append(Path(in_path))
    paths.append(Path("/usr/local/cuda/bin/nvcc"))
    for nvcc in paths:
        if nvcc.is_file():
            done = subprocess.run(
                [str(nvcc), "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull],
                text=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            root = parse_top(done.stderr)
            if root is not None and (root / "bin" / "nvcc").is_file():
                return root
    return None


def parse_top(dryrun: str) -> Path | None:
    """The toolkit's root from the ``TOP=`` line of ``nvcc --dryrun``."""
    match = re.search(r"^#\$ TOP=(.+)$", dryrun, re.MULTILINE)
    return Path(match.group(1).strip()).resolve() if match else None


def nvcc_version(nvcc: Path) -> str:
    done = subprocess.run([str(nvcc), "--version"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    if match is None:
        raise BuildError(f"{nvcc} --version says no release; use --cuda-toolkit pip")
    return match.group(1)


def cublas_folder(root: Path) -> Path | None:
    """The folder with both cuBLAS libraries for linking, where its header is there too."""
    targets = sorted(root.glob("targets/*-linux"))
    headers = [root / "include", *(t / "include" for t in targets), Path("/usr/include")]
    if not any((h / "cublas_v2.h").is_file() for h in headers):
        return None
    multiarch = Path(f"/usr/lib/{platform.machine()}-linux-gnu")
    for folder in (root / "lib64", root / "lib", *(t / "lib" for t in targets), multiarch):
        if (folder / "libcublas.so").exists() and (folder / "libcublasLt.so").exists():
            return folder
    return None


def is_prepared(toolkit: Toolkit, pin: Pin, cache: Path) -> bool:
    return toolkit.how == "installed" or _assembled_at(toolkit, pin, cache).is_dir()


def prepare(toolkit: Toolkit, pin: Pin, cache: Path, report: Reporter) -> Prepared:
    """Fetches and assembles what is missing, once, in the cache folder.  Raises `BuildError`."""
    if toolkit.how == "installed":
        assert toolkit.root is not None
        folder = cublas_folder(toolkit.root)
        assert folder is not None
        return Prepared(toolkit.root, folder, ())
    target = _assembled_at(toolkit, pin, cache)
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".assemble-") as folder_name:
            tree = _assemble(toolkit, pin, Path(folder_name), report)
            tree.replace(target)
    libraries = target / "lib"
    bundle = tuple(sorted(p for pattern in RUNTIME_LIBRARIES for p in libraries.glob(pattern)))
    return Prepared(target, libraries, bundle)


def _assembled_at(toolkit: Toolkit, pin: Pin, cache: Path) -> Path:
    hashes = [w.sha256 for w in pin.cuda_wheels]
    return cache / "cuda" / f"{toolkit.how}-{value_sha256([toolkit.ident, *map(dict, hashes)])[:12]}"


def _assemble(toolkit: Toolkit, pin: Pin, work: Path, report: Reporter) -> Path:
    wheels = [w for w in pin.cuda_wheels if toolkit.how == "wheels" or w.package == CUBLAS]
    tree = work / "toolkit"
    if toolkit.root is not None:
        link_tree(toolkit.root, tree)
    downloads = work / "wheels"
    for wheel in wheels:
        report.say(f"fetching {wheel.package} {wheel.version}" + (" (400 MB)" if wheel.package == CUBLAS else ""))
        file = download(wheel.package, wheel.version, wheel.sha256[platform.machine()], downloads)
        unpack_wheel(file, tree)
    add_link_names(tree)
    return tree


def unpack_wheel(path: Path, tree: Path) -> None:
    """Adds ``nvidia/cu13/**`` of the wheel to the tree; what is there already is replaced."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            match = re.fullmatch(r"nvidia/cu\d+/((?:bin|include|lib|nvvm)/.+[^/])", entry.filename)
            if match is None or ".." in Path(entry.filename).parts:
                continue
            target = tree / match.group(1)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # in a tree of links, never write through one
            with archive.open(entry) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
            if "bin" in target.parent.parts:
                target.chmod(0o755)


def link_tree(root: Path, tree: Path) -> None:
    """A copy of the toolkit made of links to files; nvcc itself is copied, as it looks for the rest beside itself."""
    for name in ("bin", "include", "lib", "lib64", "nvvm"):
        source = (root / name).resolve()
        # lib64 and targets/ are made anew; a toolkit whose lib64 is a folder of its own contributes its files to lib.
        if source.is_dir():
            shutil.copytree(
                source,
                tree / ("lib" if name == "lib64" else name),
                copy_function=_copy_or_link,
                dirs_exist_ok=True,
            )


def _copy_or_link(source: str, target: str) -> None:
    if Path(source).name in ("nvcc", "nvcc.profile"):
        shutil.copy2(source, target)
    elif not Path(target).exists():
        Path(target).symlink_to(Path(source).resolve())


def add_link_names(tree: Path) -> None:
    """The names that compilers and CMake look for: ``libX.so``, ``lib64`` and ``targets/<machine>-linux``."""
    for library in sorted((tree / "lib").glob("lib*.so.*")):
        plain = library.with_name(library.name.partition(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)
    (tree / "lib64").symlink_to("lib")
    target = tree / "targets" / f"{'sbsa' if platform.machine() == 'aarch64' else platform.machine()}-linux"
    target.mkdir(parents=True)
    for name in ("include", "lib"):
        (target / name).symlink_to(Path("..") / ".." / name)
