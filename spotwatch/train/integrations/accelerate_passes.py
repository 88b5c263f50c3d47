# SPDX-License-Identifier: Apache-2.0
"""One pass over a prepared loader, its random states, and what the passes of a run have in common.

What becomes of it in a save is in `accelerate_loaders`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from spotwatch.train.integrations.accelerate_chance import Chance
from spotwatch.train.state import rng

log = logging.getLogger("spotwatch.train")


@dataclass(slots=True)
class Course:
    """How far this life has come, over all loaders."""

    steps: int = 0
    """How many steps were counted."""
    ends: int = 0
    """How many passes that were trained on have run to their end."""
    backwards: int = 0
    """How many passes of `Accelerator.backward` were made."""
    is_asked: bool = False
    """Whether the program has asked a loader which epoch it is in."""
    is_read_told: bool = False
    """Whether it was said that a pass without training counts as an epoch."""
    chance: dict[str, Any] | None = None
    """The random state that this life goes on with, until the loop comes to what goes on."""

    def take_up(self) -> dict[str, Any] | None:
        """Let chance be as it was saved: what a life draws before that, the uninterrupted run does not."""
        chance, self.chance = self.chance, None
        if chance is not None and not self.steps:
            rng.restore(chance)
        return chance

    def tell_of_read(self, mine: Pass, name: str) -> None:
        """Say once, at the end of a pass that was trained on, that the one before it counts too."""
        if mine.follows_read and mine.trained and self.is_asked and not self.is_read_told:
            self.is_read_told = True
            log.warning(
                "%s: a pass over it that nothing was trained on counts as an epoch, so that a later life may "
                "train on fewer: to look at its batches alone, read run.evaluate(loader)",
                name,
            )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pass was as a step was counted."""

    batches: int
    is_all: bool
    """Whether they were all that the epoch has."""
    fetch: dict[str, Any] | None
    """The random state that the next batch was fetched with."""
    by_state: Any
    """The state that torchdata's loader goes on from; None: it does not."""


@dataclass(slots=True)
class Pass:
    """One pass over a loader, by `for` or by `next`."""

    number: int = 0
    resumed: dict[str, Any] | None = None
    """What it was taken up from."""
    luck: dict[str, Any] = field(default_factory=dict)
    """The random states that it was taken up with."""
    chance: dict[str, Any] | None = None
    """The random state of the loop as it was taken up."""
    course_chance: dict[str, Any] | None = None
    """That of the course, if it was put back for this pass."""
    begin: dict[str, Any] | None = None
    """What its order depends on, as the epoch began."""
    batches: int = 0
    """How many the loop has taken, in lives before too."""
    fills: int = 0
    """How many of those to come are not for the loop."""
    fetches: int = 0
    is_open: bool = False
    has_begun: bool = False
    is_over: bool = False
    """Whether it has run to its end."""
    steps: int = 0
    """The steps of the course as the last batch was given."""
    ends: int = 0
    """Likewise its ends."""
    backwards: int = 0
    """Its backward passes as this one began."""
    epoch: int = 0
    """The epoch that it was begun as."""
    follows_read: bool = False
    """Whether the one before it ran to its end, and nothing was trained on it."""
    is_numbered: bool = False
    """Whether the program numbers its batches on: then it may leave it at a number, as at a limit."""
    trained: Place | None = None
    """Where it was as the last step was counted in it; None: none was, in this life."""

    def was_read(self, course: Course, epoch: int) -> bool:
        """Tell whether it counts as an epoch, for the loader is in `epoch` now, without training since."""
        is_counted = self.is_over and epoch != self.epoch  # a pass of run.evaluate is not
        is_idle = course.steps == self.steps and course.backwards == self.backwards
        return is_counted and is_idle and self.trained is None


class Luck:
    """The random states that one pass over a loader was begun with and fetches its next batch with.

    Its form is that of a random generator: another number of ranks gives each of them one of its own.

    Args:
        chance: of its loader, whose own generators are saved between passes too.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.begin: dict[str, Any] | None = None
        self.fetch: dict[str, Any] | None = None
        self.kept: dict[str, Any] | None = None
        """What is saved during an evaluation, whatever becomes of the pass meanwhile."""

    def get_state(self) -> dict[str, Any]:
        """Return both, None where there is none, and what the loader's own generators are at."""
        return self.kept or {"begin": self.begin, "fetch": self.fetch, "own": self._chance.own()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take them."""
        self.begin, self.fetch, self.kept = state["begin"], state["fetch"], None
        self._chance.put_own(state["own"])

    def manual_seed(self, seed: int) -> None:
        """Forget both: they were another rank's."""
        del seed
        self.begin = self.fetch = None
