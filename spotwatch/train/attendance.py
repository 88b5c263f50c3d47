# SPDX-License-Identifier: Apache-2.0
"""A request to a store that somebody waits for: signs that it moves, how long it is silent, who has left.

Stores give the signs from within their requests; where nobody attends, they do nothing. It knows no store
and does not wait.
"""

from __future__ import annotations

import logging
import time
from contextvars import ContextVar

from spotwatch.errors import StoreSilent

log = logging.getLogger("spotwatch.train")

# The first request imports boto3, which takes seconds on a busy machine, however little patience there is.
LEAST_SECONDS = 10.0
_TELL_SECONDS = 5.0


class Left(Exception):
    """Nobody waits for this request any more."""


def now() -> float:
    """Return the seconds by which silence is measured."""
    return time.monotonic()


class Request:
    """One request, or several for one thing, from where it is waited for.

    Args:
        what: is asked, for people: "read s3://bucket/run/LATEST".
        patience_seconds: silent for so long, though not before `LEAST_SECONDS`, it is given up.
        since: when the silence began, if that was before.
    """

    def __init__(self, what: str, patience_seconds: float, since: float | None = None) -> None:
        self._what = what
        self._limit_seconds = max(patience_seconds, LEAST_SECONDS)
        self._begun_at = now()
        self._moved_at = self._begun_at if since is None else since
        self._is_told = False
        self.is_left = False
        """Nobody waits for it: what asks for it is to end at its next sign, and to write nothing more."""

    def attend(self) -> None:
        """Take what this thread does from now on for this request."""
        _REQUEST.set(self)

    def moved(self) -> None:
        """Note that something came."""
        self._moved_at = now()
        self._is_told = False

    @property
    def silent_since(self) -> float:
        """Return when something came last, or since when it is waited for."""
        return self._moved_at

    def expect_sign(self) -> None:
        """Say once that it is waited for.

        Raises:
            StoreSilent: that was long enough.
        """
        at = now()
        silent = at - self._moved_at
        if silent >= self._limit_seconds and at - self._begun_at >= LEAST_SECONDS:
            raise StoreSilent(f"cannot {self._what}: the store has not answered for {silent:.0f} s")
        if at - max(self._begun_at, self._moved_at) >= _TELL_SECONDS and not self._is_told:
            self._is_told = True
            log.warning(
                "waiting for the store to %s: no answer for %.0f s; given up after %.0f s",
                self._what,
                silent,
                self._limit_seconds,
            )


def moved() -> None:
    """Say that the request of this thread moves; raise `Left` when nobody wants it any more."""
    request = _REQUEST.get()
    if request is not None:
        request.moved()
        expect_wanted()


def expect_wanted() -> None:
    """Raise `Left` when nobody wants the request of this thread any more; before anything new is asked."""
    request = _REQUEST.get()
    if request is not None and request.is_left:
        raise Left


_REQUEST: ContextVar[Request | None] = ContextVar("spotwatch-request", default=None)
