"""A CUDA toolkit that is whole: where the installed one lacks cuBLAS, it is taken from a Python package's folder.

`lcpd build` would fetch cuBLAS; here there is no network, but where PyTorch or the like is installed it is at hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from lcpd.build.cuda_toolkit import add_link_names, cublas_folder, find_system_root, link_tree, nvcc_version


class NoToolkit(Exception):
    """No complete toolkit can be had; the text says what is missing and what to do."""


def find(site_folders: Iterable[Path], work: Path) -> tuple[Path, str]:
    """The root of a complete toolkit, made of links below `work` where needed, and where it is from, for people."""
    folders = list(site_folders)
    root = find_system_root() or wheel_root(folders)
    if root is None:
        raise NoToolkit("no nvcc in PATH, CUDA_HOME, /usr/local/cuda or a Python package; install a CUDA toolkit")
    version = nvcc_version(root / "bin" / "nvcc")
    if cublas_folder(root) is not None:
        return root, f"CUDA {version} in {root}"
    cublas = find_cublas(folders, version.split(".")[0])
    if cublas is None:
        raise NoToolkit(
            f"the CUDA toolkit {version} in {root} has no cuBLAS, and no Python package of this interpreter has one for"
            " it; run with the Python that has nvidia-cublas (make check-gpu PYTHON=...), or install libcublas-dev"
        )
    return complete(root, cublas, work / "toolkit"), f"CUDA {version} in {root}, cuBLAS from {cublas}"


def wheel_root(site_folders: Iterable[Path]) -> Path | None:
    """A toolkit that was installed as Python packages with one common folder (CUDA 13 and later)."""
    found = (nvcc for folder in site_folders for nvcc in sorted(folder.glob("nvidia/cu*/bin/nvcc")))
    return next((nvcc.parents[1] for nvcc in found), None)


def find_cublas(site_folders: Iterable[Path], major: str) -> Path | None:
    """The folder of a Python package with ``include`` and ``lib`` of cuBLAS for this major version of CUDA."""
    for folder in site_folders:
        for header in sorted(folder.glob("nvidia/*/include/cublas_v2.h")):
            root = header.parents[1]
            if all((root / "lib" / f"lib{name}.so.{major}").is_file() for name in ("cublas", "cublasLt")):
                return root
    return None


def complete(root: Path, cublas: Path, tree: Path) -> Path:
    """Makes `tree` a copy of the toolkit out of links, with cuBLAS in it; returns it."""
    shutil.rmtree(tree, ignore_errors=True)
    link_tree(root, tree)
    for source in (*(cublas / "include").glob("cublas*.h"), *(cublas / "lib").glob("libcublas*.so.*")):
        link = tree / source.parent.name / source.name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(source.resolve())
    add_link_names(tree)
    return tree
