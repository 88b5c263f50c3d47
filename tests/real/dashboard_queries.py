# SPDX-License-Identifier: Apache-2.0
"""The questions that the dashboard asks Prometheus, with its variables filled as Grafana fills them.

It asks nothing itself. Grafana's rules, 2026-11-30: https://grafana.com/docs/grafana/latest/dashboards/variables/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: of which panel or annotation, which of its queries, and what it asks."""

    panel: str
    ref: str
    expr: str
    legend: str = ""


def asks(dashboard: Mapping[str, Any]) -> list[Ask]:
    """Return every question of a dashboard, panels first."""
    found = [
        Ask(panel["title"], target["refId"], target["expr"], target["legendFormat"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]
    return found + [Ask(one["name"], "annotation", one["expr"]) for one in dashboard["annotations"]["list"]]


def filled(expr: str, *, range_seconds: float = 60.0, scrape_seconds: float = 1.0) -> str:
    """Return the question with All chosen, over a time shown of `range_seconds`.

    Raises:
        ValueError: a variable is left that nothing fills.
    """
    values = {
        # A rate wants four scrapes; Grafana takes more when a pixel is longer, which it is not here.
        "$__rate_interval": f"{4 * scrape_seconds:g}s",
        "$__range": f"{round(range_seconds)}s",
        "$job": ".*",
        "$instance": ".*",
        "$provider": ".*",
    }
    for name, value in values.items():
        expr = expr.replace(name, value)
    if "$" in expr:
        raise ValueError(f"a variable is not filled: {expr}")
    return expr
