# SPDX-License-Identifier: Apache-2.0
"""The training loop's one object: when to save, what to do when told, and whether the last save is durable.

How state becomes bytes, where they go and what verifies is in the modules beside it. One process, and a save
blocks the loop until it is durable. Importing it does not import torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from enum import Enum, auto
from time import monotonic
from types import TracebackType
from typing import Self, SupportsIndex

from spotwatch.errors import ConfigError, RunTaken, StoreError
from spotwatch.train import arguments, options
from spotwatch.train.link import Link
from spotwatch.train.manifest import Manifest
from spotwatch.train.orders import Mark
from spotwatch.train.registry import RANK_FILE, Registry
from spotwatch.train.resume import Loaded, Resume
from spotwatch.train.saving import Saver
from spotwatch.train.schedule import Schedule
from spotwatch.train.signals import worker_init
from spotwatch.train.state import State
from spotwatch.train.store import Store

log = logging.getLogger("spotwatch.train")

FINISHED = 0
DURABLE = 75
NOT_DURABLE = 76
TAKEN = 77

_NOT_RESUMED = (
    "resume() was not called: call it before the loop, also for a run that begins (it returns 0 then); "
    "without it a save could put the run back to an earlier step"
)
_ENTERED_BEFORE = "this Checkpointer's `with` was entered before: call resume() again, or make another one"


class _Life(Enum):
    NEW = auto()
    RESUMED = auto()
    INSIDE = auto()
    LEFT = auto()


class _StopAskedError(Exception):
    """A stop was ordered while resuming."""


class Checkpointer:
    """Save a run so that it can be taken away at any moment, and go on from there.

    Args:
        url: path, `file://`, `s3://bucket/prefix`, `spaces://bucket/prefix`, or an open store;
            `SPOTWATCH_CHECKPOINT_URL` replaces it.
        run_id: the same on every machine that goes on with this run; `SPOTWATCH_RUN_ID` replaces it.
        keep: how many checkpoints stay.
        every: `"auto"`: as often as the measured cost of a save makes best.
        every_steps: save at each multiple of it instead.
        every_seconds: save this often instead.
        allow_fresh: begin at 0 although checkpoints exist of which none verifies (`SPOTWATCH_ALLOW_FRESH=1`).
        world_size: 1 says that each process under a launcher is a run of its own; None takes `WORLD_SIZE`.
        patience_seconds: how long `resume` asks a store again that refuses.
        give_up_after: this many failed saves in a row raise; None never does.
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
        allow_fresh: bool = False,
        world_size: int | None = None,
        patience_seconds: float = 60.0,
        give_up_after: int | None = 10,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if environ is None else environ
        keep = arguments.whole("keep", keep)
        self._patience_seconds = arguments.seconds("patience_seconds", patience_seconds, may_be_zero=True)
        self._give_up_after = (
            None if give_up_after is None else arguments.whole("give_up_after", give_up_after)
        )
        self._schedule = Schedule(every, every_steps, every_seconds)
        store, self.run_id = options.resolve(url, run_id, world_size, env)
        self._registry = Registry(store, self.run_id)
        self._allow_fresh = allow_fresh or options.insists_on_fresh(env)
        self._state = State()
        self._life = _Life.NEW
        self._step = -1
        self._wants_out = False
        self._exit_code: int | None = None
        self._link = Link(self.run_id, env, lambda: self._step)
        self._saver = Saver(self._registry, self._state, self._schedule, self._link, keep)

    @property
    def exit_code(self) -> int:
        """Return 0 finished, 75 stopped and durable, 76 not durable, 77 another process has taken the run."""
        return NOT_DURABLE if self._exit_code is None else self._exit_code

    def track(self, **objects: object) -> None:
        """Add what is to be saved: anything with `state_dict` and `load_state_dict`, and random generators.

        None is passed over, so that an unused scaler needs no `if`. The global random state is always saved.

        Raises:
            ConfigError: an object can be neither read nor restored.
        """
        self._state.track(objects)

    def resume(self) -> int:
        """Restore the newest checkpoint that verifies and return its step; 0 on a fresh run only.

        Call it before each `with`, also for a run that begins.

        Raises:
            SystemExit: a stop is in force; 75 when a durable checkpoint exists, 76 when there is none.
            StoreError: the store cannot be read, or no checkpoint in it can be used.
            ConfigError: something that is tracked cannot be saved.
        """
        if self._state.is_empty:
            raise ConfigError("nothing is tracked; call track(model=..., optimizer=...) before resume()")
        self._exit_code = None
        self._wants_out = False
        self._saver.begin()
        self._link.begin()
        self._link.heart.tell(phase="resuming")
        search = Resume(self._registry, self._patience_seconds, self._leave_if_told)
        name = RANK_FILE.format(0)

        def restore(loaded: Loaded) -> None:
            self._state.restore(loaded.body, loaded.manifest.state[name])

        try:
            # Now, not at the first notice, is the moment to learn that something cannot be saved.
            self._state.capture()
            loaded = search.load(name, restore, allow_fresh=self._allow_fresh)
            self._leave_if_told()
        except _StopAskedError:
            raise SystemExit(self._stopped_early(search.newest_manifest())) from None
        except BaseException as error:
            self._end("failed", repr(error))
            raise
        self._step = 0
        if loaded is not None:
            self._adopt(loaded.manifest)
            # No work is unsaved, so an order to save is answered. A flag touched by hand has its save.
            mark = self._link.orders.mark()
            self._saver.answer(Mark(mark.seq, tuple(flag for flag in mark.flags if flag.seq)))
        if self._life is not _Life.INSIDE:
            self._life = _Life.RESUMED
        self._schedule.begin(self._step)
        self._link.heart.count_from(self._step)
        self._link.heart.tell(phase="training", error="; ".join(search.problems)[:500])
        log.info(
            "run %s goes on from step %d (%s)", self.run_id, self._step, self._registry.parent or "fresh"
        )
        return self._step

    def step(self, step: SupportsIndex) -> bool:
        """Say that `step` steps are done; save when due. True: leave the loop, the save is made.

        Raises:
            StoreError: saving has failed `give_up_after` times in a row.
            ConfigError: so it has, for a value has no safe form any more; or `step` is no whole number, or
                `resume` was not called.
        """
        if type(step) is not int or step < 0:
            step = arguments.steps(step)
        self._step = step
        self._wants_out = False
        schedule, link = self._schedule, self._link
        orders = link.orders
        if (
            step >= schedule.next_step
            or orders.stop
            or orders.flush
            or link.signals.stop
            or monotonic() >= schedule.next_at
        ):
            return self._boundary(step)
        return False

    def poll(self) -> bool:
        """Tell whether to break off an evaluation or a warm-up because a stop is in force; saves nothing."""
        if self._is_stopping:
            self._wants_out = True
        return self._wants_out

    def save(self, step: SupportsIndex) -> None:
        """Save now; at return it is durable.

        Raises:
            StoreError: it is not; LATEST names what it named before.
            ConfigError: a value has no safe form, `step` is no whole number, or `resume` was not called.
        """
        if self._life is _Life.NEW:
            raise ConfigError(_NOT_RESUMED)
        self._step = arguments.steps(step)
        self._saver.save(self._step)

    def __enter__(self) -> Self:
        if self._life is not _Life.RESUMED:
            raise ConfigError(_NOT_RESUMED if self._life is _Life.NEW else _ENTERED_BEFORE)
        self._life = _Life.INSIDE
        self._link.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._life = _Life.LEFT
        if kind is not None:
            # After step() said True its verdict stands, also when the loop is left by sys.exit.
            if self._exit_code is None:
                self._exit_code = NOT_DURABLE
            if self._exit_code == DURABLE:
                self._end("durable")
            else:
                self._end("failed", repr(error))
            return
        if self._exit_code is None:
            durable = self._saver.save_at_last(self._step)
            self._conclude(durable=durable, finished=not self._wants_out)
        self._end({FINISHED: "finished", DURABLE: "durable"}.get(self.exit_code, "failed"))

    @property
    def _is_stopping(self) -> bool:
        return self._link.is_stopping or self._saver.taken

    def _end(self, phase: str, error: str = "") -> None:
        self._schedule.end()
        told = self._link.is_stopping and self._exit_code in (DURABLE, NOT_DURABLE)
        self._link.end(phase, error, leaving=told)

    def _boundary(self, step: int) -> bool:
        if self._life in (_Life.NEW, _Life.LEFT):
            raise ConfigError(_NOT_RESUMED if self._life is _Life.NEW else _ENTERED_BEFORE)
        arguments.steps(step)  # the upper bound: the loop need not pay for it at each step
        self._link.orders.look()
        if not self._is_stopping:
            if monotonic() < self._schedule.pause_until:
                return False
            try:
                self._saver.save(step)
            except RunTaken as error:
                log.error("%s", error)  # noqa: TRY400 - the reason is in the message, a trace adds nothing
            except (StoreError, ConfigError) as error:
                self._saver.failed(step, error)
                if self._give_up_after is not None and self._schedule.failures >= self._give_up_after:
                    raise
        if not self._is_stopping:
            return False
        self._wants_out = True
        self._conclude(durable=self._saver.save_at_last(step), finished=False)
        return True

    def _conclude(self, *, durable: bool, finished: bool) -> None:
        if self._saver.taken:
            self._exit_code = TAKEN
        elif not durable:
            self._exit_code = NOT_DURABLE
        else:
            self._exit_code = FINISHED if finished else DURABLE

    def _adopt(self, manifest: Manifest) -> None:
        self._step = manifest.step
        self._saver.adopt(manifest)

    def _leave_if_told(self) -> None:
        if self._is_stopping:
            raise _StopAskedError

    def _stopped_early(self, manifest: Manifest | None) -> int:
        self._exit_code = NOT_DURABLE if manifest is None else DURABLE
        if manifest is None:
            self._end("failed", "stopped before anything was saved")
        else:
            self._adopt(manifest)
            self._saver.answer(self._link.orders.mark())
            self._end("durable")
        log.warning("a stop is in force: not training on; exit %d", self._exit_code)
        return self._exit_code
