# SPDX-License-Identifier: Apache-2.0
"""One piece of work at a time on a thread of its own, while the training thread goes on.

It knows nothing of checkpoints. The thread does not keep the interpreter from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")

# Python runs signal handlers between waits of the main thread; a wait without end would hold them up.
_TICK_SECONDS = 0.1


class Background(Generic[T]):
    """Runs one piece of work and keeps its result until it is taken."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: Callable[[], T] | None = None
        self.done = False
        """The work is over and its result waits to be taken."""

    @property
    def busy(self) -> bool:
        """Tell whether work is under way, or its result was not taken yet."""
        return self._thread is not None

    def start(self, work: Callable[[], T]) -> None:
        """Begin `work`; the result of the one before must have been taken."""
        if self.busy:
            raise RuntimeError("the work before is not over, or its result was not taken")

        def run() -> None:
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001 - raised again where the result is taken
                self._result = _raiser(error)
            else:
                self._result = lambda: value
            self.done = True

        self._thread = threading.Thread(target=run, name="spotwatch-save", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until nothing is under way; signals are handled meanwhile."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_TICK_SECONDS)

    def take(self) -> T:
        """Return the result of the work that is done, or raise what it raised."""
        self.join()
        result, self._thread, self._result, self.done = self._result, None, None, False
        if result is None:
            raise RuntimeError("nothing was begun")
        return result()


def _raiser(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail
