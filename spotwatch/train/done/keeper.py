# SPDX-License-Identifier: Apache-2.0
"""What is finished and not yet durable: never more than so many items, and never for longer than so long.

A thread stores it while items go on, also in the middle of a long one. It knows neither keys nor shares.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotwatch.errors import RunTaken, StoreError
from spotwatch.train.done.ear import Ear
from spotwatch.train.done.log import Stored
from spotwatch.train.orders import Mark
from spotwatch.train.schedule import pause_seconds

log = logging.getLogger("spotwatch.train")

_TICK_SECONDS = 0.1
_EARLY_BYTES = 16 * 2**20
_MOST_BYTES = 64 * 2**20
"""Unsaved beyond which nothing new begins; no more is stored at once, but a single output that is larger."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be lost, and how much trouble is too much."""

    items: int
    """Finished or begun, and not durable."""
    seconds: float
    give_up_after: int | None
    """So many failures in a row; None: never."""


class Keeper:
    """Holds lines until they are durable. `add` is for any thread, the rest for the one that works.

    Args:
        bounds: of what may be unsaved.
        ear: says what is wanted, and is told.
        monotonic: seconds that never go back.
        sleep: waits so many of these.
    """

    def __init__(
        self, bounds: Bounds, ear: Ear, monotonic: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._bounds = bounds
        self._ear = ear
        self._monotonic = monotonic
        self._sleep = sleep
        self._changed = threading.Condition()
        self.tenure = object()
        """Names the time with the present share."""
        self._append: Callable[[Sequence[bytes]], Stored] | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._is_told = False
        self._lines: list[bytes] = []
        self._lines_bytes = 0
        self._oldest_at = 0.0
        self._in_flight: tuple[bytes, ...] = ()
        self._in_flight_bytes = 0
        self._mark: Mark | None = None
        self._is_wanted = False
        self._failures = 0
        self._again_at = 0.0
        self._error: Exception | None = None
        self.unsaved = 0
        """How many items are finished and not durable."""
        self.lost: RunTaken | None = None
        """Set once another worker has the share: nothing is stored any more."""

    def renew(self) -> object:
        """Forget the share before, if there was one, and return what names the next tenure.

        What is unsaved is dropped; what a save of an earlier tenure comes to, however late, does not count.
        """
        with self._changed:
            self.tenure = tenure = object()
            self._append, self._thread = None, None
            self._lines, self._lines_bytes = [], 0
            self._in_flight, self._in_flight_bytes = (), 0
            self.unsaved = 0
            self.lost, self._error, self._failures, self._again_at = None, None, 0, 0.0
            self._changed.notify_all()
        return tenure

    def begin(self, append: Callable[[Sequence[bytes]], Stored]) -> None:
        """Begin with a share, after `renew`.

        Args:
            append: makes lines durable; after a failure it is given the same ones again.
        """
        with self._changed:
            self._append = append
        self._start()

    def listen(self) -> None:
        """Answer what is asked for while there is no share, and so nothing to store; until `renew`."""
        self.renew()
        self._start()

    def _start(self) -> None:
        self._is_over = False
        # A thread for each tenure: the one before may hang in a request for a share that is lost.
        args = (self.tenure,)
        thread = threading.Thread(target=self._run, args=args, name="spotwatch-done", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # No thread is to be had, for lack of memory or by a limit: then items wait for each save.
            if not self._is_told:
                log.warning("%s: items wait while finished ones are saved", error)
            self._is_told = True
        else:
            self._thread = thread

    def lose(self, tenure: object, taken: RunTaken) -> None:
        """Store nothing any more: another worker has the share of this tenure. For any thread."""
        with self._changed:
            if tenure is self.tenure:
                self.lost = self.lost or taken
                self._changed.notify_all()

    def add(self, line: bytes, tenure: object) -> bool:
        """Take an item that is finished; False: it is of an earlier tenure, and is not taken."""
        with self._changed:
            if tenure is not self.tenure:
                return False
            if self.lost is not None:
                return True
            if not self._lines:
                self._oldest_at = self._monotonic()
            self._lines.append(line)
            self._lines_bytes += len(line)
            self.unsaved += 1
            # Time and a wish to save the thread sees by itself; with a stop each moment counts.
            is_many = 2 * len(self._lines) >= self._bounds.items or self._lines_bytes >= _EARLY_BYTES
            if is_many or self._ear.is_stopping:
                self._changed.notify_all()
        if self._thread is None:
            self.work()
        return True

    def make_room(self, items: int) -> bool:
        """Wait until so many items may begin; False: they may not, for a stop or another worker came.

        Raises:
            StoreError: storing has failed too often in a row.
        """
        self._expect_hope()
        if self._has_room(items):
            return True
        self._is_wanted = True
        try:
            while not self._has_room(items):
                if self._ear.is_stopping or self.lost is not None:
                    return False
                self._wait(lambda: self._has_room(items))
                self._expect_hope()
        finally:
            self._is_wanted = False
        return True

    def drain(self, until: float | None = None) -> bool:
        """Wait until nothing is unsaved, and tell whether that is so.

        Args:
            until: a moment on the clock; None: as long as there is hope.

        Raises:
            StoreError: storing has failed too often in a row; not where `until` says when that is.
        """
        self._is_wanted = True
        if until is not None:
            self._failures, self._again_at = 0, 0.0
        try:
            while self.unsaved and self.lost is None:
                if until is None:
                    self._expect_hope()
                    if self._ear.is_stopping:
                        return False
                elif self._monotonic() >= until:
                    return False
                self._wait(lambda: not self.unsaved)
        finally:
            self._is_wanted = False
        return not self.unsaved

    def end(self) -> None:
        """End the thread, but do not wait for a store that hangs."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout=1.0)

    def work(self, tenure: object | None = None) -> None:
        """Store what is due, once; failures are counted and told.

        Args:
            tenure: whose lines; None: of the present one.
        """
        with self._changed:
            tenure = tenure or self.tenure
            append = self._append
            if tenure is not self.tenure or not self._is_due():
                return
        # Before the lines are taken: a wish that comes meanwhile may not be answered by them.
        mark = self._ear.mark()
        with self._changed:
            if tenure is not self.tenure:
                return
            if not self._in_flight:
                self._in_flight, self._lines = tuple(self._lines), []
                self._in_flight_bytes, self._lines_bytes = self._lines_bytes, 0
                self._mark = mark
            lines, mark = _portion(self._in_flight), self._mark or mark
        if append is not None and lines and not self._store(tenure, append, lines, mark):
            return
        if self._in_flight:
            return  # the rest of what `mark` asked for is due at once
        if not self._ear.is_stopping and not self.lost and tenure is self.tenure:
            # A stop is answered at its end: an item is under way.
            self._ear.answer(mark)

    def _store(
        self,
        tenure: object,
        append: Callable[[Sequence[bytes]], Stored],
        lines: Sequence[bytes],
        mark: Mark,
    ) -> bool:
        begun = self._monotonic()
        try:
            stored = append(lines)
        except RunTaken as error:
            self.lose(tenure, error)
            return False
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception("a save has failed in a way that was not foreseen")
            self._fail(tenure, error)
            return False
        if tenure is not self.tenure:
            return False
        # Before anybody hears that less is unsaved: the worker's last word, which follows, must count it.
        self._ear.saved(mark, stored, len(lines), self._monotonic() - begun)
        with self._changed:
            if tenure is not self.tenure:
                return False
            self.unsaved -= len(lines)
            self._in_flight = self._in_flight[len(lines) :]
            self._in_flight_bytes -= sum(map(len, lines))
            self._failures, self._error = 0, None
            self._changed.notify_all()
        return True

    def _fail(self, tenure: object, error: Exception) -> None:
        with self._changed:
            if tenure is not self.tenure:
                return
            self._failures += 1
            pause = pause_seconds(self._failures)
            self._again_at = self._monotonic() + pause
            self._error = error
            self._changed.notify_all()
        self._ear.failed(error, pause)

    def _run(self, tenure: object) -> None:
        while tenure is self.tenure and not self._is_over:
            with self._changed:
                if tenure is self.tenure and not self._is_due():
                    self._changed.wait(_TICK_SECONDS)
            if not self._is_over:
                self.work(tenure)

    def _is_due(self) -> bool:
        if self.lost is not None:
            return False
        now = self._monotonic()
        if self._in_flight:
            return now >= self._again_at
        if now < self._again_at:
            return False
        asked = self._ear.is_asked
        if not self._lines:
            return asked
        return (
            asked
            or self._is_wanted
            or 2 * len(self._lines) >= self._bounds.items
            or self._lines_bytes >= _EARLY_BYTES
            or now - self._oldest_at >= self._bounds.seconds
            or self._ear.is_stopping
        )

    def _has_room(self, items: int) -> bool:
        unsaved_bytes = self._lines_bytes + self._in_flight_bytes
        return self.unsaved + items <= self._bounds.items and unsaved_bytes < _MOST_BYTES

    def _expect_hope(self) -> None:
        limit = self._bounds.give_up_after
        if limit is not None and self._failures >= limit:
            raise StoreError(f"{self._error} (failed {self._failures} times)") from self._error

    def _wait(self, is_over: Callable[[], bool]) -> None:
        if self._thread is None:
            self.work()
            if self.unsaved and self._monotonic() < self._again_at:
                self._sleep(_TICK_SECONDS)
            return
        with self._changed:
            self._changed.notify_all()
            # Handlers of signals run between waits, so none is long.
            if not is_over():
                self._changed.wait(_TICK_SECONDS)


def _portion(lines: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the first ones, as many as readers take in one piece; of the same lines always the same."""
    size_bytes = 0
    for at, line in enumerate(lines):
        size_bytes += len(line)
        if at and size_bytes > _MOST_BYTES:
            return lines[:at]
    return lines
