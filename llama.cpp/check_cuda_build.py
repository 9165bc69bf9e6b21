"""Does the CUDA backend compile and link?  Needs no GPU and no driver; `make check-cuda-build` runs it.

Builds everything with `--backend cuda` for one architecture beside the other builds, without making it the active one
(the self-test runs on the CPU where there is no GPU), then asks the dynamic linker about libggml-cuda.so.  Prints what
was found and how long it took; the exit code is 0 when the library links.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from lcpd.build.builder import Request, build
from lcpd.build.errors import BuildError
from lcpd.build.report import reporter_for

# The driver's part: only a machine with a GPU has it.
DRIVER = "libcuda.so.1"


def missing_libraries(ldd: str) -> list[str]:
    """What ``ldd`` could not find, the driver's library aside."""
    return [name for name in re.findall(r"^\s*(\S+) => not found", ldd, re.MULTILINE) if name != DRIVER]


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


def check(library: Path) -> list[str]:
    """Findings about the shared object; raises `BuildError` when it does not link."""
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", str(library)))
    ldd = output_of("ldd", "-r", str(library))
    missing = missing_libraries(ldd)
    if missing:
        raise BuildError(f"{library.name} needs {', '.join(missing)}, which the dynamic linker does not find")
    findings = [f"{library.name}: {library.stat().st_size >> 20} MiB, needs {', '.join(needed)}"]
    if f"{DRIVER} => not found" in ldd:
        return [*findings, f"{DRIVER} is not installed here, so the library was not loaded"]
    undefined = re.findall(r"undefined symbol: (\S+)", ldd)
    if undefined:
        raise BuildError(f"{library.name} has undefined symbols: {', '.join(undefined[:5])}")
    load = f"import ctypes, os; ctypes.CDLL({str(library)!r}, mode=os.RTLD_NOW)"
    done = subprocess.run([sys.executable, "-c", load], text=True, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise BuildError(f"{library.name} does not load: {done.stderr.strip().splitlines()[-1]}")
    return [*findings, "all symbols resolve and dlopen(RTLD_NOW) succeeds"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cuda-arch", default="86")
    parser.add_argument("--cuda-toolkit", default="auto")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the compilers too when someone ends us
    started = time.monotonic()
    request = Request(
        backend="cuda",
        cuda_arch=options.cuda_arch,
        cuda_toolkit=options.cuda_toolkit,
        jobs=options.jobs,
        force=options.force,
        activate=False,
    )
    try:
        built = build(request, reporter_for(sys.stdout))
        for line in check(built.lib_dir / "libggml-cuda.so"):
            print(line)
    except BuildError as error:
        print(f"check-cuda-build: FAILED: {error}", file=sys.stderr)
        return 1
    print(f"check-cuda-build: passed for architecture {options.cuda_arch} in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
