# SPDX-License-Identifier: Apache-2.0
"""Play a reclaim under a real Prometheus, ask what the dashboard's panels ask, draw docs/dashboard.svg.

    python -m tests.real.record_dashboard [FILE]

It takes two minutes, root or not, and needs prometheus and prometheus-alertmanager. The trainer's state is
half a gigabyte, so that a save takes seconds and can be seen.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.real import monitored_reclaim, monitoring
from tests.real.dashboard_chart import Chart, Curve, Mark, Plot, Strip
from tests.real.dashboard_queries import Ask, asks, filled
from tests.real.monitored_reclaim import ROOT, TRAINER, Pace, Seen
from tests.real.monitoring import DEPLOY, Monitoring

PACE = Pace(
    window_seconds=60.0,
    step_seconds=0.1,
    every_steps=180,
    before_seconds=34.0,
    trainer=Path(__file__).parent / "heavy_trainer.py",
)
_BEFORE, _AFTER = 42.0, 8.0
# Grafana's names of colours, dark enough for white letters.
_COLORS = {
    "green": "#15803d", "dark-green": "#166534", "yellow": "#ca8a04", "orange": "#c2570c",
    "dark-orange": "#9a3412", "red": "#dc2626", "blue": "#1d4ed8", "light-blue": "#0284c7",
    "light-purple": "#7c3aed", "#8e8e8e": "#94a3b8",
}  # fmt: skip
_STRIPS = (("What spotwatch has ordered", "spotwatch"), ("What the trainer does", "the trainer"))
_PLOTS = (
    ("Work at risk", "work at risk", " s", ("#dc2626",)),
    ("Step, and step saved", "steps", "", ("#1d4ed8", "#15803d")),
    ("Time left, and time a save takes", "time", " s", ("#b45309", "#64748b")),
)


def main(file: Path) -> None:
    """Play, ask, draw."""
    board = json.loads((DEPLOY / "grafana/spotwatch.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="spotwatch-record-") as name:
        for part in ("monitoring", "reclaim"):
            (Path(name) / part).mkdir()
        with monitoring.running(Path(name) / "monitoring") as prometheus:
            seen = monitored_reclaim.play(prometheus, Path(name) / "reclaim", PACE)
            chart = picture(board, prometheus, seen)
    file.write_text(chart.draw(), encoding="utf-8")


def picture(board: dict[str, Any], prometheus: Monitoring, seen: Seen) -> Chart:
    """Return the chart of what the panels show of the machine that was taken."""
    by_panel: dict[str, list[Ask]] = {}
    for ask in asks(board):
        by_panel.setdefault(ask.panel, []).append(ask)

    def points(ask: Ask) -> list[tuple[float, float]]:
        start, end = seen.noticed - _BEFORE, seen.gone + _AFTER
        expr = filled(ask.expr, range_seconds=end - start)
        for one in prometheus.ask_range(expr, start, end):
            if one["metric"].get("instance") == TRAINER:
                return [(at - seen.noticed, float(value)) for at, value in one["values"]]
        return []

    strips = [Strip(name, points(by_panel[title][0]), _states(board, title)) for title, name in _STRIPS]
    plots = [
        Plot(name, unit, _curves([(ask.legend, points(ask)) for ask in by_panel[title]], colors))
        for title, name, unit, colors in _PLOTS
    ]
    stop = next(at for at, state in strips[0].points if state >= 4)
    return Chart(
        title="A reclaim with a notice of a minute, as the dashboard's queries show it",
        note="Not a screenshot: drawn from a real Prometheus's answers, one a second. The cloud is emulated; "
        "daemon, trainer and saves of 0.5 GB are real.",
        span=(-_BEFORE, seen.gone - seen.noticed + _AFTER),
        step=1.0,
        rows=(*strips, *plots),
        marks=(
            Mark(0.0, "notice", "#b45309"),
            Mark(stop, "stop", "#dc2626"),
            Mark(seen.gone - seen.noticed, "the machine is gone", "#dc2626"),
        ),
    )


def _curves(named: Sequence[tuple[str, list[tuple[float, float]]]], colors: Sequence[str]) -> list[Curve]:
    words = [legend.replace("{{instance}}", "").strip() or "if lost now" for legend, _ in named]
    return [
        Curve(word, color, points, is_filled=len(named) == 1)
        for word, color, (_, points) in zip(words, colors, named, strict=True)
    ]


def _states(board: dict[str, Any], title: str) -> dict[int, tuple[str, str]]:
    panel = next(panel for panel in board["panels"] if panel["title"] == title)
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    return {int(value): (one["text"], _COLORS[one["color"]]) for value, one in options.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/dashboard.svg")
