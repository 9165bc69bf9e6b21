"""One Prometheus on a free port of 127.0.0.1, and its HTTP API."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from prometheus.prometheus_programs import programs

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config/prometheus/prometheus.yml"
RULES = ROOT / "config/prometheus/lcpd.rules.yml"
_READY_WITHIN = 60.0
"""Seconds."""

Series = dict[str, Any]
"""As the API gives it: ``metric`` (labels) and ``value`` or ``values``."""


class Prometheus:
    """The project's own configuration and rules, with the targets and the pace of a test.

    Raises `prometheus_programs.Unavailable`.
    """

    def __init__(self, folder: Path, targets: Sequence[str], key: str, interval: str = "1s") -> None:
        """`targets`: addresses of daemons; `key`: an API key of theirs; `interval`: of scrapes and rules.

        `folder` gets the data and the log.
        """
        self.url = f"http://127.0.0.1:{_free_port()}"
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(_config(targets, key, interval)))
        self._log = folder / "prometheus.log"
        command = [
            str(programs().prometheus),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]
        with self._log.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_until_ready(self) -> None:
        """Until it has tried to scrape each target, which it begins seconds after it says that it is ready.

        Raises AssertionError with the log if it does not come up.
        """
        deadline = time.monotonic() + _READY_WITHIN
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                ready = httpx.get(f"{self.url}/-/ready").status_code == 200
                if ready and (targets := self.targets()) and all(one["health"] != "unknown" for one in targets):
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"Prometheus is not ready:\n{self.log}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(timeout=60)

    def instant(self, expr: str, at: float | None = None) -> list[Series]:
        """The value of an expression now, or at an instant (Unix time); AssertionError for an invalid one."""
        return self._get("query", query=expr, **({} if at is None else {"time": at}))["result"]

    def over(self, expr: str, begin: float, end: float, step: float) -> list[Series]:
        """Its values over a stretch of time (Unix time, seconds)."""
        return self._get("query_range", query=expr, start=begin, end=end, step=step)["result"]

    def exemplars(self, expr: str, begin: float, end: float) -> list[Series]:
        """The exemplars of the series that an expression selects."""
        return self._get("query_exemplars", query=expr, start=begin, end=end)

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its state, health and last error."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        """Every target with its health and the last error."""
        return self._get("targets")["activeTargets"]

    def _get(self, path: str, **params: object) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=60).json()
        assert answer["status"] == "success", f"{params}: {answer.get('error')}"
        return answer["data"]


def _config(targets: Sequence[str], key: str, interval: str) -> dict[str, Any]:
    """The project's example, so that it is what is tested."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {**config["global"], "scrape_interval": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(RULES)]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    job["authorization"] = {"credentials": key}
    return config


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
