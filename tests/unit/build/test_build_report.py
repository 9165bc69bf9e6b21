"""Progress where nobody watches."""

from __future__ import annotations

import io

import pytest

from lcpd.build.report import PlainReporter, reporter_for


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_every_ten_seconds_at_most_and_one_at_the_end() -> None:
    clock, out = Clock(), io.StringIO()
    with PlainReporter(out, clock).progress("compiling") as update:
        for done in range(1, 26):
            clock.now = float(done)
            update(done, 25)
    assert out.getvalue().splitlines() == [
        "compiling: 10/25 steps, 10 s",
        "compiling: 20/25 steps, 20 s",
        "compiling: finished after 25 s",
    ]


def test_a_step_that_fails_is_not_called_finished() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="x"), PlainReporter(out).progress("compiling"):
        raise ValueError("x")
    assert out.getvalue() == ""


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(reporter_for(io.StringIO()), PlainReporter)
