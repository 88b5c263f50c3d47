# SPDX-License-Identifier: Apache-2.0
"""The state of a run of many ranks, staged for one checkpoint: each rank copies its share.

Shared tensors are written once, whole or in pieces. How they come back is in `sharded_load`. It moves no
files and does not know when to save. Importing it does not import torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spotwatch.errors import ConfigError, NoRoom, StoreError
from spotwatch.model import JSON
from spotwatch.train.consensus import Consensus
from spotwatch.train.parts import Body, Held, part_bytes_for
from spotwatch.train.ranks import layout, sharing
from spotwatch.train.ranks.alike import Alike
from spotwatch.train.ranks.catalogue import Catalogue, own_from_json, own_to_json
from spotwatch.train.ranks.ranks import Ranks
from spotwatch.train.ranks.sharded_load import Loading
from spotwatch.train.ranks.sharing import Split
from spotwatch.train.registry.manifest import Manifest
from spotwatch.train.registry.registry import Registry
from spotwatch.train.state import tensors
from spotwatch.train.state.copying import Places, no_collection
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import Snapshot, State
from spotwatch.train.state.streaming import Streaming
from spotwatch.train.world import World

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from spotwatch.train.ranks.dcp_writer import Planner, Written

log = logging.getLogger("spotwatch.train")


@dataclass(frozen=True, slots=True)
class _Plan:
    """How saves are laid out, until a tensor changes."""

    signature: object
    planner: Planner
    written: Written
    catalogue: Catalogue | None
    """On the first rank only."""
    mesh: list[JSON]
    """How the models lie on this rank's meshes."""


class Sharded:
    """Captures and restores the state of all ranks together.

    Args:
        state: of this rank.
        staging: the buffer that saves and downloads go through.
        world: the ranks; one alone can restore what many have saved, and save DTensors.
        insists: give each rank the state of another where it differed by rank and there are more or fewer
            ranks now; else that is refused.
    """

    def __init__(self, state: State, staging: Staging, world: World, *, insists: bool = False) -> None:
        self._state = state
        self._staging = staging
        self._world = world
        self._insists = insists
        self._plan: _Plan | None = None
        self._holders: layout.Holders = {}
        self._alike = Alike()
        self._places: Places | None = None
        self._streaming = Streaming(staging)
        # Now, not in the first save, which training waits for: it takes seconds.
        from spotwatch.train.ranks import dcp_calls, dcp_writer  # noqa: PLC0415 - they import torch

        self._dcp_calls, self._dcp_writer = dcp_calls, dcp_writer

    def check(self) -> None:
        """Raise now what `capture` would say of the state as it is; all ranks call it together.

        Raises:
            ConfigError: a value has no safe form, or the ranks do not track the same.
            StoreError: so it is on another rank, or a rank has gone.
        """
        split, signature, _ = self._look_together(compares=False)
        has_parts = any(tensors.is_sharded(tensor) for tensor in split.shared.values())
        if any(self._world.everyone(has_parts)):
            # Parts that cannot be put together again are found out only by planning.
            self._plan = self._new_plan(split, signature)

    def capture(self) -> Snapshot:
        """Return this rank's share as it is now. All ranks call it together, and succeed or fail together.

        Where the tensors are as they were at the save before, no plan is made, and the ranks exchange two
        short messages: what training waits for is the copy. Buffers that differ by rank are stored by rank.

        Raises:
            ConfigError: a value has no safe form, or the ranks do not track the same.
            StoreError: there is no memory for it, a rank has gone, or it failed on another rank.
        """
        with no_collection():
            return self._capture()

    def _capture(self) -> Snapshot:
        split, signature, has_changed = self._look_together(compares=self._world.size > 1)
        if has_changed or self._plan is None:
            self._plan = self._new_plan(split, signature)
        plan = self._plan
        body, is_copy = Consensus(self._world, _nothing).reach(lambda: self._stage(plan, split))
        catalogue = None if plan.catalogue is None else plan.catalogue.to_json()
        state: Any = split.state
        return Snapshot(body, {**state, "mesh": plan.mesh}, catalogue, is_copy=is_copy)

    def warm(self) -> None:
        """Have the buffer that a save takes about now put into memory, by a thread; return at once.

        Raises:
            ConfigError: a value has no safe form.
        """
        split = self._split()
        share = sum(t.nbytes for t in split.shared.values() if not tensors.is_sharded(t)) // self._world.size
        mine = [_local(t) for t in split.shared.values() if tensors.is_sharded(t)] + [*split.own.values()]
        try:
            self._staging.warm(share + sum(tensor.nbytes for tensor in mine))
        except NoRoom as error:
            log.debug("%s", error)  # the save will say so, and go another way

    def restore(self, manifest: Manifest, registry: Registry, between: Callable[[], None]) -> None:
        """Put everything back as the manifest says, on as many ranks as there are now; all call it together.

        No object is touched unless every byte that any rank needs has been verified.

        Args:
            manifest: of a checkpoint, by one rank or by many.
            registry: of the run.
            between: called several times a second; what it raises ends it on all ranks.

        Raises:
            CheckpointCorrupt: something does not verify, on some rank.
            StoreError: the store cannot be read, or the checkpoint is sound, but of another program.
        """
        loading = Loading(self._state, self._staging, self._world, insists=self._insists)
        loading.load(manifest, registry.store, between, group_of(self._world))

    def _split(self) -> Split:
        objects = self._state.objects
        sharing.refuse_foreign(objects)
        import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

        with torch.no_grad():  # else each look at a DTensor's part is an operation of its own
            state, flat = self._state.encode(sharded=True)
        return sharing.split(objects, state, flat)

    def _look_together(self, *, compares: bool) -> tuple[Split, object, bool]:
        """Return what there is to save, and whether any rank has to have a new plan for it.

        Args:
            compares: look whether the ranks hold alike what they should; training has begun.
        """
        problem: Exception | None = None
        row: list[Any]
        try:
            split = self._split()
            signature = _signature(split)
            has_changed = self._plan is None or self._plan.signature != signature
            if has_changed:
                layout.refuse_sums(split.shared)
                self._alike.forget()
            seen = self._alike.look(self._state.objects, split.shared) if compares else {}
            row = ["", has_changed, seen]
        except (ConfigError, StoreError) as error:
            problem = error
            row = [str(error), True, {}]
        rows: list[Any] = self._world.everyone(row)
        if problem is not None:
            raise problem
        for rank, (told, _, _) in enumerate(rows):
            if told:
                raise StoreError(f"rank {rank}: {told}")
        has_changed = any(row[1] for row in rows)
        if has_changed:
            self._agree(split)
        if differ := self._alike.differ([row[2] for row in rows]):
            sums: list[Any] = self._world.everyone(self._alike.sums(differ, split.shared))
            has_changed |= self._alike.learn(sums, speaks=self._world.is_first)
        elsewhere = [name for name in self._together() if self._holders[name][0] != self._world.rank]
        by_rank = [name for name in self._alike.by_rank if layout.object_of(name) in elsewhere]
        return sharing.with_own(sharing.without(split, elsewhere), by_rank), signature, has_changed

    def _agree(self, split: Split) -> None:
        """Learn who tracks what; raise `ConfigError` on all ranks where what must be the same is not."""
        found = layout.rows(self._state.objects, split.shared)
        together = self._together()
        told: list[Any] = self._world.everyone([layout.digests(found), together])
        digests = [one[0] for one in told]
        self._holders = layout.holders(digests)
        unequal = layout.unequal(digests)
        if unequal:
            rows: list[Any] = self._world.everyone({name: found[name] for name in unequal if name in found})
            layout.expect_agreement(rows, {name for one in told for name in one[1]}, unequal)

    def _together(self) -> list[str]:
        return [name for name, thing in self._state.objects.items() if sharing.is_shared(thing)]

    def _new_plan(self, split: Split, signature: object) -> _Plan:
        self._plan = None
        owners = sharing.owners(self._state.objects, split.shared, self._holders)
        planner = self._dcp_writer.Planner(owners, self._world.rank)
        writer = self._dcp_writer.Writer(self._world.rank, split.own)
        self._dcp_calls.plan_save(split.shared, writer, planner, group_of(self._world))
        if writer.written is None:
            raise AssertionError("torch has planned nothing")
        own = self._world.everyone(own_to_json(writer.written.own))
        catalogue = None
        if self._world.is_first:
            catalogue = Catalogue(writer.entries, [own_from_json(places) for places in own])
        mesh = layout.mesh_note(self._state.objects, split.shared)
        return _Plan(signature, planner, writer.written, catalogue, mesh)

    def _stage(self, plan: _Plan, split: Split) -> tuple[Body, bool]:
        import torch  # noqa: PLC0415 - as above

        plan.planner.set_up_planner(split.shared)
        named: dict[str, torch.Tensor] = dict(split.own)
        with torch.no_grad():  # likewise
            for name, item in plan.written.items.items():
                named[name] = plan.planner.resolve_data(item)  # type: ignore[assignment]  # bytes are refused
        layout = plan.written.layout
        size = layout.size_bytes
        try:
            self._staging.settle()
            buffer = self._staging.reserve(size)
        except NoRoom as error:
            return self._streaming.body(layout, named, error), False
        try:
            if self._places is None or self._places.layout is not layout or not self._is_here(self._places):
                self._places = Places(layout, buffer)
            self._places.fill(named)
        except RuntimeError as error:  # torch's own lack of memory is one
            raise StoreError(f"cannot copy {size} bytes of state: {error!r}") from error
        return Held(buffer, part_bytes_for(size), self._staging.fd), True

    def _is_here(self, places: Places) -> bool:
        return self._staging.holds(places.buffer)


def group_of(world: World) -> ProcessGroup | None:
    """Return the process group by which the ranks plan together; None: this process is alone."""
    return world.front.process_group if isinstance(world, Ranks) else None


def _nothing() -> None:
    """Let the ranks go on: a stop does not end a save."""


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local()
    return local


def _signature(split: Split) -> object:
    return [
        (name, tensor.dtype, tensor.shape, getattr(tensor, "placements", None), name in split.own)
        for group in (split.shared, split.own)
        for name, tensor in group.items()
    ]
