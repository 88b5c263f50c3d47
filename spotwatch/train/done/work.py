# SPDX-License-Identifier: Apache-2.0
"""One worker's part of a list: it takes a share, offers what is not done in it, keeps the outputs, goes on.

It knows no daemon and no signals: whoever uses it says when to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.done import form
from spotwatch.train.done.ear import Ear
from spotwatch.train.done.items import Items, Offered, passes_over, warn_of_doubles
from spotwatch.train.done.keeper import Keeper
from spotwatch.train.done.kind import KeyOf, OneKind, expect_function
from spotwatch.train.done.log import ShareLog, Stored
from spotwatch.train.done.rows import Key, share_of, shown, to_line
from spotwatch.train.done.shares import Shares
from spotwatch.train.done.shelf import Shelf, folder, shelves
from spotwatch.train.done.terms import StoppedError, Terms
from spotwatch.train.lease.owner import Owner
from spotwatch.train.registry.patience import patiently, waiting_with
from spotwatch.train.store import Entry, Store
from spotwatch.train.stores.dir_files import TEMPORARY

log = logging.getLogger("spotwatch.train")
T = TypeVar("T")

_IN_TURN = (
    "with several shares each item, or list of `batches`, must be added before the next is taken, so nothing "
    "may take ahead from todo(); or begin a list with shares=1"
)


class Work:
    """What one worker does with one list.

    Args:
        store: opened at the root of the list.
        owner: this worker.
        terms: how.
        ear: says what is wanted, and is told.
        known: empty; it comes to hold the keys that have an output, here or in the store.
        attended: a context in which requests to the store can be left. It gives what to call several times a
            second while something is waited for; that raises `StoppedError` to end it.
        leaving: a context in which requests to the store have little time, all together.
        waiting: told for people who is waited for, and an empty text when that is over.
    """

    def __init__(
        self,
        store: Store,
        owner: Owner,
        terms: Terms,
        ear: Ear,
        known: set[Key],
        *,
        attended: Callable[[], AbstractContextManager[Callable[[], None]]],
        leaving: Callable[[], AbstractContextManager[None]],
        waiting: Callable[[str], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._terms = terms
        self._ear = ear
        self._attended = attended
        self._leaving = leaving
        self._look: Callable[[], None] = _do_nothing
        self._waiting = waiting
        self._keeper = Keeper(terms.bounds, ear, terms.monotonic, terms.sleep)
        self._count = 1
        self._logs: list[ShareLog] = []
        self._shares: Shares | None = None
        self._share: int | None = None
        self._stale: set[int] = set()
        """Shares of which not all that is known is true: they are read again before they are worked on."""
        self._kind = OneKind()
        self._seen = 0
        self.offered = Offered()
        self.known = known
        self.taken = False
        """The only share is another worker's now."""

    @property
    def unsaved(self) -> int:
        """Return how many outputs are not durable."""
        return self._keeper.unsaved

    def open(self) -> None:
        """Read what is done, or begin a list.

        Raises:
            ConfigError: there is something else below the root, or another number of shares.
            StoreError: the store cannot be read.
            StoppedError: a stop came meanwhile.
        """
        with self._waits():
            self._open()
        self.taken = False
        self.offered = Offered()
        self._stale.clear()

    def listen(self) -> None:
        """Answer whoever asks for a save, while there is nothing to save yet."""
        self._keeper.listen()

    def _open(self) -> None:
        self._patiently(lambda: self._store.is_conditional)
        entries: list[Entry] = self._patiently(lambda: list(self._store.list()))
        wanted, writer = self._terms.shares, self._owner.writer
        shares = self._patiently(lambda: form.find_or_make(self._store, wanted, writer, entries))
        if any(entry.key.endswith(TEMPORARY) for entry in entries):
            try:
                self._store.abort_uploads()
            except StoreError as error:
                log.info("what killed writers have left stays: %s", error)
        self._count = shares
        found = shelves(entries)
        self.known.clear()
        self._logs.clear()
        for share in range(shares):
            self._logs.append(self._log(share))
            self._load(share, found)
        self._shares = Shares(
            self._store,
            shares,
            self._owner,
            lease_seconds=self._terms.lease_seconds,
            patience_seconds=self._terms.patience_seconds,
            monotonic=self._terms.monotonic,
            sleep=self._terms.sleep,
            on_lost=partial(self._keeper.lose, None),
        )
        self._kind.example = next(iter(self.known), None)

    def _log(self, share: int) -> ShareLog:
        return ShareLog(
            *(self._store, share, self._count, self._owner.writer),
            patience_seconds=self._terms.patience_seconds,
            look=self._call_look,
        )

    def _load(self, share: int, found: Mapping[str, Shelf]) -> None:
        shelf = found.get(folder(share, self._count), Shelf())
        self.known.update(self._logs[share].load(shelf, verify=self._terms.verify))

    def offer(self, items: Items, key_of: KeyOf | None, size: int) -> Iterator[list[Any]]:
        """Yield what is not done, in lists of `size` items at most, until all shares are done.

        Raises:
            StoreError: storing has failed too often in a row, or the store cannot be read.
            ConfigError: the items cannot be gone through again where that is needed, or a key is of no use.
        """
        expect_function(key_of)
        begin = passes_over(items, again=self._count > 1)
        self.offered.begin(items)
        number = self.offered.number
        self._leave("stopped")
        passed: set[int] = set()
        while wanted := set(range(self._count)) - passed:
            if not self._take(wanted):
                return
            share = self._share
            assert share is not None  # noqa: S101 - taken
            for batch in self._batches(begin(), key_of, size):
                yield batch
                if self.offered.number != number:
                    raise ConfigError("todo() or batches() while another one is gone through: end that first")
            if self._has_passed(share):
                passed.add(share)
            elif self._ear.is_stopping or self.taken:
                return
        warn_of_doubles(self._seen, len(self.known), self.offered.left)
        self.offered.end(self._seen)

    def add(self, key: object, output: object) -> None:
        """Take the output of an item that was offered.

        Raises:
            ConfigError: key or output is of no use, there is one already, or no share is held.
        """
        key = self._kind.checked(key)
        tenure = self._keeper.tenure
        if self._share is None:
            raise ConfigError(f"add({shown(key)}) outside the loop: add within `for item in done.todo(...)`")
        if key in self.known:
            raise ConfigError(f"key {shown(key)} has an output already; each key has one")
        if self._count > 1:
            self._expect_in_turn(key)
        line = to_line(key, output)
        self.known.add(key)
        if not self._keeper.add(line, tenure):
            self.known.discard(key)
            raise ConfigError(f"key {shown(key)}: another share was begun meanwhile; {_IN_TURN}")
        self.offered.added(key)

    def finish(self, seconds: float) -> bool:
        """Make durable what is finished, for so many seconds; tell whether nothing of it can be lost."""
        if self._share is None:
            return True
        is_durable = self._keeper.drain(self._terms.monotonic() + seconds)
        if self._keeper.lost is None:
            return is_durable
        # What was in memory is done by whoever has the share now.
        self.taken = self._count == 1
        return True

    def close(self, ended: str) -> None:
        """Let others have the share, as one of `stopped`, `finished` or `failed`; twice is harmless."""
        self._keeper.end()
        self._share = None
        if self._shares is not None:
            self._shares.release(ended)

    def _expect_in_turn(self, key: Key) -> None:
        if self.offered.is_behind(key):
            raise ConfigError(f"key {shown(key)}: other items were taken since; {_IN_TURN}")
        if share_of(key, self._count) != self._share:
            raise ConfigError(f"key {shown(key)} was not offered to this worker: it is another share's")

    def _batches(self, items: Iterable[Any], key_of: KeyOf | None, size: int) -> Iterator[list[Any]]:
        batch: list[Any] = []
        self.offered.restart()
        for item in self._undone(items, key_of):
            batch.append(item)
            if len(batch) == size:
                if not self._keeper.make_room(size):
                    return
                self.offered.give()
                yield batch
                batch = []
        if batch and not self._is_over and self._keeper.make_room(len(batch)):
            self.offered.give()
            yield batch

    def _undone(self, items: Iterable[Any], key_of: KeyOf | None) -> Iterator[Any]:
        self._seen = 0
        for item in items:
            if self._is_over:
                return
            self._seen += 1
            key = self._kind.checked(item if key_of is None else key_of(item))
            if self._seen == 1:
                self.offered.meet(key)
            if key in self.known:
                continue
            if self._is_of(key, self._share) and self.offered.gather(key):
                yield item

    def _is_of(self, key: Key, share: int | None) -> bool:
        return self._count == 1 or share_of(key, self._count) == share

    @property
    def _is_over(self) -> bool:
        return self._keeper.lost is not None or self._ear.is_stopping

    def _take(self, wanted: set[int]) -> bool:
        assert self._shares is not None  # noqa: S101 - opened
        if self._ear.is_stopping or self.taken or self._share is not None:
            return False
        # A loss is one of this tenure from its first moment on, and none of a later one.
        self._shares.on_lost = partial(self._keeper.lose, self._keeper.renew())
        try:
            with self._waits():
                share, generation = self._shares.take(wanted, self._look, self._waiting)
                self._waiting("")
                self._take_over(share, generation)
        except StoppedError:
            self._release("stopped")
            return False
        except BaseException:
            self._release("failed")
            raise
        self._share = share
        self._keeper.begin(partial(_append, self._logs[share], self._shares.guard()))
        return True

    def _take_over(self, share: int, generation: int) -> None:
        if share in self._stale:
            self._logs[share] = self._log(share)
            self._load(share, shelves(self._patiently(lambda: list(self._store.list()))))
        self._stale.add(share)  # until all of it is read
        self.known.update(self._logs[share].take_over(generation))
        self._stale.discard(share)

    def _has_passed(self, share: int) -> bool:
        """Leave a share whose items were all offered; False: we leave it for another reason."""
        if not self._is_over and self._keeper.drain():
            if self._count > 1:
                self._leave("finished")
            return True
        if self._keeper.lost is None:
            return False
        log.warning("share %d of %d: %s", share + 1, self._count, self._keeper.lost)
        self.taken = self._count == 1
        if not self.taken:
            self._leave("failed")
        return False

    def _leave(self, ended: str) -> None:
        if self._share is not None and not self.taken:
            if not self._keeper.drain() and self._keeper.lost is None:
                return
            if self._keeper.lost is not None:
                self._forget(self._share)
            self._release(ended)
            self._share = None

    def _release(self, ended: str) -> None:
        assert self._shares is not None  # noqa: S101 - opened
        # Nothing is unsaved here, and whoever waits for the share has a lease to go by: no reason to be deaf.
        with self._leaving():
            self._shares.release(ended)

    def _forget(self, share: int) -> None:
        # What was unsaved or added since is thrown away: what is done only the store knows.
        self._stale.add(share)
        self.known.difference_update([key for key in self.known if self._is_of(key, share)])
        self.offered.forget(lambda key: self._is_of(key, share))

    @contextmanager
    def _waits(self) -> Iterator[None]:
        with self._attended() as self._look:
            yield

    def _call_look(self) -> None:
        self._look()

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, self._terms.patience_seconds, waiting_with(self._look))


def _append(share_log: ShareLog, assert_held: Callable[[], None], lines: Sequence[bytes]) -> Stored:
    assert_held()
    stored = share_log.append(lines)
    share_log.write_indexes()
    return stored


def _do_nothing() -> None:
    pass
