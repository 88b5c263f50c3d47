# SPDX-License-Identifier: Apache-2.0
"""The saves of one run, one at a time: staged while training waits, made durable while it goes on.

When a save is due is in `schedule`, what the loop does next in `checkpointer`, and what one save writes in
`publication`. Every rank calls the same methods at the same steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from spotwatch.errors import ConfigError, RunTaken, StoreError
from spotwatch.handshake import Saved
from spotwatch.train.background import Background
from spotwatch.train.link import Link
from spotwatch.train.orders import Mark
from spotwatch.train.parts import crc32
from spotwatch.train.publication import Published, make_durable
from spotwatch.train.registry.manifest import Manifest
from spotwatch.train.registry.registry import Registry
from spotwatch.train.schedule import Schedule, pause_seconds
from spotwatch.train.state.state import Snapshot
from spotwatch.train.world import Alone, World

log = logging.getLogger("spotwatch.train")

# How long a last save is tried again when no deadline is known, and what is left for the exit when one is.
_LAST_TRIES_SECONDS = 30.0
_EXIT_SECONDS = 2.0
_TELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Job:
    """A save under way."""

    step: int
    mark: Mark
    begun: float
    stall_seconds: float
    snapshot: Snapshot
    healthy: bool


@dataclass(frozen=True, slots=True)
class _Done:
    """A save that is durable."""

    step: int
    took_seconds: float


class Saver:
    """Makes checkpoints of one run, and says so.

    Args:
        registry: of the run.
        schedule: learns of each save and each failure.
        link: hears of both.
        keep: how many checkpoints stay.
        give_up_after: so many failures in a row are too many; None: never.
    """

    def __init__(
        self, registry: Registry, schedule: Schedule, link: Link, keep: int, give_up_after: int | None
    ) -> None:
        self._registry = registry
        self._schedule = schedule
        self._link = link
        self._keep = keep
        self._give_up_after = give_up_after
        self._world: World = Alone()
        self._capture: Callable[[], Snapshot] | None = None
        self._background: Background[_Done] = Background()
        self._staged_step = -1
        self._staged_at = 0.0
        self._told_at = 0.0
        self._saved = Saved()
        self.saved_step = -1
        """The step of the newest durable checkpoint of this life; -1: none."""
        self.taken = False
        """Another process has gone on with the run: nothing is written any more."""
        self.last_error: Exception | None = None
        self.news = False
        """Something has happened that the end of the next step must look at."""

    @property
    def busy(self) -> bool:
        """Tell whether a save is under way, or its end was not taken note of yet."""
        return self._background.busy

    @property
    def has_given_up(self) -> bool:
        """Tell whether so many saves have failed in a row that training is to end."""
        return self._give_up_after is not None and self._schedule.failures >= self._give_up_after

    @property
    def has_durable(self) -> bool:
        """Tell whether there is a checkpoint to go on from."""
        return bool(self._saved.url)

    def begin(self, world: World, capture: Callable[[], Snapshot]) -> None:
        """Begin a life of the run.

        Args:
            world: the ranks that save together.
            capture: copies this rank's state; on many ranks all call it together.
        """
        self.end()
        self._world, self._capture = world, capture
        self.saved_step = self._staged_step = -1
        self.taken = self.news = False
        self.last_error = None
        self._saved = Saved(seq=self._saved.seq)

    def end(self) -> None:
        """Wait for the save under way, if there is one, and take note of how it ended."""
        if self.busy:
            self._background.join()
            self.collect()

    def lose(self) -> None:
        """Write nothing any more: another process has gone on with the run. For any thread."""
        self.taken = True
        self.news = True

    def collect(self) -> None:
        """Take note of a save that has ended."""
        if not self._background.done:
            return
        self.news = False
        try:
            self._take()
        except RunTaken as error:
            log.error("%s", error)  # noqa: TRY400 - the reason is in the message, a trace adds nothing
        except (StoreError, ConfigError) as error:
            self.failed(self._staged_step, error)

    def start(self, step: int, *, healthy: bool) -> None:
        """Copy the state and begin to make it durable; failures are counted, not raised."""
        try:
            self._stage(step, healthy=healthy)
        except (StoreError, ConfigError) as error:
            self.failed(step, error)

    def skip(self, step: int) -> None:
        """Pass over a periodic save: the one before is still on its way, or has just failed."""
        if not self.busy:
            self._schedule.skip(step, None)
            return
        so_far = time.monotonic() - self._staged_at
        self._schedule.skip(step, so_far)
        log.info(
            "step %d is not saved: the save of step %d is still on its way after %.1f s (%d passed over)",
            *(step, self._staged_step, so_far, self._schedule.skipped),
        )

    def save(self, step: int, *, healthy: bool) -> None:
        """Save now; at return it is durable.

        Raises:
            StoreError: it is not; LATEST names what it named before.
            ConfigError: a value has no safe form any more.
        """
        self.end()
        self._stage(step, healthy=healthy)
        self._take()

    def save_at_last(self, step: int, *, healthy: bool) -> bool:
        """Save what is not saved, again and again while there is time; tell whether it is durable.

        A save under way is finished first, never begun anew.
        """
        self.end()
        if any(self._world.everyone(self.taken)):
            self.lose()
            return False
        # A rank whose loop was shorter takes part in the last save of the others.
        if all(self._world.everyone(step == self.saved_step)):
            self.answer(self._link.orders.mark())
            return True
        give_up_at = time.monotonic() + self._seconds_left()
        self._schedule.failures = 0
        while True:
            try:
                self.save(step, healthy=healthy)
            except RunTaken:
                log.exception("step %d is not saved", step)
                return False
            except (StoreError, ConfigError) as error:
                self.failed(step, error)
                pause = pause_seconds(self._schedule.failures)
                is_over = isinstance(error, ConfigError) or time.monotonic() + pause > give_up_at
                # The first rank's clock counts: they try together or not at all.
                told: Any = self._world.everyone([is_over, pause])[0]
                if told[0]:
                    log.exception("step %d is not saved", step)
                    return False
                time.sleep(told[1])
            else:
                return self.has_durable

    def adopt(self, manifest: Manifest) -> None:
        """Take the checkpoint that was restored for the newest durable one."""
        self.saved_step = manifest.step
        self._note(Published(manifest.dir, manifest.size_bytes, crc32(manifest.to_bytes())), manifest.step)

    def answer(self, mark: Mark) -> None:
        """Say that the newest durable checkpoint contains all that `mark` asked for."""
        # The daemon reads the status first; a flag removed before it would be an answer without a proof.
        self._saved = replace(self._saved, seq=max(self._saved.seq, mark.seq))
        self._link.heart.tell(saved=self._saved, seq=mark.seq)
        self._link.orders.answered(mark, stall_seconds=self._saved.stall_seconds)

    def failed(self, step: int, error: Exception) -> None:
        """Count a save that failed, and say why."""
        self.last_error = error
        pause = self._schedule.failed()
        log.warning("step %d is not saved, again in %.0f s: %s", step, pause, error)
        self._link.heart.tell(phase="failed", eta_seconds=None, error=str(error)[:500])

    def _take(self) -> None:
        try:
            done = self._background.take()
        except RunTaken as error:
            self.lose()
            self._link.heart.tell(phase="failed", eta_seconds=None, error=str(error)[:500])
            raise
        self._schedule.saved(done.took_seconds)

    def _stage(self, step: int, *, healthy: bool) -> None:
        if self._capture is None:
            raise ConfigError("resume() was not called")
        mark = self._link.orders.mark()
        self._staged_step, self._staged_at = step, time.monotonic()
        healthy = all(self._world.everyone(healthy))
        snapshot = self._capture()
        stall = time.monotonic() - self._staged_at
        job = _Job(step, mark, self._staged_at, stall, snapshot, healthy)
        self._background.start(partial(self._work, job))
        if not snapshot.is_copy:
            self._background.join()  # what is uploaded is the state itself: it must not change meanwhile
            stall = time.monotonic() - self._staged_at
        self._schedule.staged(step, stall)

    def _work(self, job: _Job) -> _Done:
        try:
            return self._make_durable(job)
        finally:
            self.news = True

    def _make_durable(self, job: _Job) -> _Done:
        # Said from here: a file written by the training thread would lengthen the stall.
        eta = self._saved.save_seconds or None
        self._link.heart.tell(phase="staged", seq=job.mark.seq, eta_seconds=eta)
        self._link.heart.tell(phase="uploading")
        on_part = partial(self._on_part, job)
        published = make_durable(
            self._registry, self._world, job.step, job.snapshot, on_part, healthy=job.healthy
        )
        took = time.monotonic() - job.begun
        if job.healthy:
            self.saved_step = job.step
            self._note(published, job.step, job.stall_seconds if job.snapshot.is_copy else took, took)
        problem = "" if job.healthy else f"step {job.step} is not healthy: LATEST names what it named before"
        self._link.heart.tell(phase="durable", eta_seconds=None, error=problem)
        self.answer(job.mark)  # also of a state that is not healthy: there is no better one to save
        log.info(
            "step %d is %s: %s/%s, %d bytes, %.2f s, training waited %.3f s",
            *(job.step, "durable" if job.healthy else "kept aside, for it is not healthy"),
            *(self._registry.store.url, published.dir, published.size_bytes, took, job.stall_seconds),
        )
        if self._world.is_first and not self._link.is_stopping:
            for old in self._registry.prune(self._keep, published.manifest):
                log.info("removed %s", old)
        self._link.heart.tell(phase="training", only_in=("durable",))
        return _Done(job.step, took)

    def _on_part(self, job: _Job, sent_bytes: int) -> None:
        self._registry.lease_check()
        now = time.monotonic()
        if sent_bytes and now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            left = job.snapshot.body.size_bytes - sent_bytes
            eta = left * (now - job.begun - job.stall_seconds) / sent_bytes
            self._link.heart.tell(only_in=("uploading", "seen"), eta_seconds=max(eta, 0.0))

    def _note(self, published: Published, step: int, stall: float = 0.0, took: float = 0.0) -> None:
        self._saved = Saved(
            seq=self._saved.seq,
            step=step,
            at=datetime.now(UTC),
            url=f"{self._registry.store.url}/{published.dir}",
            size_bytes=published.size_bytes,
            stall_seconds=stall,
            save_seconds=took,
            manifest_crc=published.manifest_crc,
        )

    def _seconds_left(self) -> float:
        deadline = self._link.orders.deadline
        seconds = _LAST_TRIES_SECONDS
        if deadline is not None:
            seconds = (deadline - datetime.now(UTC)).total_seconds() - _EXIT_SECONDS
        return min(float(value) for value in self._world.everyone(seconds))  # type: ignore[arg-type]
