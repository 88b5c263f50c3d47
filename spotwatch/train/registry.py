# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of one run in a store: publish one, find one that verifies, remove old ones.

The order of writes is the promise: files, manifest, LATEST, then both are read again. It decides neither when
to save nor what to do with a failure, and never deletes what LATEST or its parent names.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from spotwatch.errors import CheckpointCorrupt, RunTaken, StoreError, StoreMissing
from spotwatch.model import JSON
from spotwatch.train.manifest import (
    LATEST,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    File,
    Latest,
    Manifest,
    crc32,
    new_dir,
    order_of,
)
from spotwatch.train.store import Store

log = logging.getLogger("spotwatch.train")

_MOST_LATEST_BYTES = 64 * 1024
RANK_FILE = "rank-{:05d}.safetensors"


@dataclass(frozen=True, slots=True)
class Found:
    """A directory that a listing shows."""

    dir: str
    order: tuple[int, int]
    """(generation, step): a later life of the run outranks a higher step of an earlier one."""
    keys: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Tell whether its manifest is there; it is written last."""
        return f"{self.dir}/{MANIFEST}" in self.keys


class Registry:
    """What one process knows of its run's checkpoints.

    Args:
        store: opened at the root of the run.
        run_id: written into each manifest, and expected there.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        # Host and process repeat, in containers always: the rest makes it this one and no other.
        self.writer = f"{platform.node()}:{os.getpid()}:{secrets.token_hex(8)}"
        self.generation = 1
        """One more than that of the life of the run before this one."""
        self.parent: str | None = None
        """The last checkpoint that counted."""
        self.bad: set[str] = set()
        """Directories that did not verify in this life."""

    def latest(self) -> Latest | None:
        """Return the pointer, None when there is none; raise `CheckpointCorrupt` when it cannot be read."""
        try:
            return Latest.from_bytes(self.store.get(LATEST, most_bytes=_MOST_LATEST_BYTES))
        except StoreMissing:
            return None

    def checkpoints(self) -> list[Found]:
        """Return every checkpoint directory, complete or not, the highest (generation, step) first."""
        keys: dict[str, list[str]] = defaultdict(list)
        for entry in self.store.list():
            directory, slash, _ = entry.key.partition("/")
            if slash:
                keys[directory].append(entry.key)
        found = [
            Found(directory, order, tuple(names))
            for directory, names in keys.items()
            if (order := order_of(directory)) is not None
        ]
        return sorted(found, key=lambda f: (f.order, f.dir), reverse=True)

    def manifest(self, directory: str, expected_crc: str | None = None) -> Manifest:
        """Return the manifest in `directory`, every byte of it checked.

        Raises:
            CheckpointCorrupt: it is missing, damaged, of another run, or not the one that LATEST means.
        """
        try:
            body = self.store.get(f"{directory}/{MANIFEST}", most_bytes=MOST_MANIFEST_BYTES)
        except StoreMissing as error:
            raise CheckpointCorrupt(f"{directory} has no manifest") from error
        if expected_crc is not None and crc32(body) != expected_crc:
            raise CheckpointCorrupt(f"{directory}: the manifest is not the one that LATEST names")
        manifest = Manifest.from_bytes(body)
        if manifest.dir != directory or manifest.run_id != self.run_id:
            raise CheckpointCorrupt(f"{directory} holds the manifest of {manifest.run_id}/{manifest.dir}")
        return manifest

    def download(self, manifest: Manifest, name: str, between: Callable[[], None]) -> bytearray:
        """Return a file of a checkpoint, its size and checksum verified on the way.

        Args:
            manifest: of the checkpoint.
            name: of the file.
            between: called after each piece; what it raises ends the download.

        Raises:
            CheckpointCorrupt: it is missing, too short, too long, or a bit differs.
        """
        wanted = next((f for f in manifest.files if f.name == name), None)
        key = f"{manifest.dir}/{name}"
        if wanted is None:
            raise CheckpointCorrupt(f"{manifest.dir} lists no {name}")
        try:
            if self.store.size_bytes(key) != wanted.size_bytes:
                raise CheckpointCorrupt(f"{key} has not the {wanted.size_bytes} bytes of its manifest")
            buffer = bytearray(wanted.size_bytes)
            at = crc = 0
            for piece in self.store.stream(key):
                if at + len(piece) > len(buffer):
                    raise CheckpointCorrupt(f"{key} grew while it was read")
                buffer[at : at + len(piece)] = piece
                at += len(piece)
                crc = zlib.crc32(piece, crc)
                between()
        except StoreMissing as error:
            raise CheckpointCorrupt(f"{key} is missing") from error
        if at != len(buffer) or f"{crc:08x}" != wanted.crc32:
            raise CheckpointCorrupt(
                f"{key}: checksum {crc:08x} over {at} bytes, the manifest says {wanted.crc32}"
            )
        return buffer

    def candidates(self, latest: Latest | None, found: list[Found]) -> Iterator[tuple[str, str | None]]:
        """Yield directories to resume from, best first, with the manifest checksum that LATEST gives."""
        if latest is not None:
            yield latest.dir, latest.manifest_crc
        for checkpoint in found:
            if checkpoint.is_complete and (latest is None or checkpoint.dir != latest.dir):
                yield checkpoint.dir, None

    def publish(
        self,
        *,
        step: int,
        body: memoryview,
        state: JSON,
        versions: dict[str, JSON],
        now: Callable[[], datetime],
    ) -> Manifest:
        """Store a checkpoint and move LATEST to it; at return both have been read back.

        Raises:
            RunTaken: LATEST is another writer's, of this life of the run or a later one; it was left alone.
            StoreError: something failed; LATEST names what it named before, or this very checkpoint.
        """
        self._fence()
        directory = new_dir(step, self.generation)
        name = RANK_FILE.format(0)
        self.store.put(f"{directory}/{name}", body)
        if self.store.size_bytes(f"{directory}/{name}") != len(body):
            raise StoreError(
                f"{self.store.url}/{directory}/{name} has not the {len(body)} bytes that were sent"
            )
        manifest = Manifest(
            run_id=self.run_id,
            dir=directory,
            step=step,
            generation=self.generation,
            parent=self.parent,
            created_at=now(),
            files=(File(name=name, size_bytes=len(body), crc32=crc32(body)),),
            state={name: state},
            writer=self.writer,
            versions=versions,
        )
        sealed = manifest.to_bytes()
        crc = crc32(sealed)
        self.store.put(f"{directory}/{MANIFEST}", sealed)
        pointer = Latest(
            dir=directory, manifest_crc=crc, step=step, generation=self.generation, writer=self.writer
        )
        self._move(pointer)
        try:
            self.manifest(directory, crc)
        except CheckpointCorrupt as error:
            raise StoreError(f"read back after writing: {error}") from error
        self.parent = directory
        return manifest

    def _fence(self) -> None:
        try:
            before = self.latest()
        except CheckpointCorrupt:
            return  # unreadable: ours will be better
        if before is not None and self._is_lost_to(before):
            raise RunTaken(
                f"{self.store.url}/{LATEST} is of generation {before.generation} by {before.writer}; ours is "
                f"{self.generation} by {self.writer}: another process has gone on with this run"
            )

    def _is_lost_to(self, latest: Latest) -> bool:
        # Two that resumed from the same checkpoint have the same generation: who saves first goes on.
        is_another = latest.generation == self.generation and latest.writer != self.writer
        return is_another or latest.generation > self.generation

    def _move(self, pointer: Latest) -> None:
        self._fence()
        self.store.put(LATEST, pointer.to_bytes())
        try:
            after = self.latest()
        except CheckpointCorrupt as error:
            raise StoreError(f"read back after writing: {error}") from error
        if after != pointer:
            kind = RunTaken if after is not None and self._is_lost_to(after) else StoreError
            raise kind(f"{self.store.url}/{LATEST} names {after and after.dir} after we wrote {pointer.dir}")

    def prune(self, keep: int, current: Manifest) -> list[str]:
        """Remove what is older than the newest `keep` checkpoints; call it only when `current` is durable.

        Checkpoints that did not verify are not counted. A failure is logged and ends the pruning.
        """
        removed: list[str] = []
        try:
            found = self.checkpoints()
            good = [f for f in found if f.is_complete and f.dir not in self.bad]
            newest = good[:keep]
            kept = {f.dir for f in newest} | {current.dir, current.parent}
            floor = min((f.order for f in newest), default=current.order)
            for old in found:
                # A save that died before its manifest; those of later lives may still be under way.
                is_abandoned = not old.is_complete and old.order[0] <= self.generation
                if old.dir in kept or not (old.order < floor or is_abandoned):
                    continue
                # Without its manifest first, what is left of it can never be taken for a checkpoint.
                for key in sorted(old.keys, key=lambda key: not key.endswith(f"/{MANIFEST}")):
                    self.store.delete(key)
                removed.append(old.dir)
        except StoreError as error:
            log.warning("pruning stopped, nothing is lost: %s", error)
        return removed
