# SPDX-License-Identifier: Apache-2.0
"""What systemd hears, on a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.sdnotify import NullNotifier, SystemdNotifier, make_notifier


@pytest.fixture(params=["path", "abstract"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """Listen as systemd does, on a path or on an abstract name; give the address as NOTIFY_SOCKET has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        if request.param == "path":
            address = str(tmp_path / "notify")
            listener.bind(address)
        else:
            address = f"@spotwatch-test-{os.getpid()}-{tmp_path.name}"
            listener.bind("\0" + address[1:])
        listener.settimeout(5)
        yield address, listener


def test_each_word_is_sent_as_documented(line: tuple[str, socket.socket]) -> None:
    """One datagram an assignment, as sd_notify(3) has it."""
    address, listener = line
    notifier = make_notifier({"NOTIFY_SOCKET": address})
    assert isinstance(notifier, SystemdNotifier)
    notifier.ready()
    notifier.status("watching aws\nREADY=0")
    notifier.watchdog()
    notifier.extend(1.5)
    notifier.extend(-1)
    notifier.stopping()
    assert [listener.recv(4096).decode() for _ in range(6)] == [
        "READY=1",
        "STATUS=watching aws READY=0",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
        "EXTEND_TIMEOUT_USEC=0",
        "STOPPING=1",
    ]


def test_a_systemd_that_went_away_is_let_be(tmp_path: Path) -> None:
    """Nobody listens, or the queue is full: the watch goes on."""
    make_notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        notifier = make_notifier({"NOTIFY_SOCKET": str(tmp_path / "deaf")})
        for _ in range(2000):
            notifier.watchdog()
        assert deaf.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_without_a_socket_nothing_is_said(environ: dict[str, str]) -> None:
    """The same calls, to nobody."""
    notifier = make_notifier({**environ, "WATCHDOG_USEC": "1000000"})
    assert isinstance(notifier, NullNotifier)
    assert notifier.watchdog_seconds is None
    notifier.ready()
    notifier.status("x")
    notifier.watchdog()
    notifier.extend(1)
    notifier.stopping()


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("30000000", "", 30.0),
        pytest.param("30000000", str(os.getpid()), 30.0, id="ours"),
        ("30000000", "1", None),
        ("0", "", None),
        ("soon", "", None),
        ("", "", None),
    ],
)
def test_the_watchdog_is_for_the_process_named(usec: str, pid: str, seconds: float | None) -> None:
    """A child that inherits the variables is not watched."""
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
    assert make_notifier(environ).watchdog_seconds == seconds
