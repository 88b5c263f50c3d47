# SPDX-License-Identifier: Apache-2.0
"""What is done at the end of a step: the same on all ranks, at the same step.

It decides by what the ranks have agreed on and by what each of them counts alike, never by its own clock or
orders alone. What a stop means for the program is in `checkpointer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from spotwatch.errors import ConfigError, RankGone, StoreError
from spotwatch.train.last_save import LastSave
from spotwatch.train.life import Life
from spotwatch.train.link import Link
from spotwatch.train.saving import Saver
from spotwatch.train.schedule import Schedule
from spotwatch.train.world import Wish

log = logging.getLogger("spotwatch.train")

Health = bool | Callable[[], object]
"""Whether what is in memory may become the checkpoint to go on from; a function is asked only at a save."""


class Loop:
    """The end of each step, and of the last.

    Args:
        schedule: says when periodic saves are due.
        saver: makes them.
        link: says what this rank was told.
        life: has the other ranks.
        blocking: wait for each save until it is durable.
    """

    def __init__(self, schedule: Schedule, saver: Saver, link: Link, life: Life, *, blocking: bool) -> None:
        self._schedule = schedule
        self._saver = saver
        self._link = link
        self._life = life
        self._blocking = blocking

    @property
    def is_stopping(self) -> bool:
        """Tell whether this rank wants to leave: it was told to, or the run is another's."""
        return self._link.is_stopping or self._saver.taken

    def boundary(self, step: int, healthy: Health) -> bool:
        """Save if the ranks want it; True: they have agreed to leave now, and nothing was saved yet.

        A rank that was told to stop leaves too when another has gone: there is nobody to agree with.

        Raises:
            RankGone: a rank has gone, and this one was not told to stop.
            StoreError: saving has failed too often in a row.
            ConfigError: so it has, for a value that has no safe form any more.
        """
        self._saver.collect()
        try:
            return self._step(step, healthy)
        except RankGone as error:
            if not self.is_stopping:
                raise
            log.error("leaving at step %d: %s", step, error)  # noqa: TRY400 - a trace adds nothing
            return True

    def _step(self, step: int, healthy: Health) -> bool:
        world = self._life.world
        # Whether a multiple of every_steps is due, each rank knows for itself, and all at the same step.
        wish = world.decide(step, self._wish(step), now=step >= self._schedule.next_step)
        if wish.stop:
            return True
        self._act(wish, step, healthy)
        world.propose(step, self._wish(step))
        if world.is_first and (problem := self._schedule.broken_bound()):
            log.warning("%s", problem)
        return False

    def settle(self, step: int, healthy: Health) -> bool:
        """Save along with ranks whose loops are longer than this one's; True: all leave because of a stop.

        It is over too when a rank has gone.
        """
        while True:
            try:
                wish = self._life.world.settle(step, self._wish(step), again=lambda: self._wish(step))
                if wish.stop or wish.fatal or not (wish.flush or wish.due):
                    return wish.stop
                self._act(wish, step, healthy)
            except RankGone as error:
                log.error("the loop has ended at step %d, but %s", step, error)  # noqa: TRY400 - as above
                return self.is_stopping
            self._saver.collect()

    def save_at_last(self, step: int, healthy: Health) -> bool:
        """Save, unless this step is saved; tell whether there is a durable checkpoint of what counts."""
        last = LastSave(self._saver, self._schedule, self._link, self._life.world)
        return last.make(step, healthy=is_true(healthy))

    def _wish(self, step: int) -> Wish:
        now, schedule = monotonic(), self._schedule
        return Wish(
            stop=self.is_stopping,
            flush=self._link.orders.flush,
            due=now >= schedule.next_at or step >= schedule.next_step,
            # After a failure the store gets a pause, whatever asks for a save.
            busy=self._saver.busy or now < schedule.pause_until,
            fatal=self._saver.has_given_up,
        )

    def _act(self, wish: Wish, step: int, healthy: Health) -> None:
        self._give_up_if(fatal=wish.fatal)
        if (wish.due or wish.flush) and not wish.busy:
            self._saver.start(step, healthy=is_true(healthy))
            # Given up because of a stop, it is for the last save to wait on.
            if self._blocking and self._saver.end():
                self._give_up_if(fatal=self._saver.has_given_up)  # on all ranks: they save and fail together
        elif wish.due:
            self._saver.skip(step)

    def _give_up_if(self, *, fatal: bool) -> None:
        if fatal:
            raise self._saver.last_error or StoreError("saving has failed too often on another rank")


def is_true(healthy: Health) -> bool:
    """Return what `healthy` says now.

    Raises:
        ConfigError: it is no truth value.
    """
    value = healthy() if callable(healthy) else healthy
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"healthy: wants True or False, or a function that returns one: {error}") from error
