# SPDX-License-Identifier: Apache-2.0
"""The chance that a loop's loaders were made from, so that a later life makes the same.

Programs split and draw their data where they make its loaders. When Lightning has them made, the chance of a
resumed life is already that of the middle of the run. It knows nothing of the loaders themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from spotwatch.train.state import rng

Replace = Callable[[str, str, Callable[..., Any]], Callable[..., Any]]


@contextmanager
def errors_shown(loop: Any) -> Iterator[None]:
    """Let an error in here be the one that ends the program, also where loaders could not be begun.

    Args:
        loop: whose loaders are made or begun.
    """
    try:
        yield
    except BaseException:
        if getattr(loop._combined_loader, "_iterator", None) is None:  # noqa: SLF001 - has no public name
            # Its teardown would ask for a length that is not known yet, and raise that instead.
            loop._data_fetcher = None  # noqa: SLF001 - likewise
        raise


class Making:
    """Has the loaders of one loop made.

    Args:
        trainer: whose loop it is.
        path: of the loop: that of training, or of the evaluations within.
        replace: replaces a method there.
    """

    def __init__(self, trainer: Any, path: str, replace: Replace) -> None:
        self._loop = attrgetter(path)(trainer)
        self._setup_data = replace(path, "setup_data", self._make)
        self._wanted: dict[str, Any] | None = None
        self.chance: dict[str, Any] | None = None
        """What those that are there were made from; None where there are none, or it was not seen."""

    def want(self, chance: dict[str, Any]) -> None:
        """Have them made from this the next time, with no draw from the chance that is in force then."""
        self._wanted = chance

    def _make(self) -> None:
        """Have Lightning make them, where it has none or others are due."""
        now, there = rng.capture(), self._loop._combined_loader  # noqa: SLF001 - has no public name
        if self._wanted is not None:
            rng.restore(self._wanted)
        try:
            with errors_shown(self._loop):
                self._setup_data()
        finally:
            is_made = self._loop._combined_loader is not there  # noqa: SLF001 - likewise
            if self._wanted is not None:
                rng.restore(now)
            if is_made:
                self.chance, self._wanted = self._wanted or now, None
