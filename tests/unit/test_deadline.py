"""The last resort of a planned stop."""

from __future__ import annotations

import subprocess
import sys

STUCK = """
import threading
from lcpd.deadline import Deadline

Deadline().begin(0.1)

def hang_on_a_disk():
    threading.Event().wait()

threading.Thread(target=hang_on_a_disk).start()
"""
STUCK_IN_THE_LOG = """
import logging
import threading
from lcpd.deadline import Deadline

class Hanging(logging.Handler):
    def emit(self, record):
        threading.Event().wait()

logging.getLogger().addHandler(Hanging())
Deadline().begin(0.5)
logging.getLogger().error("to a pipe that nobody reads")
"""
IN_TIME = """
import threading
from lcpd.deadline import Deadline

deadline = Deadline()
deadline.begin(3600)
deadline.cancel()
"""


def test_a_process_that_does_not_end_is_ended_and_tells_where_its_threads_stood() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "stopping took longer than 0.1 s" in ended.stderr
    assert "hang_on_a_disk" in ended.stderr


def test_a_thread_that_is_stuck_while_it_logs_does_not_keep_the_process_alive() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK_IN_THE_LOG], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1


def test_one_that_was_through_in_time_ends_as_it_would() -> None:
    subprocess.run([sys.executable, "-c", IN_TIME], timeout=60, check=True)
