# SPDX-License-Identifier: Apache-2.0
"""What the checkpoints of a run are, for people: a row for each, and whether one verifies.

For the command line; it changes nothing in the store and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.train.registry import download, quarantine
from spotwatch.train.registry.listing import Found
from spotwatch.train.registry.manifest import Latest, Manifest
from spotwatch.train.registry.registry import Registry

_MOST_NOTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One checkpoint directory."""

    dir: str
    step: int
    generation: int
    created_at: datetime | None
    """None: its manifest is missing or damaged."""
    size_bytes: int
    """Of all that lies in it."""
    files: int
    """How many ranks wrote it, by its manifest; else how many objects lie in it."""
    state: str
    """`complete`, `incomplete` (no manifest), `damaged` (one we cannot use, or a file that is missing or has
    another size than it says), `unhealthy`, `quarantined`.
    """
    role: str
    """`latest`, `parent` (of the latest), or ""."""
    problems: tuple[str, ...]
    """Why it is damaged or in quarantine, each by itself; none otherwise."""

    @property
    def note(self) -> str:
        """Return the problems in a line, the first few of many; "" without any."""
        more = len(self.problems) - _MOST_NOTED
        return "; ".join(self.problems[:_MOST_NOTED]) + (f"; and {more} more" if more > 0 else "")


def describe(registry: Registry) -> list[Row]:
    """Return a row for each checkpoint directory, the highest (generation, step) first.

    It reads manifests and compares sizes; a byte that was changed within a file is for `verify` to find.

    Raises:
        StoreError: the store cannot be read.
    """
    try:
        latest = registry.latest()
    except CheckpointCorrupt:
        latest = None
    rows: list[Row] = []
    parent = None
    for found in registry.checkpoints():
        manifest, problems = _manifest(registry, found, latest)
        if latest is not None and found.dir == latest.dir and manifest is not None:
            parent = manifest.parent
        rows.append(_row(registry, found, manifest, problems, latest))
    return [replace(row, role="parent") if row.dir == parent else row for row in rows]


def file_problems(manifest: Manifest, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return what a listing shows to be wrong with the files of a checkpoint, one line a file.

    Args:
        manifest: of it.
        sizes: in bytes, by the name of each object in its directory.
    """
    problems = []
    for file in manifest.files:
        there = sizes.get(file.name)
        if there is None:
            problems.append(f"{file.name} is missing")
        elif there != file.size_bytes:
            problems.append(f"{file.name} has {there} bytes, the manifest says {file.size_bytes}")
    return tuple(problems)


def verify(
    registry: Registry,
    directory: str,
    progress: Callable[[int], None] | None = None,
    *,
    between: Callable[[], None] = lambda: None,
    threads: int = download.THREADS,
    patience_seconds: float = download.PATIENCE_SECONDS,
) -> Manifest:
    """Download a checkpoint, check every byte, keep none, and return its manifest.

    It takes the memory of one part a thread, whatever the size of the checkpoint.

    Args:
        registry: of the run.
        directory: of the checkpoint.
        progress: called with the bytes checked so far, of all files.
        between: called several times a second; what it raises ends it.
        threads: how many parts are read at once.
        patience_seconds: how long a store that refuses is asked again, for each part.

    Raises:
        CheckpointCorrupt: something is missing, has another size, or does not verify, twice.
        StoreError: the store cannot be read.
    """
    manifest = registry.manifest(directory)
    done = 0
    for file in manifest.files:
        download.check(
            registry.store,
            f"{directory}/{file.name}",
            file,
            between,
            threads=threads,
            patience_seconds=patience_seconds,
            progress=None if progress is None else partial(_further, progress, done),
        )
        done += file.size_bytes
    return manifest


def _further(progress: Callable[[int], None], done: int, arrived: int) -> None:
    progress(done + arrived)


def _manifest(
    registry: Registry, found: Found, latest: Latest | None
) -> tuple[Manifest | None, tuple[str, ...]]:
    if not found.is_complete:
        return None, ()
    crc = latest.manifest_crc if latest is not None and latest.dir == found.dir else None
    try:
        manifest = registry.manifest(found.dir, crc)
    except (CheckpointCorrupt, ConfigError) as error:
        return None, (str(error),)
    return manifest, file_problems(manifest, found.sizes)


def _row(
    registry: Registry,
    found: Found,
    manifest: Manifest | None,
    problems: tuple[str, ...],
    latest: Latest | None,
) -> Row:
    if found.is_quarantined:
        state = "quarantined"
        reason = quarantine.reason(registry.store, found.dir)
        problems = (reason,) if reason else problems
    elif not found.is_complete:
        state = "incomplete"
    elif manifest is None or problems:
        state = "damaged"
    else:
        state = "complete" if manifest.healthy else "unhealthy"
    return Row(
        dir=found.dir,
        step=found.order[1],
        generation=found.order[0],
        created_at=None if manifest is None else manifest.created_at,
        size_bytes=found.size_bytes,
        files=len(found.sizes) if manifest is None else len(manifest.files),
        state=state,
        role="latest" if latest is not None and latest.dir == found.dir else "",
        problems=problems,
    )
