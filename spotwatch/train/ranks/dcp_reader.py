# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint as a reader of our files: fetch, verify on all ranks, then copy.

It opens none of torch's own checkpoint files and unpickles nothing. Import it only where torch is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner import LoadPlanner as AnyLoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from spotwatch.errors import CheckpointCorrupt
from spotwatch.train.ranks.catalogue import Catalogue, Piece
from spotwatch.train.state import tensors
from spotwatch.train.state.tensors import Place

Ranges = Mapping[int, Sequence[tuple[int, int]]]
"""(first byte, byte after the last) of the wanted ranges, by the saved rank whose file holds them."""
Fetch = Callable[[Ranges], Mapping[int, Sequence[memoryview]]]
"""Returns the bytes of the ranges, in their order, verified here and on all other ranks; else it raises."""


class LoadPlanner(DefaultLoadPlanner):
    """Plans the load of tensors, and of nothing else: what torch calls bytes is a pickle."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> LoadPlan:
        """Return the plan; raise `CheckpointCorrupt` when it would read anything but tensors."""
        plan = super().create_local_plan()
        for item in plan.items:
            if item.type != LoadItemType.TENSOR:
                raise CheckpointCorrupt(f"{item.dest_index.fqn}: no tensor, and nothing else is read")
        return plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Refuse it."""
        del value
        raise CheckpointCorrupt(f"{read_item.dest_index.fqn}: no tensor, and nothing else is read")


class Reader(StorageReader):
    """Reads tensors of one checkpoint.

    No tensor is touched unless everything has been verified on all ranks.

    Args:
        catalogue: of the checkpoint.
        fetch: reads ranges of its files.
        own: (saved rank, name) of each tensor to read that is a saved rank's own.
        check: asked about those, before anything is copied; what it raises ends the load.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        fetch: Fetch,
        own: Sequence[tuple[int, str]],
        check: Callable[[Mapping[tuple[int, str], torch.Tensor]], None],
    ) -> None:
        self._catalogue = catalogue
        self._fetch = fetch
        self._own = own
        self._check = check
        self.own: dict[tuple[int, str], torch.Tensor] = {}
        """The tensors of `own`; they lie in the memory that `fetch` returned."""
        self.failure: Exception | None = None
        """Why nothing was copied; the caller raises it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002 - torch's signature
        """Return the catalogue in torch's words."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=_empty(entry.dtype).dtype),
                    torch.Size(entry.shape),
                    [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in entry.pieces],
                )
                for name, entry in self._catalogue.tensors.items()
            }
        )

    def read_data(self, plan: LoadPlan, planner: AnyLoadPlanner) -> Future[None]:
        """Fetch what the plan and `own` need, then copy.

        A failure is kept, not raised: torch would pickle it for the other ranks, and they have it already.
        """
        try:
            self._read(plan, planner)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self.failure = error
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read(self, plan: LoadPlan, planner: AnyLoadPlanner) -> None:
        boxes = [_Box(self._catalogue, item) for item in plan.items]
        ranges: dict[int, list[tuple[int, int]]] = {}
        for box in boxes:
            ranges.setdefault(box.piece.rank, []).append((box.begin, box.end))
        places = [(rank, self._catalogue.own[rank][name]) for rank, name in self._own]
        for rank, place in places:
            ranges.setdefault(rank, []).append((place.begin, place.end))
        fetched = {rank: iter(views) for rank, views in self._fetch(ranges).items()}
        sources = [box.tensor(next(fetched[box.piece.rank])) for box in boxes]
        for (rank, name), (_, place) in zip(self._own, places, strict=True):
            view = next(fetched[rank])
            self.own[rank, name] = tensors.view(view, Place(name, place.dtype, place.shape, 0, len(view)))
        self._check(self.own)
        with torch.no_grad():
            for source, item in zip(sources, plan.items, strict=True):
                target = planner.resolve_tensor(item)
                target.copy_(source)
                planner.commit_tensor(item, target)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one load to the next."""

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing is opened."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - torch's
        """Tell torch not to choose this one by a path."""
        return False


class _Box:
    """A box of a saved piece that this rank wants: the shortest range of bytes that holds it."""

    def __init__(self, catalogue: Catalogue, item: ReadItem) -> None:
        entry = catalogue.tensors[item.storage_index.fqn]
        offsets = tuple(item.storage_index.offset or ())
        self.piece: Piece = next(p for p in entry.pieces if p.offsets == offsets and 0 not in p.sizes)
        self._dtype = entry.dtype
        self._sizes = tuple(item.lengths)
        self._strides = _strides(self.piece.sizes)
        first = _dot(item.storage_offsets, self._strides)
        last = first + _dot([size - 1 for size in self._sizes], self._strides)
        element_bytes = _empty(entry.dtype).element_size()
        self.begin = self.piece.begin + first * element_bytes
        self.end = self.piece.begin + (last + 1) * element_bytes

    def tensor(self, view: memoryview) -> torch.Tensor:
        """Return the box as a view of its bytes."""
        count = len(view) // _empty(self._dtype).element_size()
        row = tensors.view(view, Place("", self._dtype, (count,), 0, len(view)))
        return row.as_strided(self._sizes, self._strides)


def _strides(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def _dot(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _empty(dtype: str) -> torch.Tensor:
    return tensors.view(bytearray(), Place("", dtype, (0,), 0, 0))
