# SPDX-License-Identifier: Apache-2.0
"""One cloud's reclaim from end to end: train, notice, save, the machine is gone, another one goes on.

Everything in it is real but the cloud: the daemon and the trainer are processes, the store keeps what it was
given. It notes what it saw in an `Outcome` and leaves the verdict to others.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spotwatch.drill.counting import count_steps
from spotwatch.drill.machine import Machine, wait_until
from spotwatch.drill.scene import Scene
from spotwatch.drill.verdict import SAVED_EXIT, Outcome
from spotwatch.drill.watch import Watch, read_orders, watching
from spotwatch.emulator import Emulator
from spotwatch.errors import SpotwatchError

_ANSWER_SECONDS = 3.0
"""How long the daemon may take to write down the last answer after the trainer has left."""
_WARM_SECONDS = 2.0
"""How long a user's trainer has trained when the notice comes."""
_NOBODY_TRACES = "your trainer does not write down which steps it executes"
_NO_STATUS = "your trainer does not report to the daemon; one that uses spotwatch.train does"
# Who the replacement is: a notice must never concern it because it looks like the machine that is gone.
_REPLACEMENTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "aws": {"instance_id": "i-0fedcba9876543210"},
        "gcp": {"instance_id": 4520031799277581760},
        "azure": {"vm_id": "d7a1f2c0-5e0b-4b52-9b1e-3f1c8e0a7b11", "compute_name": "spot-vmss_1"},
        "digitalocean": {"droplet_id": 512345679, "hostname": "spot-trainer-02"},
    }
)


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
        machine = self._machine(1)
        try:
            async with self._emulated(machine) as (cloud, environment):
                await machine.start_daemon(self._cloud, {**scene.plan.variables(), **environment})
                self._say("machine 1: the daemon watches")
                await wait_until(lambda: bool(cloud.requests), 10.0, "the daemon to ask its cloud")
                trainer = await self._start_trainer(machine)
                watch = self._watch(machine)
                async with watching(watch) as looking:
                    await self._until_it_trains(trainer, watch, looking)
                    announced_at = time.monotonic()
                    cloud.announce(scene.plan.window_seconds)
                    self._say(f"notice: this machine goes in {scene.plan.window_seconds:g} s")
                    await self._until_gone(trainer, looking, announced_at)
                    left_at = time.monotonic()
                    watch.look()
                await self._note_first(machine, watch, trainer.returncode, announced_at, left_at)
        finally:
            killed = await machine.destroy()
            self._say(f"machine 1 is gone: all its processes killed ({killed}), its directory removed")
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

    async def _until_gone(
        self, trainer: asyncio.subprocess.Process, looking: asyncio.Task[None], announced_at: float
    ) -> None:
        """Return when the trainer has left, or the window is over."""
        left = announced_at + self._scene.plan.window_seconds - time.monotonic()
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
        if watch.ordered_at:
            seen.notice_to_order_seconds = min(watch.ordered_at.values()) - announced_at
        elif code == 0:
            seen.troubles.append("the trainer had finished before it was told; make its run longer")
        else:
            seen.troubles.append("no order came before the trainer or its machine was gone")
        status = watch.status
        seen.has_status = status is not None
        if watch.saved_at:
            seen.notice_to_saved_seconds = min(watch.saved_at.values()) - announced_at
        elif status is None:
            self._name("notice_to_saved_seconds", _NO_STATUS)
        if code is not None:
            seen.notice_to_exit_seconds = left_at - announced_at
            stop_seq = max(watch.ordered_at, default=0)
            # Launchers hide their trainers' exit codes; the status is the record that counts.
            is_durable = status is not None and status.phase == "durable" and 0 < stop_seq <= status.saved.seq
            seen.first_exit_code = SAVED_EXIT if is_durable else _shell_code(code)
            self._say(f"the trainer exits with {seen.first_exit_code}")
            with contextlib.suppress(SpotwatchError):
                await wait_until(
                    lambda: all(answer for _, answer in read_orders(machine.state_dir)),
                    _ANSWER_SECONDS,
                    "the last answer",
                )
        seen.orders = read_orders(machine.state_dir)
        self._has_save = status is not None and status.saved.at is not None
        self._last_step = 0 if status is None else max(status.step, status.saved.step)

    # -- the machine that goes on --------------------------------------------------------------------------

    async def _second_machine(self, before: tuple[int, ...]) -> None:
        scene, seen = self._scene, self._seen
        machine = self._machine(2)
        try:
            async with self._emulated(machine, **_REPLACEMENTS[self._cloud]) as (_, environment):
                await machine.start_daemon(self._cloud, {**scene.plan.variables(), **environment})
                started_at = time.monotonic()
                trainer = await self._start_trainer(machine)
                self._say("machine 2: the same command")
                watch = self._watch(machine)
                async with watching(watch) as looking:
                    await self._until_finished(trainer, watch, looking, started_at, len(before))
                    watch.look()
        finally:
            await machine.destroy()
        seen.final_exit_code = _shell_code(trainer.returncode or 0)
        self._say(f"the run ends with {seen.final_exit_code}")
        self._count(before, watch)

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
            self._name("resume_seconds", _NO_STATUS if watch.status is None else "it took no step there")

    def _count(self, before: tuple[int, ...], watch: Watch) -> None:
        scene, seen = self._scene, self._seen
        if scene.is_own:
            self._name("bit_identical", "there is no uninterrupted run of your trainer to compare with")
            self._name("steps_executed_twice", _NOBODY_TRACES)
            lost = max(0, self._last_step - watch.resumed_step)
            if not (seen.has_status and watch.status):
                self._name("steps_lost", _NOBODY_TRACES)
            elif seen.first_exit_code == SAVED_EXIT:
                seen.steps_lost = lost
                self._say(f"by its own word: left at step {self._last_step}, resumed {watch.resumed_step}")
            else:
                # Its last word may be five seconds older than its end.
                self._name("steps_lost", f"your trainer left without saying where; {lost} at the least")
            return
        steps = count_steps(before, scene.steps(self._cloud)[len(before) :], scene.plan.total_steps)
        if steps is None:
            self._name("steps_lost", "no step was executed on one of the machines")
            return
        seen.steps_lost, seen.steps_twice, seen.steps_skipped = steps.lost, steps.twice, steps.skipped
        self._say(f"stopped at step {before[-1]}, resumed from step {steps.resumed_from}")

    # -- parts ---------------------------------------------------------------------------------------------

    def _machine(self, number: int) -> Machine:
        name = f"{self._cloud}-{number}"
        environment = self._scene.trainer_environment(self._cloud)
        return Machine(self._scene.folder / name, self._scene.logs, name, environment)

    def _watch(self, machine: Machine) -> Watch:
        return Watch(machine.runtime_dir, self._run_url, self._cloud, self._scene.timeline)

    async def _start_trainer(self, machine: Machine) -> asyncio.subprocess.Process:
        # The user's command means what it means where it was typed.
        cwd = Path.cwd() if self._scene.is_own else machine.folder
        return await machine.start_trainer(self._scene.trainer_command(self._cloud), {}, cwd)

    @contextlib.asynccontextmanager
    async def _emulated(self, machine: Machine, **knobs: Any) -> Any:
        """Play the cloud, and yield it with the variables that point a daemon to it."""
        if self._cloud != "digitalocean":
            async with Emulator(self._cloud, **knobs) as cloud:
                yield cloud, cloud.environment
            return
        secret = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
        secret_file = machine.folder / "whsec"
        secret_file.touch(mode=0o600)
        secret_file.write_text(f"{secret}\n", encoding="ascii")
        listen = f"127.0.0.1:{_free_port()}"
        url = f"http://{listen}/webhook/digitalocean"
        async with Emulator(self._cloud, webhook_url=url, secret=secret, **knobs) as cloud:
            yield (
                cloud,
                {
                    **cloud.environment,
                    "SPOTWATCH_WEBHOOK__LISTEN": listen,
                    "SPOTWATCH_WEBHOOK__SECRET_FILES": str(secret_file),
                },
            )

    def _name(self, value: str, why: str) -> None:
        self._seen.unknown.setdefault(value, why)

    def _say(self, text: str) -> None:
        self._scene.timeline.event(self._cloud, text)


def _raise_error_of(looking: asyncio.Task[None]) -> None:
    if looking.done():
        looking.result()


def _shell_code(code: int) -> int:
    """Return an exit code as a shell tells it: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
