# SPDX-License-Identifier: Apache-2.0
"""The trainer of a simulation: it speaks the library's part of the handshake, or knows only flag and SIGTERM.

It knows nothing of the daemon but the files and the signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from pathlib import Path

from spotwatch import handshake
from spotwatch.errors import ActionError, HandshakeError
from spotwatch.handshake import Saved, Status
from spotwatch.model import Do
from spotwatch.simulation._fate import Fate, MortalClock
from spotwatch.simulation._story import Story
from spotwatch.targets import Proc

LOOK_SECONDS = 0.7
STATUS_SECONDS = 5.0


class Trainer:
    """A trainer and whoever starts it again after a crash; also the daemon's target.

    Args:
        story: how it behaves.
        clock: of the machine.
        folder: the runtime directory.
    """

    label = "process 'train.py'"
    signum = signal.SIGTERM

    def __init__(self, story: Story, clock: MortalClock, folder: Path) -> None:
        self._story = story
        self._manner = story.secretly or story.manner
        self._clock = clock
        self._folder = folder
        self._rng = random.Random(story.seed + 1)  # noqa: S311 - to be repeated, not to be secret
        self.fate = Fate(None)
        self.incarnation = 0
        self.is_running = False
        self.begun: list[float] = []
        self.left: list[float] = []
        """When it left because it was told to, with everything saved."""
        self.saves: list[tuple[float, float]] = []
        """When each began and when it was durable."""
        self.signals: list[float] = []
        self.starts: list[float] = []
        self._is_told = False
        self._saved = Saved()
        self._seq = 0

    # -- what the daemon does to it ------------------------------------------------------------------------

    def find(self) -> tuple[Proc, ...]:
        """Return the present process."""
        self.fate.step()
        if not self.is_running:
            raise ActionError("no process matches")
        return (self._proc(),)

    def owner(self) -> tuple[int, int] | None:
        """Return nobody in particular."""
        return None

    def is_alive(self, proc: Proc) -> bool:
        """Tell whether `proc` is the process that runs now."""
        return self.is_running and proc == self._proc()

    def has_pending(self, proc: Proc, signum: int) -> bool:
        """Say no: signals are taken at once here."""
        del proc, signum
        return False

    async def stop(self, procs: tuple[Proc, ...]) -> str:
        """Take SIGTERM."""
        self.fate.step()
        if self.is_alive(procs[0]):
            self.signals.append(self._clock.monotonic())
            self._is_told = True
        self.fate.step()
        return "SIGTERM"

    async def start(self) -> str:
        """Run again unless it runs."""
        self.fate.step()
        self.starts.append(self._clock.monotonic())
        self.begin()
        self.fate.step()
        return "started"

    def was_away(self, at: float) -> bool:
        """Tell whether it had saved and left by then, and not come back."""
        left = max((moment for moment in self.left if moment <= at), default=None)
        return left is not None and not any(left < moment <= at for moment in self.begun)

    # -- its own life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a new process."""
        if not self.is_running:
            self.incarnation += 1
            self.is_running = True
            self._is_told = False
            self.begun.append(self._clock.monotonic())

    def vanish(self) -> None:
        """End with the machine; what was saved stays."""
        self.is_running = self._is_told = False
        self._seq = 0
        self._saved = Saved()

    async def run(self) -> None:
        """Train, save, crash and come back until the machine ends."""
        self.begin()
        next_status = 0.0
        next_crash = self._rng.uniform(10, 120) if self._manner == "crashing" else float("inf")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock.monotonic()
            if self._manner == "deaf":
                continue
            if now >= next_crash:
                next_crash = now + self._rng.uniform(20, 120)
                self.is_running = False
                await asyncio.sleep(self._rng.uniform(1, 10))
                if not (self._folder / handshake.DRAINING).exists():
                    self.begin()
                continue
            if not self.is_running:
                continue
            if self._manner == "script":
                await self._look_as_script()
            else:
                await self._look_as_library()
                if now >= next_status:
                    next_status = now + STATUS_SECONDS
                    self._report("training")

    async def _look_as_script(self) -> None:
        flag = self._folder / handshake.FLAG
        if self._is_told:
            await self._save()
            self._leave()
        elif flag.exists():
            await self._save()
            flag.unlink(missing_ok=True)

    async def _look_as_library(self) -> None:
        order = None
        with contextlib.suppress(HandshakeError):
            order = handshake.read_order(self._folder)
        if order is not None and order.boot_id != self._clock.boot_id:
            order = None
        is_new = order is not None and order.seq > self._saved.seq and order.do is not Do.NONE
        if not is_new and not self._is_told:
            return
        self._seq = max(self._seq, order.seq if order is not None else 0)
        self._report("seen")
        is_stop = self._is_told or (order is not None and order.do is Do.STOP)
        incarnation = self.incarnation
        await self._save()
        if incarnation != self.incarnation or not self.is_running:
            return
        self._saved = Saved(
            seq=self._seq, step=len(self.saves), at=self._clock.now(), save_seconds=self._story.save_seconds
        )
        self._report("durable")
        (self._folder / handshake.FLAG).unlink(missing_ok=True)
        if is_stop:
            self._leave()

    async def _save(self) -> None:
        began = self._clock.monotonic()
        incarnation = self.incarnation
        end = began + self._story.save_seconds
        while (left := end - self._clock.monotonic()) > 0:
            await asyncio.sleep(min(left, STATUS_SECONDS))
            if self._manner != "script" and self.is_running:
                self._report("uploading")
        if self.is_running and incarnation == self.incarnation:
            self.saves.append((began, self._clock.monotonic()))

    def _leave(self) -> None:
        self.is_running = False
        self.left.append(self._clock.monotonic())

    def _report(self, phase: str) -> None:
        handshake.write_status(
            self._folder,
            Status(
                run_id="run",
                pid=self.incarnation,
                at=self._clock.now(),
                phase=phase,
                step=len(self.saves),
                steps_per_second=2.0,
                seq=self._seq,
                saved=self._saved,
            ),
        )

    def _proc(self) -> Proc:
        return Proc(pid=4_000_000, start_ticks=self.incarnation, uid=0, gid=0, command="train.py")
