# SPDX-License-Identifier: Apache-2.0
"""`spotwatch checkpoints list`: a row for each checkpoint of a run, or for each run of a folder.

It reads names, manifests, LATEST and LEASE; no byte of a tensor.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from spotwatch.cli._words import ago, size
from spotwatch.cli.checkpoints import lease
from spotwatch.cli.checkpoints.run import Folder, answering, find, pointer_of, run_options
from spotwatch.clock import SystemClock
from spotwatch.masking import escape
from spotwatch.model import from_rfc3339, to_rfc3339
from spotwatch.train.registry import inventory
from spotwatch.train.registry.inventory import Row
from spotwatch.train.registry.registry import Registry

WIDTH = 100
"""Columns of what is shown to people."""
_INDENT = "    "
_GAP = "  "

_EPILOG = """\b
Examples:
  spotwatch checkpoints list s3://bucket/checkpoints --run-id sweep-01
  spotwatch checkpoints list /data/checkpoints/sweep-01 --json | jq -r '.checkpoints[0].dir'
"""


@click.command(name="list", short_help="A row for each checkpoint of a run.", epilog=_EPILOG)
@run_options
@click.pass_context
def command(context: click.Context, *, url: str, run_id: str | None, as_json: bool) -> None:
    """Show a row for each checkpoint of a run, the newest first.

    A URL that holds several runs shows a row for each run. Files are not read: `verify` does that. Exits 1
    when there is no checkpoint.
    """
    with answering():
        found = find(url, run_id)
        document = _folder(found) if isinstance(found, Folder) else _run(found)
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        for line in describe(document, SystemClock().now()):
            click.echo(line)
    if "runs" not in document and not document["checkpoints"]:
        context.exit(1)


def row_document(row: Row) -> dict[str, Any]:
    """Return what a program is told of one checkpoint."""
    return {
        "dir": row.dir,
        "step": row.step,
        "generation": row.generation,
        "created_at": None if row.created_at is None else to_rfc3339(row.created_at),
        "size_bytes": row.size_bytes,
        "files": row.files,
        "state": row.state,
        "role": row.role,
        "note": row.note,
    }


def latest_document(registry: Registry, rows: list[Row]) -> dict[str, Any] | None:
    """Return what LATEST says and what is wrong with it; None without one."""
    latest, problem = pointer_of(registry)
    if latest is None:
        return {"dir": None, "step": None, "generation": None, "problem": problem} if problem else None
    if not any(row.dir == latest.dir for row in rows):
        problem = f"names {latest.dir}, which is not there"
    return {
        "dir": latest.dir,
        "step": latest.step,
        "generation": latest.generation,
        "problem": problem,
    }


def describe(document: Mapping[str, Any], now: datetime) -> Iterator[str]:
    """Yield the lines that a person reads, none wider than `WIDTH` but for what is named in full."""
    if "runs" in document:
        yield f"{escape(document['url'])}: {len(document['runs'])} runs"
        yield from table(
            ("RUN", "CHECKPOINTS", "SIZE", "LATEST"),
            [
                (
                    escape(r["run_id"]),
                    str(r["checkpoints"]),
                    size(r["size_bytes"]),
                    "yes" if r["latest"] else "no",
                )
                for r in document["runs"]
            ],
        )
        return
    rows = document["checkpoints"]
    total = size(sum(row["size_bytes"] for row in rows))
    yield f"{escape(document['url'])}: {len(rows)} checkpoint{'s' * (len(rows) != 1)}{_faults(rows)}, {total}"
    yield lease.line(document["lease"])
    latest = document["latest"]
    if latest is None:
        yield "LATEST: none"
    elif latest["problem"]:
        yield from _wrapped(f"LATEST: {latest['problem']}", "")
    if rows:
        lines = table(
            ("STEP", "GEN", "WHEN", "SIZE", "FILES", "STATE", "DIRECTORY"),
            [_cells(row, now) for row in rows],
        )
        yield next(lines)
        for row in rows:
            yield next(lines)
            if row["note"]:
                yield from _wrapped(row["note"], _INDENT)


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield a line of heads and one for each row; a line that is too wide loses the begin of its last cell.

    All columns that hold figures are set to the right.
    """
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    to_right = [head in _FIGURES for head in heads]
    for row in (heads, *rows):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row[:-1], widths, to_right, strict=False)
        ]
        line = _GAP.join(cells)
        room = WIDTH - len(line) - len(_GAP)
        last = row[-1] if len(row[-1]) <= room else "…" + row[-1][-max(room - 1, 8) :]
        yield f"{line}{_GAP}{last}".rstrip()


_FAULTY = ("damaged", "quarantined", "incomplete")
_FIGURES = frozenset({"STEP", "GEN", "SIZE", "FILES", "CHECKPOINTS", "PARTS"})


def _faults(rows: Sequence[Mapping[str, Any]]) -> str:
    counts = [(sum(row["state"] == state for row in rows), state) for state in _FAULTY]
    told = ", ".join(f"{count} {state}" for count, state in counts if count)
    return f" ({told})" if told else ""


def _cells(row: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    when = "-" if row["created_at"] is None else ago(from_rfc3339(row["created_at"]), now)
    state = f"{row['state']}, {row['role']}" if row["role"] else row["state"]
    figures = (str(row["step"]), str(row["generation"]), when, size(row["size_bytes"]), str(row["files"]))
    return (*figures, state, row["dir"])


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(escape(text, limit=1_000), WIDTH, initial_indent=indent, subsequent_indent=_INDENT)


def _folder(found: Folder) -> dict[str, Any]:
    return {
        "version": 1,
        "url": found.url,
        "runs": [
            {
                "run_id": run.run_id,
                "checkpoints": run.checkpoints,
                "size_bytes": run.size_bytes,
                "latest": run.has_latest,
            }
            for run in found.runs
        ],
    }


def _run(registry: Registry) -> dict[str, Any]:
    rows = inventory.describe(registry)
    return {
        "version": 1,
        "url": registry.store.url,
        "run_id": registry.run_id,
        "lease": lease.document(*lease.read(registry.store)),
        "latest": latest_document(registry, rows),
        "checkpoints": [row_document(row) for row in rows],
    }
