# SPDX-License-Identifier: Apache-2.0
"""What a keeper of finished items hears, and to whom it tells what became of them. It is only the shape."""

from __future__ import annotations

from typing import Protocol

from spotwatch.train.done.log import Stored
from spotwatch.train.orders import Mark


class Ear(Protocol):
    """What a keeper hears, and to whom it tells what has become durable."""

    @property
    def is_stopping(self) -> bool:
        """Tell whether a stop is in force."""

    @property
    def is_asked(self) -> bool:
        """Tell whether a save is asked for."""

    def mark(self) -> Mark:
        """Return everything asked for until now."""

    def saved(self, mark: Mark, stored: Stored, items: int, seconds: float) -> None:
        """Hear that so many more items are durable, which took so long."""

    def answer(self, mark: Mark) -> None:
        """Hear that nothing which `mark` asked for is unsaved."""

    def failed(self, error: Exception, pause_seconds: float) -> None:
        """Hear why something is not durable yet."""
