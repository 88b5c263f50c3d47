# SPDX-License-Identifier: Apache-2.0
"""The buffer: kept, grown, warmed, pinned, refused, and let go."""

from __future__ import annotations

import mmap
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import NoRoom
from spotwatch.train.state.staging import Staging

MIB = 2**20


@pytest.fixture
def staging() -> Iterator[Staging]:
    """Return a buffer that is let go after the test."""
    made = Staging()
    yield made
    made.close()


def _is_ours(fd: int) -> bool:
    # The number may be another file's by now: other threads of this process open theirs.
    try:
        return Path(f"/proc/self/fd/{fd}").readlink().name.startswith("memfd:")
    except OSError:
        return False


def _wait_warm(staging: Staging) -> None:
    while staging.is_warming:
        time.sleep(0.001)


def test_nothing_is_taken_before_it_is_asked_for(staging: Staging) -> None:
    """A program that makes a Checkpointer and saves nothing pays nothing."""
    assert staging.fd is None
    assert staging.size_bytes == 0


def test_the_same_memory_is_given_again(staging: Staging) -> None:
    """A smaller, an equal and a slightly larger wish use the buffer that is there."""
    first = staging.reserve(64 * MIB)
    first[:5] = b"hello"
    for size in (MIB, 64 * MIB, 64 * MIB + 1000):
        again = staging.reserve(size)
        assert len(again) == size
        assert again.obj is first.obj
        assert staging.holds(again)
        assert bytes(again[:5]) == b"hello"


def test_nothing_fits_into_it(staging: Staging) -> None:
    """A state without tensors is restored like any other."""
    assert len(staging.reserve(0, margin_bytes=0)) == 0


def test_it_grows_and_never_shrinks(staging: Staging) -> None:
    """A larger wish keeps the contents, and the old view sees the same memory through the same descriptor."""
    old = staging.reserve(MIB)
    old[:3] = b"old"
    fd = staging.fd
    new = staging.reserve(20 * MIB)
    assert staging.fd == fd
    assert bytes(new[:3]) == b"old"
    assert not staging.holds(old)
    new[:3] = b"new"
    assert bytes(old[:3]) == b"new"
    size = staging.size_bytes
    staging.reserve(1)
    assert staging.size_bytes == size


def test_the_descriptor_reads_what_the_view_holds(staging: Staging) -> None:
    """Another process can send the buffer: the bytes begin at offset 0."""
    staging.reserve(MIB)[MIB - 3 :] = b"end"
    assert staging.fd is not None
    assert os.pread(staging.fd, 3, MIB - 3) == b"end"
    assert not os.get_inheritable(staging.fd)


def test_without_a_descriptor_there_is_a_buffer_all_the_same(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system refuses memfd_create (seccomp does), saves go on in this process."""

    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    view = staging.reserve(MIB)
    view[:2] = b"ab"
    staging.warm(MIB)
    _wait_warm(staging)
    assert staging.fd is None
    assert bytes(staging.reserve(MIB)[:2]) == b"ab"
    assert len(staging.reserve(9 * MIB)) == 9 * MIB


def test_no_room_is_said_and_changes_nothing() -> None:
    """A buffer that would not fit is refused before the system kills somebody for it."""
    free = 100 * MIB
    staging = Staging(lambda: free)
    view = staging.reserve(30 * MIB)
    view[:2] = b"ab"
    with pytest.raises(NoRoom, match=r"takes \d+ MiB of memory, and 100 MiB are available"):
        staging.reserve(200 * MIB)
    assert bytes(staging.reserve(30 * MIB)[:2]) == b"ab"
    staging.close()


def test_only_what_is_new_must_fit() -> None:
    """Growth of a shared buffer takes the difference, for what is there stays."""
    free = [220 * MIB]
    staging = Staging(lambda: free[0])
    staging.reserve(100 * MIB)
    free[0] = 120 * MIB
    assert len(staging.reserve(150 * MIB)) == 150 * MIB
    staging.close()


def test_a_download_needs_no_room_but_its_own() -> None:
    """What a streaming run saved on a machine is taken back there, where a save would be refused."""
    staging = Staging(lambda: 100 * MIB)
    with pytest.raises(NoRoom):
        staging.reserve(100 * MIB)
    assert len(staging.reserve(100 * MIB, margin_bytes=0)) == 100 * MIB
    with pytest.raises(NoRoom, match="takes 300 MiB of memory, and 100 MiB are available"):
        staging.reserve(300 * MIB, margin_bytes=0)
    staging.close()


def test_a_size_that_no_machine_has_is_no_room(staging: Staging) -> None:
    """Where the memory's reading knows no limit, the system's refusal is told as the same error."""
    vast = Staging(lambda: 2**70)
    with pytest.raises(NoRoom, match="cannot map"):
        vast.reserve(2**62)
    assert len(vast.reserve(MIB)) == MIB
    vast.close()


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def test_a_warm_buffer_is_written_without_page_faults(staging: Staging) -> None:
    """After warming, writing to each page meets memory that is there and mapped."""
    size = 64 * MIB
    staging.warm(size)
    _wait_warm(staging)
    assert staging.fd is not None
    assert os.fstat(staging.fd).st_blocks * 512 >= size
    view = staging.reserve(size)
    before = _faults()
    view[::4096] = bytes(size // 4096)
    assert _faults() - before < size // 4096 // 10


def test_warming_keeps_what_is_there(staging: Staging) -> None:
    """Memory may be warmed while it is written to: warming writes nothing."""
    view = staging.reserve(32 * MIB)
    staging.warm(32 * MIB)
    view[:] = b"\x07" * len(view)
    _wait_warm(staging)
    assert view[:: 4096 * 64].tobytes() == b"\x07" * 128


def test_warming_twice_starts_no_thread(staging: Staging) -> None:
    """What is warm already costs nothing to warm again, so that each save may ask."""
    staging.warm(8 * MIB)
    _wait_warm(staging)
    staging.warm(8 * MIB)
    assert not staging.is_warming


def test_without_a_thread_the_buffer_stays_cold_and_whole(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit on threads costs the quick first copy and one line, not the save; later it may be warmed."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    caplog.set_level("INFO", "spotwatch.train")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            staging.warm(8 * MIB)
            staging.settle()
    assert caplog.text.count("stays cold") == 1
    assert not staging.is_warming
    staging.reserve(8 * MIB)[:2] = b"ab"
    staging.warm(8 * MIB)
    _wait_warm(staging)
    assert bytes(staging.reserve(2)) == b"ab"


def test_warming_ends_early_when_the_buffer_goes() -> None:
    """Closing does not wait for the rest of a large warming, and gives the descriptor back."""
    staging = Staging(lambda: 2**50)
    staging.warm(2**36)
    fd = staging.fd
    assert fd is not None
    assert _is_ours(fd)
    staging.close()
    assert not staging.is_warming
    assert staging.size_bytes == 0
    assert not _is_ours(fd)


def test_a_forgotten_buffer_gives_its_descriptor_back() -> None:
    """Whoever drops a buffer without closing it leaks none."""
    staging = Staging()
    staging.reserve(1)
    fd = staging.fd
    assert fd is not None
    del staging
    assert not _is_ours(fd)


class _Cuda:
    """What of CUDA's runtime the buffer talks to."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.calls: list[tuple[Any, ...]] = []
        self.device = 0
        self.used: list[int] = []

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Be on a device for a while, as `torch.cuda.device` does."""
        self.device, before = device, self.device
        yield
        self.device = before

    def cudaHostRegister(self, *args: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("register", *args))
        self.used.append(self.device)
        return self.status

    def cudaHostUnregister(self, *args: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("unregister", *args))
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    """Return a CUDA runtime that has been initialised, and is none."""
    torch = pytest.importorskip("torch")
    fake = _Cuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device", fake.on)
    return fake


def test_the_whole_buffer_is_pinned_once_and_let_go_before_it_moves(staging: Staging, cuda: _Cuda) -> None:
    """A copy that crossed the end of what is pinned would fail, and so would memory unmapped while pinned."""
    for _ in range(2):
        staging.warm(4 * MIB)
        _wait_warm(staging)
    ((_, address, size, flags),) = cuda.calls
    assert (size, flags) == (staging.size_bytes, 1)
    assert cuda.used == [3], "on the device that the trainer uses"
    staging.reserve(32 * MIB)
    assert cuda.calls[1:] == [("unregister", address)]
    staging.warm(32 * MIB)
    _wait_warm(staging)
    assert cuda.calls[2][0] == "register"
    assert staging.is_pinned
    staging.close()
    assert cuda.calls[-1] == ("unregister", cuda.calls[2][1])


def test_a_refusal_to_pin_is_said_once(
    staging: Staging, cuda: _Cuda, caplog: pytest.LogCaptureFixture
) -> None:
    """Plain copies still work, so a limit on locked memory is no error, nor asked about at each save."""
    cuda.status = 2
    for _ in range(2):
        staging.warm(4 * MIB)
        _wait_warm(staging)
    assert not staging.is_pinned
    assert [call[0] for call in cuda.calls] == ["register"]
    assert caplog.text.count("does not pin the staging buffer (error 2)") == 1


def test_an_unmapped_buffer_outlives_its_owner_for_those_who_look_into_it(staging: Staging) -> None:
    """A view that somebody still holds stays readable after close."""
    view = staging.reserve(MIB)
    view[:2] = b"ab"
    staging.close()
    assert bytes(view[:2]) == b"ab"
    assert isinstance(view.obj, mmap.mmap)
