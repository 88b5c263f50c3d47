# SPDX-License-Identifier: Apache-2.0
"""Which part of a run's state is the same on all ranks, and which rank writes what of it.

Models, optimizers, schedulers and scalers of torch, and objects whose class says so by
`is_same_on_all_ranks`, are of all ranks together: the first rank's word counts, and their tensors are spread
over the ranks. Everything else (random generators, loaders, objects of the
program) is each rank's own. Nothing is copied or sent here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spotwatch.errors import ConfigError
from spotwatch.model import JSON
from spotwatch.train.ranks.catalogue import names_in
from spotwatch.train.state import tensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Split:
    """The state of one rank, apart."""

    state: JSON
    """What goes into this rank's part of the manifest."""
    shared: dict[str, torch.Tensor]
    """Tensors of all ranks together, by name."""
    own: dict[str, torch.Tensor]
    """Tensors of this rank alone."""


def is_shared(thing: object) -> bool:
    """Tell whether an object is the same on all ranks, but for the parts of its tensors."""
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    kinds = (
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.optim.lr_scheduler.LRScheduler,
        torch.amp.grad_scaler.GradScaler,
    )
    return isinstance(thing, kinds) or says_shared(thing)


def says_shared(thing: object) -> bool:
    """Tell whether an object is so because its class says it."""
    return getattr(type(thing), "is_same_on_all_ranks", False) is True


def refuse_foreign(objects: Mapping[str, object]) -> None:
    """Raise `ConfigError` for what keeps parts of tensors in a form that only its own library reads."""
    problems = []
    for name, thing in objects.items():
        if any(base.__name__ == "FullyShardedDataParallel" for base in type(thing).__mro__):
            problems.append(f"{name}: FSDP1 cannot be saved; use torch.distributed.fsdp.fully_shard (FSDP2)")
        if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(thing).__mro__):
            problems.append(f"{name}: ZeroRedundancyOptimizer cannot be saved; use FSDP2")
    if problems:
        raise ConfigError(*problems)


def split(
    objects: Mapping[str, object],
    state: Any,
    flat: Mapping[str, torch.Tensor],
) -> Split:
    """Return what this rank's state is made of.

    A tensor that an object of all ranks names is of all ranks, and so is every DTensor.

    Args:
        objects: that are tracked.
        state: as `State.encode` returns it.
        flat: the tensors that it names.
    """
    together = [name for name, thing in objects.items() if is_shared(thing)]
    named = set(names_in([state["objects"][name] for name in together]))
    shared = {name: t for name, t in flat.items() if name in named or tensors.is_sharded(t)}
    return Split(
        {"objects": state["objects"], "rng": state["rng"]},
        shared,
        {name: tensor for name, tensor in flat.items() if name not in shared},
    )


def without(split: Split, names: Collection[str]) -> Split:
    """Return the same, but for what other ranks tell of objects of all ranks."""
    state: Any = split.state
    kept = {name: value for name, value in state["objects"].items() if name not in names}
    return replace(split, state={**state, "objects": kept})


def with_own(split: Split, names: Collection[str]) -> Split:
    """Return the same, with shared tensors of these names kept for this rank alone too."""
    own = {name: tensor for name, tensor in split.shared.items() if name in names}
    return replace(split, own=split.own | own)


def buffer_names(objects: Mapping[str, object]) -> set[str]:
    """Return the names that buffers of models have in the state."""
    return {
        f"{name}/{path}"
        for name, thing in objects.items()
        if hasattr(thing, "named_buffers")
        for path, _ in thing.named_buffers(remove_duplicate=False)
    }


def owners(
    objects: Mapping[str, object], shared: Mapping[str, torch.Tensor], holders: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Return which rank writes each tensor that several hold whole; the same on all that hold it.

    Buffers are the first one's, as DistributedDataParallel has it; where they differ, the others store their
    own besides. All else goes to whoever has least so far.

    Args:
        objects: that are tracked.
        shared: tensors, by name.
        holders: the ranks that track an object, by its name.
    """
    whole = {name: tensor for name, tensor in shared.items() if not tensors.is_sharded(tensor)}
    buffers = buffer_names(objects)
    # Counted apart for each group of ranks: what the others track besides, a rank does not know.
    loads: dict[tuple[int, ...], list[int]] = {}
    result = {}
    for name, tensor in sorted(whole.items(), key=lambda item: (-item[1].nbytes, item[0])):
        group = tuple(holders[name.partition("/")[0]])
        load = loads.setdefault(group, [0] * len(group))
        at = 0 if name in buffers else load.index(min(load))
        load[at] += tensor.nbytes
        result[name] = group[at]
    return result
