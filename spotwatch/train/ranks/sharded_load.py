# SPDX-License-Identifier: Apache-2.0
"""A checkpoint comes back on all ranks: each reads the pieces that it needs, all verify, then all restore.

Which state a rank takes of those that single ranks have saved is in `resized`, where tensors go in
`load_targets`. Importing it does not import torch.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spotwatch.errors import CheckpointCorrupt, StoreError
from spotwatch.model import JSON
from spotwatch.train.consensus import Consensus
from spotwatch.train.ranks import layout, resized, sharing
from spotwatch.train.ranks.catalogue import Catalogue, names_in
from spotwatch.train.ranks.chance import Chance, chance_items, digests
from spotwatch.train.ranks.load_targets import expect_same_names, targets
from spotwatch.train.registry.download import covering_bytes, fetch_parts
from spotwatch.train.registry.manifest import RANK_FILE, Manifest
from spotwatch.train.state import tensors
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import State
from spotwatch.train.store import Store
from spotwatch.train.world import World

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

log = logging.getLogger("spotwatch.train")

# So that no element of a tensor lies across two words, whatever the file before it left over.
_ALIGNED_BYTES = 64
_LENGTH_BYTES = 8
# asm-generic/mman-common.h; Python names it from 3.13 on.
_NO_RESERVE = 0x4000
Own = Mapping[tuple[int, str], "torch.Tensor"]
"""Tensors of single saved ranks, by saved rank and name."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What this rank takes from one checkpoint."""

    catalogue: Catalogue
    state: dict[str, Any]
    """Encoded, as `State.restore_from` takes it."""
    targets: dict[str, Any]
    """Where shared tensors go, by name."""
    source: int
    """The saved rank whose own state this one takes."""
    own: list[tuple[int, str]]
    """Tensors to read of single ranks: those of `source`, and those of others to compare them with."""
    states: Sequence[Mapping[str, Any]]
    """Of each saved rank."""


@dataclass(frozen=True, slots=True)
class _Here:
    """This rank before anything is restored."""

    encoded: Any
    flat: dict[str, torch.Tensor]
    mesh: list[JSON]
    chance: dict[str, int]
    """A checksum of each random state."""


class Loading:
    """Restores one checkpoint into this rank.

    Args:
        state: of this rank.
        staging: the buffer that downloads lie in until all ranks have verified theirs.
        world: the ranks now.
        insists: take what comes where the state of single ranks differed and their number is another.
    """

    def __init__(self, state: State, staging: Staging, world: World, *, insists: bool) -> None:
        self._state = state
        self._staging = staging
        self._world = world
        self._insists = insists
        self._is_changed = False

    def load(
        self, manifest: Manifest, store: Store, between: Callable[[], None], group: ProcessGroup | None
    ) -> None:
        """Restore everything; raise as `Sharded.restore`."""
        from spotwatch.train.ranks import dcp_calls, dcp_reader  # noqa: PLC0415 - they import torch

        consensus = Consensus(self._world, between)
        here = consensus.reach(self._here)
        rows: list[Any] = self._world.everyone([here.mesh, here.chance, [*self._state.objects]])
        # Asked of all, so that each rank comes to the same answer.
        self._is_changed = _is_changed([row[0] for row in rows], manifest)
        wanted = consensus.reach(lambda: self._look(manifest, store, between, here))
        if self._world.is_first:
            _warn_of_lost(wanted.states, {name for row in rows for name in row[2]})

        def fetch(ranges: dcp_reader.Ranges) -> dict[int, list[memoryview]]:
            return consensus.reach(lambda: self._fetch(manifest, store, between, ranges))

        reader = dcp_reader.Reader(wanted.catalogue, fetch, wanted.own, partial(self._check, wanted))
        dcp_calls.load(wanted.targets, reader, group)
        own = {name: tensor for (rank, name), tensor in reader.own.items() if rank == wanted.source}
        if not self._is_changed:
            self._state.restore_from(wanted.targets | own, wanted.state)
            return
        self._tell(manifest, rows[0][0])
        chance = Chance(self._state.objects, wanted.states, reader.own)
        choices = chance.choices(self._world.rank, [row[1] for row in rows])
        state, tensors_of = chance.taken(wanted.state, choices)
        self._state.restore_from(wanted.targets | own | tensors_of, state)
        chance.draw_anew(manifest.step, choices)

    def _here(self) -> _Here:
        objects = self._state.objects
        encoded: Any
        encoded, flat = self._state.encode(sharded=True)
        items = chance_items(encoded, objects)
        return _Here(encoded, flat, layout.mesh_note(objects, flat), digests(items, flat))

    def _tell(self, manifest: Manifest, mesh: Sequence[Any]) -> None:
        if not self._world.is_first:
            return
        saved: Any = _states(manifest)[0].get("mesh")
        log.warning(
            "%s was saved by %d ranks%s, and %d go on with it%s: training is not bit-identical",
            manifest.dir,
            manifest.world_size,
            "" if saved is None else f" ({saved[0]})",
            self._world.size,
            "" if saved is None else f" ({mesh[0]})",
        )

    def _look(self, manifest: Manifest, store: Store, between: Callable[[], None], here: _Here) -> _Wanted:
        states = _states(manifest)
        objects = self._state.objects
        together = [name for name, thing in objects.items() if sharing.is_shared(thing)]
        source = resized.source_of(self._world.rank, len(states))
        # A shared object is told by the first rank that tracked it.
        told_by = {name: _first_with(name, states) if name in together else source for name in objects}
        missing = [name for name in objects if name not in states[told_by[name]]["objects"]]
        if missing:
            there = sorted({name for one in states for name in one["objects"]})
            raise StoreError(
                f"the checkpoint has no {', '.join(sorted(missing))}; it has "
                f"{', '.join(there)}: track the same objects, or start another run_id"
            )
        chosen = {name: states[told_by[name]]["objects"][name] for name in objects}
        catalogue = self._catalogue(manifest, store, between)
        expect_same_names(objects, chosen, here.encoded["objects"])
        state = {"objects": chosen, "rng": states[source].get("rng")}
        names = list(dict.fromkeys(names_in(state)))
        mine = set(catalogue.own[source])
        if self._is_changed:  # then buffers that differed by rank are the first one's
            mine -= {name for name in catalogue.tensors if layout.object_of(name) in together}
        own = [(source, name) for name in names if name in mine]
        shared = [name for name in names if name not in mine]
        unknown = [name for name in shared if name not in catalogue.tensors]
        if unknown:
            raise CheckpointCorrupt(f"the manifest names tensors that are nowhere: {', '.join(unknown[:5])}")
        if self._is_changed:
            for rank, one in enumerate(states):
                others = {name: one["objects"].get(name) for name in objects if name not in together}
                compared = dict.fromkeys(names_in([others, one.get("rng")]))
                own += [(rank, name) for name in compared if name in catalogue.own[rank]]
        into = targets(shared, catalogue, objects, here.flat)
        return _Wanted(catalogue, state, into, source, list(dict.fromkeys(own)), states)

    def _catalogue(self, manifest: Manifest, store: Store, between: Callable[[], None]) -> Catalogue:
        if manifest.tensors is not None:
            return Catalogue.from_json(manifest.tensors, manifest.world_size)
        file = manifest.files[0]
        key = f"{manifest.dir}/{file.name}"

        def begin(size_bytes: int) -> bytearray:
            ranges = [(0, min(size_bytes, file.size_bytes))]
            buffer = bytearray(covering_bytes(file, ranges))
            fetch_parts(store, key, file, ranges, memoryview(buffer), between)
            return buffer

        head = begin(_LENGTH_BYTES)
        length = _LENGTH_BYTES + int.from_bytes(head[:_LENGTH_BYTES], "little")
        if length > file.size_bytes:
            raise CheckpointCorrupt(f"{key}: a header of {length} bytes in a file of {file.size_bytes}")
        if length > len(head):
            head = begin(length)
        # As large as the file, but only what the header fills is ever in memory.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        whole = mmap.mmap(-1, file.size_bytes, flags=flags)
        whole[:length] = head[:length]
        with memoryview(whole) as view:
            return Catalogue.of_file(tensors.read(view))

    def _fetch(
        self,
        manifest: Manifest,
        store: Store,
        between: Callable[[], None],
        ranges: Mapping[int, Sequence[tuple[int, int]]],
    ) -> dict[int, list[memoryview]]:
        sizes = {rank: covering_bytes(manifest.files[rank], wanted) for rank, wanted in ranges.items()}
        room = {rank: -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for rank, size in sizes.items()}
        buffer = self._staging.reserve(sum(room.values()), margin_bytes=0)
        result = {}
        at = 0
        for rank, wanted in ranges.items():
            file = manifest.files[rank]
            target = buffer[at : at + sizes[rank]]
            at += room[rank]
            result[rank] = fetch_parts(store, f"{manifest.dir}/{file.name}", file, wanted, target, between)
        return result

    def _check(self, wanted: _Wanted, own: Own) -> None:
        """Refuse to divide anew what differed by rank; the same on every rank, before anything is touched."""
        if not self._is_changed:
            return
        for name, thing in self._state.objects.items():
            if sharing.is_shared(thing) or resized.is_generator(thing):
                continue
            states = [one["objects"].get(name) for one in wanted.states]
            resized.expect_equal(name, states, _contents(states, own), insists=self._insists)


def _states(manifest: Manifest) -> list[Mapping[str, Any]]:
    states = [manifest.state[RANK_FILE.format(rank)] for rank in range(manifest.world_size)]
    result: list[Mapping[str, Any]] = []
    for rank, state in enumerate(states):
        if not isinstance(state, dict) or not isinstance(state.get("objects"), dict):
            raise CheckpointCorrupt(f"the manifest holds no state of rank {rank}")
        result.append(state)
    return result


def _first_with(name: str, states: Sequence[Mapping[str, Any]]) -> int:
    return next((rank for rank, one in enumerate(states) if name in one["objects"]), 0)


def _warn_of_lost(states: Sequence[Mapping[str, Any]], tracked: Collection[str]) -> None:
    for name in sorted({name for one in states for name in one["objects"]} - set(tracked)):
        log.warning(
            "the checkpoint holds %r, which no rank tracks any more: it will not be saved again", name
        )


def _is_changed(meshes: Sequence[JSON], manifest: Manifest) -> bool:
    """Tell whether the ranks are others than those that have saved, by number or by the meshes they make."""
    states = _states(manifest)
    if len(states) != len(meshes):
        return True
    # Without a note, an earlier build or a single process has saved it.
    return any("mesh" in one and one["mesh"] != mesh for one, mesh in zip(states, meshes, strict=True))


def _contents(states: Sequence[JSON], own: Own) -> list[list[bytes]]:
    """Return the bytes of the tensors that each rank's state names of its own."""
    return [
        [bytes(tensors.raw_bytes(own[rank, name])) for name in names_in(state) if (rank, name) in own]
        for rank, state in enumerate(states)
    ]
