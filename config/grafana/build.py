"""Writes the dashboards: ``python -m config.grafana.build``.  A test keeps the files equal to their source."""

from __future__ import annotations

from pathlib import Path

from config.grafana import cache, clients, engine, overview
from config.grafana.render import to_json

DASHBOARDS = (overview.DASHBOARD, cache.DASHBOARD, engine.DASHBOARD, clients.DASHBOARD)
FOLDER = Path(__file__).parent / "dashboards"


def files() -> dict[Path, str]:
    """Each file and what is in it."""
    return {FOLDER / f"lcpd-{page.name}.json": to_json(page, DASHBOARDS) for page in DASHBOARDS}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text)
        print(path.name)
