# SPDX-License-Identifier: Apache-2.0
"""A lease that was taken: it is renewed, raised and given back, until another process turns out to have it.

It has no thread, and renews when it is told to. How a lease is taken is in `take`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from spotwatch.errors import CheckpointCorrupt, RunTaken, StoreConflict, StoreError
from spotwatch.model import to_rfc3339
from spotwatch.train.lease.form import Claim
from spotwatch.train.lease.history import History
from spotwatch.train.lease.slot import Slot
from spotwatch.train.lease.take import Taken

# Our own writes of before do not come in late more often.
_TRIES = 3


class Hold:
    """What one process holds from one `take` on. Threads may share it.

    Args:
        slot: where the lease lies.
        taken: how it was taken.
        monotonic: the clock that `taken.at` is of.
        on_lost: called once, by whichever thread learns that another process has the run.
    """

    def __init__(
        self, slot: Slot, taken: Taken, monotonic: Callable[[], float], on_lost: Callable[[RunTaken], None]
    ) -> None:
        self._slot = slot
        self._claim = taken.claim
        self._seen = taken.seen
        self._taken_at = self._renewed_at = taken.at
        self._monotonic = monotonic
        self._on_lost = on_lost
        self._lost = ""
        self._is_over = False
        self._lock = threading.Lock()
        """Around every write, so that two threads do not take each other's for a stranger's."""
        self.beat = taken.claim.beat
        """The highest that was ever sent."""

    @property
    def generation(self) -> int:
        """Return the generation under which checkpoints are written now."""
        return self._claim.generation

    @property
    def history(self) -> History:
        """Return the lives of the run; this one, as yet without an end, is the last."""
        return replace(self._claim, lived_seconds=self._monotonic() - self._taken_at).lives(unsaid="")

    @property
    def is_fresh(self) -> bool:
        """Tell whether nobody can have taken it over yet, for the last renewal is younger than the TTL."""
        return self._monotonic() - self._renewed_at < self._claim.ttl_seconds

    def check(self) -> None:
        """Raise what is known already: `RunTaken`, or `StoreError` after the release."""
        if self._lost:
            raise RunTaken(self._lost)
        if self._is_over:
            raise StoreError(f"{self._slot.name} was released; take() it again before anything is written")

    def renew(self, *, generation: int = 0, only_if_stale: bool = False) -> None:
        """Write anew that the run is ours; nobody having taken it, also when the TTL is long over.

        Args:
            generation: the least that ours is to have.
            only_if_stale: not if another thread has done it meanwhile.

        Raises:
            RunTaken: another process has the run.
            StoreError: the store refused, or cannot be asked.
        """
        with self._lock:
            self.check()
            if only_if_stale and self.is_fresh:
                return
            try:
                self._write(generation=generation)
            except RunTaken as error:
                self._lost = str(error)
                lost = error
            else:
                return
        # Outside the lock: whoever is told may ask us. What was given up on purpose is no loss.
        if not self._is_over:
            self._on_lost(lost)
        raise lost

    def abandon(self) -> None:
        """Let nobody renew it any more, without a word to others; a renewal under way is not waited for."""
        self._is_over = True

    def release(self, ended: str, patience_seconds: float) -> None:
        """Write that nobody has the run now; afterwards it cannot be renewed, whatever came of this.

        Args:
            ended: how.
            patience_seconds: for a renewal under way in another thread.

        Raises:
            RunTaken: another process has the run.
            StoreError: the store refused, or the renewal hangs.
        """
        if not self._lock.acquire(timeout=patience_seconds):
            self._is_over = True
            raise StoreError(f"a renewal of {self._slot.name} hangs")
        try:
            self.check()
            self._write(released=ended)
        finally:
            self._is_over = True
            self._lock.release()

    def _write(self, *, generation: int = 0, released: str = "") -> None:
        for _ in range(_TRIES):
            self.beat += 1
            at = self._monotonic()
            claim = replace(
                self._claim,
                generation=max(self._claim.generation, generation),
                beat=self.beat,
                renewed_at=to_rfc3339(datetime.now(UTC)),
                lived_seconds=at - self._taken_at,
                released=released,
            )
            try:
                self._seen = self._slot.renew(self._seen, claim.to_bytes())
            except StoreConflict:
                self._look_who_wrote()
            else:
                self._claim, self._renewed_at = claim, at
                return
        raise StoreError(
            f"{self._slot.name} does not stay as it is read; does a copy of this process renew it?"
        )

    def _look_who_wrote(self) -> None:
        # An earlier write of ours whose answer never came, or somebody who removed it: then it is still ours.
        seen = self._slot.look()
        if seen.body is not None:
            try:
                there = Claim.from_bytes(seen.body)
            except CheckpointCorrupt as error:
                raise RunTaken(f"{self._slot.name} was overwritten by an unknown: {error}") from error
            if there.owner.writer != self._claim.owner.writer or there.beat > self.beat:
                raise RunTaken(
                    f"{self._slot.name}: host {there.owner.host}, pid {there.owner.pid} has taken the run at "
                    f"{there.taken_at} (generation {there.generation}, ours is {self._claim.generation})"
                )
            self._claim = there
        self._seen = seen
