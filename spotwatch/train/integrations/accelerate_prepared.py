# SPDX-License-Identifier: Apache-2.0
"""What an Accelerator holds that makes up a run: all that its `save_state` would write, by names that stay.

It saves nothing, and refuses at the start what cannot be saved so.
"""

from __future__ import annotations

import logging
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.accelerate_apart import Replicas
from spotwatch.train.integrations.accelerate_loaders import Position
from spotwatch.train.integrations.accelerate_passes import Course

log = logging.getLogger("spotwatch.train")

_FITTING = frozenset({"NO", "MULTI_CPU", "MULTI_GPU"})
_INSTEAD = {
    "DEEPSPEED": "use FSDP2, FullyShardedDataParallelPlugin(fsdp_version=2), which shards the same",
    "MEGATRON_LM": "use FSDP2, or save with Megatron's own checkpointing",
    "FSDP": "FSDP1 keeps its parts in a form of its own; use FullyShardedDataParallelPlugin(fsdp_version=2)",
}
_LISTS = ("_models", "_optimizers", "_schedulers", "_custom_objects", "_dataloaders")


def check(accelerator: Any) -> None:
    """Refuse an Accelerator whose state cannot be saved, or that is of a version that works otherwise.

    Raises:
        ConfigError: with what to use instead.
    """
    wanted = (*_LISTS, "step", "sync_gradients", "gradient_state")
    missing = [name for name in wanted if not hasattr(accelerator, name)]
    if missing:
        raise ConfigError(
            f"an Accelerator without {', '.join(missing)}: this version works otherwise; "
            f"pip install accelerate==1.15.0"
        )
    kind = accelerator.distributed_type.value
    if kind not in _FITTING and not (kind == "FSDP" and accelerator.is_fsdp2):
        raise ConfigError(
            f"Accelerator: distributed_type {kind} cannot be saved: "
            f"{_INSTEAD.get(kind, 'its random state is not known; use CPUs, CUDA or ROCm')}"
        )
    if not accelerator.gradient_state.sync_with_dataloader:
        raise ConfigError(
            "GradientAccumulationPlugin(sync_with_dataloader=False): an epoch would end with gradients that "
            "no step has used, which a save does not hold; leave it out, so that its last batch makes a step"
        )


class Prepared:
    """The objects that an Accelerator has prepared or registered.

    Args:
        accelerator: with everything prepared.
        rereads: as `Position` takes it.

    Raises:
        ConfigError: nothing was prepared yet, a loader cannot be taken up again, or processes have models of
            their own.
    """

    def __init__(self, accelerator: Any, *, rereads: bool = False) -> None:
        if not accelerator._models:  # noqa: SLF001 - it has no public name
            raise ConfigError("nothing is prepared; call accelerator.prepare(...) before the run begins")
        self._accelerator = accelerator
        self._replicas = Replicas(accelerator._models)  # noqa: SLF001 - likewise
        self._replicas.expect_one()
        self.objects: dict[str, object] = {}
        self.positions: list[Position] = []
        self.course = Course()
        for number, loader in enumerate(accelerator._dataloaders):  # noqa: SLF001 - likewise
            name = _numbered("loader", number)
            position = Position(loader, name, self.course, rereads=rereads)
            self.positions.append(position)
            self.objects |= {name: position, f"{name}_luck": position.luck}
        optimizers = self.optimizers = [one.optimizer for one in accelerator._optimizers]  # noqa: SLF001 - likewise
        schedulers = [one.scheduler for one in accelerator._schedulers]  # noqa: SLF001 - likewise
        registered = accelerator._custom_objects  # noqa: SLF001 - likewise
        for kind, things in (
            ("model", accelerator._models),  # noqa: SLF001 - likewise
            ("optimizer", optimizers),
            ("scheduler", schedulers),
            ("registered", registered),
        ):
            unique = {id(thing): thing for thing in things}
            self.objects |= {_numbered(kind, number): thing for number, thing in enumerate(unique.values())}
        for one in accelerator._optimizers:  # noqa: SLF001 - likewise
            _look_for_scheduler(one, [*schedulers, *registered])
        self.stepped = list({id(one): one for one in (*optimizers, *schedulers, *registered)}.values())
        """What a program may step between the evaluations of one step."""
        scaler = getattr(accelerator, "scaler", None)
        self.objects |= {"scaler": scaler}
        # The objects themselves: as many others, prepared after free_memory, are not what is tracked.
        self._held = {name: list(getattr(accelerator, name)) for name in _LISTS}
        hooks = accelerator._save_model_state_pre_hook  # noqa: SLF001 - likewise
        if hooks:
            log.warning(
                "%d hooks of register_save_state_pre_hook are not called: each prepared model is saved, "
                "but nothing else that they write, such as averaged weights; give that to "
                "accelerator.register_for_checkpointing(...) before the run begins",
                len(hooks),
            )

    def expect_same(self) -> None:
        """Refuse what was prepared, registered or freed since, and weights that are not one model's.

        Raises:
            ConfigError: something was, or they are not: it would not be saved.
        """
        self._replicas.expect_one()
        for name, held in self._held.items():
            here = getattr(self._accelerator, name)
            # By identity, as lists compare: what may be replaced has no equality of its own.
            if here == held:
                continue
            if name == "_dataloaders" and here[: len(held)] == held:
                log.warning("a loader was prepared after the run had begun: where it is will not be saved")
                self._held[name] = list(here)
                continue
            raise ConfigError(
                "accelerator.prepare, register_for_checkpointing or free_memory after the run had begun: "
                "what is saved would not be what trains. Prepare everything before `with SpotwatchRun(...)`"
            )


def _numbered(kind: str, number: int) -> str:
    """Return the names of Accelerate's own files: `model`, `model_1`, ..."""
    return f"{kind}_{number}" if number else kind


def _look_for_scheduler(prepared: Any, saved: list[Any]) -> None:
    """Say of an optimizer that it has a scheduler which is not saved."""
    both = (prepared, prepared.optimizer)
    # torch marks the step of an optimizer that a scheduler is made for, and does not say by which.
    if not any(hasattr(one.step, "_wrapped_by_lr_sched") for one in both):
        return
    # A program's own object may have it inside, and saves it itself.
    inside = [part for one in saved for part in getattr(one, "__dict__", {}).values()]
    schedulers = [one for one in (*saved, *inside) if isinstance(one, LRScheduler)]
    if not any(scheduler.optimizer is one for scheduler in schedulers for one in both):
        log.warning(
            "an optimizer has a scheduler that is neither prepared nor registered: it is not saved, and "
            "begins anew in the next life; give it to accelerator.prepare(...)"
        )
