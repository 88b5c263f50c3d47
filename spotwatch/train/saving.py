# SPDX-License-Identifier: Apache-2.0
"""One save: made durable, told, and counted as the answer to what was asked; and the last, in time.

When a save is due is in `schedule`, and what the loop does next in `checkpointer`. A save blocks until it is
durable or has failed.
"""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import replace
from datetime import UTC, datetime

import spotwatch
from spotwatch.errors import ConfigError, RunTaken, StoreError
from spotwatch.handshake import Saved
from spotwatch.train.link import Link
from spotwatch.train.manifest import Manifest, crc32
from spotwatch.train.orders import Mark
from spotwatch.train.registry import Registry
from spotwatch.train.schedule import Schedule, pause_seconds
from spotwatch.train.state import State

log = logging.getLogger("spotwatch.train")

# How long a last save is tried again when no deadline is known, and what is left for the exit when one is.
_LAST_TRIES_SECONDS = 30.0
_EXIT_SECONDS = 2.0


class Saver:
    """Makes checkpoints of one run, and says so.

    Args:
        registry: of the run.
        state: what is saved.
        schedule: learns of each save and each failure.
        link: hears of both.
        keep: how many checkpoints stay.
    """

    def __init__(self, registry: Registry, state: State, schedule: Schedule, link: Link, keep: int) -> None:
        self._registry = registry
        self._state = state
        self._schedule = schedule
        self._link = link
        self._keep = keep
        self._saved = Saved()
        self.saved_step = -1
        """The step of the newest durable checkpoint of this life; -1: none."""
        self.taken = False
        """Another process has gone on with the run: nothing is written any more."""

    def begin(self) -> None:
        """Forget which step is durable: the run begins again, or goes on from a checkpoint."""
        self.saved_step = -1
        self.taken = False

    def save(self, step: int) -> None:
        """Save now; at return it is durable.

        Raises:
            StoreError: it is not; LATEST names what it named before.
            ConfigError: a value has no safe form any more.
        """
        mark = self._link.orders.mark()
        begun = time.monotonic()
        eta = self._saved.save_seconds or None
        phase = "seen" if mark.seq > self._saved.seq else "training"
        self._link.heart.tell(phase=phase, seq=mark.seq, eta_seconds=eta)
        try:
            body, state = self._state.capture()
            self._link.heart.tell(phase="uploading")
            manifest = self._registry.publish(
                step=step,
                body=body,
                state=state,
                versions={"spotwatch": spotwatch.__version__, "python": platform.python_version()},
                now=lambda: datetime.now(UTC),
            )
        except RunTaken as error:
            self.taken = True
            self._link.heart.tell(phase="failed", eta_seconds=None, error=str(error)[:500])
            raise
        took = time.monotonic() - begun
        self.adopt(manifest, took)
        self._link.heart.tell(phase="durable", eta_seconds=None, error="")
        self.answer(mark)
        self._schedule.saved(step, took)
        log.info("step %d is durable: %s, %d bytes, %.2f s", step, self._saved.url, manifest.size_bytes, took)
        for old in self._registry.prune(self._keep, manifest):
            log.info("removed %s", old)
        self._link.heart.tell(phase="training", only_in=("durable",))

    def save_at_last(self, step: int) -> bool:
        """Save what is not saved, again and again while there is time; tell whether it is durable."""
        if step < 0 or self.taken:
            return not self.taken
        if step == self.saved_step:
            self.answer(self._link.orders.mark())
            return True
        deadline = self._link.orders.deadline
        seconds = _LAST_TRIES_SECONDS
        if deadline is not None:
            seconds = (deadline - datetime.now(UTC)).total_seconds() - _EXIT_SECONDS
        give_up_at = time.monotonic() + seconds
        self._schedule.failures = 0
        while True:
            try:
                self.save(step)
            except RunTaken:
                log.exception("step %d is not saved", step)
                return False
            except (StoreError, ConfigError) as error:
                self.failed(step, error)
                pause = pause_seconds(self._schedule.failures)
                if isinstance(error, ConfigError) or time.monotonic() + pause > give_up_at:
                    log.exception("step %d is not saved", step)
                    return False
                time.sleep(pause)
            else:
                return True

    def adopt(self, manifest: Manifest, took: float = 0.0) -> None:
        """Take `manifest` for the newest durable checkpoint; it took the loop so many seconds."""
        self.saved_step = manifest.step
        self._saved = Saved(
            seq=self._saved.seq,
            step=manifest.step,
            at=datetime.now(UTC),
            url=f"{self._registry.store.url}/{manifest.dir}",
            size_bytes=manifest.size_bytes,
            stall_seconds=took,
            save_seconds=took,
            manifest_crc=crc32(manifest.to_bytes()),
        )

    def answer(self, mark: Mark) -> None:
        """Say that the newest durable checkpoint contains all that `mark` asked for."""
        # The daemon reads the status first; a flag removed before it would be an answer without a proof.
        self._saved = replace(self._saved, seq=max(self._saved.seq, mark.seq))
        self._link.heart.tell(saved=self._saved, seq=mark.seq)
        self._link.orders.answered(mark, stall_seconds=self._saved.stall_seconds)

    def failed(self, step: int, error: Exception) -> None:
        """Count a save that failed, and say why."""
        pause = self._schedule.failed()
        log.warning("step %d is not saved, again in %.0f s: %s", step, pause, error)
        self._link.heart.tell(phase="failed", eta_seconds=None, error=str(error)[:500])
