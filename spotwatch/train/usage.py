# SPDX-License-Identifier: Apache-2.0
"""How a training program may use its Checkpointer: in which order, from which thread, with which steps.

It saves nothing and restores nothing; it only refuses, and says what to do instead. Standard library only.
"""

from __future__ import annotations

import logging
from enum import Enum, auto
from threading import Thread, current_thread
from typing import SupportsIndex

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train import arguments

log = logging.getLogger("spotwatch.train")

_NOT_RESUMED = (
    "resume() was not called: call it before the loop, also for a run that begins (it returns 0 then); "
    "without it a save could put the run back to an earlier step"
)
_ENTERED_BEFORE = "this Checkpointer's `with` was entered before: call resume() again, or make another one"


class _Stage(Enum):
    NEW = auto()
    RESUMED = auto()
    INSIDE = auto()
    LEFT = auto()


class Usage:
    """Remembers what was called, and by which thread.

    One thread trains: it is the one that entered `with`, and until then the one that resumed. Another one
    would save while that one changes what is saved.
    """

    def __init__(self) -> None:
        self._stage = _Stage.NEW
        self._thread: Thread | None = None
        self._is_warned = False
        self._left_at: int | None = None

    @property
    def is_inside(self) -> bool:
        """Tell whether `with` was entered and not left."""
        return self._stage is _Stage.INSIDE

    def track(self) -> None:
        """Refuse what would be saved and was not restored.

        Raises:
            ConfigError: `resume` was called already.
        """
        if self._stage in (_Stage.RESUMED, _Stage.INSIDE):
            raise ConfigError("track() after resume(): what it names would be saved, and was not restored")

    def resume(self) -> None:
        """Refuse to take the state away from under the loop.

        Raises:
            ConfigError: another thread has entered `with`.
        """
        if self.is_inside:
            self._check_thread("resume")

    def go_back(self, *, possible: bool) -> None:
        """Refuse to resume inside the loop where there is nothing to restore: what is trained would stay.

        Raises:
            StoreError: it is not possible.
        """
        if self.is_inside and not possible:
            raise StoreError(
                "resume() inside the loop: this run has no checkpoint to go back to, and what is in memory "
                "is as training has left it; save(step) before the loop makes one of its beginning"
            )

    def resumed(self) -> None:
        """Note that state and step are those of a checkpoint, or of a fresh run."""
        self._left_at = None
        if not self.is_inside:
            self._stage, self._thread, self._is_warned = _Stage.RESUMED, current_thread(), False

    def enter(self) -> None:
        """Note that `with` is entered.

        Raises:
            ConfigError: without a `resume` of its own.
        """
        if self._stage is not _Stage.RESUMED:
            raise ConfigError(_NOT_RESUMED if self._stage is _Stage.NEW else _ENTERED_BEFORE)
        self._stage, self._thread = _Stage.INSIDE, current_thread()

    def leave(self) -> None:
        """Note that `with` is left."""
        self._stage = _Stage.LEFT

    def leave_at(self, step: int) -> None:
        """Note that the program was told to leave at this step."""
        self._left_at = step

    def has_left(self, step: int, exit_code: int) -> bool:
        """Tell whether the program was told to leave at this step; end it where it has gone on to another.

        A `break` leaves one loop of two, and what is trained, stepped and saved after it belongs to no epoch.

        Raises:
            SystemExit: it has gone on.
        """
        if self._left_at in (None, step):
            return self._left_at is not None
        log.warning(
            "step() said to leave at step %d, and the program went on to step %d: left here with exit code "
            "%d; what came after step %d is not saved. Leave every loop, such as by `return`",
            *(self._left_at, step, exit_code, self._left_at),
        )
        raise SystemExit(exit_code)

    def save(self, call: str) -> None:
        """Refuse a save that would be wrong.

        Args:
            call: which of ours the program has made.

        Raises:
            ConfigError: nothing was resumed, or `with` was left, or it is another thread.
        """
        if self._stage in (_Stage.NEW, _Stage.LEFT):
            raise ConfigError(_NOT_RESUMED if self._stage is _Stage.NEW else _ENTERED_BEFORE)
        self._check_thread(call)

    def warn_of_no_with(self) -> None:
        """Say once that the loop is not inside `with`, which works until it ends."""
        if not self.is_inside and not self._is_warned:
            self._is_warned = True
            log.warning(
                "step() outside `with`: periodic saves and orders work, but at the end of the loop its last "
                "step is not saved, exit_code says 76, and the run is not released before the process ends"
            )

    def _check_thread(self, call: str) -> None:
        if current_thread() is not self._thread:
            name = "" if self._thread is None else self._thread.name
            what = "entered `with`" if self.is_inside else "resumed"
            raise ConfigError(
                f"{call}() from thread {current_thread().name}, but {name} has {what}: one thread trains and "
                f"saves, for what another saves changes meanwhile. Touch the flag to have a save from outside"
            )


def steps_after(step: SupportsIndex, last: int) -> int:
    """Return the number of finished steps that `step` means, `last` or more.

    Raises:
        ConfigError: it is less, or no whole number.
    """
    number = arguments.steps(step)
    if number < last:
        raise ConfigError(
            f"step {number} after step {last}: steps count over the whole run, from 0, and never start again "
            f"with an epoch; count on from what resume() has returned: step += 1 after each batch. A resumed "
            f"loader yields what is left of its epoch, and enumerate(loader) counts that from 0"
        )
    return number


def warn_of_exit(error: BaseException | None) -> None:
    """Say that `with` is left by an exit that claims success, although the last step is not saved."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        log.warning(
            "the loop is left by sys.exit(%s): its last step is not saved, and exit_code is 76, but the "
            "process ends with 0; leave the loop with `break`, and then `raise SystemExit(ck.exit_code)`",
            "" if error.code is None else error.code,
        )
