# SPDX-License-Identifier: Apache-2.0
"""A rank that looks for a checkpoint, and a run with some, to be damaged."""

from __future__ import annotations

from collections.abc import Callable

from spotwatch.testing import MemoryStore
from spotwatch.train.parts import crc32
from spotwatch.train.registry import download
from spotwatch.train.registry.manifest import LATEST, Latest, Manifest
from spotwatch.train.registry.registry import RANK_FILE, Registry
from spotwatch.train.registry.resume import Resume
from spotwatch.train.store import Store
from spotwatch.train.world import Alone

from .faulty import BODY, FaultyStore, publish, registry


def nothing() -> None:
    """No stop is ordered."""


class Rank:
    """One rank that starts, and what it has learned.

    Args:
        store: of the run.
        world: the rank's view of it.
        between: raises when a stop was ordered.
        patience_seconds: how long the store is asked again.
    """

    def __init__(
        self,
        store: Store,
        world: Alone | None = None,
        between: Callable[[], None] = nothing,
        patience_seconds: float = 0.0,
    ) -> None:
        self.registry = Registry(store, "run")
        self.world = world or Alone()
        self.between = between
        self.patience_seconds = patience_seconds
        self.search = Resume(self.registry, self.world, patience_seconds, between)
        self.fetched: list[int] = []
        self.body = bytearray()

    def fetch(self, manifest: Manifest) -> None:
        """Download the own file, as the trainer does."""
        self.fetched.append(manifest.step)
        file = manifest.files[self.world.rank]
        self.body = bytearray(file.size_bytes)
        download.fetch(
            self.registry.store,
            f"{manifest.dir}/{file.name}",
            file,
            memoryview(self.body),
            self.between,
            patience_seconds=self.patience_seconds,
        )

    def load(self, *, allow_fresh: bool = False) -> int | None:
        """Resume, and return the step."""
        manifest = self.search.load(self.fetch, allow_fresh=allow_fresh)
        if manifest is None:
            return None
        assert bytes(self.body) == b"%d %d " % (self.world.rank, manifest.step) + BODY
        return manifest.step


def saved_run() -> FaultyStore:
    """Return the store of a run of two ranks that saved at 10, 20 and 30."""
    made = FaultyStore()
    life = registry(made)
    for step in (10, 20, 30):
        publish(life, step, ranks=2)
    made.deeds.clear()
    return made


def dir_of(store: MemoryStore, step: int) -> str:
    """Return the directory of a step."""
    return next(key.partition("/")[0] for key in store.objects if key.startswith(f"step-{step:09d}-"))


def flip(store: MemoryStore, step: int, rank: int) -> None:
    """Turn a bit over in a rank's file."""
    key = f"{dir_of(store, step)}/{RANK_FILE.format(rank)}"
    body = bytearray(store.objects[key])
    body[100] ^= 4
    store.objects[key] = bytes(body)


def marked(store: MemoryStore) -> set[str]:
    """Return the directories in quarantine."""
    return {key.partition("/")[0] for key in store.objects if key.endswith("/quarantine.json")}


def point(store: MemoryStore, directory: str, generation: int = 1) -> None:
    """Let LATEST name a directory, with the checksum of the manifest that is there."""
    manifest = store.objects[f"{directory}/manifest.json"]
    pointer = Latest(dir=directory, manifest_crc=crc32(manifest), step=1, generation=generation, writer="old")
    store.objects[LATEST] = pointer.to_bytes()
