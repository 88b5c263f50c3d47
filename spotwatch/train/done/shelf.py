# SPDX-License-Identifier: Apache-2.0
"""The names of a done-list's objects, and what a listing shows of each share: it may lag behind the store.

It reads no object.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spotwatch.train.store import Entry

LIST = "LIST"
"""Says that this is a done-list, and in how many shares it is worked on."""
BAD = ".bad"
"""Beside a segment that did not verify: it does not count, whoever reads it later."""
MOST_SHARES = 4096
MOST_SEGMENTS = 10**8 - 1
_SHARE = re.compile(r"share-(\d{4})-of-(\d{4})")
_SEGMENT = re.compile(r"(\d{8})(?:-[0-9a-f]{8})?\.jsonl")
_INDEX = re.compile(r"index-(\d{8})-(\d{8})-[0-9a-f]{8}\.jsonl")


@dataclass(slots=True)
class Shelf:
    """What is there of one share."""

    segments: dict[int, dict[str, int]] = field(default_factory=dict)
    """Bytes by name, by number; several of one number only where the store keeps no two writers apart."""
    indexes: list[tuple[int, int, str]] = field(default_factory=list)
    """First and last number covered, and name."""
    bad: set[str] = field(default_factory=set)
    """Names of segments that do not count."""

    @property
    def last(self) -> int:
        """Return the highest number; 0 without a segment."""
        return max(self.segments, default=0)

    def cover(self) -> list[str]:
        """Return the indexes that cover segments 1 to as many as can be without a gap, in order."""
        chosen: list[str] = []
        begin = 1
        by_first: dict[int, tuple[int, str]] = {}
        for first, last, name in sorted(self.indexes):
            by_first[first] = max(by_first.get(first, (0, "")), (last, name))
        while begin in by_first:
            last, name = by_first[begin]
            chosen.append(name)
            begin = last + 1
        return chosen


def folder(share: int, shares: int) -> str:
    """Return where the objects of a share lie."""
    return f"share-{share:04d}-of-{shares:04d}"


def segment_name(number: int, *, is_exclusive: bool) -> str:
    """Return the name of a segment; nobody else's where the store does not keep two from taking one."""
    return f"{number:08d}.jsonl" if is_exclusive else f"{number:08d}-{secrets.token_hex(4)}.jsonl"


def index_name(first: int, last: int) -> str:
    """Return a name for an index of these segments; another one at each call."""
    return f"index-{first:08d}-{last:08d}-{secrets.token_hex(4)}.jsonl"


def number_of(name: str) -> int | None:
    """Return the number in a segment's name; None when it is no such name."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def is_share(name: str) -> bool:
    """Tell whether a folder is one of a share."""
    return _SHARE.fullmatch(name) is not None


def shelves(entries: Iterable[Entry]) -> Mapping[str, Shelf]:
    """Return what a listing shows, by folder; what belongs to no share is passed over."""
    found: dict[str, Shelf] = {}
    for entry in entries:
        place, _, name = entry.key.partition("/")
        if not is_share(place):
            continue
        shelf = found.setdefault(place, Shelf())
        number = number_of(name)
        if number is not None:
            shelf.segments.setdefault(number, {})[name] = entry.size_bytes
        elif match := _INDEX.fullmatch(name):
            first, last = int(match[1]), int(match[2])
            if 0 < first <= last:
                shelf.indexes.append((first, last, name))
        elif name.endswith(BAD):
            shelf.bad.add(name.removesuffix(BAD))
    return found
