# SPDX-License-Identifier: Apache-2.0
"""What `checkpoints show` knows of one checkpoint, as lines for people.

Whatever came out of the store is escaped: a manifest may be anybody's. It asks nobody and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from spotwatch.cli._words import ago, size, span
from spotwatch.cli.checkpoints import lease
from spotwatch.cli.checkpoints.list import table
from spotwatch.interval import RECLAIM_EVERY_SECONDS
from spotwatch.masking import escape
from spotwatch.model import from_rfc3339

_MOST_FILES = 20


def describe(document: Mapping[str, Any], now: datetime, *, is_all: bool) -> Iterator[str]:
    """Yield the lines that a person reads; `is_all`: also the last of many files."""
    shown = document["checkpoint"]
    role = f", {shown['role']}" if shown["role"] else ""
    yield f"{escape(document['url'])}/{shown['dir']}: {shown['state']}{role}"
    for problem in shown["problems"]:
        yield f"  {escape(problem, limit=1_000)}"
    when = ""
    if shown["created_at"] is not None:
        when = f", saved {shown['created_at']} ({ago(from_rfc3339(shown['created_at']), now)})"
    yield f"  step {shown['step']}, generation {shown['generation']}{when}"
    if (manifest := shown["manifest"]) is not None:
        yield from _manifest(shown, manifest, is_all=is_all)
    if (tensors := shown["tensors"]) is not None:
        yield from _tensors(tensors)
    yield lease.line(document["lease"])
    yield from _lives(document["lives"])


def _manifest(shown: Mapping[str, Any], manifest: Mapping[str, Any], *, is_all: bool) -> Iterator[str]:
    ranks = manifest["world_size"]
    by = f"{ranks} rank{'s' * (ranks != 1)}, writer {escape(manifest['writer'])}"
    yield f"  {size(shown['size_bytes'])} by {by}"
    yield f"  parent {escape(manifest['parent'] or 'none')}"
    versions = (f"{escape(str(k))} {escape(str(v))}" for k, v in manifest["versions"].items())
    yield f"  versions: {', '.join(versions)}"
    yield f"  tracked: {', '.join(escape(name) for name in manifest['objects']) or 'nothing'}"
    yield "Files:"
    files = manifest["files"] if is_all else manifest["files"][:_MOST_FILES]
    rows = [(size(f["size_bytes"]), str(len(f["parts"])), f["crc32"], escape(f["name"])) for f in files]
    yield from _indented(table(("SIZE", "PARTS", "CRC-32", "NAME"), rows))
    if more := len(manifest["files"]) - len(files):
        yield f"  and {more} more; --all shows all"


def _tensors(tensors: Mapping[str, Any]) -> Iterator[str]:
    count = tensors["count"]
    yield f"Tensors: {count}, {size(tensors['size_bytes'])}"
    if not count:
        return
    rows = [
        (size(one["size_bytes"]), escape(one["dtype"]), _shape(one["shape"]), escape(one["name"]))
        for one in tensors["largest"]
    ]
    yield from _indented(table(("SIZE", "DTYPE", "SHAPE", "NAME"), rows))
    if more := count - len(rows):
        yield f"  and {more} smaller; --all shows all"


def _shape(shape: Sequence[int]) -> str:
    return escape("x".join(str(n) for n in shape), limit=40) or "scalar"


def _lives(lives: Mapping[str, Any]) -> Iterator[str]:
    rows = lives["lives"]
    lost = sum(life["ended"] == "lost" for life in rows)
    every = span(lives["reclaim_every_seconds"])
    assumed = f"one after {span(RECLAIM_EVERY_SECONDS)} is assumed beside them"
    yield f"Lives: {len(rows)}, {lost} lost without notice; mean time between such losses {every} ({assumed})"
    for number, life in enumerate(rows, 1):
        yield f"  {number:>2}  {life['ended'] or 'no end known':<12}  {span(life['seconds'])}"
    yield 'every="auto" would save, but with uploads for a quarter of the time at most:'
    for one in lives["auto"]:
        yield f"  every {span(one['interval_seconds'])} for a stall of {span(one['stall_seconds'])}"


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
