# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - the loops of Lightning have no public place between two steps
"""One `Trainer.fit` from its resume to its end: where it is hooked into, and what is done there.

Each hook replaces a method of `lightning_hooks` and calls it. What is saved is in `lightning_state`.
"""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any, NoReturn

from spotwatch.errors import RunTaken
from spotwatch.train.checkpointer import FINISHED, Checkpointer
from spotwatch.train.integrations import (
    lightning_early,
    lightning_files,
    lightning_lacks,
    lightning_state,
    lightning_values,
)
from spotwatch.train.integrations.lightning_evaluation import BrokenOff, Evaluations
from spotwatch.train.integrations.lightning_exit import leave
from spotwatch.train.integrations.lightning_hooks import Hooks
from spotwatch.train.integrations.lightning_loader import resume_all, unwrap, wrap
from spotwatch.train.integrations.lightning_made import Making
from spotwatch.train.integrations.lightning_state import At, TrainerState
from spotwatch.train.integrations.workers import shield
from spotwatch.train.state import rng

log = logging.getLogger("spotwatch.train")

# More calls than there are steps between two rounds of the ranks.
_MOST_CALLS = 100


class Fit:
    """One fit.

    Args:
        trainer: about to set up.
        ck: of the run.
        package: `lightning.pytorch` or `pytorch_lightning`.
        exits: leave by SystemExit.
    """

    def __init__(self, trainer: Any, ck: Checkpointer, package: str, *, exits: bool) -> None:
        self._trainer = trainer
        self._ck = ck
        self._package = package
        self._exits = exits
        self._is_inside = False
        self._state: TrainerState | None = None
        self._resumed: dict[str, Any] | None = None
        """What the checkpoint says, until the loops stand there."""
        self._are_loaders_told = False
        self._chance: dict[str, Any] = {}
        self._limits = (-1, -1)
        self._lists: dict[str, int] = {}
        self._path_error: Exception | None = None
        self._step = 0
        self._sanity_steps = trainer.num_sanity_val_steps
        self._hooks = Hooks(trainer)
        self._install()
        if lightning_early.are_made(trainer):  # in the datamodule's setup, or a callback's before ours
            self._on_loaders()
            lightning_early.begin_followed(trainer)

    # What is hooked into.

    def _install(self) -> None:
        connector, signals, fit = "_checkpoint_connector", "_signal_connector", "fit_loop"
        epoch, evaluation = "fit_loop.epoch_loop", "fit_loop.epoch_loop.val_loop"
        replace = self._hooks.replace
        self._resume_start = replace(connector, "resume_start", self._on_resume_start)
        self._resume_end = replace(connector, "resume_end", self._on_resume_end)
        replace(signals, "register_signal_handlers", self._on_register_signal_handlers)
        self._makings = Making(self._trainer, fit, replace), Making(self._trainer, evaluation, replace)
        self._load_states = replace(fit, "_load_combined_loader_states", self._on_loaders)
        self._run_start = replace(fit, "on_run_start", self._on_run_start)
        self._epoch_start = replace(fit, "on_advance_start", self._on_epoch_start)
        self._epoch_end = replace(fit, "on_advance_end", self._on_epoch_end)
        self._run_end = replace(fit, "on_run_end", self._on_run_end)
        self._reset = replace(epoch, "reset", self._on_reset)
        self._batch_end = replace(epoch, "on_advance_end", self._on_batch_end)
        self.evaluations = Evaluations(self._trainer, self._ck, replace(evaluation, "run", self._on_evaluate))

    def _uninstall(self) -> None:
        self._hooks.put_back()
        if (combined := self._trainer.fit_loop._combined_loader) is not None:
            unwrap(combined)
        self._trainer.num_sanity_val_steps = self._sanity_steps

    # The resume.

    def _on_resume_start(self, checkpoint_path: Any = None, weights_only: Any = None) -> None:
        try:
            self._resume_start(checkpoint_path, weights_only=weights_only)
        except Exception as error:  # noqa: BLE001 - raised below, where the run is new and it counts
            self._path_error = error
            self._trainer._checkpoint_connector._loaded_checkpoint = {}

    def _on_resume_end(self) -> None:
        trainer = self._trainer
        path = trainer._checkpoint_connector._ckpt_path
        self._resume_end()
        here = rng.capture()
        self._state = state = TrainerState(trainer, self._package, self._makings)
        self._lists = lightning_values.lists(trainer.lightning_module)
        optimizers = {f"optimizer_{n}": one for n, one in enumerate(trainer.optimizers)}
        self._ck.track(model=trainer.lightning_module, lightning=state, **optimizers)
        try:
            self._step = self._ck.resume()
        except (SystemExit, RunTaken):
            self._leave()
        self._ck.__enter__()
        self._is_inside = True
        self._resumed, state.resumed = state.resumed, None
        if self._resumed is None:
            if self._path_error is not None:
                raise self._path_error
            return
        if path:
            log.warning("ckpt_path=%r is passed over: the run goes on from step %d", path, self._step)
        self._chance = rng.capture()
        trainer.num_sanity_val_steps = 0
        lightning_files.warn_of_missing(trainer)
        # It may be that nothing is left to do, and then they are looked at after fit.
        state.switches.restore_model(self._resumed["switches"])
        state.switches.restore_numbers(self._resumed["switches"], self._resumed["values"]["metrics"])
        lightning_values.restore_logged(trainer, self._resumed["values"])
        at = At(self._resumed["at"])
        state.at = at
        if at in (At.EPOCH, At.END):
            lightning_state.stand_between_epochs(trainer)
        if at in (At.EPOCH, At.EVALUATION):
            # It may have been the last epoch, of which the end is still to come.
            self._lift()
        else:
            trainer.should_stop = self._resumed["should_stop"]
        trained, evaluated = (one or here for one in self._resumed.get("made_from", (None, None)))
        self._makings[1].want(evaluated)
        if lightning_early.are_made(trainer):
            self._tell_loaders(self._resumed)
            lightning_early.begin_again(trainer)
        else:
            self._makings[0].want(trained)

    def _lift(self) -> None:
        """Let the loops begin although training may have reached its end: something is left to do."""
        fit_loop = self._trainer.fit_loop
        self._limits = fit_loop.epoch_loop.max_steps, fit_loop.max_epochs
        fit_loop.epoch_loop.max_steps = fit_loop.max_epochs = -1

    def _put_limits_back(self) -> None:
        fit_loop = self._trainer.fit_loop
        fit_loop.epoch_loop.max_steps, fit_loop.max_epochs = self._limits

    def _on_register_signal_handlers(self) -> None:
        self._trainer._signal_connector.received_sigterm = False
        log.info("Lightning's handling of SIGTERM and its requeueing under Slurm are off: spotwatch's are on")

    def _on_loaders(self) -> None:
        self._load_states()
        wrap(self._trainer.fit_loop._combined_loader)
        if self._resumed is not None:
            self._tell_loaders(self._resumed)

    def _tell_loaders(self, resumed: dict[str, Any]) -> None:
        """Let the next iteration go on where the life before has left."""
        self._are_loaders_told = True
        sources = self._trainer.fit_loop._combined_loader.flattened
        if resumed["at"] in (At.BATCH, At.EVALUATION):
            reloads = bool(self._trainer.reload_dataloaders_every_n_epochs)
            resume_all(sources, resumed["sources"], may_have_other_rows=reloads)
        else:
            for source, state in zip(sources, resumed["sources"], strict=False):
                source.begin_epoch(state)

    def _take(self, resumed: dict[str, Any]) -> None:
        """Let the loops stand where the checkpoint says, from now on."""
        if not self._are_loaders_told:
            raise AssertionError(f"at {resumed['at']}, the loaders were not told where they go on")
        self._resumed = None

    def _on_run_start(self) -> None:
        if self._resumed is not None and self._resumed["at"] == At.EPOCH:
            self._put_limits_back()
            self._trainer.should_stop = self._resumed["should_stop"]
        self._run_start()
        if self._resumed is not None:
            # GradientAccumulationScheduler refuses at the start what it sets later; others freeze there.
            self._state_of().switches.restore(self._resumed["switches"])

    def _on_epoch_start(self) -> None:
        resumed = self._resumed
        if resumed is not None and resumed["at"] not in (At.BATCH, At.EVALUATION):
            self._take(resumed)
            self._trainer.fit_loop._last_train_dl_reload_epoch = resumed["reloaded"]
            self._put_values_back(resumed)
            self._put_chance_back(resumed)
            lightning_lacks.tell_of_cut_epoch(self._trainer)
        self._epoch_start()

    def _on_reset(self) -> None:
        resumed = self._resumed
        if resumed is None:
            self._reset()
            return
        self._take(resumed)
        trainer = self._trainer
        fit_loop = trainer.fit_loop
        steps_logged = fit_loop.epoch_loop._batches_that_stepped
        with warnings.catch_warnings():
            # Its loader is resumable: ours is around it.
            warnings.filterwarnings("ignore", message=r"You're resuming from a checkpoint that ended before")
            self._reset()
        # Lightning counts one for its own checkpoints, which it makes before it has counted; ours hold it.
        fit_loop.epoch_loop._batches_that_stepped = steps_logged
        fit_loop._last_train_dl_reload_epoch = resumed["reloaded"]
        iterator = fit_loop._combined_loader._iterator
        if hasattr(iterator, "_consumed"):
            iterator._consumed = list(resumed["consumed"])
        self._put_values_back(resumed)
        if resumed["at"] == At.BATCH:
            lightning_state.stand_in_epoch(trainer)
        else:
            self._put_limits_back()
            lightning_state.stand_before_evaluation(trainer)
            lightning_state.put_gradients_back(trainer, resumed["gradients"])
            fit_loop.epoch_loop.advance = lambda _: self._skip_batch(resumed)
        rng.restore(self._chance)

    def _skip_batch(self, resumed: dict[str, Any]) -> None:
        """Train no batch, once: the evaluation after the last one comes first."""
        del self._trainer.fit_loop.epoch_loop.advance
        self._trainer.should_stop = resumed["should_stop"]

    def _put_chance_back(self, resumed: dict[str, Any]) -> None:
        combined = self._trainer.fit_loop._combined_loader
        sources = () if combined is None else combined.flattened
        for source, state in zip(sources, resumed["sources"], strict=False):
            source.put_back_generators(state)
        rng.restore(self._chance)

    def _put_values_back(self, resumed: dict[str, Any]) -> None:
        trainer = self._trainer
        lightning_values.restore(trainer, resumed["values"], self._package)
        trainer._last_val_time = time.monotonic() - resumed["validated"]

    # The ends of steps, epochs and training.

    def _on_batch_end(self, data_fetcher: Any) -> None:
        self._batch_end(data_fetcher)
        epoch_loop = self._trainer.fit_loop.epoch_loop
        # What is after an epoch belongs to its last step.
        if not epoch_loop.done and not epoch_loop._should_accumulate():
            self._boundary(At.BATCH)

    def _on_epoch_end(self) -> None:
        self._epoch_end()
        self._boundary(At.EPOCH)

    def _boundary(self, at: At) -> None:
        step = self._trainer.global_step
        if not self._is_inside or (at is At.BATCH and step == self._step):
            return  # where the model steps by itself, it may be accumulating gradients
        self._step = step
        self._state_of().at = at
        if self._ck.step(step):
            if at is At.BATCH:
                lightning_lacks.warn_of_lists(self._trainer.lightning_module, self._lists)
            self._leave()

    def _on_run_end(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._put_values_back(resumed)  # no epoch was left
            self._put_chance_back(resumed)
        self._run_end()
        if self._is_inside:
            self._state_of().at = At.END
            self._ck.step(self._step)
        self.finish()
        if self._ck.exit_code != FINISHED:
            self._leave()

    # Evaluations.

    def _on_evaluate(self) -> Any:
        trainer = self._trainer
        if not self._is_inside:
            return self.evaluations.evaluate()
        loop = trainer.fit_loop.epoch_loop.val_loop
        loop.setup_data()
        for one in () if loop._combined_loader is None else loop._combined_loader.flattened:
            shield(one)
        state = self._state_of()
        resumed, state.resumed_validation = state.resumed_validation, None
        if resumed is not None:
            lightning_values.restore_validation(trainer, resumed)
            lightning_state.begin_workers_again(trainer, state.evaluated)
        state.note_evaluated()
        return self.evaluations.run(self._stop_before_evaluation)

    def _stop_before_evaluation(self, told: BrokenOff) -> None:
        """Leave, with the evaluation still to come; return where the stop was called off meanwhile."""
        if self._trainer.sanity_checking:
            log.warning("a stop is in force before the first step: nothing is saved")
            self.fail(told)
            self._leave()
        self._state_of().at = At.EVALUATION
        for _ in range(_MOST_CALLS):
            if self._ck.step(self._trainer.global_step):
                lightning_lacks.warn_of_lists(self._trainer.lightning_module, self._lists)
                self._leave()
        log.info("the stop was called off: the evaluation begins again")
        lightning_state.begin_workers_again(self._trainer, self._state_of().evaluated)

    def _state_of(self) -> TrainerState:
        if self._state is None:
            raise AssertionError("nothing was resumed")
        return self._state

    # The ways out.

    def _leave(self) -> NoReturn:
        self.finish()
        leave(self._trainer, self._package, self._ck.exit_code, exits=self._exits)

    def finish(self) -> None:
        """Leave the run, if it was not left: what is not saved is saved."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._put_chance_back(resumed)  # nothing was left, and what comes after fit draws on
        try:
            if self._is_inside:
                self._is_inside = False
                self._ck.__exit__(None, None, None)  # the last save needs the loaders as they are
        finally:
            self._uninstall()

    def fail(self, error: BaseException) -> None:
        """Leave the run because of an exception."""
        self._uninstall()
        if self._is_inside:
            self._is_inside = False
            self._ck.__exit__(type(error), error, error.__traceback__)
