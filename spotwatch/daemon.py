# SPDX-License-Identifier: Apache-2.0
"""The daemon: make the parts, join them, run them, and end them in an order that loses nothing.

The only place where clocks, environment and signals are real. What each part does is its own business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spotwatch.assembly import Assembly
from spotwatch.child import Child, OrphanReaper
from spotwatch.clock import Clock
from spotwatch.config import Settings
from spotwatch.ending import Ending
from spotwatch.errors import ConfigError
from spotwatch.hearing import hearing
from spotwatch.held_signal import let_through
from spotwatch.logs import get_logger
from spotwatch.memory import settle_memory
from spotwatch.providers import Identified, Provider
from spotwatch.sdnotify import make_notifier
from spotwatch.stopping import foresee
from spotwatch.targets import left_behind

REDETECT_SECONDS = 60.0
IDENTITY_SECONDS = 5.0
HEALTHY_SECONDS = 10.0
"""The loop counts as stuck when its runner has not ticked for this long."""
GONE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How this run differs from an ordinary one."""

    is_dry_run: bool = False
    is_once: bool = False
    exits_with_trainer: bool = False
    command: tuple[str, ...] = ()
    """The trainer, to be run as our child; empty: it runs by itself."""
    stays: bool = False
    """After a stop, `exec` stays and starts the command again if the machine survives."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Daemon:
    """One run of the daemon.

    Args:
        settings: checked.
        options: of this run.
        clock: the real one, outside tests.
    """

    def __init__(self, settings: Settings, options: Options, clock: Clock) -> None:
        self._settings = settings
        self._options = options
        self._clock = clock
        self._log = get_logger()
        self._notifier = make_notifier(options.environ)
        self._ending = asyncio.Event()
        self._is_told_to_end = False
        self._child: Child | None = None
        self._last_tick = clock.monotonic()
        self._failing_seconds: Callable[[], float] = lambda: 0.0

    async def serve(self) -> int:
        """Run until told to end, and return the exit code.

        Raises:
            ConfigError: a second daemon runs here, or a part cannot be made; nothing was started.
        """
        options = self._options
        async with contextlib.AsyncExitStack() as stack:
            if options.command:
                runtime_dir = self._settings.runtime_dir
                self._child = Child(options.command, options.environ, runtime_dir=runtime_dir)
            parts = await stack.enter_async_context(
                Assembly(
                    self._settings,
                    self._clock,
                    log=self._log,
                    child=self._child,
                    is_dry_run=options.is_dry_run,
                    is_healthy=self._is_healthy,
                )
            )
            if options.is_once:
                return await self._poll_once(parts)
            with hearing(self._on_signal, self._pass_on if self._child is not None else None):
                try:
                    return await self._run(parts)
                except BaseExceptionGroup as group:
                    raise _config_error_in(group) or group from None

    async def _poll_once(self, parts: Assembly) -> int:
        """Ask every provider once, and carry out what is due then."""
        let_through()
        await asyncio.gather(*(watcher.poll_once() for watcher in parts.watchers))
        await parts.runner.tick()
        while parts.runner.has_due_step():
            await parts.runner.tick()
        return 0

    async def _run(self, parts: Assembly) -> int:
        await asyncio.sleep(0.001)  # a signal that was kept is heard before anything is started
        await parts.runner.attempt(parts.runner.give_overdue_stop)
        self._failing_seconds = parts.runner.failing_seconds
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._tick(parts), name="runner")]
            running.append(tasks.create_task(parts.upkeep.run(), name="upkeep"))
            for watcher in parts.watchers:
                running.append(tasks.create_task(watcher.run(), name=f"watch {watcher.provider.name}"))
                running.append(tasks.create_task(self._learn_identity(parts, watcher.provider)))
            if parts.is_detecting and not parts.has_cloud:
                running.append(tasks.create_task(self._redetect(parts, tasks, running)))
            if self._notifier.watchdog_seconds is not None:
                running.append(tasks.create_task(self._feed_watchdog(self._notifier.watchdog_seconds)))
            await parts.start_servers()
            if self._child is not None:
                may_start = not self._is_told_to_end and not parts.ledger.is_stop_in_force()
                if may_start and self._child.pid is None:
                    self._child.start()
                running.append(tasks.create_task(self._follow_child(parts, self._child)))
                running.append(tasks.create_task(self._reap(self._child)))
            elif self._options.exits_with_trainer:
                running.append(tasks.create_task(self._follow_trainer(parts)))
            self._log.info("watching", **parts.summary())
            for line in parts.warnings:
                self._log.warning("check", problem=line)
            running.append(tasks.create_task(self._foresee(parts), name="foresee"))
            self._notifier.ready()
            self._notifier.status(f"watching {', '.join(w.provider.name for w in parts.watchers)}")
            settle_memory()
            await self._ending.wait()
            self._notifier.stopping()
            ending = Ending(
                parts,
                self._settings,
                self._clock,
                environ=self._options.environ,
                notifier=self._notifier,
                child=self._child,
                ends_with_trainer=self._options.exits_with_trainer,
            )
            code = await ending.run(is_told=self._is_told_to_end)
            for task in running:
                task.cancel()
        return code

    # -- loops ---------------------------------------------------------------------------------------------

    async def _tick(self, parts: Assembly) -> None:
        async def beat() -> None:
            while True:
                self._last_tick = self._clock.monotonic()
                await self._clock.sleep(1.0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beat())
            tasks.create_task(parts.runner.run())

    def _is_healthy(self) -> bool:
        """Tell whether the loop turns, and what is due can be carried out."""
        is_turning = self._clock.monotonic() - self._last_tick < HEALTHY_SECONDS
        return is_turning and self._failing_seconds() < HEALTHY_SECONDS

    async def _feed_watchdog(self, seconds: float) -> None:
        while True:
            if self._is_healthy():
                self._notifier.watchdog()
            await self._clock.sleep(seconds / 3)

    async def _foresee(self, parts: Assembly) -> None:
        """Say what would be in the way of a stop while there is time to mend it."""
        for problem in await foresee(parts.targets):
            self._log.warning("check", problem=problem)

    async def _learn_identity(self, parts: Assembly, provider: Provider) -> None:
        """Ask the cloud who we are until it says so, and drop what belongs to another machine."""
        if not isinstance(provider, Identified):
            return
        while True:
            with contextlib.suppress(Exception):
                instance = await provider.identity()
                closed = parts.ledger.settle_identity(f"{provider.name}:{instance}")
                if closed:
                    parts.runner.wake()
                return
            await self._clock.sleep(IDENTITY_SECONDS)

    async def _redetect(
        self, parts: Assembly, tasks: asyncio.TaskGroup, running: list[asyncio.Task[None]]
    ) -> None:
        """Look again for a cloud: at boot the network may come up after us."""
        while not parts.has_cloud:
            await self._clock.sleep(REDETECT_SECONDS)
            for watcher in await parts.detect_again():
                running.append(tasks.create_task(watcher.run(), name=f"watch {watcher.provider.name}"))
                running.append(tasks.create_task(self._learn_identity(parts, watcher.provider)))
                self._log.info("cloud_found", provider=watcher.provider.name)

    async def _reap(self, child: Child) -> None:
        reaper = OrphanReaper(child)
        while True:
            await self._clock.sleep(5.0)
            reaper.sweep()

    async def _follow_child(self, parts: Assembly, child: Child) -> None:
        """End when the child has ended; after a stop wait a moment for a withdrawal, or stay."""
        if child.pid is None and child.exit_code is None and not await self._begin_after_stop(parts, child):
            self._ending.set()
            return
        while True:
            code = await child.wait()
            self._log.info("trainer_exited", code=code)
            parts.runner.wake()
            goes_on = parts.ledger.is_stop_in_force() or parts.runner.is_start_owed()
            parts.trainers.look()
            has_finished = code == 0 and parts.trainers.have_finished()
            if self._is_told_to_end or has_finished or not goes_on:
                break
            has_begun_again = await self._wait_for_respawn(child)
            if not has_begun_again:
                break
        for proc in await asyncio.to_thread(left_behind):
            self._log.warning(
                "the command has ended and left a process that is not watched any more; "
                "keep the trainer in the foreground",
                pid=proc.pid,
                command=proc.command[:80],
            )
        self._ending.set()

    async def _begin_after_stop(self, parts: Assembly, child: Child) -> bool:
        """Start the child once the stop that we found in force is lifted; tell whether it was in time."""
        self._log.warning(
            "a stop is in force on this machine; the command is not started before it is lifted"
        )
        limit = None if self._options.stays else self._settings.policy.drain_seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while parts.ledger.is_stop_in_force() and not self._ending.is_set():
                    await self._clock.sleep(0.1)
                if not self._ending.is_set() and child.pid is None:
                    child.start()
                return child.pid is not None
        return False

    async def _wait_for_respawn(self, child: Child) -> bool:
        limit = None if self._options.stays else self._settings.policy.drain_seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while child.pid is None:
                    await self._clock.sleep(0.1)
                return True
        return False

    async def _follow_trainer(self, parts: Assembly) -> None:
        """End when a trainer that was once there is gone."""
        gone_since: float | None = None
        has_been_there = False
        while True:
            is_there = await parts.is_trainer_there()
            # One that was over before it was first seen may have left its last word.
            has_been_there |= is_there or bool(parts.trainers.left_with() - {None})
            now = self._clock.monotonic()
            if is_there or not has_been_there:
                gone_since = None
            elif gone_since is None:
                gone_since = now
            elif now - gone_since >= GONE_SECONDS:
                self._log.info("trainer_gone")
                self._ending.set()
                return
            await self._clock.sleep(1.0)

    # -- signals -------------------------------------------------------------------------------------------

    def _on_signal(self, signum: int) -> None:
        loop = asyncio.get_running_loop()
        if self._child is not None:
            if signum == signal.SIGINT:
                # How many it takes is for the trainer to judge: the library aborts at the third.
                self._child.pass_on(signum)
        elif self._is_told_to_end:
            loop.remove_signal_handler(signum)
            signal.raise_signal(signum)
        self._is_told_to_end = True
        self._ending.set()

    def _pass_on(self, signum: int) -> None:
        if self._child is not None:
            self._child.pass_on(signum)


async def serve(settings: Settings, options: Options, clock: Clock) -> int:
    """Run a daemon with these settings, and return its exit code.

    Raises:
        ConfigError: it cannot be started as configured.
    """
    return await Daemon(settings, options, clock).serve()


def _config_error_in(group: BaseExceptionGroup[BaseException]) -> ConfigError | None:
    """Return the configuration error that made a task group fail, if that is what it was."""
    for error in group.exceptions:
        if isinstance(error, ConfigError):
            return error
        if isinstance(error, BaseExceptionGroup) and (inner := _config_error_in(error)) is not None:
            return inner
    return None
