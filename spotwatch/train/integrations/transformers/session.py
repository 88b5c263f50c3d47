# SPDX-License-Identifier: Apache-2.0
"""One training of one Trainer: where it resumes, where it saves, and how it leaves.

It stands between the Trainer's loop and the methods that the loop calls (`hooks`). It copies nothing: what
is saved are tracked objects, `counters` and the place in the data among them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.checkpointer import DURABLE, FINISHED, TAKEN, Checkpointer
from spotwatch.train.integrations.transformers import (
    chance,
    counters,
    course,
    feed,
    fit,
    hooks,
    own,
    parts,
    same,
)
from spotwatch.train.integrations.transformers.frozen import Frozen
from spotwatch.train.integrations.workers import shield
from spotwatch.train.loop import Health

log = logging.getLogger("spotwatch.train")

_OURS = "spotwatch"
"""Stands for the folder of a checkpoint where the Trainer wants one."""


class _Left(BaseException):
    """The state is saved: leave the Trainer, through whatever a program has put around it."""


class Session:
    """Serves one Trainer.

    Args:
        trainer: the Trainer.
        checkpointer: of its run.
        exits: as `SpotwatchCallback` has it, with the others.
        healthy: likewise.
        rereads: likewise.
        also: likewise.
    """

    def __init__(
        self,
        trainer: Any,
        checkpointer: Checkpointer,
        *,
        exits: bool,
        healthy: Health,
        rereads: bool,
        also: str | Iterable[str],
    ) -> None:
        self.trainer = trainer
        self._ck = checkpointer
        self._exits, self._also = exits, also
        self._healthy = healthy
        self._feed = feed.Feed(rereads=rereads)
        self._counters = counters.Counters(trainer, self._feed)
        self._stack = ExitStack()
        self._loader: Any = None
        self._prepared: Any = None
        self._chance: chance.Chance | None = None
        self._place: dict[str, Any] | None = None
        self._missing: object = None
        self._frozen: Frozen | None = None
        self._is_used = self._is_inside = self._is_evaluating = False
        self._epoch_ends = False
        self._looks_up = True

    def replacements(self) -> dict[str, Callable[..., Any]]:
        """Return what stands in for the Trainer's methods; each takes the original first."""
        return {
            name: getattr(self, f"_on{'' if name[0] == '_' else '_'}{name}")
            for name in hooks.PUBLIC | hooks.PRIVATE
        }

    # What the callback tells.

    def begin(self) -> None:
        """Put the losses back that the Trainer has just set to nothing."""
        self._counters.begin()

    def end_epoch(self) -> None:
        """Note that what comes now belongs to the end of an epoch."""
        self._epoch_ends = True
        if self._chance is not None:
            chance.restore(self._chance)
            self._chance = None

    def look_up(self) -> None:
        """Obey an order that comes inside an evaluation: what is saved is the state before it."""
        if self._is_evaluating and self._looks_up:
            self._step()

    # What the Trainer calls, in this order.

    def _on_train(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trainer, asked = self.trainer, own.asked(original, *args, **kwargs)
        fit.refuse(trainer, asked.get("trial"))
        if self._is_used:
            raise ConfigError(
                f"train() was called before: run {self._ck.run_id!r} is over; give a second one a Trainer, "
                f"a Checkpointer and a run_id of its own, or start the program again to go on"
            )
        self._is_used = True
        wanted = asked.get("resume_from_checkpoint")
        folder = own.find(wanted, trainer.args.output_dir)
        self._missing = None if folder is not None else wanted or None
        if wanted is not None:
            asked["resume_from_checkpoint"] = folder
        try:
            with self._stack, suppress(_Left):
                return original(**asked)
        finally:
            self._is_inside = False
        self._close_loggers()
        if self._exits:
            raise SystemExit(self._ck.exit_code)
        from transformers.trainer_utils import TrainOutput  # noqa: PLC0415 - a Trainer of it is here

        steps = max(trainer.state.global_step, 1)
        total = getattr(trainer, "_total_loss_scalar", 0.0) + float(getattr(trainer, "_tr_loss", 0.0))
        return TrainOutput(trainer.state.global_step, total / steps, {})

    def _on_set_initial_training_values(
        self, original: Callable[..., Any], args: Any, dataloader: Any
    ) -> Any:
        self._loader = dataloader
        return original(args, dataloader)

    def _on_init_training_state(
        self, original: Callable[..., Any], max_steps: int, updates: int, epochs: int, folder: Any, trial: Any
    ) -> tuple[int, int]:
        trainer = self.trainer
        first, passed = original(max_steps, updates, epochs, folder, trial)
        # The optimizer is made now, so that all is there to be restored before the Trainer counts its epochs.
        self._prepared = trainer._prepare_for_training(max_steps, self._loader, folder)  # noqa: SLF001 - `hooks`
        shield(self._prepared[1])
        if not trainer.args.ignore_data_skip:
            feed.expect_passable(self._prepared[1])
        tracked = parts.parts(trainer, self._also)
        self._frozen = tracked["frozen"]
        self._ck.track(**tracked, trainer=self._counters)
        self._resume(folder)
        saved = self._counters.restored
        self._feed.meet(self._prepared[1], saved and saved["place"], trainer.eval_dataset)
        if saved is None:
            self._counters.begun = {
                "epoch": first,
                "taken": passed,
                "chance": own.chance_in(trainer, folder),
            }
            return first, passed
        counters.expect_fitting(saved, trainer.args)
        self._chance = saved["chance"] or chance.capture()
        if saved["phase"] != course.START:
            self._counters.put_flags_back()
        way = course.goes_on(saved, trainer, self._prepared[1], updates, self._feed.seen)
        same.tell(saved["place"], self._feed.seen)
        self._counters.phase, self._place = way.phase, way.place
        return way.epoch, way.taken

    def _on_prepare_for_training(self, original: Callable[..., Any], *args: Any) -> Any:
        if self._prepared is None:
            return original(*args)
        prepared, self._prepared = self._prepared, None
        return prepared

    def _on_evaluate(self, original: Callable[..., Any], *args: Any, skip_scheduler: bool = False) -> Any:
        if not self._is_inside:
            return original(*args, skip_scheduler=skip_scheduler)
        if skip_scheduler and self._counters.phase != course.START:
            return {}  # `eval_on_start`, which was done in an earlier life
        if skip_scheduler and self._chance is not None:
            chance.restore(self._chance)
        self._counters.freeze()
        self._is_evaluating = True
        try:
            self.look_up()
            measured = original(*args, skip_scheduler=skip_scheduler)
            self._counters.evaluations += 1
            return measured
        finally:
            self._is_evaluating = False
            self._counters.thaw()
            if skip_scheduler:
                self._chance = None

    def _on_run_epoch(self, original: Callable[..., Any], **its: Any) -> None:
        if self._frozen is not None:
            self._frozen.begin()
        place, self._place = self._place, None
        loader, saved, self._chance = its["train_dataloader"], self._chance, None
        if saved is not None:
            chance.restore(saved)
        if self._counters.restored is not None:
            its["resume_from_checkpoint"] = _OURS
        if place is None:
            is_wound = its["resume_from_checkpoint"] is not None and its["epoch"] == its["epochs_trained"]
            self._feed.begin(its["epoch"], loader, its["steps_trained_in_current_epoch"] if is_wound else 0)
            self._comes(course.EPOCH_BEGINS)
            self._counters.last = (None, None)
            original(**its)
            return
        self._counters.put_flags_back()
        self._feed.stay(place, loader)
        if self._counters.phase in (course.STEP_ENDS, course.EPOCH_ENDS):
            self._epoch_ends = self._counters.phase == course.EPOCH_ENDS
            rest = [its[name] for name in ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time")]
            loss = self.trainer._tr_loss  # noqa: SLF001 - has no public name
            self.trainer._maybe_log_save_evaluate(loss, None, *rest)  # noqa: SLF001 - `hooks`
        if self._counters.phase != course.EPOCH_DONE:
            self._go_on_in_epoch(original, its, place)

    def _go_on_in_epoch(
        self, original: Callable[..., Any], its: dict[str, Any], place: dict[str, Any]
    ) -> None:
        """Go on in the midst of an epoch, or at its end if nothing of it is left."""
        args, control = self.trainer.args, self.trainer.control
        if args.ignore_data_skip:
            self._feed.begin(its["epoch"], its["train_dataloader"])
            original(**its)
            return
        each = args.gradient_accumulation_steps
        is_over = control.should_training_stop or control.should_epoch_stop
        if is_over or -(-place["taken"] // each) >= its["num_update_steps_per_epoch"]:
            its["num_update_steps_per_epoch"] = place["taken"] // each
            self._chance = chance.capture()
        else:
            self._feed.resume(place, its["train_dataloader"], chance.capture())
        its |= {"epochs_trained": its["epoch"], "steps_trained_in_current_epoch": place["taken"]}
        original(**its)

    def _on_get_batch_samples(
        self, original: Callable[..., Any], epoch_iterator: Any, num_batches: int, device: Any
    ) -> Any:
        made = original(self._feed.take(epoch_iterator, num_batches), num_batches, device)
        self._feed.took(len(made[0]))
        return made

    def _on_get_eval_dataloader(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loader = original(*args, **kwargs)
        shield(loader)
        if self._is_evaluating and self._counters.evaluations:
            feed.keep_seed(loader)
        return loader

    def _on_get_test_dataloader(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loader = original(*args, **kwargs)
        shield(loader)
        return loader

    def _on_load_rng_state(self, original: Callable[..., Any], checkpoint: Any) -> None:
        if self._counters.restored is None:
            original(checkpoint)
        elif self._counters.begun["chance"] is not None:
            chance.restore(self._counters.begun["chance"])

    def _on_maybe_log_save_evaluate(
        self, original: Callable[..., Any], loss: Any, norm: Any, *args: Any, learning_rate: Any = None
    ) -> None:
        if learning_rate is None:
            norm, learning_rate = self._counters.last  # this life has made no step of this epoch
        self._counters.last = (norm, learning_rate)
        original = functools.partial(original, loss, norm, *args, learning_rate=learning_rate)
        if not self._is_inside:
            original()
            return
        ends, self._epoch_ends = self._epoch_ends, False
        self._comes(course.LAST if ends else course.STEP)
        original()
        self._comes(course.DONE)
        self._step()

    def _on_finalize_training(
        self, original: Callable[..., Any], trial: Any, num_train_samples: Any, start_time: float
    ) -> Any:
        # What follows changes the weights, where the best ones are loaded: the last step is saved before.
        self._is_inside = False
        self._stack.close()
        if self._ck.exit_code in (DURABLE, TAKEN) or (self._ck.exit_code != FINISHED and self._ck.poll()):
            raise _Left
        return original(trial, num_train_samples, start_time - self._counters.seconds_before)

    def _comes(self, what: str) -> None:
        self._counters.phase = course.NEXT[self._counters.phase, what]

    def _step(self) -> None:
        if not self.trainer.accelerator.sync_gradients:
            return  # a stream has ended within an accumulation, and what it left goes into the next step
        if self._ck.step(self.trainer.state.global_step, healthy=self._healthy):
            raise _Left

    def _resume(self, folder: str | None) -> None:
        """Restore all that is tracked, if there is a checkpoint of ours."""
        try:
            step = self._ck.resume()
        except SystemExit:
            if self._exits:
                raise
            raise _Left from None
        self._stack.enter_context(self._ck)
        self._is_inside = True
        trainer = self.trainer
        inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        # Such an optimizer has other weights in the model while it is evaluated; and where ranks do not have
        # equally many batches, they cannot agree on anything after each.
        self._looks_up = not callable(getattr(inner, "eval", None)) and (
            trainer.args.world_size == 1 or trainer.accelerator.even_batches
        )
        if self._counters.restored is not None:
            if folder is not None:
                log.warning(
                    "resume_from_checkpoint=%r is passed over: the run goes on from step %d", folder, step
                )
        elif self._missing is not None:
            raise ConfigError(
                f"resume_from_checkpoint={self._missing!r}: there is no such checkpoint, and run "
                f"{self._ck.run_id!r} has none either; leave it out to begin the run"
            )

    def _close_loggers(self) -> None:
        """End the progress bars and reports: training is left, not over, so a program's own are not told."""
        from transformers import ProgressCallback  # noqa: PLC0415 - as above
        from transformers.integrations import INTEGRATION_TO_CALLBACK  # noqa: PLC0415 - as above

        trainer = self.trainer
        trainer.is_in_train = False
        kinds = (ProgressCallback, *INTEGRATION_TO_CALLBACK.values())
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, kinds):
                callback.on_train_end(
                    *(trainer.args, trainer.state, trainer.control),
                    model=trainer.model,
                    processing_class=trainer.processing_class,
                )
