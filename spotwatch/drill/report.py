# SPDX-License-Identifier: Apache-2.0
"""The verdict for people: a table with a column for each cloud, the reasons, and where to look.

It decides nothing; `verdict` does. Pure but for reading the logs that it shows the ends of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotwatch.drill.verdict import NOT_REACHED

_TAIL_LINES = 12
_TAIL_BYTES = 64 * 1024
_LABEL_WIDTH = 26
_COLUMN_WIDTH = 12


def verdict_lines(document: Mapping[str, Any], logs: Path | None) -> list[str]:
    """Return the table, the reasons for each failure, the ends of the logs, and last the verdict."""
    clouds: Sequence[Mapping[str, Any]] = document["clouds"]
    lines = ["", *_table(clouds)]
    for cloud in clouds:
        lines += [f"{cloud['cloud']}: {problem}" for problem in cloud["problems"]]
        named = {name: why for name, why in cloud["unknown"].items() if why != NOT_REACHED}
        lines += [f"{cloud['cloud']}: {name} is not known: {why}" for name, why in named.items()]
    if logs is not None:
        failed = [str(cloud["cloud"]) for cloud in clouds if cloud["verdict"] != "pass"]
        for path in sorted(logs.iterdir()):
            if path.name.startswith((*failed, "control")):
                lines += _tail(path)
        lines += ["", f"logs are kept in {logs}"]
    passed = sum(cloud["verdict"] == "pass" for cloud in clouds)
    count = "on 1 cloud" if len(clouds) == 1 else f"on {passed} of {len(clouds)} clouds"
    lines += ["", f"{document['verdict'].upper()}: a reclaim {count}" + _promise(clouds, document["verdict"])]
    return lines


def _promise(clouds: Sequence[Mapping[str, Any]], verdict: str) -> str:
    if verdict != "pass":
        return "; see above for what was missed"
    if any(cloud["steps_lost"] is None for cloud in clouds):
        return ", told in time, stopped as saved, finished on another machine"
    if any(cloud["bit_identical"] is None for cloud in clouds):
        return ", no step lost"
    return ", no step lost, none done twice, every bit as if nothing had happened"


def _table(clouds: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = (
        ("", [str(c["cloud"]) for c in clouds]),
        ("steps lost", [_count(c["steps_lost"]) for c in clouds]),
        ("steps executed twice", [_count(c["steps_executed_twice"]) for c in clouds]),
        ("exit codes", [f"{_count(c['first_exit_code'])}, {_count(c['final_exit_code'])}" for c in clouds]),
        ("bit-identical", [_answer(c["bit_identical"]) for c in clouds]),
        ("ordered", [" ".join(order["do"] for order in c["orders"]) or "nothing" for c in clouds]),
        ("notice to order", [_seconds(c["notice_to_order_seconds"]) for c in clouds]),
        ("  limit", [_seconds(c["notice_to_order_limit_seconds"]) for c in clouds]),
        ("notice to durable save", [_seconds(c["notice_to_saved_seconds"]) for c in clouds]),
        ("notice to exit", [_seconds(c["notice_to_exit_seconds"]) for c in clouds]),
        ("start to first step", [_seconds(c["resume_seconds"]) for c in clouds]),
        ("verdict", [str(c["verdict"]) for c in clouds]),
    )
    widths = [
        max(_COLUMN_WIDTH, *(len(cell) + 2 for cell in column))
        for column in zip(*(cells for _, cells in rows), strict=True)
    ]
    return [
        f"{name:<{_LABEL_WIDTH}}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        for name, cells in rows
    ]


def _tail(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    shown = text.splitlines()[-_TAIL_LINES:]
    return ["", f"--- the end of {path.name}", *(shown or ["(empty)"])]


def _count(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} s"


def _answer(value: bool | None) -> str:  # a value of the document, not a switch
    return "unknown" if value is None else "yes" if value else "no"
