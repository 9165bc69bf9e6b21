"""The last resort of a planned stop: when it takes longer than it may, the process ends, whatever is not finished."""

from __future__ import annotations

import faulthandler
import os
import threading


class Deadline:
    """Ends the process at a given time.  It needs neither the event loop, which may be stuck, nor a lock."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self, within: float) -> None:
        """The process has ended in so many seconds, with status 1, unless `cancel` is called before."""
        self._timer = threading.Timer(within, self._end, (within,))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Everything is finished."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, within: float) -> None:
        # Not through the log, whose lock a thread may hold that is stuck while it writes.
        os.write(2, f"stopping took longer than {within:g} s and is given up; each thread stood here:\n".encode())
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)
