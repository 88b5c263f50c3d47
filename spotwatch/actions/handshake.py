# SPDX-License-Identifier: Apache-2.0
"""Telling the trainer through files, in an order that makes every crash harmless.

Flag, `order.json` and `draining` are one deed. Flush: the flag, then `order.json`, the commit record. Stop:
`order.json`, `draining`, then a pending flag goes. It reads no trainer's answer and signals nobody.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from spotwatch import handshake
from spotwatch.errors import ActionError, HandshakeError
from spotwatch.model import Do, Notice, Step
from spotwatch.rundir import set_aside
from spotwatch.safe_files import create_exclusively, read_small_file, remove_if_there, write_atomically

Owner = tuple[int, int]
_PROC_STATUS = Path("/proc/self/status")
# capabilities(7): CAP_CHOWN is number 0, CAP_FOWNER number 3. The second is for a file that is no longer
# ours: to link it (protected_hardlinks) and to remove it from a sticky directory.
_GIVE_AWAY = 1 << 0 | 1 << 3


class FlagState(StrEnum):
    """What lies at the flag's path."""

    ABSENT = "absent"
    OURS = "ours"
    FOREIGN = "foreign"
    """A regular file that somebody else made, by `touch` for example; it asks for a save like ours."""
    BLOCKED = "blocked"
    """A directory, a link, a pipe, or something that may not be read: no flag can be raised here."""


class HandshakeAction:
    """Write flag, order and draining.

    Args:
        runtime_dir: an existing directory that we may write to.
        flag: the flag's path, absolute or relative to `runtime_dir`.
        boot_id: of this boot; goes into everything written.
        owner: asked at each flush for the (uid, gid) that must be able to remove the flag; None: ours.
    """

    name: ClassVar[str] = "handshake"
    does: ClassVar[frozenset[Do]] = frozenset({Do.FLUSH, Do.STOP, Do.NONE})

    def __init__(
        self, runtime_dir: Path, flag: str, *, boot_id: str, owner: Callable[[], Owner | None]
    ) -> None:
        self.runtime_dir = runtime_dir
        self.flag = runtime_dir / flag
        self._boot_id = boot_id
        self._owner = owner
        self._owed: handshake.Order | None = None
        """A flush whose flag could not be raised because an earlier one is still pending."""

    async def fire(self, step: Step, notice: Notice) -> str:
        """Tell the trainer; `step.seq` is the number of the order.

        Raises:
            ActionError: something was not written; firing the same step again is harmless.
        """
        order = handshake.Order(
            boot_id=self._boot_id,
            seq=step.seq,
            do=step.do,
            id=notice.id,
            deadline=step.deadline,
            provider=notice.provider,
            why=step.why[:500],
        )
        try:
            if step.do is Do.FLUSH:
                return self._flush(order)
            return self._stop(order) if step.do is Do.STOP else self._lift(order)
        except HandshakeError as error:
            raise ActionError(str(error)) from error

    def _flush(self, order: handshake.Order) -> str:
        try:
            is_raised = self.raise_flag(order)
        except HandshakeError:
            # The library does not need the flag: it must not wait for one that cannot be raised.
            self._write_order(order)
            raise
        self._owed = None if is_raised else order
        self._write_order(order)
        return f"order {order.seq}" + (" and flag" if is_raised else "; its flag waits for an earlier one")

    def _stop(self, order: handshake.Order) -> str:
        self._owed = None
        self._write_order(order)
        body = json.dumps({"version": handshake.VERSION, "boot_id": order.boot_id, "seq": order.seq})
        self._put(handshake.DRAINING, body.encode() + b"\n")
        if self.flag_state() in (FlagState.OURS, FlagState.FOREIGN):
            remove_if_there(self.flag)
        return f"order {order.seq}, draining"

    def _lift(self, order: handshake.Order) -> str:
        self._owed = None
        self._write_order(order)
        pending = self.pending_order()
        if pending is not None and pending.do is Do.STOP:
            remove_if_there(self.flag)
        self.lift_draining()
        return f"order {order.seq}: nothing is in force"

    def _write_order(self, order: handshake.Order) -> None:
        self._put(handshake.ORDER, order.to_bytes())

    def _put(self, name: str, body: bytes) -> None:
        """Write a file of ours; a folder that somebody has put in its place is set aside."""
        place = self.runtime_dir / name
        try:
            write_atomically(place, body, mode=0o644)
        except HandshakeError:
            if not _is_folder(place) or not set_aside(place):
                raise
            write_atomically(place, body, mode=0o644)

    def raise_flag(self, order: handshake.Order) -> bool:
        """Put the flag there for `order`; False when another one is pending.

        Raises:
            HandshakeError: it cannot be raised; the message says what is in the way.
        """
        if create_exclusively(self.flag, order.to_bytes(), mode=0o640, owner=self._flag_owner()):
            return True
        state = self.flag_state()
        if state is FlagState.BLOCKED:
            raise HandshakeError(f"flag {self.flag} is in the way: no regular file; remove it")
        pending = self.pending_order()
        return pending is not None and (pending.boot_id, pending.seq) == (order.boot_id, order.seq)

    def forget_owed_flag(self) -> None:
        """Drop the waiting flag: its order has been answered."""
        self._owed = None

    @property
    def is_flag_owed(self) -> bool:
        """Tell whether a flag still waits for an earlier one to go."""
        return self._owed is not None

    def flag_state(self) -> FlagState:
        """Return what lies at the flag's path."""
        try:
            mode = os.lstat(self.flag).st_mode
        except FileNotFoundError:
            return FlagState.ABSENT
        except OSError:
            return FlagState.BLOCKED
        if not stat.S_ISREG(mode):
            return FlagState.BLOCKED
        return FlagState.OURS if self.pending_order() is not None else FlagState.FOREIGN

    def pending_order(self) -> handshake.Order | None:
        """Return the order in the flag's body; None when there is no flag of ours."""
        try:
            body = read_small_file(self.flag)
            return None if body is None else handshake.Order.from_bytes(body)
        except HandshakeError:
            return None

    def order_in_force(self) -> handshake.Order | None:
        """Return the order that the trainer sees; None when there is none that can be read."""
        try:
            return handshake.read_order(self.runtime_dir)
        except HandshakeError:
            return None

    def is_draining(self) -> bool:
        """Tell whether `draining` is there."""
        return (self.runtime_dir / handshake.DRAINING).exists()

    def lift_draining(self) -> None:
        """Remove `draining`, or set it aside where somebody has made a folder of it.

        Raises:
            HandshakeError: it cannot be removed.
        """
        draining = self.runtime_dir / handshake.DRAINING
        try:
            remove_if_there(draining)
        except HandshakeError:
            if not _is_folder(draining) or not set_aside(draining):
                raise

    def clear_other_boots(self) -> None:
        """Remove what an earlier boot left: `draining` is void then, and so is a flag of ours.

        Raises:
            HandshakeError: it cannot be removed.
        """
        draining = self.runtime_dir / handshake.DRAINING
        try:
            row = json.loads(read_small_file(draining) or b"{}")
            boot_id = row.get("boot_id") if isinstance(row, dict) else None
        except (HandshakeError, ValueError, RecursionError):
            boot_id = None
        if boot_id != self._boot_id:
            self.lift_draining()
        pending = self.pending_order()
        if pending is not None and pending.boot_id != self._boot_id:
            remove_if_there(self.flag)

    def _flag_owner(self) -> Owner | None:
        """Return the owner to set; None where we cannot give a file away: the directory's group serves."""
        owner = self._owner()
        if owner is None or os.geteuid() == 0:
            return owner
        # Our group stays: without it we could not read the flag any more.
        return (owner[0], -1) if may_give_away() else None


def _is_folder(place: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(place).st_mode)
    except OSError:
        return False


def may_give_away(status: Path = _PROC_STATUS) -> bool:
    """Tell whether this process may give a file to another user and still put it into its place.

    Args:
        status: of this process, where the kernel lists its capabilities.
    """
    try:
        found = re.search(
            r"(?m)^CapEff:\s*([0-9a-f]+)$", status.read_text(encoding="ascii", errors="replace")
        )
    except OSError:
        return False
    return found is not None and int(found[1], 16) & _GIVE_AWAY == _GIVE_AWAY
