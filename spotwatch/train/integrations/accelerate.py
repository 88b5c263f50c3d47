# SPDX-License-Identifier: Apache-2.0
"""A run of a training loop that uses Accelerate: everything prepared is saved, and the loop told when to end.

Where loaders are is in `accelerate_loaders`, what else is saved in `accelerate_prepared`. It makes no store
and no format of its own: saves are the Checkpointer's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

import torch

from spotwatch.errors import ConfigError
from spotwatch.train.checkpointer import DURABLE, FINISHED, Checkpointer
from spotwatch.train.integrations.accelerate_evaluation import Evaluations
from spotwatch.train.integrations.accelerate_gradients import Gradients
from spotwatch.train.integrations.accelerate_loop import Loop
from spotwatch.train.integrations.accelerate_naming import number_on
from spotwatch.train.integrations.accelerate_passes import Course
from spotwatch.train.integrations.accelerate_prepared import Prepared, check
from spotwatch.train.integrations.accelerate_waiting import said_if_long
from spotwatch.train.integrations.versions import require
from spotwatch.train.loop import Health
from spotwatch.train.state import rng

log = logging.getLogger("spotwatch.train")

_LONG_SECONDS = 60.0
_ALONE = (
    "an evaluation waits for the other processes: run.evaluate is for all of them together; under "
    "`if accelerator.is_main_process` go through the loader itself, `for batch in loader`"
)


class _Broken(SystemExit):
    """An evaluation is broken off, for a stop is in force; it passes through `except Exception`."""


class SpotwatchRun:
    """Save all that an Accelerator has prepared, and take it up again.

    `with SpotwatchRun(...) as run` resumes; `run.step()` follows each optimizer step.

    Args:
        checkpointer: of this run; more may be tracked with it before.
        accelerator: with everything prepared and registered.
        exits: leave by `SystemExit(checkpointer.exit_code)` once told to stop and saved; False: `step`
            returns True, an evaluation that is broken off leaves the `with` block, and
            `checkpointer.exit_code` says how it ended.
        rereads: take up an epoch by reading again what was read, instead of by number; for loaders whose
            workers draw random numbers.

    Raises:
        ConfigError: this Accelerate, or how it distributes, cannot be saved.
    """

    def __init__(
        self, checkpointer: Checkpointer, accelerator: Any, *, exits: bool = True, rereads: bool = False
    ) -> None:
        require("accelerate", least="1.10", tested="1.15.0")
        check(accelerator)
        self._ck = checkpointer
        self._accelerator = accelerator
        self._exits = exits
        self._rereads = rereads
        self._prepared: Prepared | None = None
        self._evaluations = Evaluations([], [])
        self._gradients = Gradients(accelerator, [], Course())
        self._loop = Loop([], Course())
        self._healthy: Health = True
        self._is_leaving = False
        self._is_misnumbered = False
        """Whether an epoch goes on in its middle, and the program has not asked where."""
        self._is_over = False
        """The loop has ended by itself: gradients that no step has used are of no use."""
        self.steps = 0
        """How many optimizer steps are done, over the whole run."""
        self.evaluates_first = False
        """Whether the life before was told to stop inside an evaluation: make that first."""
        self.evaluated_at = 0
        """The step at which an evaluation was last due."""

    def __enter__(self) -> Self:
        """Take the run over and restore it.

        Raises:
            SystemExit: a stop is in force.
            ConfigError: something that was prepared cannot be saved.
            StoreError: as `Checkpointer.resume`.
        """
        self._prepared = Prepared(self._accelerator, rereads=self._rereads)
        self._evaluations = Evaluations(self._prepared.positions, self._prepared.stepped)
        self._gradients = Gradients(self._accelerator, self._prepared.optimizers, self._prepared.course)
        try:
            self._ck.track(accelerate=_Progress(self))
        except ConfigError as error:
            raise ConfigError(
                "this Checkpointer has another SpotwatchRun already, or was resumed: make a new one for "
                "each, in the function that find_executable_batch_size calls again, and do not resume it"
            ) from error
        self._ck.track(**self._prepared.objects)
        try:
            self._ck.resume()
        except SystemExit:
            self._accelerator.end_training()
            raise
        number_on(self._accelerator, is_resumed=self.steps > 0)
        self._loop = Loop(self._prepared.positions, self._prepared.course)
        self._ck.__enter__()
        self._is_misnumbered = any(position.is_waiting for position in self._prepared.positions)
        self._gradients.watch()
        if self.steps:
            self._prepared.course.chance = rng.capture()
        return self

    def step(self, *, healthy: Health = True) -> bool:
        """Say that a batch is done, with all that belongs to it; save when due.

        It counts, and may save, only where an optimizer has stepped: inside gradient accumulation it does
        nothing, and where `Accelerator.backward` has made gradients that no optimizer has used and no
        `zero_grad` has dropped. After 128 such calls in a row it counts each, for then steps cannot be seen.

        Args:
            healthy: as `Checkpointer.step` takes it.

        Returns:
            True: leave the loop. Only with `exits=False`.

        Raises:
            SystemExit: the run was told to stop; its code is that of `Checkpointer.exit_code`.
            ConfigError: something was prepared or freed since the run began.
        """
        if self._prepared is None:
            raise ConfigError("step() outside of `with SpotwatchRun(...) as run`: nothing was resumed")
        if not self._gradients.end_step():
            if self._is_misnumbered and self._accelerator.sync_gradients:
                self._is_misnumbered = False
                log.warning(
                    "gradients are accumulated by hand, and this epoch goes on in its middle: number its "
                    "batches by enumerate(loader, start=run.taken(loader)), else steps fall elsewhere"
                )
            return False
        self._prepared.expect_same()
        if self._evaluations.forget():
            log.warning(
                "the program has caught what breaks an evaluation off, and goes on without its result: let "
                "SystemExit pass, by `except Exception` instead of `except:`"
            )
        if self.evaluates_first:
            log.warning(
                "the evaluation that was broken off was not made: `if run.evaluates_first: evaluate()`"
            )
            self.evaluates_first = False
        course = self._prepared.course
        if not course.steps:
            self._loop.look(self._accelerator.gradient_state.active_dataloader)
        self.steps += 1
        course.steps += 1
        self._healthy = healthy
        if not self._ck.step(self.steps, healthy=healthy):
            return False
        if self._exits:
            self._is_leaving = True
            raise SystemExit(self._ck.exit_code)
        return True

    def taken(self, loader: Any) -> int:
        """Return how many batches of its epoch a prepared loader has given the loop, in lives before too.

        So `enumerate(loader, start=run.taken(loader))` numbers them as if the run had never been stopped.

        Raises:
            ConfigError: it was not prepared before the run began.
        """
        self._is_misnumbered = False
        self._loop.is_numbered = True
        for position in self._prepared.positions if self._prepared else ():
            if position.loader is loader:
                return position.number_on()
        raise ConfigError(
            f"taken: a {type(loader).__qualname__} that was not prepared before `with SpotwatchRun(...)`; "
            f"give the loader that accelerator.prepare has returned"
        )

    def is_due(self, every_steps: int) -> bool:
        """Tell, once at each multiple of so many steps, to evaluate now.

        Ask before the loop, for what the life before did not come to, and after each `step`.
        """
        is_due = self.evaluates_first or (self.steps > self.evaluated_at and self.steps % every_steps == 0)
        if is_due:
            self.evaluated_at = self.steps
            self._take_up()
            self.evaluates_first = False
        return is_due

    def evaluate(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of an evaluation, and break it off on all processes once one is told to stop.

        What is saved then is the state of before the first one since the last `step`, and `evaluates_first`
        is True in the next life. All processes must have as many batches. Saves that fall due meanwhile are
        made at the next `step`; so is a stop that comes to an evaluation inside gradient accumulation.

        Raises:
            ConfigError: the loader gives processes different numbers of batches, or `step` was called before
                this evaluation had ended.
        """
        if self._accelerator.num_processes > 1 and not _is_even(batches):
            raise ConfigError(
                "evaluate: with even_batches=False one process has more batches than another, and would wait "
                "for it for ever; use even_batches=True, and gather_for_metrics, which drops what is double"
            )
        if self._prepared is None:
            raise ConfigError("evaluate() outside of `with SpotwatchRun(...) as run`")
        if self.evaluates_first:
            self._take_up()
        evaluations = self._evaluations
        iterator = evaluations.begin(batches)
        try:
            for number, batch in enumerate(iterator):
                evaluations.has_batch(iterator)
                if not self._gradients.are_in_hand and self._is_told(is_first=number == 0):
                    evaluations.is_broken = True
                    raise _Broken
                yield batch
                if not evaluations.goes_on(iterator):
                    raise ConfigError("evaluate: run.step() was called before this evaluation had ended")
        finally:
            if evaluations.goes_on(iterator) and not evaluations.is_broken:
                self.evaluates_first = False
            evaluations.end(iterator)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        are_unused = self._gradients.leave()
        if not self._evaluations.is_broken or not (error is None or isinstance(error, _Broken)):
            self._evaluations.forget()
            if self._is_leaving:
                self._ck.__exit__(None, None, None)
                self._accelerator.end_training()
            else:
                self._is_over = kind is None and not self._ck.poll()
                if kind is None and not self._is_over and are_unused:
                    log.warning(
                        "told to stop, the loop has ended with gradients that no step has used: the save "
                        "does not hold them; leave it after run.step(), not by ck.poll()"
                    )
                self._ck.__exit__(kind, error, trace)
            return False
        try:
            code = self._break_off()
        except BaseException as failure:
            self._ck.__exit__(type(failure), failure, failure.__traceback__)
            raise
        if self._exits:
            self._accelerator.end_training()
            raise SystemExit(code) from None
        return True

    def _take_up(self) -> None:
        if self._prepared is not None:
            self._prepared.course.take_up()

    def _break_off(self) -> int:
        """Save the state of before the evaluation, on all processes, and return how the run is to end."""
        self._evaluations.restore()
        self.evaluates_first = True
        self._ck.step(self.steps, healthy=self._healthy)
        self._ck.poll()
        self._ck.__exit__(None, None, None)
        # Withdrawn just now, a stop leaves a run that is saved, and not over.
        return DURABLE if self._ck.exit_code == FINISHED else self._ck.exit_code

    def _is_told(self, *, is_first: bool) -> bool:
        told = self._ck.poll()
        if self._accelerator.num_processes == 1:
            return told
        flag = torch.tensor(int(told), device=self._accelerator.device)
        # Once all have come to it they stay together.
        with said_if_long(_LONG_SECONDS, _ALONE) if is_first else nullcontext():
            return bool(self._accelerator.reduce(flag, reduction="sum").item())


class _Progress:
    """What Accelerate counts itself, and what the run counts."""

    def __init__(self, run: SpotwatchRun) -> None:
        self._run = run
        self._accelerator = run._accelerator  # noqa: SLF001 - its other half

    def state_dict(self) -> dict[str, Any]:
        """Return the counts.

        Raises:
            ConfigError: gradients are being accumulated, which a save does not hold.
        """
        if self._run._gradients.are_in_hand and not self._run._is_over:  # noqa: SLF001 - likewise
            raise ConfigError("a save inside gradient accumulation would lose gradients: call run.step()")
        batches = self._accelerator.step
        if not self._accelerator.sync_gradients:
            # The loop was left within accumulation: the next life takes these batches once more.
            batches -= batches % self._accelerator.gradient_accumulation_steps
        return {
            "steps": self._run.steps,
            "evaluates_first": self._run.evaluates_first,
            "evaluated_at": self._run.evaluated_at,
            "batches": batches,
            "batches_a_step": self._accelerator.gradient_accumulation_steps,
            "save_iteration": self._accelerator.save_iteration,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the counts; where so many batches made another step, its next one begins anew."""
        self._run.steps = state["steps"]
        self._run.evaluates_first = state["evaluates_first"]
        self._run.evaluated_at = state["evaluated_at"]
        is_same = state["batches_a_step"] == self._accelerator.gradient_accumulation_steps
        self._accelerator.step = state["batches"] if is_same else 0
        settings = self._accelerator.project_configuration
        settings.iteration = max(settings.iteration, state["save_iteration"])


def _is_even(batches: Any) -> bool:
    sampler = getattr(batches, "batch_sampler", None)
    return bool(getattr(sampler, "even_batches", True) or getattr(sampler, "drop_last", False))
