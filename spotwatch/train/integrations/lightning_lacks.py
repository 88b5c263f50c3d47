# SPDX-License-Identifier: Apache-2.0
"""What a life that goes on with a Lightning run lacks of an undisturbed one, said in the log.

It changes nothing.
"""

from __future__ import annotations

import logging
from typing import Any

from spotwatch.train.integrations import lightning_values

log = logging.getLogger("spotwatch.train")


def warn_of_lists(module: Any, at_start: dict[str, int]) -> None:
    """Say which lists of the model the rest of this epoch will lack: results gathered for its end.

    Args:
        module: the model.
        at_start: how long its lists were when this life began.
    """
    now = lightning_values.lists(module)
    grown = [name for name, length in now.items() if length > at_start.get(name, 0)]
    if grown:
        log.warning(
            "what the model keeps in %s is not saved: the next life goes on in this epoch with less; use "
            "self.log() or a metric of torchmetrics",
            ", ".join(grown),
        )


def tell_of_cut_epoch(trainer: Any) -> None:
    """Say that the epoch before ended before its last batch, by `max_steps` or by the program.

    Args:
        trainer: whose loops stand between two epochs.
    """
    if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
        log.info(
            "epoch %d was ended before its last batch, by max_steps or by the program: its end has been had, "
            "and the next epoch begins; the rest of its batches come only from a loader that keeps its place",
            trainer.current_epoch - 1,
        )
