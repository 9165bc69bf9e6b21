"""What the parent makes of the self-test's child process."""

from __future__ import annotations

import signal

import pytest

from lcpd.build import selftest
from lcpd.build.errors import BuildError
from lcpd.build.fallback import SelfTestCrash
from lcpd.build.selftest import Findings, interpret, run

GOOD = 'some chatter\n{"abi": 1, "build": "b0-0c1e57098", "devices": ["CPU"]}\n'


def test_the_last_line_holds_the_findings() -> None:
    assert interpret(0, GOOD, "") == Findings(1, "b0-0c1e57098", ("CPU",))


def test_a_finding_is_an_error_with_its_reason() -> None:
    with pytest.raises(BuildError, match="the matrix product is wrong on CPU"):
        interpret(1, '{"error": "the matrix product is wrong on CPU"}', "")


def test_a_death_by_signal_is_a_crash_with_the_last_words() -> None:
    with pytest.raises(SelfTestCrash) as crash:
        interpret(-signal.SIGILL, "", "Fatal Python error: Illegal instruction")
    assert crash.value.signal_number == signal.SIGILL
    assert "Illegal instruction" in crash.value.output


@pytest.mark.parametrize("stdout", ["", "no json here", "{}"])
def test_a_child_that_ends_without_findings_has_not_passed(stdout: str) -> None:
    with pytest.raises(BuildError, match="failed"):
        interpret(0, stdout, "")


def test_a_python_error_in_the_child_is_shown() -> None:
    with pytest.raises(BuildError, match=r"exit code 1[\s\S]*ModuleNotFoundError: numpy"):
        interpret(1, "", "Traceback\nModuleNotFoundError: numpy")


def test_a_child_that_hangs_is_ended(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(selftest, "TIMEOUT_S", 0.001)
    with pytest.raises(BuildError, match="did not end within"):
        run(tmp_path, None, None)


def test_a_folder_without_libraries_fails_the_test(tmp_path) -> None:
    with pytest.raises(BuildError, match="the self-test of the finished build failed"):
        run(tmp_path, None, None)
