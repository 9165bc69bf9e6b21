"""lcpd's self-test of a build: versions, struct sizes, a matrix product on every device, and a model decoded twice."""

from __future__ import annotations

from check_gpu.child import Options, run
from check_gpu.outcome import Findings
from lcpd.build import selftest
from lcpd.build.pin import load_pin
from lcpd.build.store import Store
from lcpd.paths import dirs, native_recipe


def check_selftest(options: Options, findings: Findings) -> None:
    pin = load_pin(native_recipe())
    lib = Store(dirs().builds).build_path(options.build) / "lib"
    found = selftest.run(lib, pin.commit, "CUDA" if options.gpu else None)
    findings.check("lcpd's self-test", True, f"ABI {found.abi}, llama.cpp {found.build}")
    wanted = "CUDA" if options.gpu else "CPU"
    findings.check(
        f"a {wanted} device is there", any(d.startswith(wanted) for d in found.devices), ", ".join(found.devices)
    )


if __name__ == "__main__":
    run(check_selftest)
