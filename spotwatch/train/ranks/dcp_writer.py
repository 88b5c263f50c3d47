# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint as a planner of saves: which rank writes which piece, and where.

It moves no bytes: the same plan serves every save until a tensor changes its shape, so that a save waits for
copies alone. Import it only where torch is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from spotwatch.errors import ConfigError
from spotwatch.train.ranks.catalogue import Entry, Piece
from spotwatch.train.state import tensors
from spotwatch.train.state.tensors import Layout, Place


class Planner(DefaultSavePlanner):
    """Plans a save in which each tensor that all ranks hold whole has one writer, given beforehand.

    Args:
        owners: the rank that writes each whole tensor, by name; the same on all ranks.
        rank: this one.
    """

    def __init__(self, owners: Mapping[str, int], rank: int) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._owners = owners
        self._rank = rank

    def create_local_plan(self) -> SavePlan:
        """Return what this rank writes; of DTensors that are replicated, torch chooses the writer later."""
        plan = super().create_local_plan()
        mine = [item for item in plan.items if self._owners.get(item.index.fqn, self._rank) == self._rank]
        for item in mine:
            _expect_box(item, self.resolve_data(item))
        self.plan = replace(plan, items=mine)
        return self.plan


def _expect_box(item: WriteItem, tensor: object) -> None:
    """Refuse a part that torch describes as another one than it is."""
    if item.tensor_data is None or not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{item.index.fqn}: no tensor")
    told, found = tuple(item.tensor_data.chunk.sizes), tuple(tensor.shape)
    if told != found:
        raise ConfigError(
            f"{item.index.fqn}: this rank holds {found} of {tuple(item.tensor_data.size)}, and by its mesh "
            f"and placements it would be {told}: let each dimension divide by the ranks that share it"
        )


@dataclass(frozen=True, slots=True)
class Written:
    """What one rank's file is made of."""

    layout: Layout
    items: Mapping[str, WriteItem]
    """Which piece each tensor of the file is, by its name there; the rest is the rank's own."""
    own: Mapping[str, Place]
    """Tensors of this rank alone, by name."""


class Writer(StorageWriter):
    """Takes a plan down instead of carrying it out.

    Args:
        rank: this one.
        own: tensors of this rank alone, which go into the same file.
    """

    def __init__(self, rank: int, own: Mapping[str, torch.Tensor]) -> None:
        self._rank = rank
        self._own = own
        self.written: Written | None = None
        """What this rank writes."""
        self.entries: dict[str, Entry] = {}
        """All tensors of all ranks; on the first rank only."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Lay out this rank's file, and tell where each piece will lie."""
        items: dict[str, WriteItem] = {}
        named = dict(self._own)
        for item in plan.items:
            name = item.index.fqn
            if item.type == WriteItemType.SHARD:
                name += "@" + ",".join(str(offset) for offset in item.index.offset or ())
            while name in named:
                name += "~"
            tensor = planner.resolve_data(item)
            if not isinstance(tensor, torch.Tensor):
                raise ConfigError(f"{item.index.fqn}: no tensor")
            items[name], named[name] = item, tensor
        layout = tensors.plan(named)
        places = {place.name: place for place in layout.places}
        self.written = Written(layout, items, {name: places[name] for name in self._own})
        results = [
            WriteResult(
                index=item.index,
                size_in_bytes=places[name].end - places[name].begin,
                storage_data=(self._rank, places[name].dtype, places[name].begin, places[name].end),
            )
            for name, item in items.items()
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Put together where everything lies, on the first rank."""
        where: dict[tuple[str, tuple[int, ...]], Any] = {
            (result.index.fqn, tuple(result.index.offset or ())): result.storage_data
            for of_rank in results
            for result in of_rank
        }
        for name, tensor in metadata.state_dict_metadata.items():
            if not isinstance(tensor, TensorStorageMetadata):
                raise ConfigError(f"{name}: no tensor")
            pieces = []
            dtype = ""
            for chunk in tensor.chunks:
                rank, dtype, begin, end = where[name, tuple(chunk.offsets)]
                pieces.append(Piece(tuple(chunk.offsets), tuple(chunk.sizes), rank, begin, end))
            self.entries[name] = Entry(dtype, tuple(tensor.size), tuple(pieces))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one plan to the next."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing is opened."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans as they are."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - torch's
        """Tell torch not to choose this one by a path."""
        return False
