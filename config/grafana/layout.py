"""Where things stand on Grafana's grid, which is 24 wide."""

from __future__ import annotations

from dataclasses import dataclass

from config.grafana.panels import Dashboard, Panel

WIDTH = 24
_HEADING = 1
_HEIGHTS = {"number": 4, "table": 4}
_HEIGHT = 8


@dataclass(frozen=True)
class Place:
    """A panel, or a row's heading if `panel` is None."""

    x: int
    y: int
    w: int
    h: int
    title: str
    panel: Panel | None = None


def layout(page: Dashboard) -> tuple[list[Place], int]:
    """All places from top to bottom, and the height of the page: panels flow as words do, a row begins a new line."""
    places: list[Place] = []
    y = 0
    for row in page.rows:
        places.append(Place(0, y, WIDTH, _HEADING, row.title))
        y += _HEADING
        x = tallest = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            height = _HEIGHTS.get(panel.kind, _HEIGHT)
            places.append(Place(x, y, panel.width, height, panel.title, panel))
            x, tallest = x + panel.width, max(tallest, height)
        y += tallest
    return places, y
