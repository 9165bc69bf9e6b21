"""The whole sequence, with small scripts in the place of CMake, ninja and the compiler."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from lcpd.build import builder, compile, cuda_toolkit, gpu, machine, selftest
from lcpd.build.builder import Request, Surroundings, build
from lcpd.build.cuda_toolkit import Prepared, Toolkit
from lcpd.build.errors import BuildError
from lcpd.build.fallback import CpuLevel, SelfTestCrash
from lcpd.build.machine import Cpu
from lcpd.build.report import PlainReporter
from lcpd.build.selftest import Findings
from lcpd.build.store import Store
from lcpd.cli.build import build as command
from lcpd.native import ABI
from lcpd.paths import native_recipe

CMAKE = """#!/bin/sh
[ "$1" = --version ] && { echo "cmake version 3.28.0"; exit; }
echo "cmake $*" >> "$CALLS"
[ "$1" = --install ] || exit 0
mkdir -p "$4/lib" "$4/bin"
case $6 in
  lcpd) echo library > "$4/lib/libllama.so"; echo bridge > "$4/lib/liblcpd_bridge.so";;
  peer) echo server > "$4/bin/llama-server"; echo impl > "$4/lib/libllama-server-impl.so";;
esac
"""
NINJA = """#!/bin/sh
[ "$1" = --version ] && { echo 1.11.1; exit; }
echo "ninja $*" >> "$CALLS"
echo "[1/2] Building CXX object a.o"
[ -e "$FAIL" ] && { cat "$FAIL"; exit 1; }
echo "[2/2] Linking"
"""
CXX = "#!/bin/sh\necho 'fake++ 1.0'\n"
AMX_CPU = Cpu("x86_64", "A CPU", ("amx_tile", "avx2"))


class World:
    """A folder with a source, a recipe and tools; the self-test answers what the test sets."""

    def __init__(self, root: Path) -> None:
        self.source = root / "llama"
        self.recipe = root / "recipe"
        self.calls = root / "calls"
        self.fail = root / "fail"
        self.out = io.StringIO()
        self.where = Surroundings(self.recipe, root / "cache", Store(root / "builds"))
        self.crashes: list[int] = []
        self.tested: list[Path] = []
        self.devices_wanted: list[str | None] = []

    @property
    def store(self) -> Store:
        return self.where.store

    def build(self, **options) -> builder.Build:
        request = Request(**{"source": str(self.source), "backend": "cpu", **options})
        return build(request, PlainReporter(self.out), self.where)

    def commands(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def selftest(self, lib_dir: Path, commit, device) -> Findings:
        self.tested.append(lib_dir)
        self.devices_wanted.append(device)
        if self.crashes:
            raise SelfTestCrash(self.crashes.pop(0), "Illegal instruction")
        return Findings(ABI, "b0-abc", ("CPU",))


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    world = World(tmp_path)
    for name, text in {
        "llama/CMakeLists.txt": "project(llama)",
        "llama/include/llama.h": "",
        "recipe/CMakeLists.txt": "project(x)",
        "recipe/bridge/a.cpp": "int a;",
        "recipe/pin.toml": (native_recipe() / "pin.toml").read_text(),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"cmake": CMAKE, "ninja": NINJA, "gcc": CXX, "g++": CXX}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(world.calls))
    monkeypatch.setenv("FAIL", str(world.fail))
    monkeypatch.setenv("LCPD_HOME", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(selftest, "run", world.selftest)
    monkeypatch.setattr(machine, "read_cpu", lambda: AMX_CPU)
    return world


def test_a_build_is_compiled_tested_and_made_active(world) -> None:
    made = world.build()
    assert world.store.active_key() == made.key
    assert (made.lib_dir / "liblcpd_bridge.so").is_file()
    assert world.tested == [world.store.root / f".staging-{made.key}" / "lib"]  # before it had its name
    assert "active: " + made.key in world.out.getvalue()


def test_an_up_to_date_build_runs_nothing(world) -> None:
    made = world.build()
    before = world.commands()
    assert world.build() == made
    assert world.commands() == before
    assert f"up to date: {made.key}" in world.out.getvalue()


def test_force_builds_an_up_to_date_one_again(world) -> None:
    world.build()
    before = len(world.commands())
    world.build(force=True)
    assert len(world.commands()) > before


def test_the_manifest_records_what_the_key_is_made_of(world) -> None:
    made = world.build()
    manifest = json.loads((made.path / "build.json").read_text())
    assert manifest["inputs"]["compiler"][2] == "fake++ 1.0"
    assert manifest["inputs"]["cpu"] == AMX_CPU.fingerprint
    assert manifest["inputs"]["cpu_level"] == "native"


def test_a_changed_bridge_is_another_build_from_the_same_tree(world) -> None:
    first = world.build()
    (world.recipe / "bridge" / "a.cpp").write_text("int b;")
    second = world.build()
    assert first.key != second.key
    assert len(list((world.store.root / "trees").iterdir())) == 1
    assert {b.key for b in world.store.builds()} == {first.key, second.key}


def test_a_former_build_is_made_active_again_without_compiling(world) -> None:
    first = world.build()
    (world.recipe / "bridge" / "a.cpp").write_text("int b;")
    world.build()
    (world.recipe / "bridge" / "a.cpp").write_text("int a;")
    before = world.commands()
    world.build()
    assert world.store.active_key() == first.key
    assert world.commands() == before


def test_a_build_can_be_made_without_activating_it(world) -> None:
    made = world.build(activate=False)
    assert world.store.find(made.key) == made
    assert world.store.active_key() is None


def test_the_peer_is_added_to_a_build_without_testing_or_replacing_its_libraries(world) -> None:
    made = world.build()
    assert made.peer is None
    (made.lib_dir / "libllama.so").write_text("the tested one")
    with_peer = world.build(target="llama-server")
    assert with_peer.key == made.key
    assert with_peer.peer is not None
    assert (made.lib_dir / "libllama.so").read_text() == "the tested one"
    assert (made.lib_dir / "libllama-server-impl.so").is_file()
    assert len(world.tested) == 1


def test_a_build_forced_again_keeps_its_peer(world) -> None:
    world.build(target="llama-server")
    assert world.build(force=True).peer is not None


def test_a_failed_compilation_shows_the_cause_and_leaves_the_active_build(world) -> None:
    made = world.build()
    (world.recipe / "bridge" / "a.cpp").write_text("int b;")
    world.fail.write_text("g++: fatal error: Killed signal terminated program cc1plus\n")
    with pytest.raises(BuildError, match=r"cc1plus[\s\S]*usual cause: out of memory"):
        world.build()
    assert world.store.active_key() == made.key
    assert [b.key for b in world.store.builds()] == [made.key]


def test_the_whole_log_is_kept(world) -> None:
    made = world.build()
    log = world.store.log(made.key).read_text()
    assert "[1/2] Building CXX object a.o" in log
    assert "cmake -G Ninja" in log


def test_a_crash_of_the_selftest_leads_to_a_build_without_amx_and_is_remembered(world) -> None:
    world.crashes = [signal.SIGILL]
    made = world.build()
    assert made.cpu_level == CpuLevel.NATIVE_NO_AMX
    assert "SIGILL" in world.out.getvalue()
    tested = len(world.tested)
    assert world.build() == made  # up to date: the crash is not repeated
    (world.recipe / "bridge" / "a.cpp").write_text("int b;")
    assert world.build().cpu_level == CpuLevel.NATIVE_NO_AMX
    assert len(world.tested) == tested + 1


def test_force_asks_the_machine_again(world) -> None:
    world.crashes = [signal.SIGILL]
    world.build()
    assert world.build(force=True).cpu_level == CpuLevel.NATIVE


def test_a_build_that_crashes_at_every_level_is_not_activated_and_not_remembered(world) -> None:
    world.crashes = [signal.SIGSEGV] * 3
    with pytest.raises(BuildError, match="SIGSEGV"):
        world.build()
    assert world.store.active_key() is None
    assert world.store.builds() == []
    assert world.store.remembered_level(AMX_CPU.fingerprint) is CpuLevel.NATIVE


def test_a_source_edited_while_it_is_compiled_is_not_kept(world, monkeypatch) -> None:
    def edit(*arguments) -> Findings:
        (world.source / "include" / "llama.h").write_text("changed")
        return Findings(ABI, "b0-abc", ("CPU",))

    monkeypatch.setattr(selftest, "run", edit)
    with pytest.raises(BuildError, match="changed while it was compiled"):
        world.build()
    assert world.store.builds() == []


def test_too_little_disk_is_said_before_anything_starts(world, monkeypatch) -> None:
    monkeypatch.setattr(machine, "required_disk", lambda *a, **k: 1 << 60)
    with pytest.raises(BuildError, match=r"GiB free in .* this build needs"):
        world.build()
    assert world.commands() == []


def test_an_interrupted_compilation_ends_its_command(world, tmp_path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with (tmp_path / "log").open("w") as log, pytest.raises(KeyboardInterrupt):
        compile.run_logged(["sh", "-c", "echo '[1/2] x'; exec sleep 600"], log, interrupt)


def test_cuda_arch_without_cuda_is_refused(world) -> None:
    with pytest.raises(BuildError, match="--cuda-arch has no meaning for the backend cpu"):
        world.build(cuda_arch="86")


def test_a_card_with_its_driver_means_a_cuda_build_for_it(world, tmp_path, monkeypatch) -> None:
    for name, script in {
        "tools/nvidia-smi": "echo 'NVIDIA GeForce RTX 3090, 8.6, 580.65.06'",
        "cuda/bin/nvcc": f"echo 'release 12.8'; echo '#$ TOP={tmp_path}/cuda' >&2",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("include/cublas_v2.h", "lib64/libcublas.so", "lib64/libcublasLt.so"):
        (tmp_path / "cuda" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "cuda" / name).touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    made = world.build(backend="auto")
    assert made.backend == "cuda"
    assert world.devices_wanted == ["CUDA"]
    (configure,) = [c for c in world.commands() if c.startswith("cmake -G")]
    assert "-DCMAKE_CUDA_ARCHITECTURES=86-real" in configure
    assert "found NVIDIA GeForce RTX 3090" in world.out.getvalue()


def test_a_cuda_build_on_a_machine_without_a_card_wants_no_device(world, tmp_path, monkeypatch) -> None:
    toolkit = Toolkit("installed", "12.8", tmp_path)
    monkeypatch.setattr(cuda_toolkit, "identify", lambda *a: toolkit)
    monkeypatch.setattr(cuda_toolkit, "prepare", lambda *a: Prepared(tmp_path, tmp_path, ()))
    monkeypatch.setattr(gpu, "detect_nvidia", lambda: None)
    world.build(backend="cuda", cuda_arch="86")
    assert world.devices_wanted == [None]


def invoke(*arguments: str):
    return CliRunner().invoke(command, list(arguments))


def test_the_command_prints_paths_of_the_active_build(world) -> None:
    made = world.build(target="llama-server")
    assert invoke("--print", "key").output.strip() == made.key
    assert invoke("--print", "lib").output.strip() == str(made.lib_dir.resolve())
    assert invoke("--print", "peer").output.strip().endswith("bin/llama-server")


def test_the_command_says_what_to_run_where_nothing_is_built(world) -> None:
    result = invoke("--print", "lib")
    assert result.exit_code == 1
    assert "run: lcpd build" in result.output


def test_the_command_says_how_to_get_the_peer(world) -> None:
    world.build()
    result = invoke("--print", "peer")
    assert result.exit_code == 1
    assert "run: lcpd build --target llama-server" in result.output


def test_the_command_lists_and_removes_builds(world) -> None:
    made = world.build()
    assert f"* {made.key}" in invoke("--list").output
    assert invoke("--remove", made.key).exit_code == 1
    assert invoke("--remove", made.key, "--force").exit_code == 0
    assert "no finished builds" in invoke("--list").output


def test_a_build_error_becomes_an_exit_code_and_a_message(world) -> None:
    result = invoke("--source", "/nowhere")
    assert result.exit_code == 1
    assert "not a llama.cpp source tree" in result.output
