# SPDX-License-Identifier: Apache-2.0
"""How a trainer and its uploader process talk: one JSON object a line over a socket pair, descriptors beside.

It knows none of what is said. A line is short, so that whoever sends waits for nobody in practice.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
from collections import deque
from typing import Any

FOR_THE_TRAINER = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that reach the whole cgroup while the trainer's last save still needs its uploader."""
_CHUNK_BYTES = 65_536
_MOST_FDS = 4


class Gone(Exception):
    """The other side is no more."""


class Wire:
    """One end; several threads may send, one receives.

    Args:
        sock: of a pair of stream sockets; closed with this.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._held = b""
        self._fds: deque[int] = deque()

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Send one message, and a descriptor with it.

        Raises:
            Gone: nobody is there to read it.
        """
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                sent = 0 if fd is None else socket.send_fds(self._sock, [line], [fd])
                self._sock.sendall(line[sent:])
            except OSError as error:
                raise Gone(str(error)) from error

    def receive(self, timeout_seconds: float) -> dict[str, Any] | None:
        """Return the next message; None: there was none in time.

        Raises:
            Gone: there will be none.
        """
        while b"\n" not in self._held:
            # Not select.select: it knows no descriptor above 1,023, and trainers open many.
            poll = select.poll()
            try:
                poll.register(self._sock, select.POLLIN)
                if not poll.poll(timeout_seconds * 1000):
                    return None
                data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK_BYTES, _MOST_FDS)
            except (OSError, ValueError) as error:
                raise Gone(str(error)) from error
            self._fds.extend(fds)
            if not data:
                raise Gone("the other side has ended")
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def take_fd(self) -> int:
        """Return the descriptor that came with the message received last; the caller closes it."""
        return self._fds.popleft()

    def close(self) -> None:
        """End this side, and what processes that were forked hold of it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.let_go()

    def let_go(self) -> None:
        """Close this side in this process alone."""
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())
