# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of connections, counted by a clock that the test moves; and uploads seen by it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spotwatch.errors import StoreError
from spotwatch.train.parts import Held
from spotwatch.train.stores import acked, object_moves, s3_upload
from spotwatch.train.stores.acked import Acked, Counts, Moved, kernel_counts
from spotwatch.train.stores.bulk_obstore import ObstoreBulk
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket
from spotwatch.train.stores.uploader import ProcessBulk

from .bulk_help import crcs_of, nothing, shared, wait_for
from .s3_stand_in import S3StandIn
from .test_pacing import Clock

_KIB = 1024
_PART_BYTES = 256 * _KIB


class Kernel:
    """Connections by name, and a clock; `after` lets time pass and bytes be acknowledged."""

    def __init__(self) -> None:
        self.counts: Counts = {}
        self.clock = Clock()

    def acked(self) -> Acked:
        """Return what counts them."""
        return Acked(lambda: dict(self.counts), self.clock)

    def after(self, seconds: float, **more: int) -> None:
        """Let so many more bytes be acknowledged."""
        self.clock.now += seconds
        for name, count in more.items():
            self.counts[name] = self.counts.get(name, 0) + count


def test_only_connections_that_came_later_count() -> None:
    """Those between the ranks were there before, and never stop to speak."""
    kernel = Kernel()
    kernel.after(1, gloo=10**9)
    counted = kernel.acked()
    kernel.after(1, gloo=10**9, s3=100 * _KIB)
    assert counted.bytes() == 100 * _KIB
    kernel.after(1, gloo=10**9, s3=50 * _KIB)
    assert counted.bytes() == 150 * _KIB


def test_eight_connections_that_share_50_kilobytes_a_second_move() -> None:
    """Each is slow enough to be taken for a trickle, were the limit higher; no 15 seconds pass without."""
    kernel = Kernel()
    counted, seen = kernel.acked(), [0]
    names = [f"s3_{number}" for number in range(8)]
    still, longest = 0, 0
    for _ in range(120):
        kernel.after(1, **dict.fromkeys(names, 50_000 // 8))
        seen.append(counted.bytes())
        still = 0 if seen[-1] > seen[-2] else still + 1
        longest = max(longest, still)
    assert longest <= 15
    assert seen[-1] == pytest.approx(120 * 50_000, rel=0.1)


def test_heartbeats_do_not_move() -> None:
    """However long it is looked at: a store that hangs is not kept alive by another library's chatter."""
    kernel = Kernel()
    counted = kernel.acked()
    for _ in range(600):
        kernel.after(1, wandb=1000)
        assert counted.bytes() == 0


def test_a_connection_that_is_gone_is_forgotten() -> None:
    """Its number may be another's later, which begins at 0."""
    kernel = Kernel()
    counted = kernel.acked()
    kernel.after(1, s3=100 * _KIB)
    assert counted.bytes() == 100 * _KIB
    del kernel.counts["s3"]
    kernel.after(1)
    counted.bytes()
    kernel.after(1, s3=40 * _KIB)
    assert counted.bytes() == 140 * _KIB


def test_what_the_limit_of_the_user_holds_back_moves() -> None:
    """A part that waits for its turn for a minute is no store that hangs."""
    kernel = Kernel()
    pace = Pace(1000.0, monotonic=kernel.clock)
    moved = Moved(kernel.acked(), pace, "s3://bucket/key", kernel.clock)
    pace.book(60_000)
    seen = []
    for _ in range(3):
        kernel.after(20)
        seen.append(moved.bytes(0))
    assert seen == [20_000, 40_000, 60_000]
    kernel.after(180)
    assert moved.bytes(0) == 60_000
    kernel.after(1)
    with pytest.raises(StoreError, match="s3://bucket/key: nothing was taken for 181 s"):
        moved.bytes(0)


def test_the_kernel_says_what_the_peer_has_taken() -> None:
    """Of TCP alone; and the descriptors stay as they are, whatever the program's default time limit."""
    left, right = socket.socketpair()
    server = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(server.getsockname())
    with left, right, server, ours, server.accept()[0] as theirs:
        name = str(Path(f"/proc/self/fd/{ours.fileno()}").readlink())
        ours.sendall(bytes(50_000))
        read = 0
        while read < 50_000:
            read += len(theirs.recv(65_536))
        wait_for(lambda: kernel_counts()[name] >= 50_000)
        socket.setdefaulttimeout(3.0)
        try:
            counts = kernel_counts()
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(ours.fileno())
        assert str(Path(f"/proc/self/fd/{left.fileno()}").readlink()) not in counts


@pytest.fixture
def held(server: S3StandIn) -> Iterator[threading.Event]:
    """Let the server take each body, and hold its answer back until this is set."""
    made = threading.Event()

    def hold(is_put: bool) -> None:
        if is_put:
            made.wait(30)

    server.fault = lambda call: hold(call.method == "PUT")
    yield made
    made.set()


Send = Callable[[Bucket, Held, Callable[[int], None]], object]


def _by_obstore(bucket: Bucket, body: Held, on_part: Callable[[int], None]) -> object:
    return ObstoreBulk(bucket, Pace(None)).upload("key", body, on_part)


def _by_boto3(bucket: Bucket, body: Held, on_part: Callable[[int], None]) -> object:
    return s3_upload.upload(bucket, "key", body, on_part, Pace(None))


def _by_a_process(bucket: Bucket, body: Held, on_part: Callable[[int], None]) -> object:
    with closing(ProcessBulk(bucket, Pace(None), least_bytes=1)) as bulk:
        return bulk.upload("key", body, on_part)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("made_up_keys")
@pytest.mark.parametrize(
    ("send", "parts"), [(_by_obstore, 2), (_by_boto3, 2), (_by_boto3, 1), (_by_a_process, 2)]
)
def test_an_upload_moves_before_its_first_part_is_through(
    server: S3StandIn, held: threading.Event, send: Send, parts: int
) -> None:
    """On a slow link a part takes minutes, and its bytes alone tell it from a store that hangs."""
    body = shared(parts * _PART_BYTES, part_bytes=_PART_BYTES)

    def on_part(left_bytes: int) -> None:
        if left_bytes:
            held.set()

    assert send(Bucket("bulk", {"endpoint_url": server.url}), body, on_part) == crcs_of(body)
    assert held.is_set()


@pytest.mark.usefixtures("made_up_keys")
def test_an_upload_of_which_nothing_moves_is_given_up(
    server: S3StandIn, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request of it is given up for being slow, so something must end it."""
    monkeypatch.setattr(acked, "_SILENT_SECONDS", 1.5)
    monkeypatch.setattr(object_moves, "_ABORT_SECONDS", 0.1)
    bulk = ObstoreBulk(Bucket("bulk", {"endpoint_url": server.url}), Pace(None))
    with pytest.raises(StoreError, match="nothing was taken for"):
        bulk.upload("key", shared(2 * _PART_BYTES, part_bytes=_PART_BYTES), nothing)
    assert not held.is_set()
