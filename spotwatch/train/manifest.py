# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says about itself (`manifest.json`) and which one counts (`LATEST`): their exact forms.

Both carry checksums and are refused when a byte differs. Nothing is fetched, written or deleted here.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spotwatch.errors import CheckpointCorrupt
from spotwatch.model import JSON, from_rfc3339, to_rfc3339

FORMAT = "spotwatch-checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
LATEST = "LATEST"
MOST_MANIFEST_BYTES = 256 * 2**20

_DIR = re.compile(r"step-(\d{9,15})-(?:g(\d{1,9})-)?[A-Za-z0-9]{1,32}")
MOST_STEPS = 10**15 - 1
_MOST_GENERATION = 10**9 - 2
"""The next life's still fits into a directory's name."""
_FILE = re.compile(r"rank-\d{5}\.safetensors")
# The manifest's own checksum stands in its first bytes, and is computed with zeros in its place.
_SEAL = re.compile(rb'\{"crc32":"([0-9a-f]{8})",')
_SEAL_AT = len(b'{"crc32":"')


def crc32(body: bytes | bytearray | memoryview) -> str:
    """Return the CRC-32 (zlib) of `body` as eight hexadecimal digits."""
    return f"{zlib.crc32(body):08x}"


def new_dir(step: int, generation: int) -> str:
    """Return a directory name that no save has used: `step-000001892-g4-3fa9c1d2`."""
    return f"step-{step:09d}-g{generation}-{secrets.token_hex(4)}"


def order_of(directory: str) -> tuple[int, int] | None:
    """Return the (generation, step) by which checkpoints rank; None when `directory` is not one of ours."""
    match = _DIR.fullmatch(directory)
    if match is None or int(match[2] or 0) > _MOST_GENERATION:
        return None
    return int(match[2] or 0), int(match[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a checkpoint, as it must be found."""

    name: str
    size_bytes: int
    crc32: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything about one checkpoint but the tensors."""

    run_id: str
    dir: str
    step: int
    generation: int
    parent: str | None
    """The checkpoint before this one."""
    created_at: datetime
    files: tuple[File, ...]
    state: Mapping[str, JSON]
    """Non-tensor state by file, for example `rank-00000.safetensors`."""
    world_size: int = 1
    writer: str = ""
    versions: Mapping[str, JSON]

    @property
    def order(self) -> tuple[int, int]:
        """Return the (generation, step) by which checkpoints rank."""
        return self.generation, self.step

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files together."""
        return sum(file.size_bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the JSON of the file, sealed by its own checksum."""
        row: dict[str, JSON] = {
            "crc32": "00000000",
            "format": FORMAT,
            "version": VERSION,
            "run_id": self.run_id,
            "dir": self.dir,
            "step": self.step,
            "generation": self.generation,
            "parent": self.parent,
            "created_at": to_rfc3339(self.created_at),
            "writer": self.writer,
            "world_size": self.world_size,
            "versions": dict(self.versions),
            "files": [{"name": f.name, "size_bytes": f.size_bytes, "crc32": f.crc32} for f in self.files],
            "state": dict(self.state),
        }
        body = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        return body[:_SEAL_AT] + crc32(body).encode() + body[_SEAL_AT + 8 :]

    @classmethod
    def from_bytes(cls, body: bytes) -> Manifest:
        """Return the manifest in `body`.

        Raises:
            CheckpointCorrupt: a byte differs from what was written, or it is of a later version.
        """
        seal = _SEAL.match(body)
        if seal is None or crc32(body[:_SEAL_AT] + b"00000000" + body[_SEAL_AT + 8 :]).encode() != seal[1]:
            raise CheckpointCorrupt("the manifest's own checksum does not match")
        row = _object(body)
        if row.get("format") != FORMAT or row.get("version") != VERSION:
            raise CheckpointCorrupt(
                f"format {row.get('format')!r} version {row.get('version')!r}, not {VERSION}"
            )
        try:
            manifest = cls(
                run_id=row["run_id"],
                dir=row["dir"],
                step=row["step"],
                generation=row["generation"],
                parent=row["parent"],
                created_at=from_rfc3339(row["created_at"]),
                files=tuple(File(**file) for file in row["files"]),
                state=row["state"],
                world_size=row["world_size"],
                writer=row["writer"],
                versions=row["versions"],
            )
            named = order_of(manifest.dir)
            if named is None or named[1] != manifest.step:
                raise ValueError(f"step {manifest.step} in {manifest.dir!r}")
            if not all(_FILE.fullmatch(file.name) and file.size_bytes >= 0 for file in manifest.files):
                raise ValueError("a file's name is not rank-NNNNN.safetensors")
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise CheckpointCorrupt(f"not a manifest: {error!r}") from error
        return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The pointer: which checkpoint counts."""

    dir: str
    manifest_crc: str
    step: int
    generation: int
    writer: str = ""

    def to_bytes(self) -> bytes:
        """Return the JSON of the file."""
        row: dict[str, JSON] = {
            "version": VERSION,
            "dir": self.dir,
            "manifest_crc": self.manifest_crc,
            "step": self.step,
            "generation": self.generation,
            "writer": self.writer,
        }
        return json.dumps(row).encode() + b"\n"

    @classmethod
    def from_bytes(cls, body: bytes) -> Latest:
        """Return the pointer in `body`.

        Raises:
            CheckpointCorrupt: it names no checkpoint of ours.
        """
        row = _object(body)
        try:
            order = order_of(row["dir"])
            if order is None or row["version"] != VERSION:
                raise ValueError(f"dir {str(row['dir'])[:80]!r}, version {row['version']!r}")
            generation = row["generation"]
            if type(generation) is not int or not order[0] <= generation <= _MOST_GENERATION:
                raise ValueError(f"generation {str(generation)[:40]} of {row['dir']!r}")
            return cls(
                dir=row["dir"],
                manifest_crc=str(row["manifest_crc"]),
                step=order[1],
                generation=generation,
                writer=str(row.get("writer", "")),
            )
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise CheckpointCorrupt(f"LATEST names no checkpoint: {error!r}") from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        row = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise CheckpointCorrupt(f"expected an object, found {type(row).__name__}")
    return row
