# SPDX-License-Identifier: Apache-2.0
"""The one object `LEASE` of a run, replaced only while it is what was last seen.

Where the store compares and swaps, two cannot both succeed. Where it does not, or where what lies there
cannot be read at all, writing and reading again makes that unlikely, no more. It does not know what a lease
means.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from spotwatch.errors import CheckpointCorrupt, StoreConflict, StoreMissing
from spotwatch.train.lease.form import LEASE, MOST_LEASE_BYTES
from spotwatch.train.store import Store

# Long enough for a rival that read before we wrote to write after us, and be seen.
_LEAST_PAUSE_SECONDS = 0.2
_MOST_PAUSE_SECONDS = 1.0
_READ_AGAIN = 2


@dataclass(frozen=True, slots=True)
class Seen:
    """What lay there when it was looked at.

    Args:
        body: its bytes; None: there was no such object.
        version: by which the store knows it; None: nothing that could be compared.
    """

    body: bytes | None
    version: str | None

    @property
    def is_comparable(self) -> bool:
        """Tell whether a write can be made to depend on this."""
        return self.body is None or self.version is not None


class Slot:
    """Reads and replaces `LEASE`.

    Args:
        store: opened at the root of the run.
        key: where it lies, if it is one of several.
    """

    def __init__(self, store: Store, key: str = LEASE) -> None:
        self._store = store
        self._key = key

    @property
    def is_enforced(self) -> bool:
        """Tell whether the store keeps two from succeeding; raise `StoreError` when it cannot be asked."""
        return self._store.is_conditional

    @property
    def name(self) -> str:
        """Return what to call it before people."""
        return f"{self._store.url}/{self._key}"

    def look(self) -> Seen:
        """Return what lies there now.

        Raises:
            StoreError: the store cannot be read.
        """
        try:
            return Seen(*self._store.read(self._key, most_bytes=MOST_LEASE_BYTES))
        except StoreMissing:
            return Seen(None, None)
        except CheckpointCorrupt as error:
            # Too large, or no object at all: the complaint stands for the bytes, and alters when they do.
            return Seen(str(error).encode(), None)

    def take(self, seen: Seen, body: bytes, pause: Callable[[float], None]) -> Seen:
        """Write `body` where `seen` was, for a process that does not hold the lease yet.

        Args:
            seen: as looked at.
            body: to write.
            pause: waits so many seconds, where the store must be watched.

        Raises:
            StoreConflict: somebody else was quicker.
            StoreError: the store refused; the body may lie there all the same.
        """
        if self._store.is_conditional and seen.is_comparable:
            return self._swap(seen, body)
        self._write_if_same(seen, body)
        for _ in range(_READ_AGAIN):
            pause(random.SystemRandom().uniform(_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS))
            after = self.look()
            if after.body != body:
                raise StoreConflict(f"{self.name} was overwritten as we took it")
        return after

    def renew(self, seen: Seen, body: bytes) -> Seen:
        """Write `body` where `seen` was, for the process whose claim that is.

        Raises:
            StoreConflict: something else lies there now.
            StoreError: the store refused; the body may lie there all the same.
        """
        if self._store.is_conditional and seen.is_comparable:
            return self._swap(seen, body)
        self._write_if_same(seen, body)
        return Seen(body, None)

    def _swap(self, seen: Seen, body: bytes) -> Seen:
        try:
            return Seen(body, self._store.put_if(self._key, body, seen.version))
        except StoreMissing as error:
            raise StoreConflict(f"{self.name} has been removed") from error

    def _write_if_same(self, seen: Seen, body: bytes) -> None:
        if self.look().body != seen.body:
            raise StoreConflict(f"{self.name} is not what it was a moment ago")
        self._store.put(self._key, body)
