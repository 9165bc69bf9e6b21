"""Runs the steps, each in a process of its own under its time limit, and reports.

This process loads no native code: a step that crashes, hangs or runs out of time costs that step and those that need
it.  Exit codes: 0 everything ran and passed; 1 something failed or was left out; 2 the check cannot be run here; 3 no
GPU is here, nothing was run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from check_gpu.outcome import FAILED, LEFT_OUT, PASSED, Findings, StepOutcome, all_passed, judge, table
from check_gpu.packing import PackError, read_manifest, unpack_wheels
from check_gpu.schedule import STEPS, TOTAL, Step, allowance, obstacle
from lcpd.build import gpu
from lcpd.build.pin import load_pin
from lcpd.paths import native_recipe

OK, BAD, CANNOT_RUN, NO_GPU = 0, 1, 2, 3
ROOT = Path(__file__).resolve().parents[2]
# Where containers mount the driver's programs.
DRIVER_PROGRAMS = "/usr/local/nvidia/bin"
KILL_AFTER_S = 5.0
LOG_TAIL = 20


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes."""

    pack: Path
    out: Path
    work: Path
    """Unpacked wheels, source and builds: large, and kept so that a second run does not compile again."""

    @property
    def log(self) -> Path:
        return self.out / "log.txt"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="check-gpu", description="Checks lcpd's engine on a GPU; see docs/gpu.md.")
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda", help="cpu exercises the check itself")
    parser.add_argument("--pack", type=Path, default=ROOT / "out" / "gpu-pack", help="what make check-gpu-pack made")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu-report", help="folder for the report")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "gpu-work", help="folder for builds (4 GB)")
    parser.add_argument("--jobs", type=int, help="compilers at once")
    parser.add_argument("--total", type=float, default=TOTAL, help="time limit of everything, in seconds")
    options = parser.parse_args(arguments)
    if Path(DRIVER_PROGRAMS).is_dir():
        os.environ["PATH"] += os.pathsep + DRIVER_PROGRAMS
    title = "lcpd on the CPU alone (this shows that the check works; no GPU was used)"
    if options.backend == "cuda":
        nvidia = gpu.detect_nvidia()
        if nvidia is None:
            print("check-gpu: no NVIDIA GPU with a working driver here: NOT RUN (--backend cpu exercises the check)")
            return NO_GPU
        names = ", ".join(f"{card.name} (compute capability {card.compute_capability})" for card in nvidia.gpus)
        title = f"lcpd on {names}, driver {nvidia.driver or 'of unknown version'}"
    place = Place(options.pack.resolve(), options.out.resolve(), options.work.resolve())
    begun = time.monotonic()
    try:
        prepare(place)
    except PackError as error:
        print(f"check-gpu: cannot run: {error}", file=sys.stderr)
        return CANNOT_RUN
    print(f"check-gpu: {title}; at most {options.total:.0f} s", flush=True)
    runner = Runner(place, options.backend, options.jobs, begun + options.total)
    outcomes = runner.run_all()
    text = table(title, outcomes)
    report = {"title": title, "backend": options.backend, "passed": all_passed(outcomes)}
    report |= {"seconds": time.monotonic() - begun, "steps": [asdict(o) for o in outcomes]}
    (place.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (place.out / "report.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}\n{time.monotonic() - begun:.0f} s in all; report and log in {place.out}")
    return OK if all_passed(outcomes) else BAD


def prepare(place: Place) -> None:
    """Checks the pack and unpacks the wheels for this Python.  Raises `PackError`."""
    manifest = read_manifest(place.pack, load_pin(native_recipe()))
    place.work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place.out, ignore_errors=True)
    place.out.mkdir(parents=True)
    # An installed NumPy stays in use: the pack has one for a single version of Python only.
    installed = {"numpy"} if importlib.util.find_spec("numpy") else set()
    unpack_wheels(place.pack, manifest, place.work / "site", sys.version_info[:2], installed)
    if not installed and not (place.work / "site" / "numpy").is_dir():
        raise PackError(f"Python {sys.version.split()[0]} has no NumPy and the pack has none for it; install numpy")


def child_environment(place: Place, library: Path | None, cpu_only: bool, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a step: imports from the checkout and the pack, nothing else installed is needed."""
    environment = {
        **given,
        "PYTHONPATH": os.pathsep.join(str(p) for p in (native_recipe(), ROOT / "daemon", place.work / "site")),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "LCPD_HOME": str(place.work),
        "GGML_NO_BACKTRACE": "1",  # an abort would start gdb
    }
    if library is not None:
        environment["LLAMA_CPP_LIB_PATH"] = environment["MTMD_CPP_LIB"] = str(library)
    if cpu_only:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


class Runner:
    """Runs the steps in order until `deadline` (monotonic seconds)."""

    def __init__(self, place: Place, backend: str, jobs: int | None, deadline: float) -> None:
        self._place = place
        self._backend = backend
        self._jobs = jobs
        self._deadline = deadline
        self._statuses: dict[str, str] = {}
        self._build = ""

    def run_all(self) -> list[StepOutcome]:
        """The outcome of every step."""
        outcomes = []
        for step in STEPS:
            outcome = self._run(step)
            self._statuses[step.name] = outcome.status
            self._build = outcome.findings.values.get("build", self._build)
            print(f"== {step.name}: {outcome.status} {outcome.reason} ({outcome.seconds:.1f} s)", flush=True)
            outcomes.append(outcome)
        return outcomes

    def _run(self, step: Step) -> StepOutcome:
        reason = obstacle(step, self._statuses, PASSED)
        limit = allowance(step, self._deadline - time.monotonic())
        if reason is None and limit <= 0:
            reason = "no time was left"
        if reason is not None:
            return StepOutcome(step.name, LEFT_OUT, 0.0, reason, Findings())
        print(f"== {step.name} (at most {limit:.0f} s)", flush=True)
        return self._child(step, limit)

    def _child(self, step: Step, limit: float) -> StepOutcome:
        result = self._place.work / f"{step.name}.json"
        result.unlink(missing_ok=True)
        command = [sys.executable, "-m", step.module, "--backend", self._backend, "--pack", str(self._place.pack)]
        command += ["--work", str(self._place.work), "--result", str(result), "--build", self._build]
        command += ["--jobs", str(self._jobs)] if self._jobs else []
        library = self._place.work / "builds" / self._build / "lib" if self._build else None
        environment = child_environment(self._place, library, step.cpu_only, os.environ)
        begun = time.monotonic()
        with self._place.log.open("a", encoding="utf-8") as log:
            print(f"==== {step.name}", file=log, flush=True)
            offset = log.tell()
            # A session of its own, so that compilers go with it when its time is up.
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, start_new_session=True)
            try:
                returncode: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                returncode = None
            finally:
                end_group(process)
        seconds = time.monotonic() - begun
        if returncode == 0 and result.is_file():
            return judge(step.name, seconds, Findings.from_json(json.loads(result.read_text(encoding="utf-8"))))
        reason = ending(returncode, limit)
        if returncode is None and step.name == "build":
            reason += "; run it again on this machine: what is compiled is kept"
        self._show_log(offset)
        if step.name == "build":
            self._keep_build_log()
        return StepOutcome(step.name, FAILED, seconds, reason, Findings())

    def _show_log(self, offset: int) -> None:
        with self._place.log.open("rb") as log:
            log.seek(offset)
            lines = log.read().decode("utf-8", "replace").splitlines()
        print("\n".join(lines[-LOG_TAIL:]), flush=True)

    def _keep_build_log(self) -> None:
        """The compilers' output goes with the report."""
        logs = sorted((self._place.work / "builds" / "logs").glob("*.log"), key=lambda p: p.stat().st_mtime)
        if logs:
            shutil.copy(logs[-1], self._place.out / "build.log")


def ending(returncode: int | None, limit: float) -> str:
    """How a process ended that did not end well; None: it was stopped at its limit."""
    if returncode is None:
        return f"it did not end within {limit:.0f} s"
    if returncode < 0:
        return f"it was killed by {signal.Signals(-returncode).name}"
    return f"it ended with exit code {returncode}"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it started; returns at once when none is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
