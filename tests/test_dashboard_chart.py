# SPDX-License-Identifier: Apache-2.0
"""The chart of the page on monitoring: what it draws, what it leaves open, and what it says of itself."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.real import dashboard_chart
from tests.real.dashboard_chart import Chart, Curve, Mark, Plot, Strip

FILE = Path(__file__).parents[1] / "docs/dashboard.svg"
NAMED = {1: ("training", "#111111"), 2: ("uploading", "#222222")}


def chart(*rows: Plot | Strip) -> str:
    """Return a chart of these rows over a hundred seconds."""
    marks = (Mark(50.0, "a <mark>", "#333333"),)
    made = Chart(title="t", note="n", span=(0.0, 100.0), step=1.0, rows=rows, marks=marks)
    text = made.draw()
    ET.fromstring(text)
    return text


def test_a_gap_is_not_bridged() -> None:
    """Where samples are missing no line is drawn."""
    points = [(float(second), 1.0) for second in (1, 2, 3, 50, 51, 52)]
    text = chart(Plot("p", " s", [Curve("c", "#444444", points)]))
    assert text.count('stroke="#444444" stroke-width="2.2"') == 2
    assert "a &lt;mark&gt;" in text


def test_bars_end_with_their_samples() -> None:
    """A state is named in its bar if there is room, else beside the bars."""
    points = [(float(second), 1.0) for second in range(40)] + [(float(second), 2.0) for second in (80, 81)]
    text = chart(Strip("s", points, NAMED))
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="30"', text)]
    second = (dashboard_chart.WIDTH - dashboard_chart.LEFT - dashboard_chart.RIGHT) / 100
    assert widths == [pytest.approx(40 * second, abs=0.1), pytest.approx(2 * second, abs=0.1)]
    assert text.count(">training<") == text.count(">uploading<") == 1


@pytest.mark.parametrize(("value", "shown"), [(0.0, 1.0), (23.0, 30.0), (60.0, 60.0), (820.0, 1000.0)])
def test_axes_end_at_round_numbers(value: float, shown: float) -> None:
    """The greatest value fits, and a third of the height at most is empty."""
    assert math.isclose(dashboard_chart._round_up(value), shown)


def test_the_chart_on_the_page_says_what_it_is() -> None:
    """Not a screenshot; and the strips hold a whole reclaim."""
    text = FILE.read_text(encoding="utf-8")
    ET.fromstring(text)
    for part in ("Not a screenshot", ">flush<", "flushed", ">stop<", "stopped: saved", "work at risk"):
        assert part in text
