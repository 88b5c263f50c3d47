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
from spotwatch.train.integrations.accelerate_watch import is_copy

log = logging.getLogger("spotwatch.train")


def look_at_loop(positions: list[Position], course: Course, active: Any) -> None:
    """Look at how the loop has come to the first step of this life, before it is counted.

    Args:
        positions: of all prepared loaders.
        course: of this run.
        active: the loader that Accelerate is in; None: none.

    Raises:
        ConfigError: it trains on a copy, whose place is not saved, and which begins the epoch anew.
    """
    for position in positions:
        if is_copy(active, position.loader):
            raise ConfigError(
                f"{position.name}: the loop trains on a copy of it that accelerator.skip_first_batches has "
                f"made, which is not saved: it would train on some batches twice and leave out others. The "
                f"loader itself begins where it was: take out skip_first_batches, and what computes its "
                f"starting epoch; `for epoch in range(loader.iteration, N): for batch in loader`"
            )
    waiting = [position for position in positions if position.is_waiting]
    if waiting and not any(position.is_taken_up for position in positions):
        log.warning(
            "%s: the run was saved within its epoch, and the loop trains on something else: the rest of that "
            "epoch comes at the next `for batch in loader` over it, whatever epoch the program is in then",
            waiting[0].name,
        )
    elif not any(position.is_open for position in positions):
        log.warning(
            "no prepared loader is being read at the first step: where the loop is in its data is not saved, "
            "and a later life begins it anew; give accelerator.prepare(...) the loader that it trains on"
        )
    if not course.is_asked and any(position.is_open for position in positions):
        log.warning(
            "the program has not asked which epoch it is in: where a run goes on, only `for epoch in "
            "range(loader.iteration, N)` knows what is left; a loop that ends by run.steps needs no count"
        )
