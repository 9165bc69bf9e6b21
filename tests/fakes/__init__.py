"""Stand-ins for the daemon's child processes, without any native code: :mod:`fakes.worker` and :mod:`fakes.chat`.

Both speak the real protocols through :mod:`lcpd.ipc` and share the toy vocabulary of :mod:`fakes.vocab`, so that what
the fake chat process renders, the fake worker can run.  :mod:`fakes.state` is the fake worker's memory, and
:mod:`fakes.clock` is time for tests that do not want to wait for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

# numpy starts threads that a fake has no use for; without them it is imported in half the time.
_LAUNCH = (
    "import os, sys; os.environ['OPENBLAS_NUM_THREADS'] = '1'; sys.path.insert(0, {tests!r}); "
    "from {module} import main; sys.exit(main())"
)


def command(module: str, script: msgspec.Struct) -> tuple[str, ...]:
    """The command line of a fake: ``python -c ... SCRIPT``, to which the daemon adds PARENT_PID and FD."""
    launch = _LAUNCH.format(tests=str(Path(__file__).resolve().parents[1]), module=module)
    return (sys.executable, "-c", launch, msgspec.json.encode(script).decode())
