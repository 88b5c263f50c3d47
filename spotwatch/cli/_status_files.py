# SPDX-License-Identifier: Apache-2.0
"""What can be known of a daemon without asking it: the files in its runtime directory.

Providers, signals and the plan are not in them; only the daemon itself knows those.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from spotwatch.config_places import closed_folder
from spotwatch.errors import HandshakeError
from spotwatch.handshake import DRAINING, NOTICES_DIR, STATUS_DIR, Status, read_order, read_statuses
from spotwatch.model import to_rfc3339
from spotwatch.safe_files import list_json_files, read_small_file

MAX_NOTICES = 64
_ANYONE = range(2**32)
"""Statuses are only shown here, so it does not matter whose they are."""


def read_runtime_dir(runtime_dir: Path, now: datetime) -> dict[str, Any]:
    """Return as much of the document at `/status` as the files tell, and `refused` for those that lie."""
    closed = (closed_folder(runtime_dir / name / "any") for name in (STATUS_DIR, NOTICES_DIR))
    refused = [f"{folder} is closed to uid {os.geteuid()}" for folder in closed if folder is not None]
    orders: list[dict[str, Any]] = []
    try:
        order = read_order(runtime_dir)
        if order is not None:
            orders = [{"seq": order.seq, "do": order.do.value, "why": order.why, "at": None}]
    except HandshakeError as error:
        refused.append(str(error))
    statuses, lines = read_statuses(runtime_dir, owners=_ANYONE)
    refused += lines
    cases = []
    for path in list_json_files(runtime_dir / NOTICES_DIR, MAX_NOTICES):
        try:
            cases.append(_notice(path))
        except (HandshakeError, ValueError, RecursionError) as error:
            refused.append(f"{path.name[:80]}: {error}")
    return {
        "version": 1,
        "source": "files",
        "at": to_rfc3339(now),
        "runtime_dir": str(runtime_dir),
        "draining": (runtime_dir / DRAINING).exists(),
        "cases": cases,
        "orders": orders,
        "trainers": [_trainer(s, now) for s in statuses],
        "refused": refused,
    }


def _notice(path: Path) -> dict[str, Any]:
    row = json.loads(read_small_file(path) or b"{}")
    if not isinstance(row, dict):
        raise HandshakeError("no notice")
    return {
        "id": f"file:{path.stem}",
        "provider": "file",
        "kind": row.get("do"),
        "deadline": row.get("deadline"),
        "detail": row.get("why"),
    }


def _trainer(status: Status, now: datetime) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(status.to_bytes())
    return {**row, "fresh": status.is_fresh(now)}
