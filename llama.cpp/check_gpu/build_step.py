"""Builds llama.cpp and the bridge from the pack with lcpd's own builder, which also runs its self-test."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from check_gpu import toolkit
from check_gpu.child import Options, run
from check_gpu.outcome import Findings
from check_gpu.packing import read_manifest, unpack_source
from lcpd.build import source
from lcpd.build.builder import Request, build
from lcpd.build.machine import usable_cpus
from lcpd.build.pin import load_pin
from lcpd.build.report import PlainReporter
from lcpd.paths import dirs, native_recipe


def check_build(options: Options, findings: Findings) -> None:
    begun = time.monotonic()
    pin = load_pin(native_recipe())
    read_manifest(options.pack, pin)
    # Where the builder looks for the pinned source before it would download it.
    unpack_source(options.pack, source.location(source.identify(None, pin), pin, dirs().cache))
    asked = "auto"
    if options.gpu:
        root, origin = toolkit.find([Path(p) for p in sys.path if p], options.work)
        asked = str(root)
        findings.notes.append(origin)
    request = Request(backend=options.backend, cuda_toolkit=asked, jobs=options.jobs, activate=False)
    built = build(request, PlainReporter(sys.stdout))
    findings.values["build"] = built.key
    findings.figure("unpack, configure, compile, self-test", time.monotonic() - begun, "s")
    findings.figure("CPUs", usable_cpus(), "")
    findings.check("the build is finished and self-tested", True, f"{built.key}: {built.llama_cpp}")


if __name__ == "__main__":
    run(check_build)
