# SPDX-License-Identifier: Apache-2.0
"""Between a worker and the daemon of its machine: which orders are in force, and what is said of the saves.

It decides nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

from spotwatch.handshake import Saved
from spotwatch.train.done.log import Stored
from spotwatch.train.link import Link
from spotwatch.train.orders import Mark

log = logging.getLogger("spotwatch.train")

_TELL_SECONDS = 1.0


class Teller:
    """Speaks for one worker.

    Args:
        link: to the daemon and to signals.
        url: of the list.
    """

    def __init__(self, link: Link, url: str) -> None:
        self._link = link
        # The thread that saves and the loop both speak: what one has answered, the other must not undo.
        self._lock = threading.Lock()
        self._saved = Saved(url=url)
        self._told_at = -_TELL_SECONDS
        self._has_failed = False

    @property
    def is_stopping(self) -> bool:
        """Tell whether a stop is in force."""
        return self._link.is_stopping

    @property
    def is_asked(self) -> bool:
        """Tell whether a save is asked for."""
        return self._link.orders.flush

    def mark(self) -> Mark:
        """Return everything asked for until now."""
        return self._link.orders.mark()

    def begin(self, items: int) -> None:
        """Note that so many items are durable."""
        with self._lock:
            self._has_failed = False
            self._saved = replace(self._saved, step=items, at=datetime.now(UTC))

    def saved(self, mark: Mark, stored: Stored, items: int, seconds: float) -> None:
        """Note that so many more items are durable; say so now and then."""
        del mark
        with self._lock:
            self._saved = replace(
                self._saved,
                step=self._saved.step + items,
                at=datetime.now(UTC),
                url=stored.url,
                size_bytes=stored.size_bytes,
                save_seconds=seconds,
                manifest_crc=stored.crc32,
            )
            now = time.monotonic()
            if self._has_failed or now - self._told_at >= _TELL_SECONDS:
                self._told_at = now
                self._link.heart.tell(saved=self._saved)
            if self._has_failed:
                self._has_failed = False
                self._link.heart.tell(only_in=("failed",), phase="training", error="")

    def answer(self, mark: Mark) -> None:
        """Say that nothing which `mark` asked for is unsaved."""
        with self._lock:
            if mark.seq <= self._saved.seq and not mark.flags:
                return
            # The daemon reads the status first; a flag removed before it would be an answer without a proof.
            self._saved = replace(self._saved, seq=max(self._saved.seq, mark.seq))
            self._link.heart.tell(saved=self._saved, seq=mark.seq)
        self._link.orders.answered(mark)

    def failed(self, error: Exception, pause_seconds: float) -> None:
        """Say why something is not durable yet."""
        log.warning("finished items are not saved, again in %.0f s: %s", pause_seconds, error)
        with self._lock:
            self._has_failed = True
            self._link.heart.tell(phase="failed", error=(str(error) or repr(error))[:500])

    def say_last(self) -> None:
        """Say what is durable at the end."""
        with self._lock:
            self._link.heart.tell(saved=self._saved)
