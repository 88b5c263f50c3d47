# SPDX-License-Identifier: Apache-2.0
"""Many bytes in parts: how large a part is, its checksum, and that of the whole from those of its parts.

It moves no bytes. Standard library only.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

LEAST_PART_BYTES = 16 * 2**20
# S3 allows 10,000 parts of 5 MiB to 5 GiB (docs.aws.amazon.com, "Multipart upload limits", 2026-11-29).
_MOST_PARTS = 9_000
_MIB = 2**20
_POLYNOMIAL = 0xEDB88320


class Body(Protocol):
    """The bytes of one object, in order; every part but the last has `part_bytes`."""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes all parts have together."""

    @property
    def part_bytes(self) -> int:
        """Return the bytes of a part; the last may be shorter."""

    @property
    def fd(self) -> int | None:
        """Return a descriptor of shared memory that holds the bytes from 0 on; None without one."""

    def parts(self) -> Iterator[memoryview]:
        """Yield the parts in order; each stays valid for as long as the caller holds it."""


@dataclass(frozen=True, slots=True)
class Held:
    """A body that lies in memory as a whole.

    Args:
        view: its bytes.
        part_bytes: of a part.
        fd: of the shared memory that `view` begins at offset 0 of.
    """

    view: memoryview
    part_bytes: int
    fd: int | None = None

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all parts."""
        return len(self.view)

    def parts(self) -> Iterator[memoryview]:
        """Yield slices, without a copy."""
        for begin in range(0, len(self.view), self.part_bytes):
            yield self.view[begin : begin + self.part_bytes]


def part_bytes_for(size_bytes: int) -> int:
    """Return a part's size, in whole MiB, such that no store's limit on the number of parts is met."""
    least = -(-size_bytes // _MOST_PARTS)
    return max(LEAST_PART_BYTES, -(-least // _MIB) * _MIB)


def crc32(body: bytes | bytearray | memoryview) -> str:
    """Return the CRC-32 (zlib) of `body` as eight hexadecimal digits."""
    return f"{zlib.crc32(body):08x}"


def joined_crc32(crcs: Sequence[str], size_bytes: int, part_bytes: int) -> str:
    """Return the CRC-32 of the whole from those of its parts, without looking at a byte.

    Args:
        crcs: of each part, in order.
        size_bytes: of the whole.
        part_bytes: of every part but the last.
    """
    total = 0
    shift = _zeros(part_bytes)
    for index, crc in enumerate(crcs):
        length = min(part_bytes, size_bytes - index * part_bytes)
        total = _times(shift if length == part_bytes else _zeros(length), total) ^ int(crc, 16)
    return f"{total:08x}"


def _zeros(length_bytes: int) -> int:
    # x^(8 n) modulo the polynomial, by squaring: what n zero bytes do to a checksum (zlib's crc32_combine).
    power, square, bits = 1 << 31, 1 << 30, 8 * length_bytes
    while bits:
        if bits & 1:
            power = _times(square, power)
        square = _times(square, square)
        bits >>= 1
    return power


def _times(a: int, b: int) -> int:
    # Product of two polynomials over GF(2), bit-reflected, modulo the CRC's.
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product
