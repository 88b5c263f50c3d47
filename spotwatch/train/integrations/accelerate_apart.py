# SPDX-License-Identifier: Apache-2.0
"""What each process has for itself although the model is one: weights that drift apart, states of hooks.

A save holds the model once, so these would be lost in silence. It is about DistributedDataParallel alone.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spotwatch.errors import ConfigError

log = logging.getLogger("spotwatch.train")

_STATEFUL = ("PowerSGDState", "PostLocalSGDState")
"""Of torch's own hooks, torch.distributed.algorithms.ddp_comm_hooks: torch 2.13."""


class Replicas:
    """The models of which each process has a copy.

    Args:
        models: that were prepared.

    Raises:
        ConfigError: one reduces its gradients by a hook with a state that is not saved.
    """

    def __init__(self, models: Iterable[Any]) -> None:
        # Accelerate keeps what it was given, not what it has wrapped that in, nor does torch lead there.
        inside = {id(model) for model in models}
        everything = gc.get_objects() if dist.is_initialized() else []
        found = [one for one in everything if issubclass(type(one), DistributedDataParallel)]
        self._models = [one for one in found if id(one.module) in inside]
        for model in self._models:
            for hook, state in model._comm_hooks:  # noqa: SLF001 - it has no public name
                _expect_stateless(getattr(hook, "__name__", repr(hook)), state)

    def expect_one(self) -> None:
        """Refuse a model whose gradients are not reduced, though the optimizer steps.

        Raises:
            ConfigError: so it is, as under Accelerate's LocalSGD.
        """
        for model in self._models:
            if not model.require_backward_grad_sync:
                raise ConfigError(
                    "LocalSGD, or no_sync around run.step(): each process has weights of its own then, and a "
                    "save holds those of one; leave it out, or train on one process"
                )


def _expect_stateless(hook: str, state: object) -> None:
    if type(state).__name__ in _STATEFUL:
        raise ConfigError(
            f"DDP's communication hook {hook}: what it carries over from step to step, each process for "
            f"itself, is not saved; use DDPCommunicationHookType.BF16 or FP16, or none"
        )
    if state is not None and not isinstance(state, dist.ProcessGroup):
        log.warning("DDP's communication hook %s has a state, %s, which is not saved", hook, type(state))
