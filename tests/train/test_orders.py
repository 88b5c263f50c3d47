# SPDX-License-Identifier: Apache-2.0
"""Orders and flags as files: what is new, what is answered, what is stale, what is hostile."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from spotwatch.clock import read_boot_id
from spotwatch.handshake import FLAG, ORDER
from spotwatch.model import Do
from spotwatch.train.orders import Orders

from .conftest import Daemon


@pytest.fixture
def orders(runtime_dir: Path) -> Orders:
    """Return what a trainer that has looked once knows of an empty directory."""
    orders = Orders(runtime_dir, [(runtime_dir / FLAG, True)], read_boot_id())
    orders.look()
    return orders


def _fresh(runtime_dir: Path, *, trusted: bool = True) -> Orders:
    orders = Orders(runtime_dir, [(runtime_dir / FLAG, trusted)], read_boot_id())
    orders.look()
    return orders


def test_a_flush_is_due_until_answered(orders: Orders, daemon: Daemon, runtime_dir: Path) -> None:
    """Order and flag are one wish; answering it once removes the flag and ends it."""
    daemon.flag(7)
    daemon.order(Do.FLUSH, 7)
    mark = orders.mark()
    assert (orders.flush, orders.stop, mark.seq) == (True, False, 7)
    orders.answered(mark)
    assert (orders.is_in_force, orders.saved_seq) == (False, 7)
    assert not (runtime_dir / FLAG).exists()


def test_the_flag_alone_carries_its_number(orders: Orders, daemon: Daemon) -> None:
    """The flag appears before the order; a save for it counts for the order."""
    daemon.flag(3)
    mark = orders.mark()
    assert orders.flush
    daemon.order(Do.FLUSH, 3)
    orders.answered(mark)
    assert not orders.is_in_force


def test_an_order_given_during_the_save_stays_due(orders: Orders, daemon: Daemon, runtime_dir: Path) -> None:
    """What was asked after the copy was made needs another save."""
    daemon.flag(1)
    daemon.order(Do.FLUSH, 1)
    mark = orders.mark()
    daemon.order(Do.FLUSH, 2)
    orders.answered(mark)
    assert orders.saved_seq == 1
    assert orders.flush


def test_a_flag_of_a_newer_order_is_left(orders: Orders, daemon: Daemon, runtime_dir: Path) -> None:
    """A flag replaced during the save is not removed with the old one."""
    daemon.flag(1)
    mark = orders.mark()
    (runtime_dir / FLAG).unlink()
    daemon.flag(2)
    orders.answered(mark)
    assert (runtime_dir / FLAG).exists()
    assert orders.flush


def test_a_bare_flag_touched_during_the_save_stays(orders: Orders, runtime_dir: Path) -> None:
    """Touched again is asked again."""
    flag = runtime_dir / FLAG
    flag.touch()
    mark = orders.mark()
    os.utime(flag, ns=(1, 1))
    orders.answered(mark)
    assert flag.exists()
    assert orders.flush
    orders.answered(orders.mark())
    assert not flag.exists()
    assert not orders.is_in_force


def test_a_stop_is_withdrawn_by_none(orders: Orders, daemon: Daemon) -> None:
    """An order in force is a level, not an edge."""
    seen = []
    for do, seq in ((Do.STOP, 4), (Do.NONE, 5)):
        daemon.order(do, seq)
        orders.look()
        seen.append(orders.stop)
    assert seen == [True, False]


def test_a_stop_from_before_us_counts_while_draining(runtime_dir: Path, daemon: Daemon) -> None:
    """A stop that was there when we started was for someone else, unless the machine is draining."""
    daemon.order(Do.STOP, 4)
    orders = _fresh(runtime_dir)
    stops = [orders.stop]
    for change in (
        (runtime_dir / "draining").touch,
        (runtime_dir / "draining").unlink,
        partial(daemon.order, Do.STOP, 5),
    ):
        change()
        orders.look()
        stops.append(orders.stop)
    assert stops == [False, True, False, True]


def test_another_boots_order_is_void(runtime_dir: Path, daemon: Daemon) -> None:
    """After a reboot nothing old is obeyed, not even while `draining` is left over."""
    (runtime_dir / "draining").touch()
    daemon.order(Do.STOP, 9, boot_id="another")
    orders = _fresh(runtime_dir)
    assert (orders.stop, orders.is_in_force, orders.seq) == (False, False, 0)


def test_another_boots_flag_is_a_bare_one(orders: Orders, daemon: Daemon, runtime_dir: Path) -> None:
    """A left-over flag asks for one harmless save, raises no number, and goes."""
    daemon.flag(99, boot_id="another")
    mark = orders.mark()
    assert (orders.flush, mark.seq) == (True, 0)
    orders.answered(mark)
    assert not (runtime_dir / FLAG).exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 50_000,
        b'{"version":1,"boot_id":"x","seq":5}',
        b'{"version":2}',
        b"\xff\xfe",
        b"x" * 70_000,
        b'{"version":1,"seq":NaN,"do":"stop"}',
        b'{"version":1,"boot_id":[],"seq":1,"do":"stop"}',
        b'{"version":1,"boot_id":"BOOT","seq":-1,"do":"stop"}',
        b'{"version":1,"boot_id":"BOOT","seq":NUMBER,"do":"stop"}'.replace(b"NUMBER", b"9" * 5000),
        b'{"version":1,"boot_id":"BOOT","seq":2,"do":"stop","deadline":"9999-12-31T23:59:59-23:59"}',
        b'{"version":1,"boot_id":"BOOT","seq":2,"do":"stop","deadline":5}',
        b'{"version":1,"boot_id":"BOOT","seq":2,"do":"stop","deadline":"2026-11-29T12:00:00"}',
    ],
    ids=lambda body: body[:60],
)
def test_a_hostile_order_changes_nothing(
    orders: Orders, daemon: Daemon, runtime_dir: Path, body: bytes
) -> None:
    """Half-written, oversized or of another version: what was in force stays in force."""
    daemon.order(Do.FLUSH, 1)
    orders.look()
    (runtime_dir / ORDER).write_bytes(body.replace(b"BOOT", read_boot_id().encode()))
    orders.look()
    assert (orders.flush, orders.stop, orders.seq) == (True, False, 1)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "9" * 5000, "1e400", "NaN", "-1", "true"])
@pytest.mark.parametrize("path", [ORDER, FLAG])
def test_a_hostile_number_ends_nothing(orders: Orders, runtime_dir: Path, path: str, number: str) -> None:
    """Whatever its seq says, looking, marking and answering go on, and a save at most is asked for."""
    body = f'{{"version":1,"boot_id":"{read_boot_id()}","seq":{number},"do":"flush"}}'
    (runtime_dir / path).write_text(body)
    orders.look()
    orders.answered(orders.mark())
    assert not orders.is_in_force
    assert not (runtime_dir / FLAG).exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_an_order_that_is_no_file_changes_nothing(orders: Orders, runtime_dir: Path, kind: str) -> None:
    """A link is not followed, a pipe does not hang us."""
    path = runtime_dir / ORDER
    if kind == "link":
        (runtime_dir / "elsewhere").write_bytes(b"{}")
        path.symlink_to(runtime_dir / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    orders.look()
    assert not orders.is_in_force


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "huge"])
def test_a_strange_flag_asks_once(orders: Orders, runtime_dir: Path, kind: str) -> None:
    """Whatever it is, it exists: one save, and no second one when it cannot be removed."""
    path = runtime_dir / FLAG
    if kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"x" * 100_000)
    mark = orders.mark()
    assert orders.flush
    orders.answered(mark)
    assert not orders.is_in_force
    assert path.is_dir() is (kind == "directory")
    assert Path("/etc/hostname").exists()


def test_a_flag_that_is_gone_already_is_no_error(orders: Orders, daemon: Daemon, runtime_dir: Path) -> None:
    """The daemon, or another trainer, may remove it first."""
    daemon.flag(1)
    mark = orders.mark()
    (runtime_dir / FLAG).unlink()
    orders.answered(mark)
    assert not orders.is_in_force


def test_a_flag_that_everyone_can_make_is_limited(runtime_dir: Path, daemon: Daemon) -> None:
    """Where anyone may write, one save in a while, and its body proves nothing."""
    orders = _fresh(runtime_dir, trusted=False)
    daemon.flag(2**52)
    mark = orders.mark()
    assert (orders.flush, mark.seq) == (True, 0)
    orders.answered(mark, stall_seconds=1.0)
    (runtime_dir / FLAG).touch()
    orders.look()
    assert not orders.flush
    orders._pause_until = 0.0
    orders.look()
    assert orders.flush


def test_what_is_ignored_is_said_once(
    orders: Orders, runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four looks a second must not fill the log."""
    (runtime_dir / ORDER).write_bytes(b"{")
    for _ in range(5):
        orders.look()
    assert len([r for r in caplog.records if "ignored" in r.message]) == 1


@pytest.mark.parametrize("seq", [2**53, 2**53 + 1, 1_764_484_000_000_000_000])
def test_a_number_that_no_order_has_drowns_no_later_order(orders: Orders, daemon: Daemon, seq: int) -> None:
    """Such an order is ignored, and so is its number: the next one is due, and is answered under its own."""
    daemon.order(Do.FLUSH, seq)
    orders.look()
    assert (orders.is_in_force, orders.seq) == (False, 0)
    daemon.order(Do.FLUSH, 8)
    mark = orders.mark()
    assert (orders.flush, mark.seq) == (True, 8)
    orders.answered(mark)
    assert (orders.is_in_force, orders.saved_seq) == (False, 8)
    daemon.order(Do.STOP, 9)
    orders.look()
    assert orders.stop
