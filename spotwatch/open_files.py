# SPDX-License-Identifier: Apache-2.0
"""How many files and connections this process may have open, and what is said when that is too few.

It opens and closes none itself. Standard library only, but for the log.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from spotwatch.logs import get_logger

T = TypeVar("T")

WANTED = 4096
"""More than all listeners and stores together take; not more, as what we start inherits it.

`select(2)` knows no file beyond 1,024, and some programs close all that they may have, one by one.
"""
SAY_SECONDS = 60.0
# What asyncio says of it (`selector_events.BaseSelectorEventLoop._accept_connection`): up to 64 times a
# second for each listener, each with a traceback.
_NO_ROOM = "socket.accept() out of system resource"


def raise_limit() -> int:
    """Allow this process as many open files as it may need, if its hard limit does; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # A filter of system calls forbids it: then it stays as it is, and a lack of files is said.
        return soft
    return wanted


async def with_room(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` does, with room for open files, and a log that a lack of it cannot flood."""
    limit = raise_limit()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(Told(limit, say=_say, time=loop.time))
    return await work


class Told:
    """What a loop does with an error that nobody waits for: full tables once a minute, the rest as ever.

    Args:
        limit: open files that this process may have.
        say: takes one line.
        time: of the loop, in seconds.
    """

    def __init__(self, limit: int, *, say: Callable[[str], None], time: Callable[[], float]) -> None:
        self._limit = limit
        self._say = say
        self._time = time
        self._said_at: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Handle one error."""
        if context.get("message") != _NO_ROOM:
            loop.default_exception_handler(dict(context))
            return
        now = self._time()
        if self._said_at is not None and now - self._said_at < SAY_SECONDS:
            return
        self._said_at = now
        self._say(
            f"a connection could not be taken: {context.get('exception')}; this process may have "
            f"{self._limit} files open: raise the hard limit (LimitNOFILE= of the unit, ulimit -n), or look "
            "who holds connections"
        )


def _say(line: str) -> None:
    get_logger().warning("open files", problem=line)
