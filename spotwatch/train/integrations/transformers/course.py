# SPDX-License-Identifier: Apache-2.0
"""Where in the course of its epochs a training is, and where a later life goes on.

A phase says what is still to do at this step: an evaluation that was broken off is done again, one that was
done is not. It restores nothing, and knows no data but by its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spotwatch.train.integrations.transformers import same

START, TRAINING, STEP_ENDS, EPOCH_ENDS, EPOCH_DONE = "start", "training", "step", "epoch", "epoch-done"
"""The phases: before the first epoch, between two steps, within what the Trainer does after a step (logging,
evaluation, its own checkpoint), within what it does after an epoch's last one, and after that."""

EPOCH_BEGINS, STEP, LAST, DONE, IS_LONGER = "epoch begins", "step", "last", "done", "is longer"
"""What comes: an epoch; what follows a step, and what follows an epoch; its end; and, in a later life, that a
run which was over within an epoch is to take more steps."""

NEXT = {
    (START, EPOCH_BEGINS): TRAINING,
    (TRAINING, STEP): STEP_ENDS,
    (STEP_ENDS, DONE): TRAINING,
    (TRAINING, LAST): EPOCH_ENDS,
    (EPOCH_ENDS, DONE): EPOCH_DONE,
    (EPOCH_DONE, EPOCH_BEGINS): TRAINING,
    # A later life does again what was broken off.
    (STEP_ENDS, STEP): STEP_ENDS,
    (EPOCH_ENDS, LAST): EPOCH_ENDS,
    (EPOCH_DONE, IS_LONGER): TRAINING,
}
"""The phase that each phase becomes when something comes; nothing else can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoesOn:
    """Where a life goes on."""

    phase: str
    epoch: int
    taken: int
    """How many batches of the epoch earlier lives had, also those before a checkpoint of the Trainer's."""
    place: dict[str, Any] | None = None
    """The place in the data to take up; None where the library finds it: at the beginning of an epoch, or
    where a checkpoint of its own has left it."""


def goes_on(saved: dict[str, Any], trainer: Any, loader: Any, updates: int, seen: same.Seen) -> GoesOn:
    """Return where the next life goes on.

    Args:
        saved: what `Counters.state_dict` returned; its flags are put back.
        trainer: of the next life.
        loader: of its epochs.
        updates: how many optimizer steps an epoch has.
        seen: a few rows of its data.

    Raises:
        ConfigError: it would be within an epoch of other data.
    """
    args, control, phase, place = trainer.args, trainer.control, saved["phase"], saved["place"]
    if phase == START:
        begun = saved["begun"]
        return GoesOn(phase=phase, epoch=begun["epoch"], taken=0 if args.ignore_data_skip else begun["taken"])
    if phase == EPOCH_DONE and not control.should_training_stop:
        was_cut = saved["control"]["should_training_stop"]
        is_all = -(-place["taken"] // args.gradient_accumulation_steps) >= updates
        if not was_cut or is_all or same.is_other_epoch(place, loader):
            return GoesOn(phase=phase, epoch=place["epoch"] + 1, taken=0)
        phase = NEXT[phase, IS_LONGER]
    is_over = control.should_training_stop or control.should_epoch_stop
    if phase in (TRAINING, STEP_ENDS) and not is_over and not args.ignore_data_skip:
        same.expect(place, loader, seen)
    return GoesOn(phase=phase, epoch=place["epoch"], taken=place["taken"], place=place)
