# SPDX-License-Identifier: Apache-2.0
"""What systemd wants to hear of a Type=notify service: ready, status, alive, stopping, more time.

A message that cannot be sent is dropped: no watch ends because systemd is unwell. It decides nothing.
Source: sd_notify(3), sd_watchdog_enabled(3), read 2026-11-29. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Protocol


class Notifier(Protocol):
    """The line to the service manager."""

    watchdog_seconds: float | None
    """Say `watchdog` at least this often (half of it is usual); None: nobody listens for it."""

    def ready(self) -> None:
        """Say that the start is complete."""

    def status(self, text: str) -> None:
        """Show one line in `systemctl status`."""

    def stopping(self) -> None:
        """Say that the end has begun."""

    def watchdog(self) -> None:
        """Say that the loop turns."""

    def extend(self, seconds: float) -> None:
        """Ask that the start or stop in progress may take `seconds` from now."""


class NullNotifier:
    """Nobody listens."""

    watchdog_seconds: float | None = None

    def ready(self) -> None:
        """Do nothing."""

    def status(self, text: str) -> None:
        """Do nothing."""

    def stopping(self) -> None:
        """Do nothing."""

    def watchdog(self) -> None:
        """Do nothing."""

    def extend(self, seconds: float) -> None:
        """Do nothing."""


class SystemdNotifier:
    """Datagrams to the socket that systemd named.

    Args:
        address: a path, or an abstract name that begins with `@`.
        watchdog_seconds: what systemd expects; None: it does not watch us.
    """

    def __init__(self, address: str, watchdog_seconds: float | None) -> None:
        self.watchdog_seconds = watchdog_seconds
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def ready(self) -> None:
        """Send READY=1."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Send STATUS=; line ends become blanks, as one would begin another assignment."""
        self._send(f"STATUS={' '.join(text.split())[:500]}")

    def stopping(self) -> None:
        """Send STOPPING=1."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Send WATCHDOG=1."""
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Send EXTEND_TIMEOUT_USEC=."""
        self._send(f"EXTEND_TIMEOUT_USEC={max(0, round(seconds * 1e6))}")

    def _send(self, message: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            # A full queue must not hold up the watch.
            line.setblocking(False)
            line.sendto(message.encode(), self._address)


def make_notifier(environ: Mapping[str, str]) -> Notifier:
    """Return the line that NOTIFY_SOCKET names, or one that goes nowhere."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return NullNotifier()
    return SystemdNotifier(address, _watchdog_seconds(environ))


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    # sd_watchdog_enabled(3): with WATCHDOG_PID set, only that process is meant.
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6
