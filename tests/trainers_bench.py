# SPDX-License-Identifier: Apache-2.0
"""A runtime directory with trainers' files, and a daemon's reader of them that can begin anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from spotwatch import handshake
from spotwatch.handshake import Saved, Status
from spotwatch.ledger import Ledger
from spotwatch.model import Event
from spotwatch.testing import EPOCH, FakeClock, run_virtual
from spotwatch.trainers import Trainers

SAVED = Saved(seq=1, step=90, at=EPOCH, url="s3://b/x", size_bytes=10, stall_seconds=0.1, save_seconds=2.0)
STATUS = Status(run_id="run", pid=1, at=EPOCH, step=100, steps_per_second=2.0, saved=SAVED)


class Bench:
    """A runtime directory and who reads it."""

    def __init__(self, folder: Path) -> None:
        (folder / handshake.STATUS_DIR).mkdir()
        self.folder = folder
        self.clock = FakeClock()
        self.seen: list[Event] = []
        self.ledger = Ledger(self.clock)
        self.ledger.subscribe(self.seen.append)
        self.owners = {os.geteuid()}
        self.trainers = Trainers(folder, owners=lambda: self.owners, ledger=self.ledger, clock=self.clock)

    def restart(self) -> None:
        """Begin another life of the daemon, on the rows of this one."""
        self.ledger = Ledger(self.clock)
        self.ledger.replay(Event.from_json(event.to_json()) for event in self.seen)
        self.ledger.subscribe(self.seen.append)
        self.trainers = Trainers(
            self.folder, owners=lambda: self.owners, ledger=self.ledger, clock=self.clock
        )

    def look(self, *statuses: Status) -> Trainers:
        """Write the statuses, then look."""
        for status in statuses:
            handshake.write_status(self.folder, status)
        self.trainers.look()
        return self.trainers

    def named(self, name: str) -> list[Event]:
        """Return the events of one name."""
        return [event for event in self.seen if event.name == name]


def on(folder: Path, story: Callable[[Bench], Coroutine[Any, Any, None]]) -> Bench:
    """Run a story in virtual time."""

    async def main() -> Bench:
        bench = Bench(folder)
        await story(bench)
        return bench

    return run_virtual(main())
