# SPDX-License-Identifier: Apache-2.0
"""The outputs of one share, as a log: numbered segments, each written once, of which none can be inserted.

A worker that begins writes an empty segment. Whoever had the share before would have to write that very
number next, and is refused: it learns that it has lost the share, however late it wakes. That needs
conditional writes; without them segments get names of their own, and only the lease keeps two workers apart.
It does not know when to write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spotwatch.errors import CheckpointCorrupt, RunTaken, StoreConflict, StoreError, StoreMissing
from spotwatch.train.done import shelf as names
from spotwatch.train.done.fetching import Answer, fetch_all
from spotwatch.train.done.rows import Key
from spotwatch.train.done.segment import (
    MOST_INDEX_BYTES,
    MOST_SEGMENT_BYTES,
    Row,
    Segment,
    index_lines,
    index_to_bytes,
)
from spotwatch.train.done.shelf import Shelf
from spotwatch.train.parts import crc32
from spotwatch.train.registry.patience import patiently, waiting_with
from spotwatch.train.store import Store

log = logging.getLogger("spotwatch.train")
T = TypeVar("T")

GROUP = 64
"""So many segments get an index of their keys, and so many indexes one that replaces them."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A segment that is durable."""

    url: str
    size_bytes: int
    crc32: str


class ShareLog:
    """Reads and continues the log of one share.

    Args:
        store: opened at the root of the list.
        share: which.
        shares: of how many.
        writer: names this worker.
        patience_seconds: for how long a store that refuses is asked again when reading.
        look: called several times a second when reading; what it raises ends that.
    """

    def __init__(
        self,
        store: Store,
        share: int,
        shares: int,
        writer: str,
        *,
        patience_seconds: float,
        look: Callable[[], None],
    ) -> None:
        self._store = store
        self._look = look
        self._place = names.folder(share, shares)
        self._writer = writer
        self._patience_seconds = patience_seconds
        self._generation = 0
        self._next = 1
        self._known: set[str] = set()
        """Names of segments that were read; only where several can have one number."""
        self._rows: list[Row] = []
        """Of segments that no index covers yet."""
        self._indexes: dict[int, str] = {}
        """Of one group each, by the first number."""
        self._suspects: list[str] = []

    def load(self, shelf: Shelf, *, verify: bool) -> Iterator[Key]:
        """Yield the keys of all outputs.

        Args:
            shelf: what a listing shows of the share.
            verify: read every segment, instead of believing indexes of their keys.
        """
        covered = 0
        if not verify:
            for row in self._indexed(shelf):
                covered = row.number
                if self._counts(row, shelf):
                    yield from row.keys
        self._indexes = {first: name for first, last, name in shelf.indexes if last - first == GROUP - 1}
        yield from self._read(shelf, covered + 1)
        self._next = max(shelf.last, covered) + 1
        if self._store.is_conditional:
            yield from self._probe()

    def take_over(self, generation: int) -> list[Key]:
        """Begin to write: mark what did not verify, read what has come since, and shut out others.

        Args:
            generation: of the lease that this worker has.

        Returns:
            The keys that have come.
        """
        self._generation = generation
        keys: list[Key] = []
        while True:
            keys += self._new_keys()
            while self._suspects:
                self._patiently(lambda: self._mark_bad(self._suspects[-1]))
                self._suspects.pop()
            try:
                self._patiently(lambda: self.append(()))
            except RunTaken:
                self._look()  # somebody else has written that number: read on
            else:
                return keys

    def append(self, lines: Sequence[bytes]) -> Stored:
        """Store one more segment; at return it is durable: it was read back.

        After any other failure than `RunTaken` the same lines must be given again.

        Raises:
            RunTaken: another worker has written here.
            StoreError: the store refuses.
        """
        while True:
            is_exclusive = self._store.is_conditional
            name = names.segment_name(self._next, is_exclusive=is_exclusive)
            body = Segment(self._writer, self._generation, tuple(lines)).to_bytes()
            key = f"{self._place}/{name}"
            if is_exclusive:
                self._create(key, body)
            else:
                self._store.put(key, body)
            found = self._store.get(key, most_bytes=MOST_SEGMENT_BYTES)
            if found == body:
                break
            if self._is_sound(found):
                raise RunTaken(f"{self._store.url}/{key} was written by another worker; the share is its")
            # The number is lost, the lines are not.
            log.error("%s/%s is not what was written; its items are written again", self._store.url, key)
            self._mark_bad(name)
            self._add(Row(self._next, name, len(found), ()))
        self._known.add(name)
        self._add(Row(self._next, name, len(body), tuple(Segment("", 0, tuple(lines)).keys())))
        return Stored(f"{self._store.url}/{key}", len(body), crc32(body))

    def write_indexes(self) -> None:
        """Write the indexes that are due. They only make a start quicker: what fails is passed over."""
        if not self._store.is_conditional:
            return  # a segment may still come in with a number that is long gone by
        while len(self._rows) >= GROUP:
            group, self._rows = self._rows[:GROUP], self._rows[GROUP:]
            first, last = group[0].number, group[-1].number
            try:
                self._indexes[first] = self._put_index(first, last, [row.to_line() for row in group])
                if not last % GROUP**2:
                    self._merge(last)
            except StoreError as error:
                log.info("an index of finished items is not written, nothing is lost: %s", error)

    def _merge(self, last: int) -> None:
        firsts = range(last - GROUP**2 + 1, last, GROUP)
        if any(first not in self._indexes for first in firsts):
            return
        lines: list[bytes] = []
        for first in firsts:
            body = self._store.get(f"{self._place}/{self._indexes[first]}", most_bytes=MOST_INDEX_BYTES)
            lines += index_lines(body)
        self._put_index(firsts[0], last, lines)

    def _put_index(self, first: int, last: int, lines: Sequence[bytes]) -> str:
        name = names.index_name(first, last)
        self._store.put(f"{self._place}/{name}", index_to_bytes(lines))
        return name

    def _mark_bad(self, name: str) -> None:
        self._store.put(f"{self._place}/{name}{names.BAD}", b"{}\n")

    def _create(self, key: str, body: bytes) -> None:
        try:
            self._store.put_if(key, body, None)
        except StoreConflict:
            # An earlier try of ours whose answer was lost, or another worker: its bytes tell.
            log.debug("there is a %s already", key)

    def _is_sound(self, body: bytes) -> bool:
        try:
            Segment.from_bytes(body)
        except CheckpointCorrupt:
            return False
        return True

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        self._next = row.number + 1

    def _indexed(self, shelf: Shelf) -> Iterator[Row]:
        for key, answer in self._fetch(shelf.cover(), MOST_INDEX_BYTES):
            try:
                if not isinstance(answer, bytes):
                    raise answer
                rows = [Row.from_line(line) for line in index_lines(answer)]
            except (CheckpointCorrupt, StoreMissing) as error:
                log.warning("the index %s/%s is of no use: %s", self._store.url, key, error)
                return
            yield from rows

    def _counts(self, row: Row, shelf: Shelf) -> bool:
        if not row.keys or row.name in shelf.bad:
            return False
        size_bytes = shelf.segments.get(row.number, {}).get(row.name)
        if size_bytes is None:
            # A listing may lag behind; the store itself knows.
            try:
                key = f"{self._place}/{row.name}"
                size_bytes = self._patiently(lambda: self._store.size_bytes(key))
            except (StoreMissing, CheckpointCorrupt) as error:
                self._suspect(row.name, f"{error}")
                return False
        if size_bytes != row.size_bytes or size_bytes > MOST_SEGMENT_BYTES:
            wanted = f"not {row.size_bytes}" if size_bytes != row.size_bytes else "more than readers take"
            self._suspect(row.name, f"it has {size_bytes} bytes, {wanted}")
            return False
        return True

    def _read(self, shelf: Shelf, begin: int) -> Iterator[Key]:
        wanted = []
        for number in range(begin, shelf.last + 1):
            # What no listing shows may be there all the same.
            for name in sorted(shelf.segments.get(number) or [names.segment_name(number, is_exclusive=True)]):
                self._known.add(name)
                if name in shelf.bad:
                    self._rows.append(Row(number, name, 0, ()))
                else:
                    wanted.append(name)
        for key, answer in self._fetch(wanted, MOST_SEGMENT_BYTES):
            yield from self._taken_in(key.rpartition("/")[2], answer)
        self._rows.sort(key=lambda row: row.number)

    def _taken_in(self, name: str, answer: Answer) -> tuple[Key, ...]:
        row = self._row(name, answer)
        self._rows.append(row)
        return row.keys

    def _row(self, name: str, answer: Answer) -> Row:
        number = names.number_of(name) or 0
        try:
            if not isinstance(answer, bytes):
                raise answer
            try:
                keys = Segment.from_bytes(answer).keys()
            except CheckpointCorrupt:
                # What was turned over on the way is sound the second time.
                answer = self._patiently(
                    lambda: self._store.get(f"{self._place}/{name}", most_bytes=MOST_SEGMENT_BYTES)
                )
                keys = Segment.from_bytes(answer).keys()
        except (CheckpointCorrupt, StoreMissing) as error:
            self._suspect(name, str(error))
            return Row(number, name, 0, ())
        return Row(number, name, len(answer), tuple(keys))

    def _suspect(self, name: str, why: str) -> None:
        self._suspects.append(name)
        log.error("%s/%s/%s: %s; its items are done again", self._store.url, self._place, name, why)

    def _new_keys(self) -> list[Key]:
        if self._store.is_conditional:
            return list(self._probe())
        shelf = names.shelves(self._patiently(lambda: list(self._store.list()))).get(self._place, Shelf())
        keys: list[Key] = []
        for number in sorted(shelf.segments):
            for name in sorted(set(shelf.segments[number]) - self._known):
                self._known.add(name)
                for key, answer in self._fetch([name], MOST_SEGMENT_BYTES):
                    keys += self._taken_in(key.rpartition("/")[2], answer)
        self._next = max(self._next, shelf.last + 1)
        return keys

    def _probe(self) -> Iterator[Key]:
        while True:
            self._look()
            name = names.segment_name(self._next, is_exclusive=True)
            key = f"{self._place}/{name}"
            try:
                answer: Answer = self._patiently(lambda: self._store.get(key, most_bytes=MOST_SEGMENT_BYTES))  # noqa: B023 - called here and now
            except StoreMissing:
                return
            except CheckpointCorrupt as error:
                answer = error
            yield from self._taken_in(name, answer)
            self._next += 1

    def _fetch(self, wanted: Sequence[str], most_bytes: int) -> Iterator[tuple[str, Answer]]:
        return fetch_all(
            self._store,
            [f"{self._place}/{name}" for name in wanted],
            most_bytes=most_bytes,
            patience_seconds=self._patience_seconds,
            look=self._look,
        )

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, self._patience_seconds, waiting_with(self._look))
