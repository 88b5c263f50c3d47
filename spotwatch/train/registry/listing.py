# SPDX-License-Identifier: Apache-2.0
"""What a listing of a run's store shows: its checkpoint directories, and in which order they are tried.

It reads no object: all of it follows from names and sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spotwatch.train.registry.manifest import MANIFEST, Latest, order_of
from spotwatch.train.store import Entry

QUARANTINE = "quarantine.json"
UNHEALTHY = "unhealthy"
"""An object beside the manifest, written before it, so that a listing tells; the manifest says it as well."""


@dataclass(frozen=True, slots=True)
class Found:
    """A directory that a listing shows."""

    dir: str
    order: tuple[int, int]
    """(generation, step): a later life of the run outranks a higher step of an earlier one."""
    sizes: Mapping[str, int]
    """Bytes by the name of each object in it."""

    @property
    def is_complete(self) -> bool:
        """Tell whether its manifest is there; it is written last."""
        return MANIFEST in self.sizes

    @property
    def is_quarantined(self) -> bool:
        """Tell whether it did not verify once."""
        return QUARANTINE in self.sizes

    @property
    def is_healthy(self) -> bool:
        """Tell whether it may be gone on from, should it verify."""
        return UNHEALTHY not in self.sizes

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all that is in it."""
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A directory to try, and which manifest must be in it."""

    dir: str
    manifest_crc: str | None
    """As LATEST says; None: LATEST names another."""


def found_in(entries: Iterable[Entry]) -> list[Found]:
    """Return every checkpoint directory, complete or not, the highest (generation, step) first."""
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    for entry in entries:
        directory, slash, name = entry.key.partition("/")
        if slash:
            sizes[directory][name] = entry.size_bytes
    found = [
        Found(directory, order, names)
        for directory, names in sizes.items()
        if (order := order_of(directory)) is not None
    ]
    return sorted(found, key=lambda f: (f.order, f.dir), reverse=True)


def candidates(latest: Latest | None, found: Sequence[Found]) -> list[Candidate]:
    """Return what to resume from, best first: what LATEST names, then by rank; quarantined ones at last.

    A network that turns bits over may have brought a sound one into quarantine, so that none is given up.
    """
    by_dir = {checkpoint.dir: checkpoint for checkpoint in found}
    tried: list[Candidate] = []
    if latest is not None:
        tried.append(Candidate(latest.dir, latest.manifest_crc))
    tried += [
        Candidate(checkpoint.dir, None)
        for checkpoint in found
        if checkpoint.is_complete
        and checkpoint.is_healthy
        and (latest is None or checkpoint.dir != latest.dir)
    ]
    return sorted(tried, key=lambda one: one.dir in by_dir and by_dir[one.dir].is_quarantined)
