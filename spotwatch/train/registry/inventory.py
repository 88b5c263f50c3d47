# SPDX-License-Identifier: Apache-2.0
"""What the checkpoints of a run are, for people: a row for each, and whether one verifies.

For the command line; it changes nothing in the store and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.train.registry import download, quarantine
from spotwatch.train.registry.listing import Found
from spotwatch.train.registry.manifest import Latest, Manifest
from spotwatch.train.registry.registry import Registry


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
    """`complete`, `incomplete` (no manifest), `damaged` (one we cannot use), `unhealthy`, `quarantined`."""
    role: str
    """`latest`, `parent` (of the latest), or ""."""
    note: str
    """Why it is damaged or in quarantine; "" otherwise."""


def describe(registry: Registry) -> list[Row]:
    """Return a row for each checkpoint directory, the highest (generation, step) first.

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
        manifest, problem = _manifest(registry, found, latest)
        if latest is not None and found.dir == latest.dir and manifest is not None:
            parent = manifest.parent
        rows.append(_row(registry, found, manifest, problem, latest))
    return [replace(row, role="parent") if row.dir == parent else row for row in rows]


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


def _manifest(registry: Registry, found: Found, latest: Latest | None) -> tuple[Manifest | None, str]:
    if not found.is_complete:
        return None, ""
    crc = latest.manifest_crc if latest is not None and latest.dir == found.dir else None
    try:
        return registry.manifest(found.dir, crc), ""
    except (CheckpointCorrupt, ConfigError) as error:
        return None, str(error)


def _row(
    registry: Registry, found: Found, manifest: Manifest | None, problem: str, latest: Latest | None
) -> Row:
    if found.is_quarantined:
        state, problem = "quarantined", quarantine.reason(registry.store, found.dir) or problem
    elif not found.is_complete:
        state = "incomplete"
    elif manifest is None:
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
        note=problem,
    )
