# SPDX-License-Identifier: Apache-2.0
"""Who may go on with a run: one process at a time holds `LEASE`, renews it, and learns when it has lost it.

Its promise: whoever had the run before has said that it is done, is certainly gone, or has not renewed for a
TTL. No moment that another machine wrote down is compared with a clock here. On a store without conditional
writes all this is advisory. What may be written, and where, is not its business.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from spotwatch.errors import ConfigError, RunTaken, StoreError
from spotwatch.train.lease.form import LEASE, MOST_GENERATION, MOST_TTL_SECONDS, Claim
from spotwatch.train.lease.history import ENDINGS, History
from spotwatch.train.lease.hold import Hold
from spotwatch.train.lease.owner import Owner
from spotwatch.train.lease.slot import Slot
from spotwatch.train.lease.take import Taker
from spotwatch.train.lease.wait import Watch
from spotwatch.train.store import Store

log = logging.getLogger("spotwatch.train")

_LEAST_RENEWALS_PER_TTL = 3
# After a renewal that failed, so much sooner than usual.
_RETRIES_PER_RENEWAL = 5
# How long the way out is held up by a store that does not answer.
_JOIN_SECONDS = 5.0


def boot_seconds() -> float:
    """Return a clock that no step moves, and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def read(store: Store) -> Claim | None:
    """Return what the lease of a run says; None when there is none.

    Args:
        store: opened at the root of the run.

    Raises:
        CheckpointCorrupt: it cannot be used.
        StoreError: the store cannot be read.
    """
    body = Slot(store).look().body
    return None if body is None else Claim.from_bytes(body)


class Lease:
    """The lease of one run, for one process. `take` and `release` are for one thread, the rest for any.

    Args:
        store: opened at the root of the run.
        owner: this process.
        ttl_seconds: unrenewed for so long, others may take it over.
        renew_seconds: between renewals by the thread; at most a third of the TTL.
        patience_seconds: for how long `take` asks a store again that refuses.
        monotonic: seconds that never go back; they must count a suspended machine's sleep.
        sleep: waits so many of these.
        key: where it lies, if it is one of several.

    Raises:
        ConfigError: the times do not go together.
    """

    def __init__(
        self,
        store: Store,
        owner: Owner,
        *,
        ttl_seconds: float = 60.0,
        renew_seconds: float = 15.0,
        patience_seconds: float = 60.0,
        monotonic: Callable[[], float] = boot_seconds,
        sleep: Callable[[float], None] = time.sleep,
        key: str = LEASE,
    ) -> None:
        if not 0 < _LEAST_RENEWALS_PER_TTL * renew_seconds <= ttl_seconds <= MOST_TTL_SECONDS:
            raise ConfigError(
                f"a lease of {ttl_seconds:g} s, renewed every {renew_seconds:g} s: it wants at least "
                f"{_LEAST_RENEWALS_PER_TTL} renewals in its time, and at most {MOST_TTL_SECONDS:g} s"
            )
        self.owner = owner
        self.on_lost: Callable[[RunTaken], None] = _do_nothing
        """Called once, by whichever thread learns that another process has the run."""
        self._ttl_seconds = ttl_seconds
        self._renew_seconds = renew_seconds
        self._patience_seconds = patience_seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._slot = Slot(store, key)
        self._hold: Hold | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def generation(self) -> int:
        """Return the generation under which checkpoints are written now; `StoreError` without the lease."""
        return self._held().generation

    @property
    def history(self) -> History:
        """Return the lives of the run; the present one, as yet without an end, is the last."""
        return History() if self._hold is None else self._hold.history

    def take(
        self, between: Callable[[], None], waiting: Callable[[str], None], watch: Watch | None = None
    ) -> int:
        """Wait until nobody has the run, take it, and return its generation; then call `start`.

        Held already, it is taken anew.

        Args:
            between: called at least four times a second, the store's own delays apart; what it raises ends
                the waiting, and nothing is held.
            waiting: told for people who has the run, at first and whenever that changes.
            watch: what this owner has seen of the lease before, on the same clock.

        Raises:
            StoreError: the store has refused for longer than the patience.
        """
        self.stop()
        before, self._hold = self._hold, None
        if before is not None:
            before.abandon()
        taken = Taker(
            self._slot,
            self.owner,
            self._ttl_seconds,
            beat=0 if before is None else before.beat,
            patience_seconds=self._patience_seconds,
            monotonic=self._monotonic,
            sleep=self._sleep,
            watch=watch,
        ).take(between, waiting)
        self._hold = Hold(self._slot, taken, self._monotonic, self._tell_lost)
        return taken.claim.generation

    def raise_to(self, generation: int) -> int:
        """Go above a generation that the run has seen, and return ours.

        Args:
            generation: of a checkpoint; nothing is done when ours is higher.

        Raises:
            RunTaken: another process has the run.
            StoreError: the store refused, or there is no higher generation.
        """
        hold = self._held()
        if generation >= hold.generation:
            if generation >= MOST_GENERATION:
                raise StoreError(
                    f"{self._slot.name}: a checkpoint of generation {generation} leaves no higher one; move "
                    f"the directories named -g{generation}- away, or use another run_id"
                )
            hold.renew(generation=generation + 1)
        return hold.generation

    def assert_held(self) -> None:
        """Return if the run is still this process's; call it before anything is written.

        Cheap while the last renewal is younger than the TTL; else it renews now.

        Raises:
            RunTaken: another process has it.
            StoreError: the lease was not taken or is released, or the store cannot be asked.
        """
        hold = self._held()
        hold.check()
        if not hold.is_fresh:
            hold.renew(only_if_stale=True)

    def start(self) -> None:
        """Begin to renew in a thread; more than once is harmless.

        Raises:
            StoreError: the lease was not taken, or is released.
        """
        hold = self._held()
        hold.check()
        if self._thread is None:
            self._ended = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(hold, self._ended), name="spotwatch-lease", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread; the lease is kept, unrenewed. A renewal that hangs is not waited for very long."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=_JOIN_SECONDS)

    def release(self, ended: str) -> None:
        """Stop renewing and let others have the run at once; what fails is logged, and they wait for a TTL.

        Args:
            ended: `stopped`, `finished` or `failed`.
        """
        if ended not in ENDINGS:
            raise ValueError(f"a lease is released as one of {ENDINGS}, not {ended!r}")
        self.stop()
        if self._hold is None:
            return
        try:
            # The thread has had its time to end; a second helping would only hold up the exit.
            self._hold.release(ended, patience_seconds=0.1)
        except RunTaken as error:
            log.info("there is no lease to release: %s", error)
        except StoreError as error:
            log.warning("the lease was not released, another machine may have to wait for it: %s", error)

    def _held(self) -> Hold:
        if self._hold is None:
            raise StoreError(f"{self._slot.name} is not held; take() it before anything is written")
        return self._hold

    def _tell_lost(self, taken: RunTaken) -> None:
        log.error("%s", taken)
        self.on_lost(taken)

    def _run(self, hold: Hold, ended: threading.Event) -> None:
        pause = self._renew_seconds
        is_failing = False
        while not ended.wait(pause):
            pause = self._renew_seconds
            try:
                hold.renew()
                if is_failing:
                    log.info("%s is renewed again", self._slot.name)
                is_failing = False
            except RunTaken:
                return
            except StoreError as error:
                pause = self._renew_seconds / _RETRIES_PER_RENEWAL
                if not is_failing and not ended.is_set():
                    log.warning("the lease was not renewed; tried again every %g s: %s", pause, error)
                is_failing = True
            except Exception:  # a defect here must not leave the run to others
                log.exception("the renewal of the lease stumbled")


def _do_nothing(taken: RunTaken) -> None:
    del taken
