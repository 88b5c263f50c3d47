# SPDX-License-Identifier: Apache-2.0
"""One outcome for all ranks: what each of them did, shared, so that all go on or all leave the same way.

It does not know what is done. It is for the training thread.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

from spotwatch.errors import CheckpointCorrupt, RunTaken, SpotwatchError, StoreError
from spotwatch.train.world import World

T = TypeVar("T")


class StoppedElsewhere(SpotwatchError):
    """Another rank was told to stop; this one leaves with it."""


class _Verdict(IntEnum):
    """How it went on one rank; of several, the highest counts."""

    OK = 0
    CORRUPT = 1
    UNREADABLE = 2
    FAILED = 3
    STOPPED = 4
    TAKEN = 5


_RAISED: dict[_Verdict, type[Exception]] = {
    _Verdict.CORRUPT: CheckpointCorrupt,
    _Verdict.UNREADABLE: StoreError,
    _Verdict.FAILED: StoreError,
    _Verdict.STOPPED: StoppedElsewhere,
    _Verdict.TAKEN: RunTaken,
}


class Consensus:
    """Lets all ranks do something and share how it went.

    Args:
        world: the ranks.
        between: raises when this rank was told to stop; in force, it keeps raising.
    """

    def __init__(self, world: World, between: Callable[[], None]) -> None:
        self._world = world
        self._between = between

    def reach(self, call: Callable[[], T]) -> T:
        """Call on every rank, and return what it returned here, once it has succeeded on all.

        Raises:
            CheckpointCorrupt: something corrupt was met on a rank, and nothing worse on any; all raise it.
            StoreError: it failed on another rank, or a rank has gone.
            StoppedElsewhere: another rank was told to stop.
            RunTaken: another process has gone on with the run.
            Exception: what it raised here, unless that was something corrupt, and worse happened elsewhere.
        """
        value, _ = self._share(call, tell=False)
        return value

    def tell(self, call: Callable[[], Any]) -> Any:
        """Call on the first rank, and return what it returned, JSON, on all; raise as `reach`."""
        return self._share(call if self._world.is_first else self._between, tell=True)[1]

    def _share(self, call: Callable[[], T], *, tell: bool) -> tuple[T, Any]:
        value: Any = None
        mine: Exception | None = None
        verdict = _Verdict.OK
        try:
            value = call()
        except Exception as error:  # noqa: BLE001 - raised again once the other ranks know
            mine, verdict = error, self._judge(error)
        row = {
            "verdict": int(verdict),
            "message": "" if mine is None else str(mine) or repr(mine),
            "value": value if tell and mine is None else None,
        }
        try:
            rows: list[Any] = self._world.everyone(row)
        except StoreError as gone:
            if mine is not None:
                raise mine from gone
            raise
        verdicts = [_Verdict(row["verdict"]) for row in rows]
        worst = max(verdicts)
        if mine is not None and (verdict == worst or verdict > _Verdict.CORRUPT):
            raise mine
        if worst != _Verdict.OK:
            rank = verdicts.index(worst)
            raise _RAISED[worst](f"rank {rank}: {rows[rank]['message']}")
        return value, rows[0]["value"]

    def _judge(self, error: Exception) -> _Verdict:
        if isinstance(error, RunTaken):
            return _Verdict.TAKEN
        if isinstance(error, CheckpointCorrupt):
            return _Verdict.CORRUPT
        if isinstance(error, StoreError):
            return _Verdict.UNREADABLE
        if isinstance(error, StoppedElsewhere) or self._is_stop(error):
            return _Verdict.STOPPED
        return _Verdict.FAILED

    def _is_stop(self, error: Exception) -> bool:
        # Only the caller knows the exception by which its `between` leaves: a stop in force raises it again.
        try:
            self._between()
        except Exception as again:  # noqa: BLE001 - compared, and `error` is raised
            return type(again) is type(error)
        return False
