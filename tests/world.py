# SPDX-License-Identifier: Apache-2.0
"""A machine in virtual time: real files, a provider, targets and trainers that do as they are told.

The daemon in it can die at any moment and come back, the machine can reboot, the clock can jump.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from spotwatch import handshake
from spotwatch.actions import Occasion
from spotwatch.actions.handshake import HandshakeAction
from spotwatch.config import Release
from spotwatch.errors import ActionError, ProviderError
from spotwatch.handshake import Order, Saved, Status
from spotwatch.journal import MemoryJournal
from spotwatch.ledger import Ledger
from spotwatch.model import Answer, Do, Event, Kind, Notice
from spotwatch.parts import Parts
from spotwatch.policy import Policy
from spotwatch.runner import Runner
from spotwatch.targets import Proc
from spotwatch.targets._proc import read_row
from spotwatch.telling import Tellers
from spotwatch.testing import FakeClock, run_virtual
from spotwatch.trainers import Trainers

Story = Callable[["World"], Coroutine[Any, Any, None]]
GONE = Proc(pid=2**22 - 1, start_ticks=1, uid=0, gid=0, command="train.py")


def ourselves() -> Proc:
    """Return the identity of this test process, which is sure to live."""
    row = read_row(os.getpid())
    assert row is not None
    return row.proc


class Killed(BaseException):
    """The daemon's process ends here, without a word."""


class FakeTarget:
    """A process that can be signalled; it runs only in this object."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.label = "process 'train.py'"
        self.signum = signal.SIGTERM
        self.is_there = True
        self.proc = ourselves()
        """What it is found as: this very test, which lives; set to GONE once it has exited."""
        self.signals: list[datetime] = []
        self.starts = 0
        self.on_signal: Callable[[], None] = lambda: None

    def leave(self) -> None:
        """Exit, as a trainer does that was told to."""
        self.proc = GONE

    def is_alive(self, proc: Proc) -> bool:
        """Tell whether `proc` still runs."""
        return self.is_there and proc == self.proc != GONE

    def find(self) -> tuple[Proc, ...]:
        """Return it while it is there."""
        if not self.is_there:
            raise ActionError("no process matches 'train.py'")
        return (self.proc,)

    def owner(self) -> tuple[int, int] | None:
        """Return nobody in particular."""
        return None

    async def stop(self, procs: tuple[Proc, ...]) -> str:
        """Note the signal, then do what the test wants."""
        self.signals.append(self._world.clock.now())
        self.on_signal()
        return f"SIGTERM to {procs[0].pid}"

    async def start(self) -> str:
        """Note the start."""
        self.starts += 1
        return "started"


class Listener:
    """A teller that writes down what it is told."""

    name: ClassVar[str] = "announce"
    occasions: frozenset[Occasion] = frozenset({"notice", "saved", "missed", "withdrawn", "survived"})

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    async def tell(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> str:
        """Write it down."""
        del facts
        self.heard.append((occasion, notice.id))
        return "heard"


class FakeConfirmer:
    """A cloud that can be told to go ahead."""

    def __init__(self) -> None:
        self.confirmed: list[str] = []
        self.error: ProviderError | None = None

    async def confirm(self, notice: Notice) -> None:
        """Note it, or fail."""
        if self.error is not None:
            raise self.error
        self.confirmed.append(notice.id)


class World:
    """One machine."""

    def __init__(self, folder: Path, policy: Policy | None = None) -> None:
        self.clock = FakeClock()
        self.folder = folder
        self.policy = policy or Policy(save_seconds=10)
        self.release = Release()
        self.confirmer = FakeConfirmer()
        self.listener = Listener()
        self.target = FakeTarget(self)
        self.has_target = True
        self.in_force: dict[str, Notice] = {}
        self.kept: list[Event] = []
        self.seen: list[Event] = []
        (folder / handshake.STATUS_DIR).mkdir()
        self.boot()

    # -- the daemon ----------------------------------------------------------------------------------------

    def boot(self, instance: str = "") -> None:
        """Start a daemon on what the last one left."""
        self.ledger = Ledger(self.clock)
        self.ledger.replay(Event.from_json(event.to_json()) for event in self.kept)
        self.ledger.settle_identity(instance)
        self.kept = [self.ledger.snapshot()]
        journal = MemoryJournal()
        self.ledger.subscribe(self._keep)
        files = HandshakeAction(self.folder, handshake.FLAG, boot_id=self.clock.boot_id, owner=lambda: None)
        files.clear_other_boots()
        self.files = files
        self.parts = Parts(
            ledger=self.ledger,
            policy=self.policy,
            clock=self.clock,
            journal=journal,
            handshake=files,
            trainers=Trainers(
                self.folder, owners=lambda: {os.geteuid()}, ledger=self.ledger, clock=self.clock
            ),
            tellers=Tellers([self.listener], ledger=self.ledger, clock=self.clock),
            targets=[self.target] if self.has_target else [],
            confirmers={"aws": self.confirmer},
            release=self.release,
            is_alive=self.target.is_alive,
        )
        self.runner = Runner(self.parts)

    def _keep(self, event: Event) -> None:
        self.seen.append(event)
        if event.name not in ("polled", "watched"):
            self.kept.append(event)

    async def poll(self, *, is_failing: bool = False, absence_withdraws: bool = True) -> None:
        """Let the daemon hear what is in force; a failing poll says nothing."""
        notices = tuple(replace(n, seen_at=self.clock.now()) for n in self.in_force.values())
        answered = frozenset() if is_failing else frozenset({"action", "risk", "events"})
        answer = Answer(notices=() if is_failing else notices, answered=answered)
        self.ledger.observe("aws", answer, absence_withdraws=absence_withdraws)

    async def live(
        self, seconds: float, *, trainer: Callable[[], None] = lambda: None, step: float = 0.5
    ) -> None:
        """Let `seconds` pass: a poll every second step, and in each a tick and the trainer's own business."""
        end = self.clock.monotonic() + seconds
        is_poll_due = True
        while self.clock.monotonic() < end:
            if is_poll_due:
                await self.poll()
            is_poll_due = not is_poll_due
            await self.runner.tick()
            trainer()
            await self.clock.sleep(step)
        await self.runner.tick()

    # -- the cloud -----------------------------------------------------------------------------------------

    def announce(
        self,
        case: str = "i",
        seconds: float | None = 120,
        kind: Kind = Kind.RECLAIM,
        **fields: Any,
    ) -> Notice:
        """Put a notice in force, its deadline so many seconds from now."""
        fields.setdefault("signal", "action")
        fields.setdefault("window_seconds", 120.0 if kind is Kind.RECLAIM else None)
        deadline = None if seconds is None else self.clock.now() + timedelta(seconds=seconds)
        made = Notice(
            id=case, provider="aws", kind=kind, seen_at=self.clock.now(), deadline=deadline, **fields
        )
        self.in_force[case] = made
        return made

    # -- the trainer ---------------------------------------------------------------------------------------

    def order(self) -> Order | None:
        """Return what `order.json` says."""
        return handshake.read_order(self.folder)

    def flag(self) -> Path:
        """Return the flag's path."""
        return self.folder / handshake.FLAG

    def is_draining(self) -> bool:
        """Tell whether `draining` is there."""
        return (self.folder / handshake.DRAINING).exists()

    def remove_flag(self) -> None:
        """Save, as a script does that knows only the flag."""
        self.flag().unlink(missing_ok=True)

    def report(self, *, phase: str = "training", seq: int = 0, saved_seq: int = 0, **saved: Any) -> None:
        """Write a status as the library does."""
        now = self.clock.now()
        fields: dict[str, Any] = {"step": 1, "at": now, "url": "file:///x", "save_seconds": 2.0} | saved
        handshake.write_status(
            self.folder,
            Status(
                run_id="run",
                pid=1234,
                at=now,
                phase=phase,
                step=10,
                steps_per_second=2.0,
                seq=max(seq, saved_seq),
                saved=Saved(seq=saved_seq, **fields) if saved_seq or saved else Saved(),
            ),
        )

    def obedient_trainer(self) -> None:
        """Do what the newest order says at once, and report it durable."""
        order = self.order()
        self.report(saved_seq=order.seq if order is not None and order.do is not Do.NONE else 0)
        if order is not None and order.do is Do.FLUSH:
            self.remove_flag()

    def events(self, name: str) -> list[Event]:
        """Return the events of one name, over all lives of the daemon."""
        return [event for event in self.seen if event.name == name]

    def orders(self) -> list[str]:
        """Return what was ordered, in its order."""
        return [str(event.data["do"]) for event in self.events("ordered")]


def play(folder: Path, story: Story, policy: Policy | None = None) -> World:
    """Run a story on a new machine, and return the machine."""

    async def main() -> World:
        world = World(folder, policy)
        await story(world)
        return world

    return run_virtual(main())
