# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - a script, not a module
"""The Grafana dashboard as code; needs `pip install grafana-foundation-sdk`.

    python deploy/grafana/dashboard.py > deploy/grafana/spotwatch.json

What the panels ask is in `rows.py` and `rows_daemon.py`, what they look like in `panels.py`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from panels import SOURCE
from rows import CHOSEN, PROVIDER, now, reclaims, work
from rows_daemon import daemon, ears

ANNOTATIONS: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    (
        "notice",
        f"sum by (instance, provider, kind) (spotwatch_notice_active{{{PROVIDER}}}) > 0",
        "yellow",
        "{{instance}}: {{kind}} announced by {{provider}}",
        {},
    ),
    (
        "stop ordered",
        f'sum by (instance) (spotwatch_open_cases{{{CHOSEN},phase=~"stopping|stopped"}}) > 0',
        "red",
        "{{instance}}: told to save and exit",
        {},
    ),
    (
        "deadline",
        # The value is when; Grafana wants milliseconds.
        f"max by (instance) (spotwatch_notice_deadline_timestamp_seconds{{{CHOSEN}}} > 0) * 1000",
        "dark-red",
        "{{instance}}: deadline",
        {"useValueForTime": "true"},
    ),
)


def build() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    board = (
        dashboard.Dashboard("spotwatch")
        .uid("spotwatch")
        .description("Reclaim notices, what was done about them, and what a loss would cost.")
        .tags(["spotwatch", "spot", "checkpoint"])
        .timezone("browser")
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .refresh("5s")
        .timepicker(dashboard.TimePicker().refresh_intervals(["5s", "10s", "30s", "1m", "5m"]))
    )
    for variable in _variables():
        board = board.with_variable(variable)
    for name, expr, color, _, _ in ANNOTATIONS:
        board = board.annotation(
            dashboard.AnnotationQuery()
            .name(name)
            .datasource(SOURCE)
            .enable(enable=True)
            .icon_color(color)
            .expr(expr)
        )
    for title, panels in (
        ("Now", now()),
        ("Reclaims", reclaims()),
        ("Work and its saves", work()),
        ("What is heard", ears()),
        ("What was done, and the daemon itself", daemon()),
    ):
        board = board.with_row(dashboard.Row(title))
        for panel in panels:
            board = board.with_panel(panel)
    made: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(board.build()))
    _finish(made)
    return made


def _variables() -> list[Any]:
    def asked(name: str, label: str, query: str) -> dashboard.QueryVariable:
        return (
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query({"query": query, "refId": f"variable-{name}"})
            # Machines that are gone are found by choosing the time in which they lived.
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".*")
            .current(models.VariableOption(selected=True, text="All", value="$__all"))
        )

    return [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        asked("job", "Job", "label_values(spotwatch_build_info, job)"),
        asked("instance", "Machine", 'label_values(spotwatch_build_info{job=~"$job"}, instance)'),
        asked("provider", "Provider", f"label_values(spotwatch_provider_up{{{CHOSEN}}}, provider)"),
    ]


def _finish(made: dict[str, Any]) -> None:
    """Add what the builders have no word for: of annotations their text, of panels their numbers."""
    texts = {name: (text, more) for name, _, _, text, more in ANNOTATIONS}
    for annotation in made["annotations"]["list"]:
        text, more = texts[annotation["name"]]
        annotation |= {"titleFormat": text, "step": "5s", **more}
    for position, panel in enumerate(made["panels"], 1):
        panel["id"] = position


if __name__ == "__main__":
    sys.stdout.write(json.dumps(build(), indent=1, sort_keys=True) + "\n")
