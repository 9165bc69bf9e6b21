"""The dashboards as pictures: ``python -m tests.prometheus --minutes 8``.

Starts a daemon, lets everything happen to it for a while (scene.py), and draws each dashboard from what Prometheus has
scraped meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(_TESTS))  # as pytest does

from config.grafana.build import DASHBOARDS  # noqa: E402

from e2e.conftest import Daemon  # noqa: E402
from prometheus import scene  # noqa: E402
from prometheus.pictures import Window, draw  # noqa: E402
from prometheus.prometheus_server import Prometheus  # noqa: E402

_SCRAPE = 5.0
"""Seconds."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.prometheus", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8, help="how long the daemon is watched (default: 8)")
    parser.add_argument("--folder", type=Path, default=_TESTS.parent / "docs/images", help="where pictures go")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        daemon = Daemon(folder / "daemon.log", **scene.settings(folder, write_budget="1GiB"))
        server = Prometheus(folder, [f"127.0.0.1:{daemon.port}"], scene.KEYS["prometheus"], f"{_SCRAPE:g}s")
        try:
            daemon.wait_for("ok")
            server.wait_until_ready()
            begin = time.time()
            asyncio.run(scene.a_day(daemon, begin + 60 * given.minutes))
            time.sleep(_SCRAPE)
            window = Window(begin, time.time(), _SCRAPE)
            for page in DASHBOARDS:
                path = given.folder / f"dashboard-{page.name}.png"
                empty = draw(page, server, window, path)
                print(f"{path.name}: {path.stat().st_size // 1024} KiB, without data: {', '.join(empty) or 'none'}")
        finally:
            server.stop()
            daemon.stop(signal.SIGKILL)


if __name__ == "__main__":
    main()
