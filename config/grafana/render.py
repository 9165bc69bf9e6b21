"""A dashboard as Grafana's JSON, through Grafana's own typed builders: an option that does not exist is an error."""

from __future__ import annotations

import json
from collections.abc import Callable

from config.grafana.layout import layout
from config.grafana.panels import Dashboard, Kind, Panel, Query
from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_options
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

_AnyPanel = timeseries.Panel | stat.Panel | bargauge.Panel | heatmap.Panel | table.Panel
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def to_json(page: Dashboard, others: tuple[Dashboard, ...]) -> str:
    """The file of a dashboard, with links to the others."""
    return json.dumps(_build(page, others), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _build(page: Dashboard, others: tuple[Dashboard, ...]) -> models.Dashboard:
    made = (
        builders.Dashboard(f"lcpd: {page.title}")
        .uid(f"lcpd-{page.name}")
        .description(page.description)
        .tags(["lcpd"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .variables(
            [
                builders.DatasourceVariable("datasource").label("Data source").type("prometheus"),
                # A daemon that has loaded no model has no such label: ".*" finds it, too.
                _variable("model", "Model", "label_values(lcpd_model_info, model)").all_value(".*"),
                _variable("instance", "Daemon", 'label_values(lcpd_model_info{model=~"$model"}, instance)'),
            ]
        )
    )
    for other in others:
        if other is not page:
            made = made.link(_link(other))
    for number, place in enumerate(layout(page)[0], 1):
        grid = models.GridPos(x=place.x, y=place.y, w=place.w, h=place.h)
        if place.panel is None:
            made = made.with_row(builders.Row(place.title).grid_pos(grid).id(number))
        else:
            made = made.with_panel(_panel(place.panel).grid_pos(grid).id(number))
    return made.build()


def _link(other: Dashboard) -> builders.DashboardLink:
    return (
        builders.DashboardLink(other.title)
        .type(models.DashboardLinkType.LINK)
        .url(f"/d/lcpd-{other.name}")
        .keep_time(True)
        .include_vars(True)
    )


def _variable(name: str, title: str, query: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(title)
        .datasource(_SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(panel: Panel) -> _AnyPanel:
    makers: dict[Kind, Callable[[Panel], _AnyPanel]] = {
        "lines": _lines,
        "stacked": _lines,
        "number": _number,
        "bars": _bars,
        "heatmap": _heatmap,
        "table": _table,
    }
    made = makers[panel.kind](panel).title(panel.title).description(panel.description).datasource(_SOURCE)
    made = made.unit(panel.unit)
    if panel.whole:
        made = made.decimals(0)
    if panel.nothing:
        made = made.no_value(panel.nothing)
    if panel.words:
        texts = {
            f"{value:g}": models.ValueMappingResult(text=text, index=i) for i, (value, text) in enumerate(panel.words)
        }
        made = made.mappings([models.ValueMap(options=texts)])
    for i, query in enumerate(panel.queries):
        made = made.with_target(_target(panel, query).ref_id(chr(ord("A") + i)))
    return made


def _target(panel: Panel, query: Query) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).datasource(_SOURCE)
    if query.legend:
        made = made.legend_format(query.legend)
    if query.exemplars:
        made = made.exemplar(True)
    if panel.kind == "heatmap":
        return made.range().format(PromQueryFormat.HEATMAP)
    if panel.kind == "table":
        return made.instant().format(PromQueryFormat.TABLE)
    return made.instant() if panel.kind == "bars" else made.range()


def _lines(panel: Panel) -> timeseries.Panel:
    stacked = panel.kind == "stacked"
    made = (
        timeseries.Panel()
        .fill_opacity(40 if stacked else 0)
        .line_width(0 if stacked else 1)
        .show_points(options.VisibilityMode.NEVER)
        .stacking(common.StackingConfig().mode(options.StackingMode.NORMAL if stacked else options.StackingMode.NONE))
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(options.LegendDisplayMode.LIST)
            .placement(options.LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING))
    )
    if panel.log:
        return made.scale_distribution(common.ScaleDistributionConfig().type(options.ScaleDistribution.LOG).log(10))
    made = made.min(0)
    return made if panel.limit is None else made.max(panel.limit)


def _number(panel: Panel) -> stat.Panel:
    return (
        stat.Panel()
        .color_mode(options.BigValueColorMode.VALUE)
        .graph_mode(options.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(panel))
        .min(0)
    )


def _bars(panel: Panel) -> bargauge.Panel:
    made = (
        bargauge.Panel()
        .display_mode(options.BarGaugeDisplayMode.BASIC)
        .orientation(options.VizOrientation.HORIZONTAL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(panel))
        .min(0)
    )
    return made if panel.limit is None else made.max(panel.limit)


def _heatmap(panel: Panel) -> heatmap.Panel:
    axis = heatmap.YAxisConfig().unit(panel.unit)
    colors = heatmap.HeatmapColorOptions().scheme("Oranges").steps(64).mode(heatmap_options.HeatmapColorMode.SCHEME)
    return heatmap.Panel().calculate(False).y_axis(axis).color(colors)


def _table(panel: Panel) -> table.Panel:
    hidden = models.DynamicConfigValue(id_val="custom.hidden", value=True)
    made = table.Panel()
    for name in ("Time", "Value", "__name__", "job"):
        made = made.override_by_name(name, [hidden])
    return made


def _thresholds(panel: Panel) -> builders.ThresholdsConfig:
    steps = [models.Threshold(value=value, color=color) for value, color in panel.colors()]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
