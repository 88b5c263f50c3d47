# SPDX-License-Identifier: Apache-2.0
"""`spotwatch checkpoints show`: everything about one checkpoint, and the lives of its run.

It reads manifests, heads of files and the lease; that every byte is right is for `verify` to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from spotwatch.cli._durations import DURATION
from spotwatch.cli.checkpoints import lease
from spotwatch.cli.checkpoints.list import row_document
from spotwatch.cli.checkpoints.run import answering, find_one, pick, pointer_of, run_options
from spotwatch.cli.checkpoints.show_text import describe
from spotwatch.cli.checkpoints.tensors import objects_of, tensors_of
from spotwatch.clock import SystemClock
from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError
from spotwatch.interval import save_interval_seconds
from spotwatch.train.lease.form import Claim
from spotwatch.train.registry import inventory
from spotwatch.train.registry.listing import Found
from spotwatch.train.registry.manifest import LATEST, Manifest
from spotwatch.train.registry.registry import Registry

_LARGEST = 20
# From a pinned copy of a small model to a state that is streamed.
_STALLS_SECONDS = (0.1, 1.0, 10.0)

_EPILOG = """\b
Examples:
  spotwatch checkpoints show s3://bucket/checkpoints/sweep-01
  spotwatch checkpoints show /data/checkpoints/sweep-01 1892 --all
  spotwatch checkpoints show /data/checkpoints/sweep-01 --json | jq .checkpoint.tensors.largest
"""


@click.command(name="show", short_help="All about one checkpoint, and the lives of its run.", epilog=_EPILOG)
@run_options
@click.argument("which", default=LATEST, metavar="[DIR|STEP|LATEST]")
@click.option("--all", "is_all", is_flag=True, help=f"All tensors and files, not the first {_LARGEST}.")
@click.option("--stall", type=DURATION, help="For how long a save stalls your loop: how often to save?")
@click.pass_context
def command(
    context: click.Context,
    *,
    url: str,
    which: str,
    run_id: str | None,
    as_json: bool,
    is_all: bool,
    stall: float | None,
) -> None:
    """Show one checkpoint: manifest, files, tensors, tracked objects; the lease and the lives of the run.

    Exits 1 when its manifest cannot be used, or a file is missing or has another size than the manifest says.
    """
    with answering():
        registry = find_one(url, run_id)
        found = registry.checkpoints()
        latest, problem = pointer_of(registry)
        if which == LATEST and problem:
            raise StoreError(f"LATEST cannot be read: {problem}; name a step or a directory")
        shown = _checkpoint(registry, found, pick(which, latest, found), is_all=is_all)
        claim, problem = lease.read(registry.store)
        document = {
            "version": 1,
            "url": registry.store.url,
            "run_id": registry.run_id,
            "checkpoint": shown,
            "lease": lease.document(claim, problem),
            "lives": _lives(claim, problem, _STALLS_SECONDS if stall is None else (stall,)),
        }
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        for line in describe(document, SystemClock().now(), is_all=is_all):
            click.echo(line)
    if shown["problems"]:
        context.exit(1)


def _checkpoint(registry: Registry, found: list[Found], directory: str, *, is_all: bool) -> dict[str, Any]:
    row = next((row for row in inventory.describe(registry) if row.dir == directory), None)
    if row is None:
        raise CheckpointCorrupt(
            f"LATEST names {directory}, which is not there; resume takes the newest other"
        )
    shown = row_document(row) | {"problems": list(row.problems)}
    try:
        manifest = registry.manifest(directory)
    except (CheckpointCorrupt, ConfigError) as error:
        shown["problems"] = list(row.problems) or [str(error)]
        return shown | {"manifest": None, "tensors": None}
    sizes = next((one.sizes for one in found if one.dir == directory), {})
    shown["problems"] += [one for one in inventory.file_problems(manifest, sizes) if one not in row.problems]
    return shown | {
        "manifest": _manifest(manifest, sizes),
        "tensors": _tensors(registry, manifest, shown["problems"], is_all=is_all),
    }


def _manifest(manifest: Manifest, sizes: Mapping[str, int]) -> dict[str, Any]:
    return {
        "parent": manifest.parent,
        "world_size": manifest.world_size,
        "writer": manifest.writer,
        "healthy": manifest.healthy,
        "versions": dict(manifest.versions),
        "objects": objects_of(manifest.state),
        "files": [
            {
                "name": file.name,
                "size_bytes": file.size_bytes,
                "found_bytes": sizes.get(file.name),
                "crc32": file.crc32,
                "part_bytes": file.part_bytes,
                "parts": list(file.parts),
            }
            for file in manifest.files
        ],
    }


def _tensors(
    registry: Registry, manifest: Manifest, problems: list[str], *, is_all: bool
) -> dict[str, Any] | None:
    try:
        tensors = tensors_of(registry.store, manifest)
    except CheckpointCorrupt as error:
        problems.append(str(error))
        return None
    except StoreError:
        # A file that is missing has been named; anything else is trouble with the store.
        if not problems:
            raise
        return None
    return {
        "count": len(tensors),
        "size_bytes": sum(one.size_bytes for one in tensors),
        "largest": [
            {
                "name": one.name,
                "dtype": one.dtype,
                "shape": list(one.shape),
                "size_bytes": one.size_bytes,
                "files": list(one.files),
            }
            for one in (tensors if is_all else tensors[:_LARGEST])
        ],
    }


def _lives(claim: Claim | None, problem: str, stalls: tuple[float, ...]) -> dict[str, Any]:
    history = lease.history(claim, problem)
    every = history.reclaim_every_seconds()
    return {
        "lives": [{"seconds": life.seconds, "ended": life.ended} for life in history.lives],
        "reclaim_every_seconds": every,
        "auto": [
            {
                "stall_seconds": stall,
                "interval_seconds": save_interval_seconds(stall, reclaim_every_seconds=every),
            }
            for stall in stalls
        ],
    }
