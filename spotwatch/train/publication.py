# SPDX-License-Identifier: Apache-2.0
"""What one save writes, by all ranks together: each its own file, then the first rank manifest and pointer.

It runs on the thread that saves. A failure on any rank is a failure on all, and leaves LATEST as it was.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import spotwatch
from spotwatch.errors import ConfigError, RunTaken, StoreError
from spotwatch.model import JSON
from spotwatch.train.parts import crc32
from spotwatch.train.registry.manifest import File, Manifest
from spotwatch.train.registry.registry import RANK_FILE, Registry
from spotwatch.train.state.state import Snapshot
from spotwatch.train.world import World

_KINDS: dict[str, type[Exception]] = {"taken": RunTaken, "config": ConfigError, "store": StoreError}


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint that is durable."""

    dir: str
    size_bytes: int
    """Of all files together."""
    manifest_crc: str
    manifest: Manifest | None = None
    """On the first rank."""


def make_durable(
    registry: Registry,
    world: World,
    step: int,
    snapshot: Snapshot,
    on_part: Callable[[int], None],
    on_stage: Callable[[bool], None],
    *,
    healthy: bool,
) -> Published:
    """Store this rank's part of a checkpoint and, with all other ranks, make the whole durable.

    Args:
        registry: of the run.
        world: its ranks.
        step: so many steps are contained.
        snapshot: of this rank.
        on_part: called with the bytes of this rank that have left so far; what it raises ends the save.
        on_stage: told when the next thing begins, and whether that is a wait for other ranks.
        healthy: False: all is stored, but LATEST stays where it is.

    Raises:
        RunTaken: the run belongs to another process.
        StoreError: something failed here or on another rank.
    """
    told = world.everyone_behind(registry.new_dir(step) if world.is_first else None)[0]
    directory = str(told)
    name = RANK_FILE.format(world.rank)

    def store() -> dict[str, JSON]:
        file = registry.upload(directory, name, snapshot.body, on_part)
        return {"file": asdict(file), "state": snapshot.state}

    manifests: list[Manifest] = []

    def publish() -> dict[str, JSON]:
        _expect_no_failure(rows)
        files = [File(**row["file"] | {"parts": tuple(row["file"]["parts"])}) for row in rows]
        manifest = registry.publish(
            dir=directory,
            step=step,
            files=files,
            state={file.name: row["state"] for file, row in zip(files, rows, strict=True)},
            tensors=snapshot.tensors,
            world_size=world.size,
            healthy=healthy,
            versions={"spotwatch": spotwatch.__version__, "python": platform.python_version()},
            now=lambda: datetime.now(UTC),
        )
        manifests.append(manifest)
        crc = crc32(manifest.to_bytes())
        return {"size_bytes": manifest.size_bytes, "manifest_crc": crc}

    mine, problem = _attempt(store)
    on_stage(world.size > 1)
    rows: Any = world.everyone_behind(mine)
    on_stage(not world.is_first)
    if world.is_first:
        mine, problem = _attempt(publish) if problem is None else (mine, problem)
    outcome: Any = world.everyone_behind(mine if world.is_first else None)[0]
    if problem is not None:
        raise problem
    _expect_no_failure([outcome])
    return Published(directory, outcome["size_bytes"], outcome["manifest_crc"], *manifests)


def _attempt(deed: Callable[[], dict[str, JSON]]) -> tuple[dict[str, JSON], Exception | None]:
    """Return what `deed` returns, or what is to be told the other ranks, who wait for us, of its failure."""
    try:
        return deed(), None
    except Exception as error:  # noqa: BLE001 - raised again once the others know
        kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), "store")
        return {"kind": kind, "error": str(error) or repr(error)}, error


def _expect_no_failure(rows: list[dict[str, Any]]) -> None:
    for rank, row in enumerate(rows):
        if "error" in row:
            told = row["error"] if len(rows) == 1 else f"rank {rank}: {row['error']}"
            raise _KINDS[row["kind"]](told)
