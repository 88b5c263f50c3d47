# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - beside the script that uses it, not in the package
"""The kinds of panel that the dashboard is made of, each with what every panel must have.

A panel cannot be made without a title, a description, a unit and a text for when there is nothing to show.
What is asked of Prometheus is in `rows.py` and `rows_daemon.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grafana_foundation_sdk.builders import bargauge, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
STEP = "5s"
"""The scrape interval of deploy/prometheus/prometheus.yml: no finer step shows more."""
GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "#8e8e8e"

Limits = Sequence[tuple[float, str]]
States = Mapping[int, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What a panel says of itself.

    Args (as fields):
        title: a few words.
        about: what it shows, and what to make of it.
        nothing: shown instead of a value where there is none.
    """

    title: str
    about: str
    nothing: str


@dataclass(frozen=True, slots=True)
class Query:
    """One question to Prometheus, and how its series are called."""

    expr: str
    legend: str = "{{instance}}"
    instant: bool = False

    def build(self, number: int) -> prometheus.Dataquery:
        """Return it as the panel's query number `number`."""
        made = prometheus.Dataquery().expr(self.expr).legend_format(self.legend).ref_id(chr(65 + number))
        return made.instant() if self.instant else made.range()


def number(
    text: Text, expr: str, unit: str, *, limits: Limits = (), base: str = GREEN, decimals: int = 0
) -> stat.Panel:
    """Return one big number: the newest value of an expression with one series."""
    return (
        stat.Panel()
        .title(text.title)
        .description(text.about)
        .no_value(text.nothing)
        .datasource(SOURCE)
        .interval(STEP)
        .unit(unit)
        .decimals(decimals)
        .span(3)
        .height(4)
        .thresholds(_steps(base, limits))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(Query(expr, text.title, instant=True).build(0))
    )


def bars(
    text: Text, queries: Sequence[Query], unit: str, *, limits: Limits = (), decimals: int = 0
) -> bargauge.Panel:
    """Return one bar for each series: a sum or a quantile over the whole time shown."""
    panel = (
        bargauge.Panel()
        .title(text.title)
        .description(text.about)
        .no_value(text.nothing)
        .datasource(SOURCE)
        .interval(STEP)
        .unit(unit)
        .decimals(decimals)
        .min(0)
        .span(8)
        .height(8)
        .thresholds(_steps(BLUE, limits))
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    for position, query in enumerate(queries):
        panel = panel.with_target(replace(query, instant=True).build(position))
    return panel


def lines(
    text: Text,
    queries: Sequence[Query],
    unit: str,
    *,
    limits: Limits = (),
    width: int = 8,
    is_stacked: bool = False,
    most: float | None = None,
) -> timeseries.Panel:
    """Return curves over time; limits are drawn as lines."""
    legend = (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
    )
    panel = (
        timeseries.Panel()
        .title(text.title)
        .description(text.about)
        .no_value(text.nothing)
        .datasource(SOURCE)
        .interval(STEP)
        .unit(unit)
        .min(0)
        .span(width)
        .height(8)
        .thresholds(_steps("transparent" if limits else GREEN, limits))
        .thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(
                common.GraphTresholdsStyleMode.DASHED if limits else common.GraphTresholdsStyleMode.OFF
            )
        )
        .line_width(2)
        .fill_opacity(25 if is_stacked else 8)
        .show_points(common.VisibilityMode.NEVER)
        # A gap is a gap: of a machine that is gone nothing is known, and a line would claim something.
        .span_nulls(span_nulls=False)
        .legend(legend)
        # With a hundred machines only the greatest are read.
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if most is not None:
        panel = panel.max(most)
    if is_stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    for position, query in enumerate(queries):
        panel = panel.with_target(query.build(position))
    return panel


def states(
    text: Text, query: Query, named: States, *, width: int = 24, height: int = 6
) -> statetimeline.Panel:
    """Return bars of states over time, a row for each series.

    Args:
        text: of the panel.
        query: gives one of the numbers in `named`.
        named: text and colour of each number.
        width: of 24.
        height: in Grafana's rows.
    """
    mapping = models.ValueMap(
        {
            str(value): models.ValueMappingResult(text=name, color=color, index=index)
            for index, (value, (name, color)) in enumerate(named.items())
        }
    )
    return (
        statetimeline.Panel()
        .title(text.title)
        .description(text.about)
        .no_value(text.nothing)
        .datasource(SOURCE)
        .interval(STEP)
        .unit("none")
        .span(width)
        .height(height)
        .mappings([mapping])
        .thresholds(_steps(GREY, ()))
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .merge_values(merge_values=True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.8)
        .fill_opacity(85)
        .with_target(query.build(0))
    )


def _steps(base: str, limits: Limits) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color=base)]
    steps += [models.Threshold(value=value, color=color) for value, color in limits]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
