"""A dashboard as a picture, from what Prometheus answers to its panels' queries: near to what Grafana shows of them.

Not Grafana itself, but the same expressions, legends, units and places.  Needs matplotlib.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image

mpl.use("Agg")
import matplotlib.pyplot as plt
from config.grafana.layout import layout
from config.grafana.panels import Dashboard, Panel, concrete
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.dates import DateFormatter, MinuteLocator
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MultipleLocator, NullLocator
from matplotlib.transforms import Affine2D, ScaledTranslation, Transform

from prometheus.prometheus_server import Prometheus, Series

Box = tuple[float, float, float, float]
"""Left, bottom, width, height: shares of the figure."""
Named = tuple[str, Series]
"""A series with its legend."""
_UNIT = (0.66, 0.42)
"""Inches of one step of Grafana's grid: width, height."""
_POINTS = 180
"""Of a line."""
_BACK, _PANEL, _TEXT, _DIM = "#111217", "#181b1f", "#ccccdc", "#8e8e9a"
_COLORS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d", "#ffb357", "#c4162a")
_STATES = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2"}


@dataclass(frozen=True)
class Window:
    """What stretch of time is shown, in Unix time, and how often Prometheus scraped (seconds)."""

    begin: float
    end: float
    scrape: float

    @property
    def step(self) -> float:
        """Seconds between points."""
        return max(1.0, round((self.end - self.begin) / _POINTS))

    def concrete(self, expr: str) -> str:
        """With Grafana's own rule for $__rate_interval."""
        interval = max(self.step + self.scrape, 4 * self.scrape)
        return concrete(expr, f"{interval:.0f}s", f"{self.end - self.begin:.0f}s")


def draw(page: Dashboard, prometheus: Prometheus, window: Window, path: Path) -> list[str]:
    """Write a PNG; returns the titles of panels that had no data.  Rows for a GPU are left out."""
    rows = tuple(row for row in page.rows if not all(panel.gpu for panel in row.panels))
    places, height = layout(replace(page, rows=rows))
    figure = plt.figure(figsize=(24 * _UNIT[0], height * _UNIT[1]), dpi=72, facecolor=_BACK)
    empty = []
    for place in places:
        left, top = place.x / 24, 1 - place.y / height
        if place.panel is None:
            figure.text(left + 0.004, top - 0.6 / height, f"v {place.title}", color=_TEXT, fontsize=11, va="center")
            continue
        box = (left + 0.002, top - (place.h - 0.1) / height, place.w / 24 - 0.004, (place.h - 0.2) / height)
        if not _draw_panel(figure, box, place.panel, prometheus, window):
            empty.append(place.panel.title)
    image = io.BytesIO()
    figure.savefig(image, facecolor=_BACK)
    plt.close(figure)
    _small(Image.open(image).convert("RGB")).save(path, optimize=True)
    return empty


def _small(image: Image.Image) -> Image.Image:
    """With a palette, which is enough for lines and a third of the bytes; the background keeps its very colour."""
    small = image.quantize(128, Image.Quantize.MAXCOVERAGE)
    _, background = max(small.getcolors())
    palette = small.getpalette()
    palette[3 * background : 3 * background + 3] = bytes.fromhex(_PANEL.removeprefix("#"))
    small.putpalette(palette)
    return small


def _draw_panel(figure: Figure, box: Box, panel: Panel, source: Prometheus, window: Window) -> bool:
    back = figure.add_axes(box, facecolor=_PANEL)
    back.set_xticks([])
    back.set_yticks([])
    for spine in back.spines.values():
        spine.set_color("#2c3235")
    height = box[3] * figure.get_figheight() * 72
    fits = int(box[2] * figure.get_figwidth() * 72 / 5.6)
    title = textwrap.shorten(panel.title, fits, placeholder=" …")
    back.text(0.012, 1 - 9 / height, title, color=_TEXT, fontsize=9, va="center", transform=back.transAxes)
    found = _fetch(panel, source, window)
    if not found:
        text = panel.nothing or "No data"
        back.text(0.5, 0.45, text, color=_DIM, fontsize=10, ha="center", transform=back.transAxes)
        return False
    draw_kind = {"number": _number, "bars": _bars, "heatmap": _heatmap, "table": _table}.get(panel.kind, _lines)
    draw_kind(figure, box, panel, found, window)
    return True


def _fetch(panel: Panel, source: Prometheus, window: Window) -> list[Named]:
    """Every series with its legend."""
    found = []
    for query in panel.queries:
        expr = window.concrete(query.expr)
        if panel.kind in ("bars", "table"):
            series = source.instant(expr, window.end)
        else:
            series = source.over(expr, window.begin, window.end, window.step)
        found += [(_legend(query.legend, one["metric"]), one) for one in series]
    return found


def _legend(pattern: str, labels: dict[str, str]) -> str:
    if not pattern:
        return ", ".join(f"{name}={value}" for name, value in labels.items() if name != "__name__")
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), pattern)


def _points(series: Series) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(float(at), float(value)) for at, value in series["values"]]
    return np.array([at for at, _ in pairs]), np.array([value for _, value in pairs])


def _inner(figure: Figure, box: Box, below: float = 24, left: float = 50, right: float = 10) -> Axes:
    """Axes inside of a panel, with so many points of room for legend and numbers around."""
    width, height = figure.get_figwidth() * 72, figure.get_figheight() * 72
    axes = figure.add_axes(
        (
            box[0] + left / width,
            box[1] + below / height,
            box[2] - (left + right) / width,
            box[3] - (below + 24) / height,
        ),
        facecolor=_PANEL,
    )
    axes.tick_params(which="both", colors=_DIM, labelsize=7, length=0)
    axes.grid(color="#2c3235", linewidth=0.5)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def _time_axis(axes: Axes, window: Window) -> None:
    axes.set_xlim(datetime.fromtimestamp(window.begin, UTC), datetime.fromtimestamp(window.end, UTC))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    axes.xaxis.set_major_locator(MinuteLocator(interval=max(1, round((window.end - window.begin) / 60 / 5))))


def _value_axis(axes: Axes, panel: Panel) -> None:
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 3), numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        top = panel.limit or max(axes.get_ylim()[1], 1e-9)
        axes.set_ylim(0, top)
        powers = [1024**power for power in range(5) if 1024**power <= top]
        size = powers[-1] if panel.unit in ("bytes", "binBps") and powers else 1
        axes.yaxis.set_major_locator(MultipleLocator(size * _nice(top / size / 4)))
    axes.yaxis.set_major_formatter(lambda value, _: human(value, panel))


def _nice(step: float) -> float:
    """The next of 1, 2, 2.5, 5, 10, ..."""
    base = 10 ** math.floor(math.log10(step))
    return next(base * times for times in (1, 2, 2.5, 5, 10) if base * times >= step * 0.999)


def _times(values: np.ndarray) -> list[datetime]:
    return [datetime.fromtimestamp(value, UTC) for value in values]


def _lines(figure: Figure, box: Box, panel: Panel, found: list[Named], window: Window) -> None:
    names = [name for name, _ in found]
    columns = _columns(figure, box, names)
    axes = _inner(figure, box, below=26 + 10 * math.ceil(len(names) / columns))
    grid = np.arange(window.begin, window.end + window.step / 2, window.step)
    base = np.zeros(len(grid))
    for i, (name, series) in enumerate(found):
        color = _COLORS[i % len(_COLORS)]
        values = _on_grid(series, grid)
        if panel.kind == "stacked":
            top = base + np.nan_to_num(values)
            axes.fill_between(_times(grid), base, top, color=color, alpha=0.5, linewidth=0, label=name)
            base = top
        else:
            axes.plot(_times(grid), values, color=color, linewidth=1, label=name)
    if panel.kind == "stacked":
        axes.set_ylim(0, 1.05 * max(base.max(), 1e-9))
    _time_axis(axes, window)
    _value_axis(axes, panel)
    axes.legend(
        loc="upper left", bbox_to_anchor=(-30, -14), bbox_transform=_points_below(axes), ncols=columns, fontsize=7,
        frameon=False, labelcolor=_TEXT, handlelength=1, handleheight=0.7, columnspacing=1, borderaxespad=0,
        labelspacing=0.2,
    )  # fmt: skip


def _columns(figure: Figure, box: Box, names: list[str]) -> int:
    """How many columns of a legend fit into a panel."""
    room = box[2] * figure.get_figwidth() * 72 - 20
    return max(1, int(room / (22 + 3.9 * max(len(name) for name in names))))


def _points_below(axes: Axes) -> Transform:
    """Coordinates in points from the lower left corner."""
    scale = axes.figure.dpi / 72
    return Affine2D().scale(scale) + ScaledTranslation(0, 0, axes.transAxes)


def _on_grid(series: Series, grid: np.ndarray) -> np.ndarray:
    """Its values at the instants of a grid, not a number where it has none."""
    times, values = _points(series)
    column = np.full(len(grid), np.nan)
    places = np.round((times - grid[0]) / (grid[1] - grid[0])).astype(int)
    column[np.clip(places, 0, len(grid) - 1)] = values
    return column


def _number(figure: Figure, box: Box, panel: Panel, found: list[Named], window: Window) -> None:
    """Grafana puts several values side by side."""
    for i, (name, series) in enumerate(found):
        part = box[2] / len(found)
        axes = figure.add_axes((box[0] + i * part + 0.002, box[1] + 0.001, part - 0.004, box[3] * 0.7), frameon=False)
        axes.set_xticks([])
        axes.set_yticks([])
        times, values = _points(series)
        whole = values[~np.isnan(values)]
        color = _STATES[_state(panel, whole[-1] if len(whole) else math.nan)]
        axes.fill_between(_times(times), 0, values, color=color, alpha=0.15, linewidth=0)
        axes.plot(_times(times), values, color=color, linewidth=0.6, alpha=0.6)
        axes.set_xlim(datetime.fromtimestamp(window.begin, UTC), datetime.fromtimestamp(window.end, UTC))
        axes.set_ylim(0, max(2.2 * np.nanmax(whole), 1e-9) if len(whole) else 1)
        text = human(whole[-1], panel) if len(whole) else "No data"
        axes.text(0.5, 0.62, text, color=color, fontsize=20, ha="center", va="center", transform=axes.transAxes)
        if len(found) > 1:
            axes.text(0.5, 0.95, name, color=_DIM, fontsize=8, ha="center", va="center", transform=axes.transAxes)


def _bars(figure: Figure, box: Box, panel: Panel, found: list[Named], window: Window) -> None:
    found = sorted(found, key=lambda one: float(one[1]["value"][1]))
    names = [name or "value" for name, _ in found]
    values = [float(series["value"][1]) for _, series in found]
    axes = _inner(figure, box, below=8, left=14 + 4.6 * max(len(name) for name in names), right=50)
    axes.grid(False)
    axes.set_xticks([])
    top = panel.limit or max([*values, 1e-9])
    places = range(len(found))
    axes.barh(places, [top] * len(found), color="#22252b", height=0.7)
    colors = [_STATES[_state(panel, value)] for value in values]
    axes.barh(places, values, color=colors, height=0.7)
    for place, value, color in zip(places, values, colors, strict=True):
        axes.text(top * 1.02, place, human(value, panel), color=color, fontsize=8, va="center")
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", labelcolor=_TEXT, labelsize=8)
    axes.set_xlim(0, top)
    axes.set_ylim(min(-0.6, len(found) - 5.4), len(found) - 0.4)


def _heatmap(figure: Figure, box: Box, panel: Panel, found: list[Named], window: Window) -> None:
    axes = _inner(figure, box)
    axes.grid(False)
    grid = np.arange(window.begin, window.end + window.step / 2, window.step)
    rows = sorted(found, key=lambda one: float(one[1]["metric"]["le"]))
    cumulative = np.array([np.nan_to_num(_on_grid(series, grid)) for _, series in rows])
    counts = np.diff(cumulative, axis=0, prepend=0)
    colors = LinearSegmentedColormap.from_list("oranges", [_PANEL, "#fdae6b", "#e6550d"])
    axes.pcolormesh(_times(grid), range(len(rows)), counts, cmap=colors, shading="nearest")
    edges = [human(float(series["metric"]["le"]), panel) for _, series in rows]
    axes.set_yticks(range(len(rows)), edges)
    _time_axis(axes, window)


def _table(figure: Figure, box: Box, panel: Panel, found: list[Named], window: Window) -> None:
    axes = _inner(figure, box, below=4, left=8)
    axes.axis("off")
    hidden = {"__name__", "job"}
    columns = sorted({name for _, series in found for name in series["metric"]} - hidden)
    cells = [[series["metric"].get(name, "") for name in columns] for _, series in found]
    made = axes.table(cells, colLabels=columns, loc="upper left", cellLoc="left", edges="horizontal")
    made.auto_set_font_size(False)
    made.set_fontsize(8)
    made.auto_set_column_width(list(range(len(columns))))
    for cell in made.get_celld().values():
        cell.set_text_props(color=_TEXT)
        cell.set_edgecolor("#2c3235")


def _state(panel: Panel, value: float) -> str:
    """The name of the colour that Grafana gives a value."""
    return [color for bound, color in panel.colors() if bound is None or value >= bound][-1]


def human(value: float, panel: Panel) -> str:
    """A value as Grafana writes it in the panel's unit."""
    for exact, text in panel.words:
        if value == exact:
            return text
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "+Inf"
    if panel.unit == "s":
        for size, name in ((86400, "day"), (3600, "hour"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return "0 s" if value == 0 else f"{value:.2g} s"
    if panel.unit in ("bytes", "binBps"):
        tail = "/s" if panel.unit == "binBps" else ""
        for power, name in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
            if abs(value) >= 1024**power:
                return f"{value / 1024**power:.3g} {name}{tail}"
        return f"{value:.3g} B{tail}"
    if panel.unit == "percentunit":
        return f"{100 * value:.3g}%"
    if panel.whole and abs(value) < 1000:
        return f"{value:.0f}"
    suffix = {"reqps": " req/s", "ops": " /s", "watt": " W", "celsius": " °C", "hertz": " Hz"}.get(panel.unit, "")
    for size, name in ((1e9, " G"), (1e6, " Mil"), (1e3, " K")):
        if abs(value) >= size and panel.unit != "none":
            return f"{value / size:.3g}{name}{suffix}"
    return f"{value:.3g}{suffix}"
