# SPDX-License-Identifier: Apache-2.0
"""A chart of panels below each other on one axis of time, as SVG: bars of states, and curves.

It knows no Prometheus and no dashboard: series come as pairs of seconds and a value, states with colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 1000, 150, 48, 102
_GAP, _STRIP, _PLOT = 26, 30, 104
_INK, _SOFT, _GRID = "#334155", "#64748b", "#e2e8f0"
_LETTER = 6.7
"""Width of a letter of 13 px, roughly."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line.

    Args (as fields):
        name: written beside it.
        color: of the line.
        points: seconds and value, in order of time; a pause of more than two steps is a gap.
        is_filled: the area below it is tinted.
    """

    name: str
    color: str
    points: Points
    is_filled: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over time."""

    title: str
    unit: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True)
class Strip:
    """Bars of states over time: seconds and state, and of each state its name and colour."""

    title: str
    points: Points
    named: dict[int, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that is drawn through all panels."""

    at: float
    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Chart:
    """All of it.

    Args (as fields):
        title: for those who cannot see, and above the chart.
        note: in small letters below the title.
        span: seconds at the left and right edge.
        step: seconds between two samples.
        rows: from top to bottom.
        marks: from left to right.
    """

    title: str
    note: str
    span: tuple[float, float]
    step: float
    rows: Sequence[Plot | Strip]
    marks: Sequence[Mark]

    def draw(self) -> str:
        """Return the SVG."""
        parts: list[str] = []
        y: float = TOP
        for row in self.rows:
            drawn, height = self._strip(row, y) if isinstance(row, Strip) else self._plot(row, y)
            parts += drawn
            y += height + _GAP
        bottom = y - _GAP + 8
        below = [self._mark(mark, bottom) for mark in self.marks]
        return _FRAME.format(
            width=WIDTH,
            height=round(bottom + 40),
            title=escape(self.title),
            note=escape(self.note),
            body="\n".join([*below, *parts, *self._axis(bottom)]),
        )

    def _x(self, seconds: float) -> float:
        first, last = self.span
        return LEFT + (seconds - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def _strip(self, strip: Strip, y: float) -> tuple[list[str], float]:
        parts = [_text(LEFT - 14, y + _STRIP / 2 + 5, strip.title, anchor="end")]
        middle = y + _STRIP / 2 + 5
        shown: dict[str, str] = {}
        for value, run in groupby(_unbroken(strip.points, self.step), key=lambda point: point[1]):
            moments = [at for at, _ in run]
            if value not in strip.named or math.isnan(value):
                continue
            begin, end = self._x(moments[0]), self._x(min(moments[-1] + self.step, self.span[1]))
            name, color = strip.named[int(value)]
            parts.append(
                f'<rect x="{begin:.1f}" y="{y}" width="{end - begin:.1f}" height="{_STRIP}" fill="{color}"/>'
            )
            fitting = [text for text in (name, name.split(":")[0]) if len(text) * _LETTER + 8 < end - begin]
            # Empty: named inside a bar at least once.
            shown[name] = "" if fitting else shown.get(name, color)
            if fitting:
                parts.append(_text((begin + end) / 2, middle, fitting[0], "middle", "#ffffff", 13))
        narrow = [(name, color) for name, color in shown.items() if color]
        for number, (name, color) in enumerate(narrow):
            parts += _key(y + _STRIP + 12 + 16 * number, name.split(":")[0], color, 9)
        return parts, _STRIP + 16 * max(0, len(narrow) - 1)

    def _plot(self, plot: Plot, y: float) -> tuple[list[str], float]:
        most = _round_up(max((v for c in plot.curves for _, v in c.points), default=1.0))
        bottom = y + _PLOT

        def at(value: float) -> float:
            return bottom - value / most * _PLOT

        parts = [_text(LEFT - 14, y + 18, plot.title, anchor="end")]
        for value in (0.0, most / 2, most):
            parts.append(_line(LEFT, at(value), WIDTH - RIGHT, at(value), _GRID))
            parts.append(
                _text(WIDTH - RIGHT + 6, at(value) + 4, f"{value:g}{plot.unit}", size=11, color=_SOFT)
            )
        for curve in plot.curves:
            for part in _pieces(curve.points, self.step):
                path = " L".join(f"{self._x(second):.1f} {at(value):.1f}" for second, value in part)
                if curve.is_filled:
                    ends = f"L{self._x(part[-1][0]):.1f} {bottom} L{self._x(part[0][0]):.1f} {bottom} Z"
                    parts.append(f'<path d="M{path} {ends}" fill="{curve.color}" opacity="0.13"/>')
                parts.append(
                    f'<path d="M{path}" fill="none" stroke="{curve.color}" stroke-width="2.2" '
                    'stroke-linejoin="round"/>'
                )
        for number, curve in enumerate(plot.curves):
            parts += _key(y + 40 + 18 * number, curve.name, curve.color, 3)
        return parts, _PLOT

    def _mark(self, mark: Mark, bottom: float) -> str:
        x = self._x(mark.at)
        line = (
            f'<line x1="{x:.1f}" y1="{TOP - 12}" x2="{x:.1f}" y2="{bottom}" stroke="{mark.color}" '
            'stroke-width="1.5" stroke-dasharray="4 3"/>'
        )
        return f"{line}\n{_text(x, TOP - 18, mark.text, 'middle', mark.color, 13)}"

    def _axis(self, y: float) -> list[str]:
        first, last = self.span
        parts = [_line(LEFT, y, WIDTH - RIGHT, y, "#94a3b8")]
        for seconds in range(math.ceil(first / 10) * 10, math.floor(last) + 1, 10):
            x = self._x(seconds)
            parts.append(_line(x, y, x, y + 5, "#94a3b8"))
            if seconds % 20 == 0:
                parts.append(_text(x, y + 22, f"{seconds} s", "middle", _SOFT, 12))
        return parts


def _text(x: float, y: float, text: str, anchor: str = "start", color: str = _INK, size: int = 14) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-width="{width:g}"/>'
    )


def _key(y: float, name: str, color: str, width: float) -> list[str]:
    """Return the sample of a colour and its name, in the left margin."""
    return [
        _line(LEFT - 132, y - 4, LEFT - 116, y - 4, color, width),
        _text(LEFT - 110, y, name, size=12, color=_SOFT),
    ]


def _pieces(points: Points, step: float) -> list[list[tuple[float, float]]]:
    """Cut where samples are missing: nothing is known there, and nothing is drawn."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for before, point in pairwise([None, *points]):
        if before is not None and point is not None and point[0] - before[0] > 2 * step:
            pieces.append([])
        if point is not None:
            pieces[-1].append(point)
    return [piece for piece in pieces if piece]


def _unbroken(points: Points, step: float) -> list[tuple[float, float]]:
    """Put a NaN where samples are missing, so that bars end there."""
    found: list[tuple[float, float]] = []
    for piece in _pieces(points, step):
        found += [*piece, (piece[-1][0] + step, math.nan)]
    return found


def _round_up(value: float) -> float:
    """Return the next number that looks round on an axis."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(round_ * size for round_ in (1, 2, 3, 4, 6, 8, 10) if round_ * size >= value)


_FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14" \
role="img" aria-labelledby="title desc">
<title id="title">{title}</title>
<desc id="desc">{note}</desc>
<rect width="100%" height="100%" fill="#ffffff" rx="8"/>
<text x="18" y="32" fill="#0f172a" font-size="17" font-weight="600">{title}</text>
<text x="18" y="54" fill="#64748b" font-size="12">{note}</text>
{body}
</svg>
"""
