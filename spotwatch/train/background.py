# SPDX-License-Identifier: Apache-2.0
"""One piece of work at a time on a thread of its own, while the training thread goes on.

It knows nothing of checkpoints. The thread does not keep the interpreter from ending.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

log = logging.getLogger("spotwatch.train")
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

        thread = threading.Thread(target=run, name="spotwatch-save", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:
            # No thread is to be had, for lack of memory or by a limit: then the caller waits.
            log.warning("%s: training waits for this save", error)
            run()

    def join(self, is_hopeless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until nothing is under way; signals are handled meanwhile.

        Args:
            is_hopeless: asked now and then; True: wait no longer.

        Returns:
            Whether nothing is under way any more.
        """
        while self._thread is not None and self._thread.is_alive():
            if is_hopeless():
                return False
            self._thread.join(_TICK_SECONDS)
        return True

    def take(self) -> T:
        """Return the result of the work that is done, or raise what it raised."""
        if not self.done:
            raise RuntimeError("the work is not over")
        result, self._thread, self._result, self.done = self._result, None, None, False
        assert result is not None  # noqa: S101 - set before `done` was
        return result()


def _raiser(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail
