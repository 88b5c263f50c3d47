# SPDX-License-Identifier: Apache-2.0
"""How a program goes through its loaders, as far as a resumed run depends on it; asked at its first step.

Where the loaders are is in `accelerate_loaders`.
"""

from __future__ import annotations

import logging
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.accelerate_loaders import Position
from spotwatch.train.integrations.accelerate_passes import Course
from spotwatch.train.integrations.accelerate_watch import epoch_of, is_copy

log = logging.getLogger("spotwatch.train")


class Loop:
    """The loop of this life, from where the life before has left it.

    Args:
        positions: of all prepared loaders, restored.
        course: of this run.
    """

    def __init__(self, positions: list[Position], course: Course) -> None:
        self._positions = positions
        self._course = course
        self._epochs = [epoch_of(position.loader) for position in positions]
        self.is_numbered = False
        """Whether the program numbers its batches on, as one that counts them by epochs does."""

    def look(self, active: Any) -> None:
        """Look at how it has come to the first step, before that is counted.

        Args:
            active: the loader that Accelerate is in; None: none.

        Raises:
            ConfigError: it trains on a copy, whose place is not saved, and which begins the epoch anew.
        """
        positions = self._positions
        for position in positions:
            if is_copy(active, position.loader):
                raise ConfigError(
                    f"{position.name}: the loop trains on a copy of it that accelerator.skip_first_batches "
                    f"has made, which is not saved: it would train on some batches twice and leave out "
                    f"others. The loader itself begins where it was: take out skip_first_batches, and what "
                    f"computes its starting epoch; `for epoch in range(loader.iteration, N): for batch in "
                    f"loader`"
                )
        waiting = [position for position in positions if position.is_waiting]
        is_reading = any(position.is_open for position in positions)
        if waiting and not any(position.is_taken_up for position in positions):
            log.warning(
                "%s: the run was saved within its epoch, and the loop trains on something else: the rest of "
                "that epoch comes at the next `for batch in loader` over it, whatever epoch the program is "
                "in then",
                waiting[0].name,
            )
        elif positions and not is_reading and not self._has_read():
            log.warning(
                "no prepared loader was read before the first step: where the loop is in its data is not "
                "saved, and a later life begins it anew; give accelerator.prepare(...) the loader that it "
                "trains on"
            )
        if is_reading and not self._course.is_asked and not self.is_numbered:
            log.warning(
                "the program has not asked which epoch it is in: a loop that run.steps ends needs not; one "
                "that counts epochs may lose one or repeat some where a run goes on, but for `for epoch in "
                "range(loader.iteration, N)`"
            )

    def _has_read(self) -> bool:
        """Tell whether a pass has ended, whose batches a step after it may have used."""
        return self._epochs != [epoch_of(position.loader) for position in self._positions]
