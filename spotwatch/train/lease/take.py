# SPDX-License-Identifier: Apache-2.0
"""Taking a run's lease: look, wait until nobody has the run any more, write, and see whether that counted.

It does not keep what it took: renewing and giving back is in `lease`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from spotwatch.errors import StoreConflict, StoreError
from spotwatch.model import to_rfc3339
from spotwatch.train.lease.form import Claim
from spotwatch.train.lease.history import STOPPED
from spotwatch.train.lease.owner import Owner
from spotwatch.train.lease.slot import Seen, Slot
from spotwatch.train.lease.wait import Watch
from spotwatch.train.registry.patience import patiently

log = logging.getLogger("spotwatch.train")

_TICK_SECONDS = 0.2
# A wait of less may not move a floating-point clock at all.
_LEAST_TICK_SECONDS = 0.001
_POLLS_PER_TTL = 12
_MOST_POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Taken:
    """A lease that is ours.

    Args:
        claim: what it says.
        seen: what lies in the store.
        at: on the taker's clock, a moment before it was written.
    """

    claim: Claim
    seen: Seen
    at: float


class Taker:
    """Takes one lease, once.

    Args:
        slot: where it lies.
        owner: for whom.
        ttl_seconds: of the claim.
        beat: the highest that this owner has ever sent.
        patience_seconds: for how long a store that refuses is asked again.
        monotonic: seconds that never go back.
        sleep: waits so many of these.
        watch: what this owner has seen of it before; None: nothing.
    """

    def __init__(
        self,
        slot: Slot,
        owner: Owner,
        ttl_seconds: float,
        *,
        beat: int,
        patience_seconds: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        watch: Watch | None = None,
    ) -> None:
        self._slot = slot
        self._owner = owner
        self._ttl_seconds = ttl_seconds
        self._beat = beat
        self._patience_seconds = patience_seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._watch = watch or Watch(owner, ttl_seconds)
        self._sent: tuple[Claim, float] | None = None
        self._refused: Seen | None = None

    def take(self, between: Callable[[], None], waiting: Callable[[str], None]) -> Taken:
        """Return when it is ours; see `Lease.take`."""
        try:
            return self._take(between, waiting)
        except StoreError:
            raise
        except BaseException:
            self._give_back()
            raise

    def _take(self, between: Callable[[], None], waiting: Callable[[str], None]) -> Taken:
        told: tuple[str, ...] = ()

        def pause(seconds: float) -> None:
            until = self._monotonic() + seconds
            while (left := until - self._monotonic()) > 0:
                between()
                self._sleep(max(min(left, _TICK_SECONDS), _LEAST_TICK_SECONDS))

        between()
        if not patiently(lambda: self._slot.is_enforced, self._patience_seconds, pause):
            log.warning(
                "%s: the store enforces no conditional writes; two machines with one run are only kept apart "
                "as well as writing and reading again can",
                self._slot.name,
            )
        while True:
            between()
            taken = patiently(lambda: self._attempt(pause), self._patience_seconds, pause)
            if taken is not None:
                return taken
            if not self._watch.may_take and self._watch.state != told:
                told = self._watch.state
                waiting(self._watch.text)
            pause(self._poll_seconds())

    def _attempt(self, pause: Callable[[float], None]) -> Taken | None:
        asked_at = self._monotonic()
        seen = self._slot.look()
        if self._sent is not None and seen.body == self._sent[0].to_bytes():
            # It had arrived; only the answer had not.
            return Taken(self._sent[0], seen, self._sent[1])
        self._watch.see(seen.body, asked_at, self._monotonic())
        if not self._watch.may_take:
            return None
        claim, at = self._claim(), self._monotonic()
        self._sent = claim, at
        try:
            return Taken(claim, self._slot.take(seen, claim.to_bytes(), pause), at)
        except StoreConflict as error:
            is_as_before = seen == self._refused
            self._refused = seen
            if is_as_before:
                raise StoreError(f"{error}, though nothing there has changed") from error
            return None  # somebody else was quicker

    def _give_back(self) -> None:
        # We leave between writing and learning whether that counted: the next one is not to wait for us.
        if self._sent is None:
            return
        claim, _ = self._sent
        try:
            seen = self._slot.look()
            if seen.body == claim.to_bytes():
                self._slot.renew(seen, replace(claim, beat=claim.beat + 1, released=STOPPED).to_bytes())
        except StoreError as error:
            log.warning("another machine may have to wait for a lease that we gave up: %s", error)

    def _claim(self) -> Claim:
        self._beat += 1
        now = to_rfc3339(datetime.now(UTC))
        return Claim(
            owner=self._owner,
            generation=self._watch.next_generation,
            beat=self._beat,
            taken_at=now,
            renewed_at=now,
            ttl_seconds=self._ttl_seconds,
            history=self._watch.history,
        )

    def _poll_seconds(self) -> float:
        usual = min(self._watch.ttl_seconds / _POLLS_PER_TTL, _MOST_POLL_SECONDS)
        if self._watch.may_take:
            usual /= _POLLS_PER_TTL  # lost a race: see at once who has won
        # Those who wait for one lease are not to ask at the same moments, and the last look comes in time.
        jittered = usual * random.SystemRandom().uniform(0.75, 1.25)
        left = self._watch.left_seconds
        return max(min(jittered, left), _LEAST_TICK_SECONDS) if left else jittered
