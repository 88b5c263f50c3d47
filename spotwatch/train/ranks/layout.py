# SPDX-License-Identifier: Apache-2.0
"""How tensors lie on the ranks: what the ranks must agree on, who tracks what, and on which meshes.

It looks at names, shapes, meshes and placements, never at values, and sends nothing. Importing it does not
import torch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spotwatch.errors import ConfigError
from spotwatch.model import JSON
from spotwatch.train.ranks import sharing
from spotwatch.train.state import tensors

if TYPE_CHECKING:
    import torch

_SHOWN = 3
Holders = Mapping[str, Sequence[int]]
"""The ranks that track an object, by its name; of objects that are shared, or have shared tensors."""


def object_of(name: str) -> str:
    """Return the object that a tensor's name begins with."""
    return name.partition("/")[0]


def refuse_sums(shared: Mapping[str, torch.Tensor]) -> None:
    """Raise `ConfigError` for a DTensor that is a sum whose terms lie on several ranks."""
    for name, tensor in shared.items():
        if tensors.is_sharded(tensor) and any(one.is_partial() for one in _placements(tensor)):
            raise ConfigError(
                f"{name}: a DTensor that is a sum over ranks (Partial) cannot be saved; in state_dict() "
                "return it whole or in parts, tensor.redistribute(placements=...) with Replicate or Shard"
            )


def rows(objects: Mapping[str, object], shared: Mapping[str, torch.Tensor]) -> dict[str, list[JSON]]:
    """Return what all ranks that track an object must agree on, by the object's name."""
    result: dict[str, list[JSON]] = {name: [] for name, thing in objects.items() if sharing.is_shared(thing)}
    for name, tensor in sorted(shared.items()):
        row: list[JSON] = [name, str(tensor.dtype), list(tensor.shape), _lies(tensor)]
        result.setdefault(object_of(name), []).append(row)
    return result


def digests(found: Mapping[str, Sequence[JSON]]) -> dict[str, int]:
    """Return a checksum of each object's rows."""
    return {name: zlib.crc32(json.dumps(some).encode()) for name, some in found.items()}


def holders(told: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Return who tracks which object, from the digests of each rank."""
    result: dict[str, list[int]] = {}
    for rank, one in enumerate(told):
        for name in one:
            result.setdefault(name, []).append(rank)
    return result


def unequal(told: Sequence[Mapping[str, int]]) -> list[str]:
    """Return the objects whose digests differ on the ranks that track them; the same on each rank."""
    names = sorted({name for one in told for name in one})
    return [name for name in names if len({one[name] for one in told if name in one}) > 1]


def expect_agreement(
    found: Sequence[Mapping[str, Sequence[Any]]], together: Collection[str], names: Iterable[str]
) -> None:
    """Refuse objects that the ranks do not see alike.

    Objects of the program's own may have other DTensors on each rank, but not others by the same name.

    Args:
        found: of each rank, the rows of the objects whose digests differ.
        together: those objects that are the same on all ranks that track them.
        names: of these objects.

    Raises:
        ConfigError: two ranks differ; the message says in what.
    """
    for name in names:
        of_rank = {rank: {row[0]: row for row in one[name]} for rank, one in enumerate(found) if name in one}
        first, *others = of_rank
        for other in others:
            here, there = of_rank[first], of_rank[other]
            differ = [
                f"{one} is {_told(here[one])} on rank {first} and {_told(there[one])} on rank {other}"
                for one in here
                if one in there and here[one] != there[one]
            ]
            only = [f"{one} is on rank {first} only" for one in here if one not in there]
            only += [f"{one} is on rank {other} only" for one in there if one not in here]
            if differ or (only and name in together):
                shown = "; ".join((differ + only)[:_SHOWN])
                raise ConfigError(
                    f"rank {other} tracks other models than rank {first}, or of other shapes, under the name "
                    f"{name!r}: {shown}. All ranks must make the same model on the same mesh; what only some "
                    f"ranks have, as a stage of a pipeline, is tracked with its optimizer under names of its "
                    f'own, ck.track(**{{f"stage{{n}}": stage, f"optimizer{{n}}": optimizer}})'
                )


def mesh_note(objects: Mapping[str, object], flat: Mapping[str, torch.Tensor]) -> list[JSON]:
    """Return how the models' tensors lie on this rank's meshes: in words, and a checksum to compare by.

    Optimizers are left out: a fresh one has no state yet. Of objects whose class says that they are the same
    on all ranks, only the meshes count: adapters of a fresh model may be fewer tensors than were saved.
    """
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    models = {name for name, thing in objects.items() if isinstance(thing, torch.nn.Module)}
    others = {name for name, thing in objects.items() if sharing.says_shared(thing)} - models
    words: list[str] = []
    lie: dict[str, list[JSON]] = {}
    for name, tensor in sorted(flat.items()):
        owner = object_of(name)
        if tensors.is_sharded(tensor) and owner in models | others:
            mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]  # of DTensors
            words.append(_mesh(mesh))
            row = [name, _lies(tensor)] if owner in models else [owner, _mesh(mesh)]
            lie[json.dumps(row)] = [*row, mesh.mesh.tolist()]
    return [", ".join(dict.fromkeys(words)) or "no mesh", zlib.crc32(json.dumps([*lie.values()]).encode())]


def _lies(tensor: torch.Tensor) -> JSON:
    """Return mesh and placements; None for a whole tensor."""
    if not tensors.is_sharded(tensor):
        return None
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]  # of DTensors
    return [_mesh(mesh), [str(one) for one in _placements(tensor)]]


def _placements(tensor: Any) -> Sequence[Any]:
    placements: Sequence[Any] = tensor.placements
    return placements


def _mesh(mesh: Any) -> str:
    names = mesh.mesh_dim_names
    sizes = [str(size) for size in mesh.shape]
    return " x ".join(
        sizes if names is None else [f"{n}={size}" for n, size in zip(names, sizes, strict=True)]
    )


def _told(row: Sequence[Any]) -> str:
    _, dtype, shape, lies = row
    where = "whole" if lies is None else f"{', '.join(lies[1])} on a mesh of {lies[0]}"
    return f"{dtype.removeprefix('torch.')} {tuple(shape)} {where}"
