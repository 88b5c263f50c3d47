# SPDX-License-Identifier: Apache-2.0
"""The saves of one run, one at a time: staged while training waits, made durable while it goes on.

When a save is due is in `schedule`, what one save writes in `publication`, and the last one in `last_save`.
Every rank calls the same methods at the same steps.
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
from spotwatch.train.failure import told
from spotwatch.train.link import Link
from spotwatch.train.movement import Movement, wait_together
from spotwatch.train.orders import Mark
from spotwatch.train.parts import crc32
from spotwatch.train.publication import Published, make_durable
from spotwatch.train.registry.manifest import Manifest
from spotwatch.train.registry.registry import Registry
from spotwatch.train.schedule import Schedule
from spotwatch.train.state.state import Snapshot
from spotwatch.train.world import Alone, World

log = logging.getLogger("spotwatch.train")

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
    changes: int


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
        self._staged_at = self._told_at = 0.0
        self._movement = Movement()
        self.is_given_up = False
        """The last wait for a save ended because nothing moved."""
        self._saved = Saved()
        self.saved_step = -1
        """The step of the newest durable checkpoint of this life, the highest of any rank; -1: none."""
        self.changes = self.saved_changes = 0
        """How often training went on without counting: then a save of the same step is of another state."""
        self.taken = False
        """Another process has gone on with the run: nothing is written any more."""
        self.last_error: Exception | None = None
        self.wants_boundary = False
        """A save has ended, or the run is lost: the end of the next step is to see to it."""

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
        """Begin a life of the run; no save is under way.

        Args:
            world: the ranks that save together.
            capture: copies this rank's state; on many ranks all call it together.
        """
        self._world, self._capture = world, capture
        self.saved_step, self.saved_changes, self._staged_step, self.changes = -1, 0, -1, 0
        self.taken = self.wants_boundary = False
        self.last_error = None
        self._saved = Saved(seq=self._saved.seq)

    def end(self, is_late: Callable[[], bool] | None = None) -> bool:
        """Wait for the save under way, if there is one, and take note of how it ended. On all ranks together.

        Args:
            is_late: whether there is no more time for a store that takes nothing; None: once this process was
                told to stop.

        Returns:
            Whether none is under way any more; the same on all ranks.

        Raises:
            RankGone: a rank has gone.
        """
        if not self._wait(is_late or self._is_told):
            return False
        self.collect()
        return True

    def end_here(self, why: BaseException | None = None) -> bool:
        """Do so on this rank alone, because of `why`, and only while it moves here."""
        if why is not None and self.busy and not self._background.done:
            log.error("the loop is left by %r, once step %d is saved", why, self._staged_step)
        if not self._background.join(lambda: self._movement.is_idle):
            self.is_given_up = True
            log.error("the save of step %d is given up: %s", self._staged_step, self._why_given_up())
            return False
        self.collect()
        return True

    def be_idle(self, *, together: bool) -> None:
        """Have no save under way, before another life begins; raise `StoreError` when one hangs.

        Args:
            together: all ranks call it, inside their loops; else this one ends what it has left behind.
        """
        if not (self.end() if together else self.end_here()):
            raise StoreError(f"the save before is still on its way: {self._why_given_up()}")

    def lose(self) -> None:
        """Write nothing any more: another process has gone on with the run. For any thread."""
        self.taken = True
        self.wants_boundary = True

    def collect(self) -> None:
        """Take note of a save that has ended."""
        if not self._background.done:
            return
        self.wants_boundary = False
        try:
            self._take()
        except RunTaken as error:
            log.error("%s", error)  # noqa: TRY400 - the reason is in the message, a trace adds nothing
        except Exception as error:  # noqa: BLE001 - counted and told; training is worth more than a save
            self.failed(self._staged_step, error)

    def start(self, step: int, *, healthy: bool) -> None:
        """Copy the state and begin to make it durable; failures are counted, not raised."""
        try:
            self._stage(step, healthy=healthy, is_late=self._is_told)
        except Exception as error:  # noqa: BLE001 - as above
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

    def save(self, step: int, *, healthy: bool, is_late: Callable[[], bool] | None = None) -> None:
        """Save now, on all ranks together; at return it is durable.

        Args:
            step: so many are done.
            healthy: whether it may become the checkpoint to go on from.
            is_late: as `end` takes it; given up, `busy` stays.

        Raises:
            StoreError: it is not; LATEST names what it named before.
            ConfigError: a value has no safe form any more.
        """
        is_late = is_late or self._is_told
        if not self.end(is_late):
            raise StoreError(f"the save before is still on its way: {self._why_given_up()}")
        self._stage(step, healthy=healthy, is_late=is_late)
        if not self._wait(is_late):
            raise StoreError(self._why_given_up())
        self._take()

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
        self._link.heart.tell(phase="failed", eta_seconds=None, error=told(error))

    def _take(self) -> None:
        try:
            done = self._background.take()
        except Exception as error:
            if isinstance(error, RunTaken):
                self.lose()
            elif not isinstance(error, (StoreError, ConfigError)):
                log.exception("a save has failed in a way that was not foreseen")
            self._link.heart.tell(phase="failed", eta_seconds=None, error=told(error))
            raise
        self._schedule.saved(done.took_seconds)

    def _is_told(self) -> bool:
        return self._link.is_stopping or self.taken

    def _wait(self, is_late: Callable[[], bool]) -> bool:
        is_over = wait_together(self._world, self._background, self._movement, is_late)
        self.is_given_up = not is_over
        return is_over

    def _why_given_up(self) -> str:
        return self._movement.why_given_up(self._registry.store.url)

    def _stage(self, step: int, *, healthy: bool, is_late: Callable[[], bool]) -> None:
        if self._capture is None:
            raise ConfigError("resume() was not called")
        mark = self._link.orders.mark()
        self._staged_step, self._staged_at = step, time.monotonic()
        rows: list[Any] = self._world.everyone([healthy, step])
        # Where loops are of different length, the run has done as many steps as its longest loop.
        healthy, step = all(row[0] for row in rows), max(row[1] for row in rows)
        snapshot = self._capture()
        stall = time.monotonic() - self._staged_at
        job = _Job(step, mark, self._staged_at, stall, snapshot, healthy, self.changes)
        are_copies: list[Any] = self._world.everyone(snapshot.is_copy)
        self.is_given_up = False
        self._movement.begin()
        self._background.start(partial(self._work, job))
        if not all(are_copies):
            # What some rank uploads is the state itself: it must not change meanwhile.
            self._wait(is_late)
            stall = time.monotonic() - self._staged_at
        self._schedule.staged(step, stall)

    def _work(self, job: _Job) -> _Done:
        self._movement.attend()
        try:
            return self._make_durable(job)
        finally:
            self._movement.end()
            self.wants_boundary = True

    def _make_durable(self, job: _Job) -> _Done:
        # Said from here: a file written by the training thread would lengthen the stall.
        eta = self._saved.save_seconds or None
        self._link.heart.tell(phase="staged", seq=job.mark.seq, eta_seconds=eta)
        self._link.heart.tell(phase="uploading")
        on_part = partial(self._on_part, job)
        published = make_durable(
            *(self._registry, self._world, job.step, job.snapshot, on_part),
            lambda waits: self._movement.stage(waits=waits),
            healthy=job.healthy,
        )
        took = time.monotonic() - job.begun
        if job.healthy:
            self.saved_step, self.saved_changes = job.step, job.changes
            self._note(published, job.step, job.stall_seconds if job.snapshot.is_copy else took, took)
        self._tell_of(job)
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

    def _tell_of(self, job: _Job) -> None:
        problem = "" if job.healthy else f"step {job.step} is not healthy: LATEST names what it named before"
        if job.healthy or self.has_durable:
            # Of a state that is not healthy too: to go on from, there is nothing better than LATEST.
            self._link.heart.tell(phase="durable", eta_seconds=None, error=problem)
            self.answer(job.mark)
        else:
            self._link.heart.tell(phase="failed", eta_seconds=None, error=f"{problem}, which is nothing")
            self._link.orders.pass_over(job.mark)

    def _on_part(self, job: _Job, sent_bytes: int) -> None:
        self._registry.lease_check()
        if self.is_given_up and not job.snapshot.is_copy:
            # Training may go on, and change what is being read: no checkpoint may come of it.
            raise StoreError(self._why_given_up())
        now = time.monotonic()
        self._movement.sent(sent_bytes)
        if sent_bytes and now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            left = max(job.snapshot.body.size_bytes - sent_bytes, 0)
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
