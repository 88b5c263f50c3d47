# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of one run in a store: upload and publish one, find those there are, set bad ones aside.

The order of writes is the promise: files, manifest, LATEST, then both are read again, and nothing is ever
overwritten. It decides neither when to save nor what to do with a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from spotwatch.errors import CheckpointCorrupt, ConfigError, RunTaken, StoreError, StoreMissing
from spotwatch.model import JSON
from spotwatch.train.lease.owner import new_writer
from spotwatch.train.parts import Body, crc32
from spotwatch.train.registry import listing, pointer, pruning, quarantine
from spotwatch.train.registry.listing import Candidate, Found, found_in
from spotwatch.train.registry.manifest import (
    MANIFEST,
    MOST_MANIFEST_BYTES,
    RANK_FILE,
    File,
    Latest,
    Manifest,
    new_dir,
)
from spotwatch.train.store import PROBE, Entry, OnPart, Store
from spotwatch.train.stores.crew import Crew

__all__ = ["RANK_FILE", "Found", "Registry"]

log = logging.getLogger("spotwatch.train")

_SIZES_AT_ONCE = 8


def _nothing() -> None:
    """Let everything be written: no lease is held."""


class Registry:
    """What one process knows of its run's checkpoints.

    Args:
        store: opened at the root of the run.
        run_id: the run; a manifest of another one is refused.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self.writer = new_writer()
        """The same on all ranks of a run, once it has resumed."""
        self.generation = 1
        """One more than that of the life of the run before this one."""
        self.parent: str | None = None
        """The last checkpoint that counted."""
        self.bad: set[str] = set()
        """Directories that did not verify in this life."""
        self.lease_check: Callable[[], None] = _nothing
        """Asked before anything is written; raises `RunTaken` when the run is another's."""
        self._under_way = ""
        self._probes: frozenset[str] = frozenset()

    def latest(self) -> Latest | None:
        """Return the pointer, None when there is none; raise `CheckpointCorrupt` when it cannot be read."""
        return pointer.read(self.store)

    def checkpoints(self) -> list[Found]:
        """Return every checkpoint directory, complete or not, the highest (generation, step) first."""
        return found_in(self.store.list())

    def candidates(self, latest: Latest | None, found: Sequence[Found]) -> list[Candidate]:
        """Return what to resume from, best first; quarantined ones last."""
        return listing.candidates(latest, found)

    def manifest(self, directory: str, expected_crc: str | None = None) -> Manifest:
        """Return the manifest in `directory`, every byte of it checked.

        Args:
            directory: of the checkpoint.
            expected_crc: of the manifest's bytes; None takes any.

        Raises:
            CheckpointCorrupt: it is missing, damaged, of another run, or not the one that was meant.
        """
        return self.manifest_and_crc(directory, expected_crc)[0]

    def manifest_and_crc(self, directory: str, expected_crc: str | None = None) -> tuple[Manifest, str]:
        """Return what `manifest` returns, and the CRC-32 of its bytes."""
        try:
            body = self.store.get(f"{directory}/{MANIFEST}", most_bytes=MOST_MANIFEST_BYTES)
        except StoreMissing as error:
            raise CheckpointCorrupt(f"{directory} has no manifest") from error
        crc = crc32(body)
        if expected_crc not in (None, crc):
            raise CheckpointCorrupt(f"{directory}: the manifest is not the one that LATEST names")
        manifest = Manifest.from_bytes(body)
        if manifest.dir != directory or manifest.run_id != self.run_id:
            raise CheckpointCorrupt(f"{directory} holds the manifest of {manifest.run_id}/{manifest.dir}")
        return manifest, crc

    def new_dir(self, step: int) -> str:
        """Return the directory of the next save; its name holds a token, so that no save ever used it."""
        self._under_way = new_dir(step, self.generation)
        return self._under_way

    def upload(self, directory: str, name: str, body: Body, on_part: OnPart) -> File:
        """Store one rank's file of a checkpoint, and return what the manifest is to say of it.

        Args:
            directory: as `new_dir` gave it to the first rank.
            name: `RANK_FILE` of this rank.
            body: the bytes.
            on_part: called with the bytes that have left so far; what it raises ends the upload.

        Raises:
            RunTaken: the run is another's; nothing was written.
            StoreError: the store refuses; no object was left.
        """
        self.assert_ours()
        crcs = self.store.upload(f"{directory}/{name}", body, on_part)
        try:
            return File.of(name, body.size_bytes, body.part_bytes, crcs)
        except ValueError as error:
            raise StoreError(f"{self.store.url}/{directory}: uploaded, but {error}") from error

    def publish(  # noqa: PLR0913 - a manifest has so many sides, each given by name
        self,
        *,
        dir: str,  # noqa: A002 - the word of the manifest
        step: int,
        files: Sequence[File],
        state: Mapping[str, JSON],
        tensors: JSON | None,
        world_size: int,
        healthy: bool,
        versions: Mapping[str, JSON],
        now: Callable[[], datetime],
    ) -> Manifest:
        """Make a checkpoint of stored files and move LATEST to it; at return both have been read back.

        Args:
            dir: as `new_dir` returned it.
            step: so many steps are contained.
            files: of all ranks, in their order.
            state: what is no tensor, by file.
            tensors: where the parts of sharded ones lie; None without any.
            world_size: how many ranks.
            healthy: False: it is stored, but LATEST and `parent` stay; nobody goes on from it.
            versions: of what wrote it.
            now: returns the aware UTC time.

        Raises:
            RunTaken: LATEST is another writer's, of this life of the run or a later one; it was left alone.
            StoreError: something failed; LATEST names what it named before, or this very checkpoint.
        """
        self._fence()
        self._expect_sizes(dir, files)
        manifest = Manifest(
            run_id=self.run_id,
            dir=dir,
            step=step,
            generation=self.generation,
            parent=self.parent,
            created_at=now(),
            files=tuple(files),
            state=state,
            tensors=tensors,
            world_size=world_size,
            writer=self.writer,
            healthy=healthy,
            versions=versions,
        )
        sealed = manifest.to_bytes()
        crc = crc32(sealed)
        self.lease_check()
        if not healthy:
            self.store.put(f"{dir}/{listing.UNHEALTHY}", b"{}\n")
        self.store.put(f"{dir}/{MANIFEST}", sealed)
        if healthy:
            moved = Latest(
                dir=dir, manifest_crc=crc, step=step, generation=self.generation, writer=self.writer
            )
            pointer.move(self.store, moved, self.lease_check)
        try:
            manifest = self.manifest(dir, crc)
        except CheckpointCorrupt as error:
            raise StoreError(f"read back after writing: {error}") from error
        if healthy:
            self.parent = dir
        return manifest

    def claim(self) -> Latest | None:
        """Make LATEST ours, so that an earlier life that is still alive can move it no more.

        Called at resume, once the lease is ours and `generation` is known.

        Raises:
            RunTaken: LATEST is of a later life, or of another process of this one.
            StoreError: the store refuses.
        """
        return pointer.claim(self.store, self.generation, self.writer, self.lease_check)

    def assert_ours(self) -> None:
        """Raise `RunTaken` when another process has gone on with the run."""
        self.lease_check()
        self._fence()

    def quarantine(self, directory: str, reason: str) -> None:
        """Mark a directory that did not verify twice; it is tried last from now on. A failure is logged."""
        self.bad.add(directory)
        quarantine.mark(self.store, directory, self.writer, reason)

    def release(self, directory: str) -> None:
        """Take back a quarantine: it has verified after all. A failure is logged."""
        self.bad.discard(directory)
        quarantine.lift(self.store, directory)

    def prune(self, keep: int, current: Manifest | None = None) -> list[str]:
        """Remove what is older than the newest `keep` checkpoints, and what saves that died left behind.

        What stays and what goes is said in `pruning`. A failure is logged, and ends the pruning.

        Args:
            keep: how many good ones stay; at least two do.
            current: the checkpoint that has just become durable; None for a caller that is not the trainer.
        """
        removed: list[str] = []
        try:
            latest = self.latest()
            if current is not None:
                self.lease_check()
                pointer.refuse_if_lost(self.store, latest, self.generation, self.writer)
            entries = list(self.store.list())
            rules = self._rules(keep, latest, current)
            # Extended one by one, so that a failure leaves what was removed before it.
            removed.extend(pruning.remove(self.store, pruning.condemned(found_in(entries), rules)))
            self._remove_probes(entries)
        except RunTaken as error:
            log.info("pruning is left to whoever has the run: %s", error)
        except (StoreError, ConfigError) as error:
            log.warning("pruning stopped, nothing is lost: %s", error)
        return removed

    def _rules(self, keep: int, latest: Latest | None, current: Manifest | None) -> pruning.Rules:
        named = {self.parent, self._under_way, None if latest is None else latest.dir}
        if current is not None:
            return pruning.Rules(
                keep=keep,
                named=named | {current.dir, current.parent},
                bad=self.bad,
                most_generation=self.generation,
                dead_below=self.generation + 1,
            )
        if latest is None:
            return pruning.Rules(keep=keep)
        named.add(self.manifest(latest.dir, latest.manifest_crc).parent)
        # What has no manifest and is of this generation may be the save that its trainer is making.
        return pruning.Rules(keep=keep, named=named, dead_below=latest.generation)

    def _remove_probes(self, entries: Sequence[Entry]) -> None:
        # One that is seen for the first time may belong to a process that asks its question at this moment.
        probes = frozenset(entry.key for entry in entries if entry.key.startswith(PROBE))
        for key in probes & self._probes:
            self.store.delete(key)
        self._probes = probes

    def _fence(self) -> None:
        try:
            before = self.latest()
        except CheckpointCorrupt:
            return  # unreadable: ours will be better
        pointer.refuse_if_lost(self.store, before, self.generation, self.writer)

    def _expect_sizes(self, directory: str, files: Sequence[File]) -> None:
        keys = [f"{directory}/{file.name}" for file in files]
        if len(keys) == 1:
            sizes = [self.store.size_bytes(keys[0])]
        else:
            with Crew(_SIZES_AT_ONCE, "spotwatch-sizes") as crew:
                asked = [crew.submit(self.store.size_bytes, key) for key in keys]
            sizes = [future.result() for future in asked]
        for key, file, size_bytes in zip(keys, files, sizes, strict=True):
            if size_bytes != file.size_bytes:
                raise StoreError(
                    f"{self.store.url}/{key} has {size_bytes} bytes, not the {file.size_bytes} that were sent"
                )
