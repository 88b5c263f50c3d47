# SPDX-License-Identifier: Apache-2.0
"""Where shared tensors of a checkpoint go: a model's own, or new ones like the parameters they serve.

A fresh optimizer has no state yet, so the parts of its state that this rank will hold follow from its
parameters. Nothing is read or changed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spotwatch.errors import StoreError
from spotwatch.model import JSON
from spotwatch.train.ranks.catalogue import Catalogue, Entry, names_in
from spotwatch.train.state import tensors
from spotwatch.train.state.tensors import Place

if TYPE_CHECKING:
    import torch

_SHOWN = 5
_STATE = re.compile(r"state/(\d{1,9})/")


def targets(
    wanted: Iterable[str],
    catalogue: Catalogue,
    objects: Mapping[str, object],
    flat: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return a tensor or DTensor for each wanted name, of the shape that was saved.

    Args:
        wanted: names of shared tensors in the checkpoint.
        catalogue: of the checkpoint.
        objects: that are tracked, by name.
        flat: their tensors as they are now.

    Raises:
        StoreError: a tensor of a model has another shape now.
    """
    problems = []
    result = {}
    for name in wanted:
        entry = catalogue.tensors[name]
        now = flat.get(name)
        fits = now is not None and tuple(now.shape) == entry.shape
        if now is not None and _is_module(objects.get(name.partition("/")[0])):
            if not fits:
                problems.append(f"{name} has the shape {entry.shape}, and {tuple(now.shape)} here")
            result[name] = now
        elif now is not None and fits and tensors.is_sharded(now):
            result[name] = _new_like(now, entry)
        else:
            # A counter of steps may have the shape of a parameter that is one number, and is not like it.
            parameter = None if name.endswith("/step") else _parameter(objects, name)
            if parameter is not None and tuple(parameter.shape) == entry.shape:
                result[name] = _new_like(parameter, entry)
            else:
                result[name] = _new(entry)
    if problems:
        raise StoreError(_told("the checkpoint is of another model", problems))
    return result


def expect_same_names(
    objects: Mapping[str, object], saved: Mapping[str, JSON], now: Mapping[str, JSON]
) -> None:
    """Refuse a checkpoint whose models have other tensors than those here, before any is touched.

    Args:
        objects: that are tracked, by name.
        saved: their encoded state in the checkpoint.
        now: their encoded state here.

    Raises:
        StoreError: names differ.
    """
    problems = []
    for name, thing in objects.items():
        if not _is_module(thing) or not _is_strict(thing):
            continue
        there, here = set(names_in(saved[name])), set(names_in(now[name]))
        problems += [f"{one} is in the checkpoint only" for one in sorted(there - here)]
        problems += [f"{one} is not in the checkpoint" for one in sorted(here - there)]
    if problems:
        raise StoreError(_told("the checkpoint is of another model", problems))


def _told(what: str, problems: list[str]) -> str:
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return f"{what}: {'; '.join(problems[:_SHOWN])}{more}"


def _is_module(thing: object) -> bool:
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    return isinstance(thing, torch.nn.Module)


def _is_strict(thing: Any) -> bool:
    # A module with a load_state_dict of its own may take more or less than it has.
    return bool(type(thing).load_state_dict.__module__.startswith("torch.nn."))


def _parameter(objects: Mapping[str, object], name: str) -> torch.Tensor | None:
    """Return the parameter whose state `name`, `<optimizer>/state/<index>/...`, is; None without one."""
    import torch  # noqa: PLC0415 - as above

    owner, _, path = name.partition("/")
    thing = objects.get(owner)
    match = _STATE.match(path)
    if match is None or not isinstance(thing, torch.optim.Optimizer):
        return None
    parameters = [one for group in thing.param_groups for one in group["params"]]
    index = int(match[1])
    return parameters[index] if index < len(parameters) else None


def _new_like(other: torch.Tensor, entry: Entry) -> torch.Tensor:
    import torch  # noqa: PLC0415 - as above

    return torch.empty_like(other, dtype=_new_dtype(entry), requires_grad=False)


def _new(entry: Entry) -> torch.Tensor:
    import torch  # noqa: PLC0415 - as above

    return torch.empty(entry.shape, dtype=_new_dtype(entry))


def _new_dtype(entry: Entry) -> torch.dtype:
    return tensors.view(bytearray(), Place("", entry.dtype, (0,), 0, 0)).dtype
