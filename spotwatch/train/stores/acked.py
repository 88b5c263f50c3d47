# SPDX-License-Identifier: Apache-2.0
"""How much the other ends of this process's connections have acknowledged, as the kernel counts it.

It is how an upload is seen to move where the library that sends it does not tell, and once the last byte of a
part is in the kernel's buffer, which a slow link takes its time for. Linux alone says so; elsewhere, or where
a sandbox does not count, it is 0. It opens nothing and closes nothing.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spotwatch.errors import StoreError
from spotwatch.train.stores.pacing import Pace

_FDS = Path("/proc/self/fd")
_LOOK_SECONDS = 1.0
# `struct tcp_info` of linux/tcp.h, from Linux 4.1 on: tcpi_bytes_acked, 64 bits.
_ACKED_AT = 120
_INFO_BYTES = 128
# Eight connections that share 50 kB/s take five seconds for so much each. Heartbeats of other libraries stay
# below it.
_LEAST_BYTES = 32 * 2**10
_WINDOW_SECONDS = 15.0

# Uploads give their requests time for a slow link, so one of which nothing moves must end otherwise.
_SILENT_SECONDS = 180.0

Counts = dict[str, int]
"""Bytes acknowledged so far of each TCP connection, by the name of its inode."""


@dataclass(slots=True)
class _Base:
    """From where one connection is counted."""

    acked: int
    since: float


class Acked:
    """What has been acknowledged on connections that this process has made later than this object.

    What trickles, less than 32 KiB in 15 seconds, is not counted: it is no upload. For any thread.

    Args:
        counts: returns what the kernel says.
        monotonic: the clock, in seconds.
    """

    def __init__(
        self, counts: Callable[[], Counts] | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._counts = counts or kernel_counts
        self._monotonic = monotonic
        self._foreign = frozenset(self._counts())
        self._bases: dict[str, _Base] = {}
        self._total = 0
        self._lock = threading.Lock()
        self._looked_at = -_LOOK_SECONDS

    def bytes(self) -> int:
        """Return how many since this object was made; it looks once a second at most."""
        with self._lock:
            now = self._monotonic()
            if now - self._looked_at >= _LOOK_SECONDS:
                self._looked_at = now
                self._look(now)
            return self._total

    def _look(self, now: float) -> None:
        bases: dict[str, _Base] = {}
        for name, acked in self._counts().items():
            if name in self._foreign:
                continue
            base = self._bases.get(name) or _Base(0, now)
            more = acked - base.acked
            if more >= _LEAST_BYTES:
                self._total += more
            if more >= _LEAST_BYTES or more < 0 or now - base.since >= _WINDOW_SECONDS:
                base = _Base(acked, now)
            bases[name] = base
        self._bases = bases


class Moved:
    """How much of one upload has left, from what surely has and what the kernel says.

    Args:
        acked: of the connections that it may use.
        pace: of it; what the user's limit holds back is moving all the same.
        place: what people are shown for the object.
        monotonic: the clock, in seconds.
    """

    def __init__(
        self, acked: Acked, pace: Pace, place: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._acked = acked
        self._pace = pace
        self._begun = acked.bytes()
        self._granted = pace.granted_bytes()
        self._most = 0
        self._place = place
        self._monotonic = monotonic
        self._moved_at = monotonic()

    def bytes(self, sent_bytes: int) -> int:
        """Return how many bytes have left so far, those that were sent again counted again; it never shrinks.

        Args:
            sent_bytes: as many have left surely.

        Raises:
            StoreError: nothing has moved for three minutes.
        """
        granted = int(self._pace.granted_bytes() - self._granted)
        most = max(self._most, sent_bytes, self._acked.bytes() - self._begun, granted)
        now = self._monotonic()
        if most > self._most:
            self._most, self._moved_at = most, now
        elif (silent := now - self._moved_at) > _SILENT_SECONDS:
            raise StoreError(f"cannot write {self._place}: nothing was taken for {silent:.0f} s")
        return self._most


def kernel_counts() -> Counts:
    """Return what the peer has acknowledged of each TCP connection of this process."""
    if sys.platform != "linux":
        return {}
    return dict(_connections())


def _connections() -> Iterator[tuple[str, int]]:
    try:
        entries = list(_FDS.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            name = str(entry.readlink())
        except OSError:
            continue  # closed meanwhile
        if name.startswith("socket:") and (acked := _acked(int(entry.name))) is not None:
            yield name, acked


def _acked(fd: int) -> int | None:
    # No socket object: after socket.setdefaulttimeout one would change the descriptor, which is another's.
    info = ctypes.create_string_buffer(_INFO_BYTES)
    length = ctypes.c_uint32(_INFO_BYTES)
    if _libc().getsockopt(fd, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(length)):
        return None  # closed meanwhile, or no TCP
    return int(struct.unpack_from("=Q", info, _ACKED_AT)[0]) if length.value >= _INFO_BYTES else None


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
