"""How steps are run and how their ends are told."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest


def runs(process: Path) -> bool:
    """Whether the process of a folder in /proc exists and is more than a zombie."""
    try:
        return ") Z " not in (process / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def main():
    from check_gpu import main

    return main


def test_without_a_gpu_nothing_is_run_and_that_is_said(main, monkeypatch, capsys):
    monkeypatch.setattr(main.gpu, "detect_nvidia", lambda: None)
    assert main.main([]) == 3
    assert "NOT RUN" in capsys.readouterr().out


def test_without_a_pack_the_check_cannot_run(main, tmp_path, capsys):
    arguments = ["--backend", "cpu", "--pack", str(tmp_path), "--out", str(tmp_path / "o"), "--work", str(tmp_path)]
    assert main.main(arguments) == 2
    assert "make check-gpu-pack" in capsys.readouterr().err


def test_the_script_needs_no_installed_package():
    script = Path(__file__).parents[3] / "llama.cpp" / "check_gpu" / "run.py"
    done = subprocess.run([sys.executable, "-I", "-S", str(script), "--help"], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "--backend" in done.stdout


def test_the_reference_does_not_see_the_gpu(main, tmp_path):
    place = main.Place(tmp_path, tmp_path, tmp_path)
    hidden = main.child_environment(place, tmp_path / "lib", True, {"PATH": "/bin", "PYTHONPATH": "/elsewhere"})
    shown = main.child_environment(place, None, False, {"PATH": "/bin"})
    assert hidden["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in shown
    assert "LLAMA_CPP_LIB_PATH" not in shown
    assert hidden["LLAMA_CPP_LIB_PATH"] == str(tmp_path / "lib")
    assert "/elsewhere" not in hidden["PYTHONPATH"]


@pytest.mark.parametrize(
    ("returncode", "text"), [(None, "did not end within 60 s"), (-11, "killed by SIGSEGV"), (1, "exit code 1")]
)
def test_the_end_of_a_process_is_told_in_words(main, returncode, text):
    assert text in main.ending(returncode, 60.0)


def test_what_a_step_has_started_ends_with_it(main):
    command = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    grandchild = Path("/proc") / process.stdout.readline().decode().strip()
    main.end_group(process)
    process.stdout.close()
    assert process.returncode is not None
    while runs(grandchild):
        time.sleep(0.01)


def test_steps_that_fail_leave_out_those_that_need_them(main, tmp_path, monkeypatch):
    from check_gpu.schedule import Step

    (tmp_path / "broken_step.py").write_text("import sys\nsys.exit('no compiler')\n")
    steps = (Step("build", "broken_step", 30.0, ()), Step("text", "broken_step", 30.0, ("build",)))
    monkeypatch.setattr(main, "STEPS", steps)
    monkeypatch.setattr(main, "native_recipe", lambda: tmp_path)
    place = main.Place(tmp_path, tmp_path, tmp_path)
    outcomes = main.Runner(place, "cpu", None, time.monotonic() + 60).run_all()
    assert [o.status for o in outcomes] == ["failed", "left out"]
    assert outcomes[1].reason == "it needs build"
    assert "no compiler" in place.log.read_text()


def test_a_step_that_runs_out_of_time_fails_and_later_ones_are_left_out(main, tmp_path, monkeypatch):
    from check_gpu.schedule import Step

    (tmp_path / "slow_step.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(main, "STEPS", (Step("copy", "slow_step", 60.0, ()), Step("speed", "slow_step", 60.0, ())))
    monkeypatch.setattr(main, "native_recipe", lambda: tmp_path)
    runner = main.Runner(main.Place(tmp_path, tmp_path, tmp_path), "cpu", None, time.monotonic() + 0.3)
    outcomes = runner.run_all()
    assert "did not end within" in outcomes[0].reason
    assert outcomes[1].reason == "no time was left"
