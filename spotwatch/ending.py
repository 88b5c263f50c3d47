# SPDX-License-Identifier: Apache-2.0
"""The end of the daemon: who goes with it, whom it waits for, and how long its last word can be read.

It hears no signal and ends no task: the daemon does, before and after.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping

from spotwatch import surroundings
from spotwatch.assembly import Assembly
from spotwatch.child import Child
from spotwatch.clock import Clock
from spotwatch.config import Settings
from spotwatch.logs import get_logger
from spotwatch.model import Do
from spotwatch.outcome import exit_code
from spotwatch.sdnotify import Notifier
from spotwatch.stopping import are_known_gone

FORCED_POLL_SECONDS = 1.0
RESERVE_SECONDS = 2.0
"""What is left of the grace for leaving."""
SCRAPES_SECONDS = 10.0
"""In it two scrapes see the answer, one every 5 s (deploy/prometheus/prometheus.yml)."""


class Ending:
    """What is done between the wish to end and the end.

    Args:
        parts: still running.
        settings: the grace, and what kind of sidecar we are.
        clock: the daemon's.
        environ: says whether we are in a pod.
        notifier: asks systemd for time.
        child: the trainer that is ours; None: it runs by itself.
        ends_with_trainer: we leave because the trainer has.
    """

    def __init__(
        self,
        parts: Assembly,
        settings: Settings,
        clock: Clock,
        *,
        environ: Mapping[str, str],
        notifier: Notifier,
        child: Child | None,
        ends_with_trainer: bool,
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._clock = clock
        self._is_pod = surroundings.is_pod(environ)
        self._notifier = notifier
        self._child = child
        self._ends_with_trainer = ends_with_trainer
        self._log = get_logger()

    async def run(self, *, is_told: bool) -> int:
        """Poll once more; where the trainer goes with us, stop it and wait; return the exit code.

        Args:
            is_told: by a signal, not by the trainer's end.
        """
        parts, child = self._parts, self._child
        self._log.info("ending")
        began = self._clock.monotonic()
        if is_told:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FORCED_POLL_SECONDS):
                    await asyncio.gather(*(watcher.poll_once() for watcher in parts.watchers))
            why = await self._shutdown_reason()
            has_left = child is not None and child.exit_code is not None
            if why and not has_left and not await self._is_nobody_there():
                await parts.runner.stop_now(why)
                await self._wait_for_the_last_answer()
        was_started = child is not None and (child.pid or child.exit_code is not None)
        code = await child.wait() if child is not None and was_started else None
        await parts.runner.attempt(parts.runner.tick)
        await self._wait_until_scraped(began)
        if child is not None:
            return exit_code(parts, code)
        return exit_code(parts, None) if self._ends_with_trainer else 0

    async def _shutdown_reason(self) -> str:
        if self._child is not None:
            return "spotwatch exec was told to end"
        if self._ends_with_trainer:
            return "the pod is being stopped"
        if self._is_pod:
            # kubernetes.io, "Sidecar Containers", 2026-11: a native one is told to end when the others have
            # ended. With a trainer that lives it is restarted alone; without one there is nobody to stop.
            return "" if self._settings.pod.sidecar == "native" else "the pod is being stopped"
        return "the machine is shutting down" if await surroundings.is_system_stopping() else ""

    async def _is_nobody_there(self) -> bool:
        """Tell whether it is known that no trainer is here; where none is configured it never is."""
        # The first process of a container of its own sees no other container's.
        if self._child is not None or not self._parts.targets or os.getpid() == 1:
            return False
        self._parts.trainers.look()
        return not await self._parts.is_trainer_there() and await are_known_gone(self._parts.targets)

    async def _wait_for_the_last_answer(self) -> None:
        """Stay until the answer or the trainer's exit; a child is waited for without a limit."""
        drain_seconds = self._settings.policy.drain_seconds
        limit = None if self._child is not None else max(0.0, drain_seconds - RESERVE_SECONDS)
        if limit is not None:
            self._notifier.extend(limit + 5)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while True:
                    order = self._parts.runner.last_stop()
                    is_answered = order is not None and bool(order.answer)
                    if self._child is not None:
                        if self._child.pid is None:
                            return
                    elif is_answered or not await self._parts.is_trainer_there():
                        return
                    await self._clock.sleep(0.1)

    async def _wait_until_scraped(self, began: float) -> None:
        """Stay until Prometheus has seen the answer to the last order, where it looks and the grace allows.

        What it saw last of us would else be an open order, and it would take the save for lost.
        """
        is_joined = self._is_pod or self._child is not None or self._ends_with_trainer
        order = self._parts.ledger.last_order()
        if not is_joined or order is None or order.do is Do.NONE or not order.case_ids:
            return
        if order.answered_at is None or not self._parts.metrics.renders:
            return
        if self._child is None and await self._parts.is_trainer_there():
            return
        grace = began + max(0.0, self._settings.policy.drain_seconds - RESERVE_SECONDS)
        seen_for = max(0.0, (self._clock.now() - order.answered_at).total_seconds())
        seconds = min(grace - self._clock.monotonic(), SCRAPES_SECONDS - seen_for)
        if seconds > 0:
            self._log.info("staying", seconds=round(seconds, 1), why="the answer is to be scraped")
            await self._clock.sleep(seconds)
