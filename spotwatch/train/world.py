# SPDX-License-Identifier: Apache-2.0
"""The processes that train one run together, as the rest of this package sees them; or the one process.

How several agree is in `ranks`. It knows no store and no state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spotwatch.model import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is wanted at the end of a step: of one rank, or, once agreed, of all."""

    stop: bool = False
    flush: bool = False
    due: bool = False
    """A periodic save, by the clock or after a failed one; the first rank's clock decides for all."""
    busy: bool = False
    """A save is still on its way on some rank."""
    fatal: bool = False
    """Saving has failed too often in a row, or cannot succeed: training is to end with an error."""
    agreed: bool = True
    """False: nothing was agreed at this step, and `busy` says nothing."""


class World(Protocol):
    """All ranks of one run. Every rank calls the same methods in the same order."""

    @property
    def rank(self) -> int:
        """Return which of them this process is."""

    @property
    def size(self) -> int:
        """Return how many there are."""

    @property
    def is_first(self) -> bool:
        """Tell whether this is rank 0: it publishes, holds the lease, and its clock counts."""

    @property
    def speaks(self) -> bool:
        """Tell whether this rank speaks to the daemon for its machine (local rank 0)."""

    def decide(self, step: int, wish: Wish, *, now: bool = False) -> Wish:
        """Return what all ranks do after `step`; the same on each, and nothing when nothing is agreed yet.

        Args:
            step: that is done, the same on every rank.
            wish: of this rank now. Used at once only where the ranks agree within the step; else what they
                proposed at an earlier step is what is decided.
            now: agree within this step, on all ranks or on none: each knows that a save is due after it.
        """

    def propose(self, step: int, wish: Wish) -> None:
        """Tell the others what this rank wishes and whether it is busy, now that it has acted on `decide`.

        Called once after each `decide` that did not end the loop. It does not wait for them.
        """

    def settle(self, step: int, wish: Wish, *, again: Callable[[], Wish] | None = None) -> Wish:
        """Return what all ranks wish, once each of them has left its loop; the loop is not entered again.

        Returns earlier where ranks that are still in theirs act: with `flush` or `due`, save with them
        (exactly as `decide` would have it) and call this again; with `stop` or `fatal`, all leave now.

        Args:
            step: the last one of this rank.
            wish: of this rank now.
            again: asked whenever the wish may have changed; None: it does not.
        """

    def everyone(self, value: JSON) -> list[JSON]:
        """Return every rank's value, by rank. For the training thread.

        Raises:
            RankGone: a rank has gone, or did not answer in time.
        """

    def everyone_behind(self, value: JSON) -> list[JSON]:
        """Return every rank's value, by rank. For the thread that saves, and for no other.

        Raises:
            RankGone: as above.
        """

    def greatest(self, values: list[int]) -> list[int]:
        """Return the greatest of each integer over all ranks. For the training thread.

        Raises:
            RankGone: as above.
        """

    def close(self) -> None:
        """Join what is pending, with a time limit; call it on every way out."""


class Alone:
    """The world of one process: whatever it wishes is agreed."""

    rank = 0
    size = 1
    is_first = True
    speaks = True

    def decide(self, step: int, wish: Wish, *, now: bool = False) -> Wish:
        """Return `wish`."""
        del step, now
        return wish

    def propose(self, step: int, wish: Wish) -> None:
        """There is nobody to tell."""

    def settle(self, step: int, wish: Wish, *, again: Callable[[], Wish] | None = None) -> Wish:
        """Return an empty wish: the loop has come to its end, and there is nobody to wait for."""
        del step, wish, again
        return Wish()

    def everyone(self, value: JSON) -> list[JSON]:
        """Return the one value."""
        return [value]

    def everyone_behind(self, value: JSON) -> list[JSON]:
        """Return the one value."""
        return [value]

    def greatest(self, values: list[int]) -> list[int]:
        """Return the values."""
        return values

    def close(self) -> None:
        """Nothing is pending."""
