# SPDX-License-Identifier: Apache-2.0
"""The objects of a done-list as bytes: segments, which hold outputs, and indexes, which repeat their keys.

Each begins with its own checksum and is refused when a byte differs. Nothing is fetched or stored here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.train.done.rows import Key, checked_key, key_in
from spotwatch.train.parts import crc32

FORMAT = "spotwatch-done"
VERSION = 1
MOST_SEGMENT_BYTES = 256 * 2**20
MOST_INDEX_BYTES = 2**30
# The checksum is of all that follows it.
_SEAL = re.compile(rb'\{"crc32":"([0-9a-f]{8})",')
_SEAL_AT = len(b'{"crc32":"')
_SEAL_END = _SEAL_AT + 8


@dataclass(frozen=True, slots=True)
class Segment:
    """Some items' outputs, as they lie in the store; one without any marks where a worker has begun."""

    writer: str
    generation: int
    lines: tuple[bytes, ...]
    """One for each item, as `rows.to_line` made it."""

    def to_bytes(self) -> bytes:
        """Return the object, sealed."""
        head = {"writer": self.writer, "generation": self.generation, "rows": len(self.lines)}
        return _sealed("segment", head, self.lines)

    @classmethod
    def from_bytes(cls, body: bytes) -> Segment:
        """Return the segment in `body`.

        Raises:
            CheckpointCorrupt: it is none, or a byte differs.
        """
        head, lines = _opened("segment", body)
        writer, generation = head.get("writer"), head.get("generation")
        if not isinstance(writer, str) or type(generation) is not int or head.get("rows") != len(lines):
            raise CheckpointCorrupt(f"a segment says {head!r:.200} of itself, and has {len(lines)} rows")
        return cls(writer, generation, lines)

    def keys(self) -> list[Key]:
        """Return the keys, in order; raise `CheckpointCorrupt` where a line has none."""
        return [key_in(line) for line in self.lines]


@dataclass(frozen=True, slots=True)
class Row:
    """What an index says of one segment."""

    number: int
    name: str
    size_bytes: int
    keys: tuple[Key, ...]

    def to_line(self) -> bytes:
        """Return its line."""
        row = [self.number, self.name, self.size_bytes, self.keys]
        return json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Row:
        """Return the row in a line.

        Raises:
            CheckpointCorrupt: it is none.
        """
        try:
            number, name, size_bytes, keys = json.loads(line)
            if type(number) is not int or not isinstance(name, str) or type(size_bytes) is not int:
                raise ValueError("no number, name and size")
            if any(type(key) not in (str, int) for key in keys):
                raise ValueError("a key of another type")
            return cls(number, name, size_bytes, tuple(checked_key(key) for key in keys))
        except (ValueError, TypeError, RecursionError, ConfigError) as error:
            raise CheckpointCorrupt(f"not a row of an index: {error}") from error


def index_to_bytes(lines: Sequence[bytes]) -> bytes:
    """Return an index of these rows, sealed."""
    return _sealed("index", {"rows": len(lines)}, lines)


def index_lines(body: bytes) -> tuple[bytes, ...]:
    """Return the lines of an index.

    Raises:
        CheckpointCorrupt: it is none, or a byte differs.
    """
    return _opened("index", body)[1]


def _sealed(what: str, head: dict[str, Any], lines: Sequence[bytes]) -> bytes:
    row = {"crc32": "0" * 8, "format": FORMAT, "version": VERSION, "what": what} | head
    body = bytearray(b"".join([json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n", *lines]))
    body[_SEAL_AT:_SEAL_END] = crc32(memoryview(body)[_SEAL_END:]).encode("ascii")
    return bytes(body)


def _opened(what: str, body: bytes) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    seal = _SEAL.match(body)
    if seal is None or crc32(memoryview(body)[_SEAL_END:]) != seal[1].decode("ascii"):
        raise CheckpointCorrupt("its checksum does not match")
    first, _, rest = body.partition(b"\n")
    try:
        head = json.loads(first)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"its first line is no JSON: {error}") from error
    if (head.get("format"), head.get("version"), head.get("what")) != (FORMAT, VERSION, what):
        raise CheckpointCorrupt(f"not a {what} of {FORMAT} version {VERSION}: {head!r:.200}")
    return head, tuple(rest.splitlines(keepends=True)) if rest else ()
