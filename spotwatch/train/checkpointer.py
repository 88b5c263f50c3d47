# SPDX-License-Identifier: Apache-2.0
"""The training loop's one object: when to save, what to do when told, and whether the last save is durable.

How state becomes bytes, where they go and what verifies is in the modules beside it. The loop waits while the
state is copied; the rest goes on behind it. Importing it does not import torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from time import monotonic
from types import TracebackType
from typing import Self, SupportsIndex

from spotwatch.errors import ConfigError, RunTaken
from spotwatch.train import arguments, options, usage
from spotwatch.train.consensus import StoppedElsewhere
from spotwatch.train.life import Life
from spotwatch.train.link import Link
from spotwatch.train.loop import Health, Loop, is_true
from spotwatch.train.orders import Mark
from spotwatch.train.registry.manifest import MOST_STEPS
from spotwatch.train.saving import Saver
from spotwatch.train.schedule import Schedule
from spotwatch.train.shield import worker_init
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import State
from spotwatch.train.store import Store
from spotwatch.train.verdict import DURABLE, FINISHED, NOT_DURABLE, TAKEN, code, ending, phase

log = logging.getLogger("spotwatch.train")

__all__ = ["DURABLE", "FINISHED", "NOT_DURABLE", "TAKEN", "Checkpointer"]


class _StopAskedError(Exception):
    """A stop was ordered while resuming."""


class Checkpointer:
    """Save a run so that it can be taken away at any moment, and go on from there.

    Args:
        url: path, `file://`, `s3://bucket/prefix`, `spaces://`, `gs://`, `az://`, or an open store, which is
            not closed; `SPOTWATCH_CHECKPOINT_URL` replaces it.
        run_id: the same on every machine that goes on with this run; `SPOTWATCH_RUN_ID` replaces it.
        keep: how many checkpoints stay.
        every: `"auto"`: as often as the measured cost of a save makes best.
        every_steps: save at each multiple of it instead.
        every_seconds: save this often instead.
        max_lost_seconds: with `"auto"`: what a loss without notice may cost at worst.
        blocking: let `step` wait until a save is durable, instead of until the state is copied.
        allow_fresh: begin at 0 although checkpoints exist of which none verifies (`SPOTWATCH_ALLOW_FRESH=1`).
        allow_resize: where loaders and generators of single ranks differed, and there are more or fewer ranks
            now, go on with those of other ranks (`SPOTWATCH_ALLOW_RESIZE=1`); else that is refused.
        world_size: 1 says that each process under a launcher is a run of its own; None takes `WORLD_SIZE`.
        patience_seconds: how long `resume` asks a store again that refuses, or waits for one that is silent.
        give_up_after: this many failed saves in a row raise; None never does.
        most_bytes_per_second: what an upload of this process may take of the link; None: all.
        lease_seconds: after so long without a sign of life others may go on with the run; at least 1.
        environ: instead of `os.environ`.

    Raises:
        ConfigError: an argument or variable cannot be used.
    """

    worker_init = staticmethod(worker_init)

    def __init__(  # noqa: PLR0913 - each is a choice of the user's, with a default, given by name
        self,
        url: str | os.PathLike[str] | Store | None = None,
        *,
        run_id: str | None = None,
        keep: int = 3,
        every: str = "auto",
        every_steps: int | None = None,
        every_seconds: float | None = None,
        max_lost_seconds: float | None = None,
        blocking: bool = False,
        allow_fresh: bool = False,
        allow_resize: bool = False,
        world_size: int | None = None,
        patience_seconds: float = 60.0,
        give_up_after: int | None = 10,
        most_bytes_per_second: float | None = None,
        lease_seconds: float = 60.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if environ is None else environ
        keep = arguments.whole("keep", keep)
        give_up_after = None if give_up_after is None else arguments.whole("give_up_after", give_up_after)
        self._schedule = Schedule(every, every_steps, every_seconds, max_lost_seconds)
        store, self.run_id = options.resolve(url, run_id, env, most_bytes_per_second=most_bytes_per_second)
        staging = Staging()
        self._state = State(staging)
        self._life = Life(
            store,
            self.run_id,
            self._state,
            staging,
            env,
            world_size=world_size,
            owns_store=store is not url,
            allow_resize=allow_resize or options.is_set(env, "SPOTWATCH_ALLOW_RESIZE"),
            patience_seconds=arguments.seconds("patience_seconds", patience_seconds, may_be_zero=True),
            lease_seconds=arguments.seconds("lease_seconds", lease_seconds, least=1.0),
            on_lost=self._on_lost,
        )
        self._allow_fresh = allow_fresh or options.is_set(env, "SPOTWATCH_ALLOW_FRESH")
        self._usage = usage.Usage()
        self._step = -1
        self._healthy: Health = True
        self._wants_out = False
        self._exit_code: int | None = None
        self._pid = os.getpid()
        speaks = not options.is_one_of_many(env, world_size)
        self._link = Link(self.run_id, env, lambda: self._step, speaks=speaks)
        self._saver = Saver(self._life.registry, self._schedule, self._link, keep, give_up_after)
        self._loop = Loop(self._schedule, self._saver, self._link, self._life, blocking=blocking)
        self._each_is_boundary = True
        """Whether the end of each step is to do more than count: the first one is, and on many ranks all."""
        self._is_first = True

    @property
    def exit_code(self) -> int:
        """Return 0 finished, 75 stopped and durable, 76 not durable, 77 another process has taken the run."""
        return NOT_DURABLE if self._exit_code is None else self._exit_code

    def track(self, **objects: object) -> None:
        """Add what is to be saved: anything with `state_dict` and `load_state_dict`, and random generators.

        None is passed over, so that an unused scaler needs no `if`. The global random state is always saved.

        Raises:
            ConfigError: an object can be neither read nor restored, or `resume` was called already.
        """
        self._usage.track()
        self._state.track(objects)

    def resume(self) -> int:
        """Restore the newest checkpoint that verifies and return its step; 0 on a fresh run only.

        Call it before each `with`, also for a run that begins; on every rank, after `init_process_group`. It
        waits for a machine that still holds the run.

        Raises:
            SystemExit: a stop is in force; 75 when a durable checkpoint exists, 76 when there is none.
            StoreError: the store cannot be read, or no checkpoint in it can be used; or, inside the loop,
                there is none yet.
            RunTaken: another process has gone on with the run meanwhile; `exit_code` is 77.
            ConfigError: something that is tracked cannot be saved, or another thread has entered `with`.
        """
        if self._state.is_empty:
            raise ConfigError("nothing is tracked; call track(model=..., optimizer=...) before resume()")
        self._usage.resume()
        self._exit_code = None
        self._wants_out = False
        self._pid = os.getpid()
        self._saver.be_idle(together=self._usage.is_inside)
        if self._usage.is_inside:
            can_return = self._saver.has_durable or self._saver.taken
            self._usage.go_back(possible=any(self._life.world.everyone(can_return)))
        self._link.begin()
        heart = self._link.heart
        heart.tell(phase="resuming", exit_code=None)
        try:
            manifest = self._life.begin(
                self._leave_if_told,
                lambda why: heart.tell(phase="waiting", error=why[:500]),
                allow_fresh=self._allow_fresh,
            )
            self._usage.go_back(possible=manifest is not None)
        except (_StopAskedError, StoppedElsewhere):
            raise SystemExit(self._stopped_early()) from None
        except BaseException as error:
            self._exit_code = TAKEN if isinstance(error, RunTaken) else NOT_DURABLE
            self._end("failed", repr(error))
            raise
        world = self._life.world
        self._each_is_boundary = self._is_first = True
        self._saver.begin(world, self._life.capture)
        self._step = 0
        if manifest is not None:
            self._step = manifest.step
            self._saver.adopt(manifest)
            # No work is unsaved, so an order to save is answered. A flag touched by hand has its save.
            mark = self._link.orders.mark()
            self._saver.answer(Mark(mark.seq, tuple(flag for flag in mark.flags if flag.seq)))
        self._usage.resumed()
        self._schedule.reclaim_every_seconds = self._life.reclaim_every_seconds
        self._schedule.begin(self._step, is_shared=world.size > 1)
        heart.count_from(self._step)
        heart.tell(phase="training", world_size=world.size, error="; ".join(self._life.problems)[:500])
        log.info(
            "run %s goes on from step %d (%s)", self.run_id, self._step, self._life.registry.parent or "fresh"
        )
        return self._step

    def step(self, step: SupportsIndex, *, healthy: Health = True) -> bool:
        """Say that `step` steps are done; save when due. True: leave all loops, the save is made.

        Whoever goes on after True is ended at the next step, which is not saved: the next life does it.

        Args:
            step: how many, over the whole run; the same on all ranks, and never fewer than before. A saved
                one is saved again at the end only if this was called with it again.
            healthy: False, or a function that returns it (asked at a save only), for a state that must not
                become the checkpoint to go on from, such as one after a loss that is not finite: it is kept
                aside, and LATEST stays. On many ranks one False is enough.

        Raises:
            SystemExit: with `exit_code`, at a later step than that at which this was True.
            StoreError: saving has failed `give_up_after` times in a row.
            ConfigError: so it has, for a value has no safe form any more; or `step` is no whole number from 0
                to 10**15 - 1, or below the last one (at each call, also when nothing is due); or `resume` was
                not called, or another thread trains.
        """
        if type(step) is not int or not self._step < step <= MOST_STEPS:
            step = self._checked(step)
        self._step = step
        self._healthy = healthy
        self._wants_out = False
        schedule, link = self._schedule, self._link
        orders = link.orders
        if (
            step >= schedule.next_step
            or self._each_is_boundary
            or orders.stop
            or orders.flush
            or link.signals.stop
            or self._saver.wants_boundary
            or monotonic() >= schedule.next_at
        ):
            return self._boundary(step)
        return False

    def poll(self) -> bool:
        """Tell whether to break off an evaluation or a warm-up because a stop is in force.

        It saves nothing and asks no other rank.
        """
        if self._loop.is_stopping:
            self._wants_out = True
        return self._wants_out

    def save(self, step: SupportsIndex, *, healthy: Health = True) -> None:
        """Save now, on all ranks together; at return it is durable.

        Raises:
            SystemExit: as `step`.
            StoreError: it is not; LATEST names what it named before.
            RunTaken: nor will it be, for another process has the run; `exit_code` is 77 once `with` is left.
            ConfigError: a value has no safe form, or what `step` raises it for.
        """
        self._usage.save("save")
        self._step = self._checked(step)
        self._usage.has_left(self._step, self.exit_code)
        self._saver.save(self._step, healthy=is_true(healthy))

    def __enter__(self) -> Self:
        self._usage.enter()
        self._link.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a child that was forked inside the loop: run, status and signals are its parent's
        self._usage.leave()
        try:
            self._leave(kind, error)
        except BaseException as failure:
            self._end("failed", repr(failure))
            raise

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        if kind is not None:
            # After step() said True its verdict stands, also when the loop is left by sys.exit.
            if self._exit_code is None:
                self._exit_code = NOT_DURABLE
                usage.warn_of_exit(error)
                if kind is not KeyboardInterrupt:
                    # What was staged before the failure is sound, and worth its upload while that moves here.
                    self._saver.end_here(error)
                if self._saver.taken or isinstance(error, RunTaken):
                    self._exit_code = TAKEN
            said = "" if isinstance(error, SystemExit) and error.code == self._exit_code else repr(error)
            self._end("durable" if self._exit_code == DURABLE else "failed", said)
            return
        if self._exit_code is None:
            is_stopping = self._loop.settle(self._step, self._healthy)
            durable = self._loop.save_at_last(self._step, self._healthy)
            is_finished = not (self._wants_out or is_stopping)
            self._exit_code = code(taken=self._saver.taken, durable=durable, finished=is_finished)
        self._end(phase(self.exit_code))

    def _checked(self, step: SupportsIndex) -> int:
        number = usage.steps_after(step, self._step)
        if number == self._step:
            self._saver.changes += 1
        return number

    def _boundary(self, step: int) -> bool:
        self._usage.save("step")
        if self._usage.has_left(step, self.exit_code):
            self._wants_out = True
            return True
        if not self._loop.boundary(step, self._healthy):
            if self._is_first:
                # Only now an optimizer has all its state: the buffer is made ready for the first save.
                self._is_first = False
                self._usage.warn_of_no_with()
                self._each_is_boundary = self._life.world.size > 1
                self._life.warm()
            return False
        self._wants_out = self._each_is_boundary = True
        durable = self._loop.save_at_last(step, self._healthy)
        self._exit_code = code(taken=self._saver.taken, durable=durable, finished=False)
        self._usage.leave_at(step)
        return True

    def _on_lost(self, taken: RunTaken) -> None:
        del taken  # the lease has said it
        self._saver.lose()

    def _leave_if_told(self) -> None:
        if self._link.is_stopping:
            raise _StopAskedError

    def _stopped_early(self) -> int:
        manifest = self._life.newest_manifest()
        self._exit_code = DURABLE if manifest or self._life.has_latest else NOT_DURABLE
        if manifest is None:
            self._end("failed", "stopped before anything was saved, or the store does not say what was")
        else:
            self._step = manifest.step
            self._saver.adopt(manifest)
            self._saver.answer(self._link.orders.mark())
            self._end("durable")
        log.warning("a stop is in force: not training on; exit %d", self._exit_code)
        return self._exit_code

    def _end(self, last: str, error: str = "") -> None:
        self._schedule.end()
        told = (self._link.is_stopping or self._wants_out) and self._exit_code in (DURABLE, NOT_DURABLE)
        self._life.end(ending(self.exit_code))
        self._link.end(last, error, leaving=told, exit_code=self.exit_code)
