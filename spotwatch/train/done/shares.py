# SPDX-License-Identifier: Apache-2.0
"""Which share of a list this worker has: each is held by its own lease, by one worker at a time.

It waits for whichever becomes free first. What is in a share it does not know.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from spotwatch.errors import RunTaken
from spotwatch.train.done.shelf import folder
from spotwatch.train.lease.form import LEASE
from spotwatch.train.lease.lease import Lease
from spotwatch.train.lease.owner import Owner
from spotwatch.train.lease.slot import Slot
from spotwatch.train.lease.wait import Watch
from spotwatch.train.registry.patience import patiently
from spotwatch.train.store import Store

_RENEWALS_PER_TTL = 4
_POLLS_PER_TTL = 12
_MOST_POLL_SECONDS = 5.0
_TICK_SECONDS = 0.1


class _HeldError(Exception):
    """Somebody else was quicker."""


class Shares:
    """Takes one share after another.

    Args:
        store: opened at the root of the list.
        count: how many shares there are.
        owner: this worker.
        lease_seconds: without a sign of life for so long, others may have a share.
        patience_seconds: for how long a store that refuses is asked again.
        monotonic: seconds that never go back, and count a suspended machine's sleep.
        sleep: waits so many of these.
        on_lost: called, by any thread, when another worker has the share.
    """

    def __init__(
        self,
        store: Store,
        count: int,
        owner: Owner,
        *,
        lease_seconds: float,
        patience_seconds: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        on_lost: Callable[[RunTaken], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._patience_seconds = patience_seconds
        self._lease_seconds = lease_seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._places = [f"{folder(share, count)}/{LEASE}" for share in range(count)]
        self._watches: dict[int, Watch] = {}
        self.on_lost = on_lost
        """For the share that is taken next."""
        self._lease: Lease | None = None

    def take(
        self, wanted: Collection[int], between: Callable[[], None], waiting: Callable[[str], None]
    ) -> tuple[int, int]:
        """Return one of those wanted, held from now on, and its generation; wait while others have them all.

        Args:
            wanted: at least one.
            between: called several times a second; what it raises ends the waiting, and nothing is held.
            waiting: told for people who is waited for.

        Raises:
            StoreError: the store has refused for longer than the patience.
        """
        # Workers that start together are not to ask for the same ones in the same order.
        order = random.SystemRandom().sample(sorted(wanted), len(wanted))
        told = ""
        while True:
            for share in order:
                between()
                if (generation := self._try(share, between)) is not None:
                    return share, generation
            text = next(self._watches[share].text for share in order)
            if text.partition(";")[0] != told:
                told = text.partition(";")[0]
                waiting(text)
            self._pause(between, order)

    def assert_held(self) -> None:
        """Return if the share is still this worker's; raise `RunTaken` or `StoreError` as `Lease` does."""
        if self._lease is not None:
            self._lease.assert_held()

    def guard(self) -> Callable[[], None]:
        """Return what asserts that this very share is held, whichever is taken later."""
        lease = self._lease
        return _pass if lease is None else lease.assert_held

    def release(self, ended: str) -> None:
        """Let others have the share at once; without one, do nothing.

        Args:
            ended: `stopped`, `finished` or `failed`.
        """
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.on_lost = _do_nothing
            lease.release(ended)

    def _try(self, share: int, between: Callable[[], None]) -> int | None:
        watch = self._watches.setdefault(share, Watch(self._owner, self._lease_seconds))
        slot = Slot(self._store, self._places[share])
        asked_at = self._monotonic()
        seen = patiently(slot.look, self._patience_seconds, self._wait_with(between))
        watch.see(seen.body, asked_at, self._monotonic())
        if not watch.may_take:
            return None
        lease = Lease(
            self._store,
            self._owner,
            ttl_seconds=self._lease_seconds,
            renew_seconds=self._lease_seconds / _RENEWALS_PER_TTL,
            patience_seconds=self._patience_seconds,
            monotonic=self._monotonic,
            sleep=self._sleep,
            key=self._places[share],
        )

        def leave(text: str) -> None:
            raise _HeldError(text)

        try:
            generation = lease.take(between, leave, watch)
        except _HeldError:
            return None
        lease.on_lost = self.on_lost
        lease.start()
        self._lease = lease
        del self._watches[share]
        return generation

    def _pause(self, between: Callable[[], None], order: Collection[int]) -> None:
        usual = min(self._lease_seconds / _POLLS_PER_TTL, _MOST_POLL_SECONDS)
        left = min(self._watches[share].left_seconds for share in order)
        # As `Taker`: not all at the same moments, and the last look comes in time.
        jittered = usual * random.SystemRandom().uniform(0.75, 1.25)
        self._wait_with(between)(max(min(jittered, left), 0.01))

    def _wait_with(self, between: Callable[[], None]) -> Callable[[float], None]:
        def wait(seconds: float) -> None:
            until = self._monotonic() + seconds
            while (left := until - self._monotonic()) > 0:
                between()
                self._sleep(max(min(left, _TICK_SECONDS), 0.001))

        return wait


def _do_nothing(taken: RunTaken) -> None:
    del taken


def _pass() -> None:
    pass
