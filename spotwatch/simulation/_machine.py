# SPDX-License-Identifier: Apache-2.0
"""One machine of a simulation: lives of the daemon on real files, a trainer, a cloud, clocks, reboots.

The daemon's own watcher, ledger, policy, runner and delivery run here; what is right is `_checks`' business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from spotwatch import handshake
from spotwatch.kept_bodies import KeptBodies
from spotwatch.ledger import Ledger
from spotwatch.model import Event
from spotwatch.parts import Parts
from spotwatch.runner import Runner
from spotwatch.simulation._cloud import Cloud
from spotwatch.simulation._fate import Fate, Killed, MortalClock, MortalHandshake, MortalJournal
from spotwatch.simulation._story import Story
from spotwatch.simulation._trainer import Trainer
from spotwatch.telling import Tellers
from spotwatch.trainers import Trainers
from spotwatch.watcher import Watcher

RESTART_SECONDS = 0.5
"""What a service manager takes to start the daemon again."""
LOST_SECONDS = 1.0
NOT_JOURNALED = frozenset({"polled", "watched"})


class Machine:
    """A machine on which a story is played.

    Args:
        story: what happens.
        folder: an empty directory; its runtime directory lies there.
        on_event: sees every row of every life.
        on_second: called every second while a daemon lives, between its deeds.
    """

    def __init__(
        self,
        story: Story,
        folder: Path,
        *,
        on_event: Callable[[Machine, Event], None],
        on_second: Callable[[Machine], None],
    ) -> None:
        self.story = story
        self.folder = folder
        (folder / handshake.STATUS_DIR).mkdir()
        self.clock = MortalClock()
        self.cloud = Cloud(story, self.clock)
        self.trainer = Trainer(story, self.clock, folder)
        self.ledger = Ledger(self.clock)
        self.rows: list[Event] = []
        self.deaths: list[float] = []
        """When the daemon was killed."""
        self.boots: list[float] = []
        """When the machine was rebooted."""
        self._on_event = on_event
        self._on_second = on_second
        self._lives = iter(story.deaths)
        self._fate = Fate(None)

    async def play(self) -> None:
        """Live through the whole story."""
        # Started by hand, not in a group: the machine ends them all as it ends.
        tasks = [
            asyncio.create_task(part) for part in (self.trainer.run(), self._step_clocks(), self._live())
        ]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.story.ends_at):
                    await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def replayed(self) -> Ledger:
        """Return a ledger made from the journal alone."""
        ledger = Ledger(self.clock)
        ledger.replay(Event.from_json(row.to_json()) for row in self.rows)
        return ledger

    async def _live(self) -> None:
        while True:
            steps = next(self._lives, None)
            self._fate = Fate(steps)
            try:
                await self._one_life(self._fate)
            except* Killed:
                self._fate.is_dead = True
                self.deaths.append(self.clock.monotonic())
                if self.story.loses_rows:
                    self._lose_rows()
            await asyncio.sleep(RESTART_SECONDS)

    async def _one_life(self, fate: Fate) -> None:
        runner, watcher = self._boot(fate)
        try:
            await runner.give_overdue_stop()
        except Killed as error:
            raise BaseExceptionGroup("killed", [error]) from None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(runner.run())
            tasks.create_task(watcher.run())
            tasks.create_task(self._look_on(fate))

    def _boot(self, fate: Fate) -> tuple[Runner, Watcher]:
        """Make a daemon from what the last one left."""
        for part in (self.clock, self.trainer):
            part.fate = fate
        self.ledger = self.replayed()
        self.ledger.settle_identity("")
        self.rows[:] = [self.ledger.snapshot()]
        journal = MortalJournal(self.rows, fate, on_row=lambda event: self._on_event(self, event))
        files = MortalHandshake(self.folder, handshake.FLAG, boot_id=self.clock.boot_id, owner=lambda: None)
        files.clear_other_boots()
        files.fate = fate

        def keep(event: Event) -> None:
            if event.name not in NOT_JOURNALED:
                journal.append(event)

        self.ledger.subscribe(keep)
        runner = Runner(
            Parts(
                ledger=self.ledger,
                policy=self.story.policy,
                clock=self.clock,
                journal=journal,
                handshake=files,
                trainers=Trainers(
                    self.folder, owners=lambda: {os.geteuid()}, ledger=self.ledger, clock=self.clock
                ),
                tellers=Tellers([], ledger=self.ledger, clock=self.clock),
                targets=[self.trainer],
                is_alive=self.trainer.is_alive,
                has_pending=self.trainer.has_pending,
            )
        )
        watcher = Watcher(self.cloud, self.ledger, self.clock, wake=runner.wake, kept_bodies=KeptBodies(None))
        return runner, watcher

    async def _look_on(self, fate: Fate) -> None:
        while True:
            await asyncio.sleep(1.0)
            fate.step()
            self._on_second(self)

    def _lose_rows(self) -> None:
        """Forget what was on its way to the disk; the snapshot that opens the file was there before."""
        since = self.clock.now() - timedelta(seconds=LOST_SECONDS)
        self.rows[1:] = [row for row in self.rows[1:] if row.at < since]

    async def _step_clocks(self) -> None:
        moments = sorted([*self.story.clock_steps, (self.story.reboot_at, 0.0)])
        for at, seconds in moments:
            if at == float("inf"):
                continue
            await asyncio.sleep(at - self.clock.monotonic())
            self.clock.wall_offset_seconds += seconds
            if at == self.story.reboot_at:
                self._reboot()

    def _reboot(self) -> None:
        """Lose the processes and what lies in memory; the state directory stays."""
        self._fate.is_dead = True
        self.boots.append(self.clock.monotonic())
        self.clock.boot_id = f"boot-{len(self.boots) + 1}"
        self.clock.boot_offset_seconds = -self.clock.monotonic()
        for name in (handshake.ORDER, handshake.DRAINING, handshake.FLAG):
            (self.folder / name).unlink(missing_ok=True)
        for path in (self.folder / handshake.STATUS_DIR).iterdir():
            path.unlink()
        self.trainer.vanish()
        self.trainer.begin()
