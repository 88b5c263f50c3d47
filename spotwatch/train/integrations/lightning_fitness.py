# SPDX-License-Identifier: Apache-2.0
"""Which trainers can be made safe, and what keeps the others from it.

It changes nothing.
"""

from __future__ import annotations

import inspect
import logging
from importlib.metadata import version
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.lightning_hooks import missing
from spotwatch.train.integrations.lightning_kinds import is_a

log = logging.getLogger("spotwatch.train")

_STRATEGIES = {
    "DeepSpeedStrategy": "its state is in files of its own; use ModelParallelStrategy (FSDP2) or ddp",
    "FSDPStrategy": "FSDP1 cannot be saved; use ModelParallelStrategy (FSDP2)",
    "SingleDeviceXLAStrategy": "XLA was never tried",
    "XLAStrategy": "XLA was never tried",
}
_CALLBACKS = {
    "BatchSizeFinder": "find the batch size first, with a Trainer that has no SpotwatchCallback",
    "LearningRateFinder": "find the learning rate first, with a Trainer that has no SpotwatchCallback",
    "ModelPruning": (
        "it renames parameters as it prunes, so that what is saved fits no model of a later life; prune when "
        "training is over"
    ),
    "StochasticWeightAveraging": (
        "it swaps schedulers and counts epochs in ways that do not come back; use EMAWeightAveraging, or "
        "WeightAveraging"
    ),
}


def refuse(trainer: Any, module: Any, ours: list[Any], package: str) -> None:
    """Raise for everything at once that does not fit.

    Args:
        trainer: whose strategy was connected, and nothing set up.
        module: the model.
        ours: all callbacks of ours.
        package: `lightning.pytorch` or `pytorch_lightning`.

    Raises:
        ConfigError: the message says what to do.
    """
    problems = [
        f"strategy {name}: {why}" for name, why in _STRATEGIES.items() if is_a(trainer.strategy, name)
    ]
    problems += [
        f"callback {name}: {why}"
        for name, why in _CALLBACKS.items()
        if any(is_a(one, name) for one in trainer.callbacks)
    ]
    if is_a(trainer.strategy.launcher, "_MultiProcessingLauncher"):
        problems.append("strategy ddp_spawn, ddp_fork or ddp_notebook: use strategy='ddp', or torchrun")
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        problems.append(
            "training_step(dataloader_iter): take batches, or Lightning cannot say how many it has had"
        )
    if len(ours) > 1:
        problems.append(f"{len(ours)} SpotwatchCallbacks: give the Trainer one")
    if problems:
        raise ConfigError(*problems)
    if changed := missing(trainer, package):
        name = package.partition(".")[0]
        raise ConfigError(
            f"{name} {version(name)} has changed {', '.join(changed)}, which saving needs: use one of "
            f"the versions that docs/integrations/lightning.md names"
        )


def warn(trainer: Any) -> None:
    """Say what will be lost in the next life although training goes on.

    Args:
        trainer: with its loggers.
    """
    for logger in trainer.loggers:
        if is_a(logger, "CSVLogger") and isinstance(logger.version, str):
            log.warning(
                "CSVLogger(version=%r): the next life deletes what this one logs there, for so Lightning "
                "begins; leave version out, or use another logger",
                logger.version,
            )
