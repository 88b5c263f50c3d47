# SPDX-License-Identifier: Apache-2.0
"""The status document of a machine in the middle of a reclaim, and its log lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spotwatch.kept_bodies import KeptBodies
from spotwatch.model import Answer, Event, Kind, Notice
from spotwatch.narrator import Narrator
from spotwatch.runner import Runner
from spotwatch.status_page import StatusPage
from spotwatch.testing import EPOCH, run_virtual
from spotwatch.watcher import Watcher
from tests.world import World


class Quiet:
    """A provider that has nothing to say."""

    name = "aws"
    absence_withdraws = False
    signals = ("action",)
    interval_seconds = 1.0

    async def notices(self) -> Answer:
        """Say nothing."""
        return Answer(answered=frozenset({"action"}))


def document(folder: Path, *, seconds: float) -> dict[str, Any]:
    """Return the document so many seconds after a two-minute notice, as a reader of JSON gets it."""

    async def main() -> dict[str, Any]:
        world = World(folder)
        world.announce(detail="terminate")
        await world.live(seconds, trainer=world.obedient_trainer)
        runner: Runner = world.runner
        watcher = Watcher(
            Quiet(),  # type: ignore[arg-type]
            world.ledger,
            world.clock,
            wake=runner.wake,
            kept_bodies=KeptBodies(None),
        )
        await watcher.poll_once()
        page = StatusPage(
            parts=world.parts, runner=runner, watchers=[watcher], clock=world.clock, is_dry_run=True
        )
        made: dict[str, Any] = json.loads(json.dumps(page.document()))
        return made

    return run_virtual(main())


def test_after_the_flush(tmp_path: Path) -> None:
    """What is watched, in force, planned, ordered and saved."""
    page = document(tmp_path, seconds=5)
    assert page["draining"] is False
    assert page["dry_run"] is True
    assert page["providers"] == [
        {
            "name": "aws",
            "up": True,
            "interval_seconds": 1.0,
            "signals": [
                {"name": "action", "state": "ok", "answered_at": page["at"], "error": "", "mend": ""}
            ],
        }
    ]
    (case,) = page["cases"]
    assert (case["id"], case["phase"], case["deadline"]) == ("i", "flushed", "2026-11-29T12:02:00.000Z")
    assert page["plan"]["flush"] is None
    assert page["plan"]["stop"]["why"] == "aws action: terminate"
    assert [(order["do"], order["answer"]) for order in page["orders"]] == [("flush", "durable")]
    (trainer,) = page["trainers"]
    assert (trainer["run_id"], trainer["fresh"], trainer["saved"]["seq"]) == ("run", True, 1)
    assert page["targets"] == ["process 'train.py'"]
    assert page["estimate_seconds"] == 2.5
    assert page["work_at_risk_seconds"] == 4.5


def test_during_the_stop(tmp_path: Path) -> None:
    """Draining, and nothing planned."""
    page = document(tmp_path, seconds=110)
    assert page["draining"] is True
    assert page["plan"] == {"flush": None, "stop": None}
    assert [order["do"] for order in page["orders"]] == ["flush", "stop"]


class Log:
    """A logger that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **fields: self.lines.append((level, event, fields))


def told(*events: Event) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the log lines of these events."""
    log = Log()
    narrator = Narrator(log)
    for event in events:
        narrator.on_event(event)
    return log.lines


def test_levels() -> None:
    """What needs a person is an error or a warning; polls, ticks and strangers' requests are silent."""
    lines = told(
        Event(at=EPOCH, name="polled", data={"results": ["ok"]}),
        Event(at=EPOCH, name="watched"),
        Event(at=EPOCH, name="time_given"),
        Event(at=EPOCH, name="webhook", data={"result": "unsigned"}),
        Event(at=EPOCH, name="webhook", data={"result": "accepted"}),
        Event(at=EPOCH, name="missed"),
        Event(at=EPOCH, name="acted", data={"result": "failed", "action": "signal"}),
        Event(at=EPOCH, name="acted", data={"result": "ok", "action": "signal"}),
        Event(at=EPOCH, name="signal_changed", data={"state": "denied"}),
        Event(at=EPOCH, name="signal_changed", data={"state": "ok"}),
        Event(at=EPOCH, name="unexpected", data={"error": "x", "exception": ValueError("x")}),
    )
    assert [(level, event) for level, event, _ in lines] == [
        ("info", "webhook"),
        ("error", "missed"),
        ("error", "acted"),
        ("info", "acted"),
        ("warning", "signal_changed"),
        ("info", "signal_changed"),
        ("error", "unexpected"),
    ]


def test_a_line_shows_no_more_than_a_person_wants() -> None:
    """The notice is told by its detail and signal, not in full; what is empty is left out."""
    notice = Notice(
        id="i", provider="aws", signal="action", kind=Kind.RECLAIM, seen_at=EPOCH, detail="terminate"
    )
    data = {"notice": notice.to_json(), "boot": 1.0, "deadline": None, "kind": Kind.RECLAIM}
    ((_, _, fields),) = told(Event(at=EPOCH, name="noticed", provider="aws", case_id="i", data=data))
    assert fields == {
        "provider": "aws",
        "case": "i",
        "kind": "reclaim",
        "detail": "terminate",
        "signal": "action",
    }
