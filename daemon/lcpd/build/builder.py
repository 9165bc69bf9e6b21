"""The whole of ``lcpd build``: decide, fetch, configure, compile, install, self-test, activate."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from lcpd.build import compile, cuda_toolkit, gpu, machine, selftest, source, toolchain
from lcpd.build.cuda_toolkit import Prepared
from lcpd.build.errors import BuildError
from lcpd.build.fallback import CpuLevel, describe, settle
from lcpd.build.hashing import tree_sha256
from lcpd.build.pin import Pin, load_pin
from lcpd.build.plan import (
    LIBRARIES,
    PEER,
    BuildPlan,
    CudaPlan,
    configure_command,
    install_commands,
    ninja_targets,
)
from lcpd.build.record import FORMAT, MANIFEST, Build
from lcpd.build.report import Reporter
from lcpd.build.selftest import Findings
from lcpd.build.store import Store, recipe_files, sync_recipe, write_json
from lcpd.paths import dirs, native_recipe

KEEP = 3
"""Builds that are kept besides the active one, the newest."""


@dataclass(frozen=True)
class Request:
    """The command line."""

    source: str | None = None
    backend: str = "auto"
    cuda_arch: str | None = None
    cuda_toolkit: str = "auto"
    target: str = LIBRARIES
    jobs: int | None = None
    force: bool = False
    activate: bool = True


@dataclass(frozen=True)
class Surroundings:
    """Where a build reads and writes."""

    recipe: Path = field(default_factory=native_recipe)
    cache: Path = field(default_factory=lambda: dirs().cache)
    store: Store = field(default_factory=lambda: Store(dirs().builds))


@dataclass(frozen=True)
class Decision:
    plan: BuildPlan
    reason: str
    """Why this backend."""
    device: str | None
    """The beginning of the name of a device that the self-test must see."""


def build(request: Request, report: Reporter, where: Surroundings | None = None) -> Build:
    """Makes the asked build exist and (unless told otherwise) active; returns at once when it is.

    Raises `BuildError`; the previous active build then stays in use.
    """
    where = where or Surroundings()
    pin = load_pin(where.recipe)
    decision = decide(request, pin, where)
    if not request.force:
        ready = _ready(request, decision.plan, where.store)
        if ready is not None and (not request.activate or where.store.active_key() == ready.key):
            report.say(f"up to date: {ready.key}")
            return ready
    with where.store.locked(report.say):
        # Whoever held the lock may have built just this.
        ready = None if request.force else _ready(request, decision.plan, where.store)
        if ready is None:
            ready = _Run(request, decision, pin, where, report).make()
        if request.activate:
            where.store.activate(ready.key)
            report.say(f"active: {ready.key}")
            if old := where.store.prune(KEEP):
                report.say(f"removed old builds: {', '.join(old)}")
        return ready


def decide(request: Request, pin: Pin, where: Surroundings) -> Decision:
    """What the request means on this machine; quick, and changes nothing.  Raises `BuildError`."""
    nvidia = gpu.detect_nvidia() if request.backend in ("auto", "cuda") else None
    vulkan = request.backend == "auto" and nvidia is None and gpu.vulkan_ready()
    backend, reason = gpu.choose_backend(request.backend, nvidia, vulkan)
    cuda = None
    if backend == "cuda":
        cuda = CudaPlan(
            architectures=gpu.choose_architectures(request.cuda_arch, nvidia),
            toolkit=cuda_toolkit.identify(request.cuda_toolkit, pin, nvidia),
            driver_library=gpu.driver_library(),
        )
    elif request.cuda_arch is not None:
        raise BuildError(f"--cuda-arch has no meaning for the backend {backend}; add --backend cuda")
    cpu = machine.read_cpu()
    plan = BuildPlan(
        source=source.identify(request.source, pin),
        recipe=tree_sha256(where.recipe, recipe_files(where.recipe)),
        backend=backend,
        cuda=cuda,
        compiler=toolchain.find_compiler(),
        cpu=cpu,
        # --force also asks again what the machine can do.
        level=CpuLevel.NATIVE if request.force else where.store.remembered_level(cpu.fingerprint),
    )
    return Decision(plan, reason, "CUDA" if backend == "cuda" and nvidia is not None else None)


def _ready(request: Request, plan: BuildPlan, store: Store) -> Build | None:
    """The finished build of this plan, if it has everything that was asked for."""
    found = store.find(plan.key)
    if found is None or (request.target == PEER and found.peer is None):
        return None
    return found


class _Run:
    """One build under the lock.  Its methods are the steps; nothing outside the builds and cache folders changes."""

    def __init__(self, request: Request, decision: Decision, pin: Pin, where: Surroundings, report: Reporter) -> None:
        self.request = request
        self.decision = decision
        self.plan = decision.plan
        self.pin = pin
        self.where = where
        self.report = report
        self.started = time.monotonic()
        self.cmake = toolchain.find_tool("cmake")
        self.ninja = toolchain.find_tool("ninja")
        self.tree = where.store.tree(self.plan.tree_key)

    def make(self) -> Build:
        existing = self.where.store.find(self.plan.key)
        self.report.say(f"building {self.plan.key}: {self.plan.backend} backend ({self.decision.reason})")
        self._check_disk()
        self.source = source.fetch(self.plan.source, self.pin, self.where.cache, self.report)
        self.toolkit = self._prepare_toolkit()
        sync_recipe(self.where.recipe, self.tree / "recipe")
        if existing is not None and not self.request.force:
            return self._add_peer(existing)  # the only thing it can lack
        keeps_peer = existing is not None and existing.peer is not None
        target = PEER if keeps_peer else self.request.target
        level, build = settle(
            self.plan.level, self.plan.cpu.has_amx, lambda level: self._attempt(level, target), self.report.say
        )
        self.where.store.remember_level(self.plan.cpu.fingerprint, level)
        return build

    def _check_disk(self) -> None:
        cuda = self.plan.cuda
        needed = machine.required_disk(
            self.plan.backend,
            len(cuda.architectures) if cuda else 0,
            has_source=source.location(self.plan.source, self.pin, self.where.cache).is_dir(),
            needs_wheels=cuda is not None and not cuda_toolkit.is_prepared(cuda.toolkit, self.pin, self.where.cache),
        )
        free = shutil.disk_usage(self.where.store.root).free
        if free < needed:
            raise BuildError(
                f"{free / machine.GIB:.1f} GiB free in {self.where.store.root}, this build needs"
                f" {needed / machine.GIB:.1f}; free some space (lcpd build --list, --remove), or set LCPD_HOME to a"
                " folder on a larger disk"
            )

    def _prepare_toolkit(self) -> Prepared | None:
        if self.plan.cuda is None:
            return None
        return cuda_toolkit.prepare(self.plan.cuda.toolkit, self.pin, self.where.cache, self.report)

    def _attempt(self, level: CpuLevel, target: str) -> Build:
        """Builds and tests at this level.  Raises `SelfTestCrash` when the test died by a signal."""
        plan = self.plan.at_level(level)
        staged = self.where.store.stage(plan.key)
        self._compile(plan, target, staged)
        for library in self.toolkit.bundle if self.toolkit else ():
            _link_or_copy(library, staged / "lib" / library.name)
        self.report.say("self-test: libraries, matrix product, tiny model")
        findings = selftest.run(staged / "lib", plan.source.commit, self.decision.device)
        self._check_unchanged(plan)
        self._write_manifest(plan, findings, staged)
        self.where.store.commit(staged, plan.key)
        seconds = time.monotonic() - self.started
        self.report.say(f"self-test passed on {', '.join(findings.devices)}; built in {seconds:.0f} s")
        finished = self.where.store.find(plan.key)
        assert finished is not None
        return finished

    def _compile(self, plan: BuildPlan, target: str, prefix: Path) -> None:
        cmake_tree = self.tree / "cmake"
        log_path = self.where.store.log(plan.key)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        jobs = self.request.jobs or machine.default_jobs(
            machine.usable_cpus(), machine.available_memory(), plan.backend
        )
        # Without this, git would look for the unpacked source's commit in whatever repository lies around it.
        environment = {"GIT_CEILING_DIRECTORIES": str(self.source.parent)}
        with log_path.open("w", encoding="utf-8") as log:
            self.report.say(f"configuring with {describe(plan.level)}")
            configure = configure_command(
                plan, self.cmake, self.ninja, self.tree / "recipe", cmake_tree, self.source, self.toolkit
            )
            compile.run_logged(configure, log, environment=environment)
            command = [self.ninja, "-C", str(cmake_tree), "-j", str(jobs), *ninja_targets(target)]
            with self.report.progress(f"compiling ({jobs} at once)") as update:
                compile.run_logged(command, log, update, environment)
            for install in install_commands(self.cmake, cmake_tree, prefix, target):
                compile.run_logged(install, log)

    def _check_unchanged(self, plan: BuildPlan) -> None:
        """A folder edited while it was compiled would be kept under the key of its former contents."""
        recipe = tree_sha256(self.tree / "recipe", recipe_files(self.tree / "recipe"))
        folder = plan.source.path
        if recipe != plan.recipe or (folder is not None and source.identify(str(folder), self.pin) != plan.source):
            raise BuildError("the source changed while it was compiled; run lcpd build again")

    def _write_manifest(self, plan: BuildPlan, findings: Findings, folder: Path) -> None:
        origin = {"pin": f"{self.pin.package} {self.pin.version}", "git": self.pin.repository}
        write_json(
            folder / MANIFEST,
            {
                "format": FORMAT,
                "key": plan.key,
                "tree_key": plan.tree_key,
                "backend": plan.backend,
                "llama_cpp": f"{findings.build} ({origin.get(plan.source.kind, plan.source.path)})",
                "abi": findings.abi,
                "cpu_level": plan.level.value,
                "devices": list(findings.devices),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(time.monotonic() - self.started),
                "inputs": plan.inputs,
            },
        )

    def _add_peer(self, existing: Build) -> Build:
        """Compiles llama-server in the tree of an existing build and puts it into that build."""
        staged = self.where.store.stage(existing.key)
        self._compile(self.plan, PEER, staged)
        for library in (staged / "lib").glob("libllama-server-impl.so*"):
            library.replace(existing.lib_dir / library.name)
        (existing.path / "bin").mkdir(exist_ok=True)
        (staged / "bin" / "llama-server").replace(
            existing.path / "bin" / "llama-server"
        )  # last: it marks the peer as there
        shutil.rmtree(staged)
        self.report.say(f"added llama-server to {existing.key}")
        return existing


def _link_or_copy(source_path: Path, target: Path) -> None:
    """A hard link where the file system allows it: cuBLAS alone has 500 MB."""
    real = source_path.resolve()
    try:
        os.link(real, target)
    except OSError:
        shutil.copy2(real, target)
