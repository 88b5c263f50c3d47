# SPDX-License-Identifier: Apache-2.0
"""One cloud's reclaim from end to end: train, notice, save, the machine is gone, another one goes on.

Everything in it is real but the cloud: the daemon and the trainer are processes, the store keeps what it was
given. It notes what it saw in an `Outcome` and leaves the verdict to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

from spotwatch.drill.cloud import emulated
from spotwatch.drill.machine import Machine, wait_until
from spotwatch.drill.notes import (
    NO_STATUS,
    note_notice,
    note_own_steps,
    note_steps,
    outcome_code,
    shell_code,
)
from spotwatch.drill.scene import Scene
from spotwatch.drill.verdict import SAVED_EXIT, Outcome
from spotwatch.drill.watch import Watch, read_orders, watching
from spotwatch.emulator import Emulator
from spotwatch.errors import SpotwatchError

_ANSWER_SECONDS = 3.0
"""How long the daemon may take to write down the last answer after the trainer has left."""
_PROGRESS_SECONDS = 0.2
_WARM_SECONDS = 2.0
"""How long a user's trainer has trained when the notice comes."""


async def rehearse(cloud: str, scene: Scene) -> Outcome:
    """Play one cloud's reclaim and return what was seen; what goes wrong is among it, not raised."""
    outcome = Outcome(
        cloud=cloud, order_limit_seconds=scene.plan.order_limit_seconds(cloud), is_own=scene.is_own
    )
    scene.timeline.begin(cloud)
    try:
        await _Reclaim(cloud, scene, outcome).play()
    except SpotwatchError as error:
        outcome.troubles.append(str(error))
        scene.timeline.event(cloud, f"given up: {error}")
    scene.timeline.progress(cloud, "")
    return outcome


class _Reclaim:
    def __init__(self, cloud: str, scene: Scene, outcome: Outcome) -> None:
        self._cloud = cloud
        self._scene = scene
        self._seen = outcome
        self._run_url = scene.store(cloud).url
        self._where = "machine 1"
        self._gone_at = math.inf
        self._shown_at = 0.0
        self._has_save = False
        self._last_step = 0

    async def play(self) -> None:
        """Lose the first machine, and finish on the second."""
        steps = await self._first_machine()
        is_hopeless = not self._has_save and self._seen.first_exit_code != SAVED_EXIT
        if self._scene.is_own and is_hopeless:
            # It would begin anew, and for all that is known take days.
            self._name("final_exit_code", "nothing was saved, so the replacement had nothing to go on from")
            return
        await self._second_machine(steps)

    # -- the machine that is taken away --------------------------------------------------------------------

    async def _first_machine(self) -> tuple[int, ...]:
        """Train until the machine is taken away, and return the steps that were executed on it."""
        scene, seen = self._scene, self._seen
        async with self._machine(1) as (machine, cloud):
            await wait_until(lambda: bool(cloud.requests), 10.0, "the daemon to ask its cloud")
            trainer = await self._start_trainer(machine)
            watch = self._watch(machine)
            async with watching(watch) as looking:
                await self._until_it_trains(trainer, watch, looking)
                announced_at = time.monotonic()
                cloud.announce(scene.plan.window_seconds)
                self._gone_at = announced_at + scene.plan.window_seconds
                self._say(f"notice: this machine goes in {scene.plan.window_seconds:g} s")
                await self._until_gone(trainer, looking)
                left_at = time.monotonic()
                watch.look()
            await self._note_first(machine, watch, trainer.returncode, announced_at, left_at)
        if seen.first_exit_code is None:
            seen.first_exit_code = 137
            seen.troubles.append("the trainer was still running when its machine was taken away")
        return scene.steps(self._cloud)

    async def _until_it_trains(
        self, trainer: asyncio.subprocess.Process, watch: Watch, looking: asyncio.Task[None]
    ) -> None:
        scene = self._scene
        started_at = time.monotonic()

        def is_training() -> bool:
            _raise_error_of(looking)
            if trainer.returncode is not None:
                raise SpotwatchError(f"the trainer ended with {trainer.returncode} before any notice came")
            if not scene.is_own:
                return len(scene.steps(self._cloud)) >= scene.plan.notice_step
            if watch.trains_since is not None:
                return time.monotonic() >= watch.trains_since + _WARM_SECONDS
            # A trainer that reports is waited for; of one that does not, only the time is known.
            patience = scene.notice_after_seconds
            return watch.status is None and time.monotonic() >= started_at + patience

        await wait_until(is_training, scene.limit_seconds, "the trainer to train")
        if not scene.is_own:
            self._say(f"training, at step {scene.steps(self._cloud)[-1]} of {scene.plan.total_steps}")
        elif watch.status is not None:
            self._say("training, by its own word")
        else:
            self._say("the trainer runs; it does not report its steps")

    async def _until_gone(self, trainer: asyncio.subprocess.Process, looking: asyncio.Task[None]) -> None:
        """Return when the trainer has left, or the window is over."""
        left = self._gone_at - time.monotonic()
        waiting = asyncio.create_task(trainer.wait())
        try:
            await asyncio.wait({waiting, looking}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            _raise_error_of(looking)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _note_first(
        self, machine: Machine, watch: Watch, code: int | None, announced_at: float, left_at: float
    ) -> None:
        seen = self._seen
        note_notice(seen, watch, code, announced_at)
        if code is not None:
            seen.notice_to_exit_seconds = left_at - announced_at
            seen.first_exit_code = outcome_code(watch, code)
            self._say(f"the trainer exits with {seen.first_exit_code}")
            with contextlib.suppress(SpotwatchError):
                await wait_until(
                    lambda: all(answer for _, answer in read_orders(machine.state_dir)),
                    _ANSWER_SECONDS,
                    "the last answer",
                )
        seen.orders = read_orders(machine.state_dir)
        status = watch.status
        self._has_save = status is not None and status.saved.at is not None
        self._last_step = 0 if status is None else max(status.step, status.saved.step)

    # -- the machine that goes on --------------------------------------------------------------------------

    async def _second_machine(self, before: tuple[int, ...]) -> None:
        scene, seen = self._scene, self._seen
        self._where, self._gone_at = "machine 2", math.inf
        async with self._machine(2) as (machine, _):
            started_at = time.monotonic()
            trainer = await self._start_trainer(machine)
            self._say("machine 2: the same command")
            watch = self._watch(machine)
            async with watching(watch) as looking:
                await self._until_finished(trainer, watch, looking, started_at, len(before))
                watch.look()
            seen.final_exit_code = shell_code(trainer.returncode or 0)
            self._say(f"the run ends with {seen.final_exit_code}")
        if scene.is_own:
            note_own_steps(seen, self._last_step, watch)
        else:
            note_steps(seen, before, scene.steps(self._cloud)[len(before) :], scene.plan.total_steps)
        if seen.steps_lost is not None:
            self._say(f"steps lost: {seen.steps_lost}")

    async def _until_finished(
        self,
        trainer: asyncio.subprocess.Process,
        watch: Watch,
        looking: asyncio.Task[None],
        started_at: float,
        steps_before: int,
    ) -> None:
        scene, seen = self._scene, self._seen

        def is_finished() -> bool:
            _raise_error_of(looking)
            if not scene.is_own and seen.resume_seconds is None:
                steps = scene.steps(self._cloud)
                if len(steps) > steps_before:
                    seen.resume_seconds = time.monotonic() - started_at
                    self._say(f"goes on training with step {steps[steps_before]}")
            return trainer.returncode is not None

        await wait_until(is_finished, scene.limit_seconds, "the trainer on machine 2 to finish")
        if scene.is_own and watch.trains_since is not None:
            seen.resume_seconds = watch.trains_since - started_at
        if seen.resume_seconds is None:
            self._name("resume_seconds", NO_STATUS if watch.status is None else "it took no step there")

    # -- parts ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _machine(self, number: int) -> AsyncIterator[tuple[Machine, Emulator]]:
        """Yield a machine whose daemon watches, and its cloud; at the end it is destroyed, come what may."""
        scene = self._scene
        name = f"{self._cloud}-{number}"
        machine = Machine(scene.folder / name, scene.logs, name, scene.trainer_environment(self._cloud))
        secret_file = machine.folder / "whsec"
        # The cloud outlives its machine, as clouds do.
        playing = emulated(self._cloud, secret_file, is_replacement=number > 1, by_mail=scene.by_mail)
        async with playing as (cloud, environment):
            try:
                await machine.start_daemon(self._cloud, {**scene.plan.variables(), **environment})
                self._say(f"machine {number}: the daemon watches")
                yield machine, cloud
            finally:
                killed = await machine.destroy()
                self._say(
                    f"machine {number} is gone: all its processes killed ({killed}), its directory removed"
                )

    def _watch(self, machine: Machine) -> Watch:
        watch = Watch(
            machine.runtime_dir,
            self._run_url,
            self._cloud,
            self._scene.timeline,
            lambda: self._show_progress(watch),
        )
        return watch

    def _show_progress(self, watch: Watch) -> None:
        now = time.monotonic()
        if not self._scene.timeline.moves or now < self._shown_at + _PROGRESS_SECONDS:
            return
        self._shown_at = now
        if self._scene.is_own:
            step = f", step {watch.status.step}" if watch.status is not None else ""
        else:
            steps = self._scene.steps(self._cloud)
            step = f", step {steps[-1]} of {self._scene.plan.total_steps}" if steps else ", starting"
        left = f", gone in {self._gone_at - now:.0f} s" if self._gone_at < math.inf else ""
        self._scene.timeline.progress(self._cloud, f"{self._where}{step}{left}")

    async def _start_trainer(self, machine: Machine) -> asyncio.subprocess.Process:
        # The user's command means what it means where it was typed.
        cwd = Path.cwd() if self._scene.is_own else machine.folder
        return await machine.start_trainer(self._scene.trainer_command(self._cloud), {}, cwd)

    def _name(self, value: str, why: str) -> None:
        self._seen.unknown.setdefault(value, why)

    def _say(self, text: str) -> None:
        self._scene.timeline.event(self._cloud, text)


def _raise_error_of(looking: asyncio.Task[None]) -> None:
    if looking.done():
        looking.result()
