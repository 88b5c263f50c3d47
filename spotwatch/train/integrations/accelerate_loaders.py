# SPDX-License-Identifier: Apache-2.0
"""Where the loop is in a loader that Accelerate has prepared, and how such a loader goes on from there.

Accelerate fetches a batch ahead, so the random state of a save is one fetch too late for the next batch: what
it was before that fetch is kept beside it. What is saved when, it does not decide.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from accelerate import skip_first_batches
from accelerate.data_loader import (
    DataLoaderDispatcher,
    SeedableRandomSampler,
    SkipBatchSampler,
    get_sampler,
)

from spotwatch.train.integrations.accelerate_order import Order, begin_alike, goes_by_state, skipped
from spotwatch.train.integrations.accelerate_passes import Course, Luck, Pass, Place
from spotwatch.train.integrations.accelerate_shape import is_stream, shape_of, taken_up
from spotwatch.train.integrations.accelerate_watch import Rest, Skipping, epoch_of, expect_known, watch
from spotwatch.train.state import stateful_loader

log = logging.getLogger("spotwatch.train")


class Position:
    """Where the training loop is in one prepared loader; to be tracked like a model, and `luck` beside it.

    Args:
        loader: as `Accelerator.prepare` returned it.
        name: for messages.
        course: of this run.
        rereads: take up an epoch by reading again what was read, instead of by number.

    Raises:
        ConfigError: this loader is none of Accelerate's, or of a version that works otherwise.
    """

    def __init__(self, loader: Any, name: str, course: Course, *, rereads: bool = False) -> None:
        expect_known(loader, name)
        self.loader = loader
        self.name = name
        self._course = course
        self._base = loader.base_dataloader
        self._at_once = 1
        self._fills = self._reads_here = False
        self._look_at_dispatch()
        is_stateful = bool(loader.use_stateful_dataloader)
        self._by_state = is_stateful and goes_by_state(self._base)
        self._by_number = not (rereads or is_stateful or is_stream(self._base))
        begin_alike(loader, self._base, name)
        self._order = Order(loader, self._base)
        self._chance = self._order.chance()
        self.luck = Luck(self._chance)
        self._pass = Pass()
        self._is_numbered = self._is_passed_by = False
        self._asked = self._awaited = 0
        """How many iterators were made since a place was awaited, and how many passes had ended then."""
        self._left: tuple[int, dict[str, Any]] | None = None
        """At how many steps, and where, the loop has left a pass before its end."""
        self._at_start: dict[str, Any] | None = None
        """What is saved during an evaluation, instead of where that is."""
        self._pending: dict[str, Any] | None = None
        """Where the last life was, until the loop comes here."""
        watch(loader, self)

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches of which epoch the loop has taken, and what their order depends on."""
        return self._at_start or self._state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there at the next `for batch in loader`.

        Raises:
            ValueError: this loader is another one.
        """
        taken = state["taken"]
        if taken and not taken["all"]:
            converts = self._by_number or (is_stream(self._base) and not self._by_state)
            ours = shape_of(self.loader, self._base)
            taken = taken | {"batches": taken_up(state["shape"], ours, taken["batches"], converts=converts)}
        self.loader.iteration = state["iteration"]
        sampler = get_sampler(self._base)
        if state["seed"] is not None and isinstance(sampler, SeedableRandomSampler):
            sampler.initial_seed = state["seed"]
        self._order.restore(state["order"])
        self._await(taken and state | {"taken": taken})
        self._at_start = self._left = None
        self._pass = Pass(number=self._pass.number + 1)

    @property
    def place(self) -> tuple[int, int]:
        """Return the number of the last pass of this life, and how many batches it has taken."""
        return self._pass.number, self._pass.batches

    def number_on(self) -> int:
        """Return how many batches of this epoch the loop has taken, in lives before too."""
        if self._is_passed_by:  # asked once more, the loop did not only look at it
            self.move_on()
        self._is_numbered = True
        if self._pass.is_open:
            return self._pass.batches
        return int(self._pending["taken"]["batches"]) if self._pending and self.is_waiting else 0

    @property
    def is_open(self) -> bool:
        """Tell whether the program is in a pass over it."""
        return self._pass.is_open

    @property
    def is_waiting(self) -> bool:
        """Tell whether the loop has yet to come to what the life before has left of an epoch."""
        return self._pending is not None and not self._pending["taken"]["all"]

    @property
    def is_taken_up(self) -> bool:
        """Tell whether the last pass goes on with that."""
        return self._pass.resumed is not None

    def move_on(self) -> None:
        """Forget where the loop has left a pass before its end: it has gone on to something else."""
        if self._left is not None or self._is_passed_by:
            self._left, self._pending, self._is_passed_by = None, None, False
            self.luck.manual_seed(0)

    def set_aside(self) -> Any:
        """Let passes be whole, whatever the life before has left of one; return what `take_back` takes."""
        if self._pending is None or (self._by_state and self.is_waiting):
            return None  # a stream that keeps its own place begins there
        pending, self._pending = self._pending, None
        return pending, self.luck.begin, self.luck.fetch

    def take_back(self, aside: Any) -> None:
        """Let the next pass be what is left again."""
        if aside is not None:
            self._await(aside[0])
            self.luck.begin, self.luck.fetch = aside[1:]

    def mark(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return where the loop is now, for `freeze`."""
        return self._state(), self.luck.get_state()

    def freeze(self, mark: tuple[dict[str, Any], dict[str, Any]] | None) -> None:
        """Let saves hold where the loop was at this mark, whatever it takes now; None: where it is."""
        self._at_start, self.luck.kept = mark or (None, None)

    def passes(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return what is left of the epoch, and count; `batches` is what Accelerate would yield."""
        self._asked += 1
        return self._yielded(batches, is_first=self._asked == 1)

    def is_asked(self) -> None:
        """Note that the program counts epochs by its loaders; Accelerate itself asks within a pass alone."""
        self._course.is_asked = self._course.is_asked or not self._pass.is_open

    def begins(self) -> None:
        """Take note of the state that an epoch is begun with, or let it begin where it was left."""
        mine = self._pass
        if not mine.is_open or mine.has_begun:
            return
        mine.has_begun = True
        if mine.resumed is not None:
            self.loader.base_dataloader = Rest(self._base, self._go_on)
        else:
            self.luck.begin = self._chance.take()
            mine.begin = self._order.capture()

    def fetches(self) -> None:
        """Take note of the state that the next batch is fetched with; called before each but the first."""
        if not self._base.num_workers and self._pass.fetches % self._at_once == 0:
            self.luck.fetch = self._chance.take()
        self._pass.fetches += 1

    def _yielded(self, batches: Iterator[Any], *, is_first: bool) -> Iterator[Any]:
        if self._pass.is_open:
            self._leave(self._pass)
        pending, self._pending = self._pending, None
        if not is_first and self._awaited != self._course.ends:
            # `zip` has made the first iterator and dropped it, as a loader before this one had ended.
            pending = None
        chance = self._course.take_up() if pending else None
        if pending and pending["taken"]["all"]:
            self._end_again()
            return
        mine = self._begin(pending)
        mine.course_chance = chance
        try:
            for batch in batches:
                if mine is not self._pass:
                    raise RuntimeError(
                        f"{self.name}: this pass is over: another was begun, or a state loaded"
                    )
                if mine.fills:
                    mine.fills -= 1
                    continue
                mine.batches += 1
                mine.steps, mine.ends = self._course.steps, self._course.ends
                yield batch
                if mine.steps != self._course.steps:
                    mine.trained = self._here(mine)
            mine.is_over = True
        finally:
            self.loader.base_dataloader = self._base
            if mine is self._pass and mine.is_open:
                self._leave(mine)

    def _end_again(self) -> None:
        """End an epoch that was over in the life before; what follows it in the program was not done yet."""
        log.log(
            logging.INFO if self._course.is_asked else logging.WARNING,
            "%s: this pass is empty, for its epoch %d was over when the run was saved; a program that counts "
            "its epochs otherwise than `for epoch in range(loader.iteration, N)` may lose one by that",
            self.name,
            epoch_of(self.loader),
        )
        self._course.ends += 1
        self.loader.iteration = epoch_of(self.loader) + 1

    def _await(self, pending: dict[str, Any] | None) -> None:
        self._pending, self._is_passed_by = pending, False
        self._asked, self._awaited = 0, self._course.ends

    def _begin(self, pending: dict[str, Any] | None) -> Pass:
        self._left = None
        follows_read = self._pass.was_read(self._course, epoch_of(self.loader))
        mine = Pass(number=self._pass.number + 1, resumed=pending, luck=self.luck.get_state(), is_open=True)
        mine.steps, mine.ends = self._course.steps, self._course.ends
        mine.backwards, mine.epoch = self._course.backwards, epoch_of(self.loader)
        mine.follows_read = follows_read
        mine.is_numbered, self._is_numbered = self._is_numbered, False
        if pending:
            mine.batches, mine.begin = pending["taken"]["batches"], pending["taken"]["order"]
            mine.fills = int(self._fills)
        self._pass = mine
        return mine

    def _leave(self, mine: Pass) -> None:
        """Keep what a save needs of a pass that has ended, or that the loop has left."""
        if mine.steps != self._course.steps:
            mine.trained = self._here(mine)
        mine.is_open = False
        is_evaluated = self._at_start is not None and mine.resumed is not None and mine.trained is None
        if mine.is_over and not is_evaluated:
            # Trained on or not, it counts: what was read may be trained on after it.
            self._course.ends += mine.trained is not None
            self._course.tell_of_read(mine, self.name)
        elif mine.ends != self._course.ends:
            pass  # as `zip` does, once another loader has ended: so has the epoch
        elif mine.trained is not None:
            self._left = (self._course.steps, self._taken(mine, mine.trained))
            self.luck.fetch = mine.trained.fetch
            return
        elif mine.resumed is not None:  # looked into, or evaluated on
            self.luck.begin, self.luck.fetch = mine.luck["begin"], mine.luck["fetch"]
            self._await(mine.resumed)
            self._is_passed_by = mine.is_numbered and not mine.is_over
            self._course.chance = mine.course_chance
            if mine.chance is not None and not self._is_passed_by:
                self._chance.put(mine.chance)
            return
        self.luck.manual_seed(0)

    def _here(self, mine: Pass) -> Place:
        is_all = bool(self.loader.end_of_dataloader)
        by_state = self.loader.state_dict() if self._by_state else None
        return Place(mine.batches, is_all, self.luck.fetch, by_state)

    def _taken(self, mine: Pass, place: Place) -> dict[str, Any]:
        return {
            "batches": place.batches,
            "all": place.is_all,
            "order": mine.begin,
            "by_state": place.by_state,
        }

    def _state(self) -> dict[str, Any]:
        if self._pending is not None:
            return self._pending
        taken = None
        if self._pass.is_open and self._pass.batches:
            taken = self._taken(self._pass, self._here(self._pass))
        elif self._left is not None and self._left[0] == self._course.steps:
            taken = self._left[1]
        sampler = get_sampler(self._base)
        return {
            "iteration": epoch_of(self.loader),
            "taken": taken,
            "shape": shape_of(self.loader, self._base),
            "seed": sampler.initial_seed if isinstance(sampler, SeedableRandomSampler) else None,
            "order": self._order.capture(),
        }

    def _look_at_dispatch(self) -> None:
        """Learn which process reads, how many batches at once, and whether the first fills up the last."""
        loader = self.loader
        if not isinstance(loader, DataLoaderDispatcher):
            self._reads_here = True
            return
        count = loader.state.num_processes
        self._reads_here = loader.state.process_index == 0
        if not loader.submesh_tp:
            self._at_once = 1 if loader.split_batches else count
            self._fills = count > 1 and not loader._drop_last  # noqa: SLF001 - it has no public name

    def _go_on(self) -> Iterator[Any]:
        """Return the batches that are left, with the random state of the loop untouched."""
        mine = self._pass
        now = mine.chance = self._chance.take()
        try:
            if not self._reads_here:
                return iter(self._base)
            if self.luck.begin is not None:
                self._chance.put(self.luck.begin)
            if mine.begin is not None:
                self._order.restore(mine.begin)
            iterator = self._rest(mine)
            ahead = list(islice(iterator, self._at_once * (1 + mine.fills)))
        finally:
            self._chance.put(now)
        return chain(ahead, iterator)

    def _rest(self, mine: Pass) -> Iterator[Any]:
        count, keep = mine.batches * self._at_once, mine.fills * self._at_once
        if self._by_number:
            base = skip_first_batches(self.loader, 0).base_dataloader
            sampler = base.sampler if isinstance(base.sampler, SkipBatchSampler) else base.batch_sampler
            sampler.batch_sampler = Skipping(sampler.batch_sampler, keep, count, self._before_fetch)
            iterator: Iterator[Any] = iter(base)
            return iterator
        if self._by_state and mine.resumed is not None:
            stateful_loader.load(self._base, mine.resumed["taken"]["by_state"])
            iterator = iter(self._base)
            self._before_fetch()
            return iterator
        log.info("%s: reads %d batches again, to go on after them", self.name, count)
        return skipped(iter(self._base), keep, count, self._before_fetch, self.name)

    def _before_fetch(self) -> None:
        if self.luck.fetch is not None:
            self._chance.put(self.luck.fetch)
