"""The compilers, CMake and ninja.  Looking them up runs them once with ``--version``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lcpd.build.errors import BuildError

MINIMUM = {"cmake": (3, 21), "ninja": (1, 10)}
_FLAGS = ("CFLAGS", "CXXFLAGS", "CUDAFLAGS", "LDFLAGS")
_PAIRS = (("gcc", "g++"), ("cc", "c++"), ("clang", "clang++"))


@dataclass(frozen=True)
class Compiler:
    cc: str
    cxx: str
    version: str
    """The first line of ``c++ --version``: part of the build key."""
    flags: tuple[str, ...] = ()
    """The user's flags from the environment, as ``CXXFLAGS=-O2``: CMake reads them when a tree is new."""


def find_compiler(environment: Mapping[str, str] = os.environ) -> Compiler:
    """``CC`` and ``CXX`` where set, else the first pair installed.  Raises `BuildError` where there is none."""
    pairs = list(_PAIRS)
    if "CC" in environment or "CXX" in environment:
        pairs = [(environment.get("CC", "cc"), environment.get("CXX", "c++"))]
    for cc, cxx in pairs:
        found_cc, found_cxx = shutil.which(cc), shutil.which(cxx)
        if found_cc and found_cxx:
            flags = tuple(f"{name}={environment[name]}" for name in _FLAGS if environment.get(name))
            return Compiler(found_cc, found_cxx, _first_line([found_cxx, "--version"]), flags)
    raise BuildError(
        "no C and C++ compiler found (looked for " + ", ".join(f"{cc} and {cxx}" for cc, cxx in pairs) + ");"
        " install one (apt install build-essential), or name it with CC and CXX"
    )


def find_tool(name: str) -> str:
    """The path of ``cmake`` or ``ninja``: the system's when new enough, else the PyPI package's in this environment."""
    minimum = MINIMUM[name]
    rejected = []
    for folder in (None, sysconfig.get_path("scripts")):
        found = shutil.which(name, path=folder)
        if found is None:
            continue
        version = parse_version(_first_line([found, "--version"]))
        if version >= minimum:
            return found
        rejected.append(f"{found} is {'.'.join(map(str, version))}")
    wanted = ".".join(map(str, minimum))
    raise BuildError(
        f"{name} {wanted} or newer is needed"
        + (f" ({'; '.join(rejected)})" if rejected else " and none was found")
        + f"; install it (pip install {name}, or apt install {'ninja-build' if name == 'ninja' else name})"
    )


def parse_version(text: str) -> tuple[int, ...]:
    """The first dotted number in the text; empty where there is none (older than anything)."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode != 0:
        raise BuildError(
            f"{Path(command[0]).name} --version failed with exit code {done.returncode}; reinstall {command[0]}"
        )
    return done.stdout.splitlines()[0].strip() if done.stdout else ""
