# SPDX-License-Identifier: Apache-2.0
"""The one buffer that every save is copied into and every download lands in: shared, used again, warmed.

It is anonymous shared memory behind a descriptor, so that another process can send it without a copy and a
container's small /dev/shm does not matter. Where CUDA is in use it is pinned. It knows no tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from spotwatch.errors import NoRoom
from spotwatch.train.state import room

log = logging.getLogger("spotwatch.train")

_MIB = 2**20
# A checkpoint of the next step may be a little larger; a new mapping for that would be cold again.
_SLACK = 64
_ROUND_BYTES = 2 * _MIB
# What must stay free beside a large buffer; a small one need not leave more than its own size.
_MARGIN_BYTES = 256 * _MIB
# linux/mman.h; the advice to fault pages in is of Linux 5.14, and mmap.madvise would hold the lock of Python.
_POPULATE_WRITE = 23
# So much at a time: a copy that begins meanwhile waits for one piece at most.
_WARM_BYTES = 8 * _MIB
# cuda_runtime_api.h: pinned for every device's context.
_PORTABLE = 1


class Staging:
    """A buffer that grows and never shrinks; one save or one download uses it at a time.

    Args:
        available: tells how many bytes of memory may still be taken.
    """

    def __init__(self, available: Callable[[], int] = room.available_bytes) -> None:
        self._available = available
        self._map: mmap.mmap | None = None
        self._fd: int | None = None
        self._close_fd: Callable[[], object] = lambda: None
        self._pinned_at: int | None = None
        self._may_pin = True
        self._warmer: threading.Thread | None = None
        self._warm_to = 0
        self._stop_warming = threading.Event()
        self._has_told_cold = False

    @property
    def fd(self) -> int | None:
        """Return the descriptor of the memory, from its offset 0 on; None where the system has none."""
        return self._fd

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the buffer has; not all of them need be in memory yet."""
        return 0 if self._map is None else len(self._map)

    @property
    def available_bytes(self) -> int:
        """Return how many bytes of memory may still be taken beside the buffer."""
        return self._available()

    @property
    def is_pinned(self) -> bool:
        """Tell whether CUDA knows the buffer, so that it copies into it without waiting."""
        return self._pinned_at is not None

    def reserve(self, size_bytes: int, *, margin_bytes: int = _MARGIN_BYTES) -> memoryview:
        """Return the first `size_bytes` of the buffer, larger than before if need be, with what they hold.

        Whoever keeps a view from before it grew sees the same memory where there is a descriptor, and old
        memory where there is none.

        Args:
            size_bytes: of the view.
            margin_bytes: what must stay free beside a buffer that grows, but no more than it grows by. A save
                that is refused goes another way; a download has none, and passes 0.

        Raises:
            NoRoom: it would have to grow, and there is no memory for that; it is as it was.
        """
        if self._map is None or size_bytes > len(self._map):
            self._grow(size_bytes, margin_bytes)
        if self._map is None:
            return memoryview(bytearray())
        return memoryview(self._map)[:size_bytes]

    def holds(self, view: memoryview) -> bool:
        """Tell whether `view` is of the buffer as it is now."""
        return self._map is not None and view.obj is self._map

    def warm(self, size_bytes: int) -> None:
        """Have `size_bytes` of the buffer put into memory, and pinned, by a thread; return at once.

        The first copy is then as quick as later ones. What is in the buffer stays.

        Raises:
            NoRoom: as `reserve`.
        """
        self.reserve(size_bytes)
        if self._map is None or self.is_warming or (self._warm_to >= size_bytes and not self._can_pin()):
            return
        self._stop_warming.clear()
        # A thread begins on the first device, where each process of a run would leave a context of its own.
        device = sys.modules["torch"].cuda.current_device() if self._can_pin() else None
        warmer = threading.Thread(
            target=self._warm, args=(self._map, size_bytes, device), name="spotwatch-warm", daemon=True
        )
        try:
            warmer.start()
        except RuntimeError as error:  # a limit on threads, as of a container
            if not self._has_told_cold:
                log.info("the staging buffer stays cold: saves may take longer (%s)", error)
            self._has_told_cold = True
            return
        # Not before: one that never started cannot be joined.
        self._warmer = warmer

    @property
    def is_warming(self) -> bool:
        """Tell whether the thread is at work. It writes nothing, so the buffer may be used meanwhile."""
        return self._warmer is not None and self._warmer.is_alive()

    def settle(self) -> None:
        """End the warming early; what is not in memory yet comes when it is written to.

        Copies by CUDA must not run while it pins the buffer.
        """
        if self._warmer is not None:
            self._stop_warming.set()
            self._warmer.join()
            self._warmer = None

    def close(self) -> None:
        """Let the memory go; what is left of it goes with the last view."""
        self.settle()
        self._unpin()
        self._map = None
        self._warm_to = 0
        self._fd = None
        self._close_fd()

    def _grow(self, size_bytes: int, margin_bytes: int) -> None:
        # A state without tensors takes none of it, and nothing cannot be mapped.
        wanted = -(-max(size_bytes + size_bytes // _SLACK, 1) // _ROUND_BYTES) * _ROUND_BYTES
        # The slack is memory only once it is written to, which a buffer that is just large enough never sees.
        taken = wanted if margin_bytes else size_bytes
        more = taken - (self.size_bytes if self._fd is not None else 0)
        free = self._available()
        if more + min(more, margin_bytes) > free:
            raise NoRoom(
                f"a copy of the state takes {taken / _MIB:.0f} MiB of memory, "
                f"and {free / _MIB:.0f} MiB are available"
            )
        try:
            new = self._new_map(wanted)
        except (OSError, OverflowError, ValueError) as error:
            raise NoRoom(f"cannot map {wanted} bytes of memory: {error}") from error
        self.settle()
        self._unpin()
        # Never closed by hand: tensors may lie in it that do not count as its exports.
        self._map = new
        self._may_pin = True
        self._warm_to = 0

    def _new_map(self, size_bytes: int) -> mmap.mmap:
        if self._map is None and self._fd is None:
            self._open()
        if self._fd is not None:
            os.ftruncate(self._fd, size_bytes)
            return mmap.mmap(self._fd, size_bytes)
        return mmap.mmap(-1, size_bytes)

    def _open(self) -> None:
        try:
            fd = os.memfd_create("spotwatch-staging", os.MFD_CLOEXEC)
        except (OSError, AttributeError) as error:
            log.info("no memory with a descriptor here (%s): it cannot be sent by another process", error)
            return
        self._fd = fd
        self._close_fd = weakref.finalize(self, os.close, fd)

    def _warm(self, memory: mmap.mmap, size_bytes: int, device: int | None) -> None:
        begin = self._warm_to
        while begin < size_bytes and not self._stop_warming.is_set():
            length = min(_WARM_BYTES, len(memory) - begin)
            # Pages, then mappings: quicker than faults that bring both, 2.4 GB in 1 s instead of 3.
            is_allocated = self._allocate(begin, length)
            if not _populate(memory, begin, length) and not is_allocated:
                log.info(
                    "the staging buffer stays cold from byte %d on: the first save will take longer", begin
                )
                return
            begin += length
            self._warm_to = begin
        if device is not None and not self._stop_warming.is_set():
            self._pin(memory, device)

    def _allocate(self, begin: int, length: int) -> bool:
        if self._fd is None:
            return False
        try:
            os.posix_fallocate(self._fd, begin, length)
        except OSError:
            return False
        return True

    def _can_pin(self) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or self.is_pinned or not self._may_pin:
            return False
        # Asking more would start CUDA in a process that does not use it.
        return bool(torch.cuda.is_available() and torch.cuda.is_initialized())

    def _pin(self, memory: mmap.mmap, device: int) -> None:
        """Register the whole buffer with CUDA, once. This has not been run on a GPU yet."""
        self._may_pin = False
        address = _address(memory)
        torch = sys.modules["torch"]
        with torch.cuda.device(device):
            status = int(torch.cuda.cudart().cudaHostRegister(address, len(memory), _PORTABLE))
            if status:
                log.warning("CUDA does not pin the staging buffer (error %d): saves stall longer", status)
                _forget_cuda_error(torch)
                return
        self._pinned_at = address

    def _unpin(self) -> None:
        if self._pinned_at is None:
            return
        torch = sys.modules["torch"]
        status = int(torch.cuda.cudart().cudaHostUnregister(self._pinned_at))
        self._pinned_at = None
        if status:
            log.warning("CUDA does not unpin the staging buffer (error %d)", status)
            _forget_cuda_error(torch)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _populate(memory: mmap.mmap, begin: int, length: int) -> bool:
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return int(call(_address(memory) + begin, length, _POPULATE_WRITE)) == 0


def _forget_cuda_error(torch: Any) -> None:
    # The runtime keeps the error for the next launch that asks, which would be the trainer's.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
