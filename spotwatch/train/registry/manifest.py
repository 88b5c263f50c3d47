# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says about itself (`manifest.json`) and which one counts (`LATEST`): their exact forms.

Both carry checksums and are refused when a byte differs. Nothing is fetched, written or deleted here.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.model import JSON, from_rfc3339, to_rfc3339
from spotwatch.train.parts import crc32, joined_crc32

FORMAT = "spotwatch-checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
LATEST = "LATEST"
MOST_MANIFEST_BYTES = 256 * 2**20

_DIR = re.compile(r"step-(\d{9,15})-(?:g(\d{1,9})-)?[A-Za-z0-9]{1,32}")
MOST_STEPS = 10**15 - 1
_MOST_GENERATION = 10**9 - 2
"""The next life's still fits into a directory's name."""
RANK_FILE = "rank-{:05d}.safetensors"
MOST_RANKS = 100_000
_CRC = re.compile(r"[0-9a-f]{8}")
# An object of S3 has at most 5 TiB, a part 5 GiB ("Multipart upload limits", 2026-11-29); others allow more.
_MOST_PART_BYTES = 5 * 2**30
_MOST_FILE_BYTES = 2**53
_MOST_PARTS = 10_000
# The manifest's own checksum stands in its first bytes, and is computed with zeros in its place.
_SEAL = re.compile(rb'\{"crc32":"([0-9a-f]{8})",')
_SEAL_AT = len(b'{"crc32":"')


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
    """Of the whole, as `parts.joined_crc32` gives it."""
    part_bytes: int
    """Of every part but the last."""
    parts: tuple[str, ...]
    """The CRC-32 of each part, in order; none for an empty file."""

    @classmethod
    def of(cls, name: str, size_bytes: int, part_bytes: int, parts: Sequence[str]) -> File:
        """Return the file whose parts have these checksums.

        Raises:
            ValueError: so many parts do not make so many bytes.
        """
        if not 0 < part_bytes <= _MOST_PART_BYTES or not 0 <= size_bytes <= _MOST_FILE_BYTES:
            raise ValueError(f"{name!r} has {size_bytes} bytes in parts of {part_bytes}")
        if len(parts) != -(-size_bytes // part_bytes) or len(parts) > _MOST_PARTS:
            raise ValueError(f"{name!r} has {len(parts)} parts of {part_bytes} for {size_bytes} bytes")
        whole = joined_crc32(parts, size_bytes, part_bytes)
        return cls(name=name, size_bytes=size_bytes, crc32=whole, part_bytes=part_bytes, parts=tuple(parts))

    def span(self, index: int) -> tuple[int, int]:
        """Return the first byte of a part, and the byte after its last."""
        begin = index * self.part_bytes
        return begin, min(begin + self.part_bytes, self.size_bytes)


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
    tensors: JSON | None = None
    """Where the parts of sharded tensors lie; None: every file holds whole ones."""
    world_size: int = 1
    writer: str = ""
    healthy: bool = True
    """False: kept to be looked at, and never gone on from."""
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
            "healthy": self.healthy,
            "versions": dict(self.versions),
            "files": [asdict(file) | {"parts": list(file.parts)} for file in self.files],
            "state": dict(self.state),
            "tensors": self.tensors,
        }
        body = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        return body[:_SEAL_AT] + crc32(body).encode() + body[_SEAL_AT + 8 :]

    @classmethod
    def from_bytes(cls, body: bytes) -> Manifest:
        """Return the manifest in `body`.

        Raises:
            CheckpointCorrupt: a byte differs from what was written, or it does not add up.
            ConfigError: it is sound, but of a later version; going on from an older one would lose work.
        """
        seal = _SEAL.match(body)
        if seal is None or crc32(body[:_SEAL_AT] + b"00000000" + body[_SEAL_AT + 8 :]).encode() != seal[1]:
            raise CheckpointCorrupt("the manifest's own checksum does not match")
        row = _object(body)
        version = row.get("version")
        if row.get("format") == FORMAT and type(version) is int and version > VERSION:
            raise ConfigError(
                f"{str(row.get('dir'))[:80]} was written by a later spotwatch as version {version}; this one "
                f"reads version {VERSION}: install that one again, or use another run_id"
            )
        if row.get("format") != FORMAT or version != VERSION:
            raise CheckpointCorrupt(f"format {row.get('format')!r} version {version!r}, not {VERSION}")
        try:
            manifest = cls(
                run_id=_text(row["run_id"]),
                dir=_text(row["dir"]),
                step=_whole(row["step"]),
                generation=_whole(row["generation"]),
                parent=row["parent"],
                created_at=from_rfc3339(row["created_at"]),
                files=tuple(_file(file) for file in row["files"]),
                state=row["state"],
                tensors=row["tensors"],
                world_size=_whole(row["world_size"]),
                writer=_text(row["writer"]),
                healthy=row["healthy"],
                versions=row["versions"],
            )
            manifest._check()
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise CheckpointCorrupt(f"not a manifest: {error!r}") from error
        return manifest

    def _check(self) -> None:
        named = order_of(self.dir)
        if named is None or named[1] != self.step or named[0] not in (0, self.generation):
            raise ValueError(f"step {self.step} of generation {self.generation} in {self.dir!r}")
        if self.parent is not None and order_of(self.parent) is None:
            raise ValueError(f"parent {str(self.parent)[:80]!r}")
        if type(self.healthy) is not bool or not isinstance(self.versions, dict):
            raise ValueError("healthy is no boolean, or versions is no object")
        names = [file.name for file in self.files]
        if not 1 <= self.world_size <= MOST_RANKS or len(names) != self.world_size:
            raise ValueError(f"{len(names)} files of {self.world_size} ranks")
        if names != [RANK_FILE.format(rank) for rank in range(len(names))]:
            raise ValueError("the files are not rank-00000.safetensors and so on")
        if not isinstance(self.state, dict) or self.state.keys() != set(names):
            raise ValueError("state is not there for each file, and for nothing else")


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


def _file(row: Mapping[str, Any]) -> File:
    if "parts" not in row:
        raise ValueError("the files are listed without the checksums of their parts")
    if not isinstance(row["parts"], list) or not all(_CRC.fullmatch(part) for part in row["parts"]):
        raise ValueError(f"{str(row['name'])[:80]!r} has a part without a CRC-32")
    name, size_bytes, part_bytes = _text(row["name"]), _whole(row["size_bytes"]), _whole(row["part_bytes"])
    file = File.of(name, size_bytes, part_bytes, row["parts"])
    if file.crc32 != row["crc32"]:
        raise ValueError(f"the checksums of the parts of {name[:80]!r} do not make that of the whole")
    return file


def _whole(value: object) -> int:
    # A truth value would pass for 0 or 1, and a fraction for a size.
    if type(value) is not int or value < 0:
        raise ValueError(f"{str(value)[:40]} is no whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]} is no text")
    return value


def _object(body: bytes) -> dict[str, Any]:
    try:
        row = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise CheckpointCorrupt(f"expected an object, found {type(row).__name__}")
    return row
