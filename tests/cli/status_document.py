# SPDX-License-Identifier: Apache-2.0
"""A document of the daemon with something in every place."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from spotwatch.model import to_rfc3339
from spotwatch.testing import EPOCH


def at(seconds: float) -> str:
    """Return a moment relative to EPOCH."""
    return to_rfc3339(EPOCH + timedelta(seconds=seconds))


DOCUMENT: dict[str, Any] = {
    "version": 1,
    "spotwatch": "0.1.0",
    "at": at(0),
    "instance": "i-0abc",
    "dry_run": False,
    "draining": True,
    "providers": [
        {
            "name": "aws",
            "up": True,
            "interval_seconds": 1.0,
            "signals": [
                {"name": "instance-action", "state": "ok", "answered_at": at(-2), "error": None},
                {
                    "name": "asg", "state": "denied", "answered_at": None,
                    "error": "HTTP 403", "mend": "turn IMDS on",
                },
            ],
        }
    ],
    "cases": [
        {
            "id": "aws:instance-action", "provider": "aws", "signal": "instance-action", "kind": "reclaim",
            "certainty": "exact", "evidence": "strong", "deadline": at(92), "first_seen_at": at(-28),
            "phase": "flushed", "detail": "terminate",
        }
    ],
    "plan": {"flush": None, "stop": {"at": at(30), "why": "deadline minus a save"}},
    "orders": [{"seq": 7, "do": "flush", "at": at(-27), "why": "reclaim", "answer": "durable"}],
    "targets": ["unit spot-train.service"],
    "refused": [],
    "trainers": [
        {
            "run_id": "sweep-01", "pid": 42, "fresh": True, "phase": "training", "step": 1892,
            "steps_per_second": 3.21, "error": "",
            "saved": {
                "step": 1850, "at": at(-20), "size_bytes": 4.5e9, "stall_seconds": 0.4, "save_seconds": 8,
                "url": "s3://b/run",
            },
        }
    ],
    "estimate_seconds": 9.0,
    "work_at_risk_seconds": 13.0,
}  # fmt: skip
