# SPDX-License-Identifier: Apache-2.0
"""What the trainer has been told by files: the order in force, the flag, and which of it is answered.

It neither saves nor stops; it looks at the files and remembers. Signals are in `signals`. The watching thread
and the training thread may use it at once. Standard library only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from spotwatch.errors import HandshakeError
from spotwatch.handshake import DRAINING, Order, read_order
from spotwatch.model import Do
from spotwatch.safe_files import read_small_file, remove_if_there

log = logging.getLogger("spotwatch.train")

_LEAST_PAUSE_SECONDS = 30.0
_PAUSE_STALLS = 10

Identity = tuple[int, int]
"""Inode and time of change of a flag: touched again, it is another one."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as it was found."""

    path: Path
    trusted: bool
    identity: Identity
    seq: int
    """The order in its body, when that is of this boot; else 0: a bare flag, touched by hand."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything asked for at the moment a save began: what that save will answer."""

    seq: int
    flags: tuple[Flag, ...]


class Orders:
    """The daemon's wishes, as read from its files.

    Args:
        runtime_dir: the trusted directory; None when there is no daemon to hear.
        flags: paths to watch, each with whether only trusted users can make it.
        boot_id: of this boot; orders of another are void.
        removes_flags: False leaves that to the rank that speaks for this machine.
    """

    def __init__(
        self,
        runtime_dir: Path | None,
        flags: Sequence[tuple[Path, bool]],
        boot_id: str,
        *,
        removes_flags: bool = True,
    ) -> None:
        self._removes_flags = removes_flags
        self._runtime_dir = runtime_dir
        self._paths = tuple(flags)
        self._boot_id = boot_id
        self._lock = threading.RLock()
        self._order: Order | None = None
        self._standing: tuple[Do, int] | None = None
        self._flags: tuple[Flag, ...] = ()
        self._handled: dict[Path, Identity] = {}
        self._pause_until = 0.0
        self._told: set[str] = set()
        self.seq = 0
        """The highest order seen of this boot."""
        self.saved_seq = 0
        self._passed_seq = 0
        self.stop = False
        """A stop is in force."""
        self.flush = False
        """A save is asked for."""
        self.looked = False

    def attach(self, runtime_dir: Path, flags: Sequence[tuple[Path, bool]]) -> None:
        """Listen to a daemon that appeared later."""
        with self._lock:
            self._runtime_dir, self._paths = runtime_dir, tuple(flags)
            self.look()

    @property
    def _done_seq(self) -> int:
        return max(self.saved_seq, self._passed_seq)

    @property
    def is_in_force(self) -> bool:
        """Tell whether an order is in force that the training loop has not answered; a stop always is."""
        return self.stop or self.flush

    @property
    def deadline(self) -> datetime | None:
        """Return when the machine goes, if a stop says so."""
        order = self._order
        return order.deadline if order is not None and self.stop else None

    @property
    def why(self) -> str:
        """Return the daemon's reason for the order in force."""
        return self._order.why if self._order is not None else ""

    def look(self) -> None:
        """Read the files again. What cannot be read changes nothing and is said once."""
        with self._lock:
            order = self._read_order()
            if order is not None:
                if not self.looked and order.do is Do.STOP:
                    # It was there before us: perhaps meant for the process before us. `draining` tells.
                    self._standing = (order.do, order.seq)
                self._order = order
                self.seq = max(self.seq, order.seq)
            self.looked = True
            self._flags = tuple(
                flag for path, trusted in self._paths if (flag := self._read_flag(path, trusted))
            )
            self.seq = max(self.seq, *(flag.seq for flag in self._flags), 0)
            self._decide()

    def mark(self) -> Mark:
        """Look once more and return what a save that begins now will answer."""
        with self._lock:
            self.look()
            return Mark(self.seq, self._flags)

    def answered(self, mark: Mark, *, stall_seconds: float = 0.0) -> None:
        """Note that a durable checkpoint contains all that `mark` asked for, and remove its flags.

        A flag that was touched since, or whose order is newer, stays: it asks for another save.
        """
        with self._lock:
            self.saved_seq = max(self.saved_seq, mark.seq)
            for flag in mark.flags:
                if flag.seq <= self.saved_seq and _identity(flag.path) == flag.identity:
                    self._remove(flag)
                if not flag.trusted and not flag.seq:
                    pause = max(_LEAST_PAUSE_SECONDS, _PAUSE_STALLS * stall_seconds)
                    self._pause_until = time.monotonic() + pause
            self.look()

    def pass_over(self, mark: Mark) -> None:
        """Ask for no other save because of `mark`, without an answer to it: another would be no better."""
        with self._lock:
            self._passed_seq = max(self._passed_seq, mark.seq)
            self._handled.update({flag.path: flag.identity for flag in mark.flags})
            self.look()

    def _decide(self) -> None:
        order = self._order
        told = order is not None
        # A stop stays in force until another order replaces it; saving does not end it.
        stands = order is not None and self._standing == (order.do, order.seq)
        self.stop = bool(told and order and order.do is Do.STOP and (not stands or self._is_draining()))
        asked = bool(told and order and order.do is Do.FLUSH and order.seq > self._done_seq)
        self.flush = asked or any(self._wants(flag) for flag in self._flags)

    def _wants(self, flag: Flag) -> bool:
        if flag.seq:
            return flag.seq > self._done_seq
        if self._handled.get(flag.path) == flag.identity:
            return False
        return flag.trusted or time.monotonic() >= self._pause_until

    def _is_draining(self) -> bool:
        return self._runtime_dir is not None and os.path.lexists(self._runtime_dir / DRAINING)

    def _read_order(self) -> Order | None:
        if self._runtime_dir is None:
            return None
        try:
            order = read_order(self._runtime_dir)
        except Exception as error:  # noqa: BLE001 - whatever someone wrote there, training must not end of it
            self._say(f"an order is ignored: {error}")
            return None
        return order if order is not None and order.boot_id == self._boot_id and order.seq > 0 else None

    def _read_flag(self, path: Path, trusted: bool) -> Flag | None:
        identity = _identity(path)
        if identity is None:
            return None
        seq = 0
        # No order inside, or no plain file, or worse: it exists, that is enough.
        with contextlib.suppress(Exception):
            body = read_small_file(path)
            order = Order.from_bytes(body) if body and body.strip() else None
            # Where everyone may write, a number proves nothing and could outrank every true order.
            if order is not None and order.boot_id == self._boot_id and trusted:
                seq = order.seq
        return Flag(path, trusted, identity, seq)

    def _remove(self, flag: Flag) -> None:
        if not self._removes_flags:
            self._handled[flag.path] = flag.identity
            return
        try:
            remove_if_there(flag.path)
        except HandshakeError as error:
            self._handled[flag.path] = flag.identity
            self._say(f"the flag stays, and is not taken for a new one: {error}")

    def _say(self, text: str) -> None:
        if text not in self._told and len(self._told) < 100:  # noqa: PLR2004 - a bound against a flood
            self._told.add(text)
            log.warning("%s", text)


def _identity(path: Path) -> Identity | None:
    try:
        facts = path.lstat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns
