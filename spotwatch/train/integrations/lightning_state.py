# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - Lightning's connectors and loops are private, and know what is to be saved
"""The state of a Lightning trainer as plain values, and how a trainer that begins is made to stand there.

What Lightning itself puts into a checkpoint is taken from it and given back by its own methods, so that
callbacks, loops, schedulers, precision and hooks of the model are dealt with as they are used to. Model and
optimizers are tracked beside this, as themselves. It does not know when to save.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations import lightning_ddp, lightning_files, lightning_values
from spotwatch.train.integrations.lightning_kinds import is_a
from spotwatch.train.integrations.lightning_loader import Source
from spotwatch.train.integrations.lightning_made import Making
from spotwatch.train.integrations.lightning_switches import Switches
from spotwatch.train.state import encoding, rng
from spotwatch.train.state.found import Found

log = logging.getLogger("spotwatch.train")


class At(StrEnum):
    """Where training stands when it is saved."""

    BATCH = "batch"
    """In an epoch, after an optimizer step and all that follows it."""
    EVALUATION = "evaluation"
    """In an epoch, before the evaluation that follows the last optimizer step."""
    EPOCH = "epoch"
    """After an epoch."""
    END = "end"
    """After the end of training, with all that is done there."""


class TrainerState:
    """What is tracked of a trainer, beside its model and its optimizers.

    Args:
        trainer: whose strategy has set up model and optimizers.
        package: `lightning.pytorch` or `pytorch_lightning`.
        makings: of the loaders of training, and of evaluations.
    """

    def __init__(self, trainer: Any, package: str, makings: Sequence[Making]) -> None:
        self._trainer = trainer
        self._makings = makings
        self._package = package
        self._has_hooks = _has_hooks(trainer, package)
        self._unkept: set[str] = set()
        self.switches = Switches(trainer)
        self.at = At.EPOCH
        self.evaluated: list[bool] = []
        """Of which loaders of evaluations workers live on."""
        self.resumed: dict[str, Any] | None = None
        """What a checkpoint said of loop, loaders and logged values, until they are made so."""
        self.resumed_validation: dict[str, Any] | None = None
        """What it said of evaluations, until the first one of this life."""

    def state_dict(self) -> dict[str, Any]:
        """Return it all; the model's own tensors are among it only where hooks may have replaced them."""
        trainer = self._trainer
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        checkpoint.pop("optimizer_states")
        if not self._has_hooks:
            checkpoint.pop("state_dict")
        fit_loop = checkpoint["loops"]["fit_loop"]
        fit_loop["state_dict"].pop("combined_loader", None)
        checkpoint["loops"] = {"fit_loop": fit_loop}
        self._keep_only_safe_hyper_parameters(checkpoint)
        return {"checkpoint": checkpoint, "run": self._run()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give Lightning what it knows by itself, and keep the rest for when its loops have begun."""
        trainer = self._trainer
        connector = trainer._checkpoint_connector
        checkpoint = connector._loaded_checkpoint = state["checkpoint"]
        try:
            connector.restore_precision_plugin_state()
            connector.restore_loops()
            connector.restore_datamodule()
            if "state_dict" in checkpoint:
                connector.restore_model()
            checkpoint["callbacks"] = lightning_files.find_again(trainer, checkpoint.get("callbacks", {}))
            connector.restore_callbacks()
            for callback in trainer.callbacks:
                if is_a(callback, "BaseFinetuning"):
                    # Its groups of parameters must be there before the optimizer's state is.
                    callback.on_fit_start(trainer, trainer.lightning_module)
            connector.restore_lr_schedulers()
        finally:
            connector._loaded_checkpoint = {}
        self.resumed = state["run"]
        self.evaluated = list(self.resumed["evaluated"])
        self.resumed_validation = self.resumed["values"]["validation"]
        lightning_ddp.let_hand_round(trainer, will=self.resumed["hands_round"])

    def note_evaluated(self) -> None:
        """Note which loaders have workers now: broken off, an evaluation ends them."""
        now = [_has_workers(one) for one in _evaluated_loaders(self._trainer)]
        if not now:
            return  # none was made in this life
        self.evaluated = now if len(now) != len(self.evaluated) else [*map(max, now, self.evaluated)]

    def _run(self) -> dict[str, Any]:
        trainer = self._trainer
        self.note_evaluated()
        fit_loop = trainer.fit_loop
        combined = fit_loop._combined_loader
        sources = [] if combined is None else [one for one in combined.flattened if isinstance(one, Source)]
        values = lightning_values.capture(trainer)
        if self.resumed_validation is not None:
            values["validation"] = self.resumed_validation
        ahead = len(getattr(fit_loop._data_fetcher, "batches", ()))
        return {
            "at": self.at.value,
            "values": values,
            "switches": self.switches.state(is_last=self.at is At.END),
            "sources": [source.state(ahead) for source in sources],
            "made_from": [making.chance for making in self._makings],
            "evaluated": self.evaluated,
            "consumed": list(getattr(getattr(combined, "_iterator", None), "_consumed", ())),
            "gradients": self._gradients(),
            "hands_round": lightning_ddp.hands_round(trainer),
            "should_stop": trainer.should_stop,
            "reloaded": fit_loop._last_train_dl_reload_epoch,
            "validated": time.monotonic() - getattr(trainer, "_last_val_time", time.monotonic()),
        }

    def _gradients(self) -> dict[str, Any]:
        # An evaluation may fall between batches whose gradients are added up.
        if self.at is not At.EVALUATION or not self._trainer.fit_loop._should_accumulate():
            return {}
        named = self._trainer.lightning_module.named_parameters()
        # Of a DTensor this rank's part, which is no more the others' than what DDP has not reduced yet.
        return {
            name: one.grad.to_local() if hasattr(one.grad, "to_local") else one.grad
            for name, one in named
            if one.grad is not None
        }

    def _keep_only_safe_hyper_parameters(self, checkpoint: dict[str, Any]) -> None:
        # Going on does not need them: they are for load_from_checkpoint, which our files are not for.
        module, data = self._trainer.lightning_module, self._trainer.datamodule
        keys = [
            getattr(one, f"CHECKPOINT_HYPER_PARAMS_{name}")
            for one in (module, data)
            if one is not None
            for name in ("NAME", "KEY", "TYPE")
        ]
        for key in keys:
            if key not in checkpoint:
                continue
            try:
                encoding.encode(checkpoint[key], key, Found().save)
            except ConfigError as error:
                del checkpoint[key]
                if key not in self._unkept:
                    self._unkept.add(key)
                    log.info("not kept, for going on does not need it: %s", error)


def stand_between_epochs(trainer: Any) -> None:
    """Make the loops stand as they do after an epoch, not as Lightning's do that were restarted."""
    for loop in _loops(trainer.fit_loop):
        loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False


def put_gradients_back(trainer: Any, gradients: dict[str, Any]) -> None:
    """Give the parameters the gradients that were added up so far."""
    for name, parameter in trainer.lightning_module.named_parameters():
        if name in gradients:
            parameter.grad = _like(parameter, gradients[name].to(parameter.device))


def _like(parameter: Any, part: Any) -> Any:
    """Return a gradient of which this rank has this part, or all of it where nothing is sharded."""
    if not hasattr(parameter, "placements"):
        return part
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - only what is sharded needs it

    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
        run_check=False,
    )


def stand_in_epoch(trainer: Any) -> None:
    """Make the loops go on with the next batch: what follows the last one is done."""
    _end_epoch_as_others(trainer)
    epoch_loop = trainer.fit_loop.epoch_loop
    for loop in _loops(epoch_loop):
        loop._restarting = False
        loop.reset_restart_stage()


def stand_before_evaluation(trainer: Any) -> None:
    """Make the loops begin an evaluation, once that of the training batches is told to go on."""
    _end_epoch_as_others(trainer)
    for loop in _loops(trainer.fit_loop.epoch_loop.val_loop):
        loop._restarting = False
        loop.reset_restart_stage()


def _end_epoch_as_others(trainer: Any) -> None:
    # An epoch that was restarted steps no ReduceLROnPlateau at its end: Lightning lacks the metrics, not we.
    trainer.fit_loop._restarting = False


def begin_workers_again(trainer: Any, evaluated: list[bool]) -> None:
    """Start the workers that live on from evaluation to evaluation, where they lived before.

    Starting them draws a seed, which the evaluations of an undisturbed run do not draw any more.
    """
    chance = rng.capture()
    for loader, was_begun in zip(_evaluated_loaders(trainer), evaluated, strict=False):
        if was_begun and getattr(loader, "persistent_workers", False) and not _has_workers(loader):
            iter(loader)
    rng.restore(chance)


def _evaluated_loaders(trainer: Any) -> list[Any]:
    combined = trainer.fit_loop.epoch_loop.val_loop._combined_loader
    return [] if combined is None else combined.flattened


def _has_workers(loader: Any) -> bool:
    return getattr(loader, "_iterator", None) is not None


def _loops(loop: Any) -> list[Any]:
    inner = [one for one in vars(loop).values() if hasattr(one, "reset_restart_stage")]
    return [loop, *(deeper for one in inner for deeper in _loops(one))]


def _has_hooks(trainer: Any, package: str) -> bool:
    """Tell whether the model or a callback takes part in making Lightning's checkpoint, or in reading it."""
    base = importlib.import_module(package)
    pairs = [
        (trainer.lightning_module, base.LightningModule),
        *((one, base.Callback) for one in trainer.callbacks),
    ]
    return any(
        getattr(getattr(thing, hook), "__func__", None) is not getattr(parent, hook)
        for thing, parent in pairs
        for hook in ("on_save_checkpoint", "on_load_checkpoint")
    )
