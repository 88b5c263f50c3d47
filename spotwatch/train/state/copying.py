# SPDX-License-Identifier: Apache-2.0
"""Tensors copied to their places in a buffer, as quickly as memory allows; the work of finding them is kept.

Training waits for it, so nothing here waits for one tensor before it begins the next. It plans no places and
owns no buffer.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from spotwatch.train.state import tensors
from spotwatch.train.state.tensors import Layout

if TYPE_CHECKING:
    import torch

# A few cores fill the memory's bandwidth; more would only take them from the loader's workers.
_MOST_THREADS = 4
# Less than this is copied sooner than threads are started.
_THREADS_FROM_BYTES = 16 * 2**20


class Places:
    """The places of one layout in one buffer, as tensors to copy into again and again.

    Args:
        layout: of the file that the buffer will hold.
        buffer: its first bytes; its owner must not unmap it while this lives.
    """

    def __init__(self, layout: Layout, buffer: memoryview) -> None:
        self.layout = layout
        self.buffer = buffer
        self._views = tensors.unpack(buffer, layout)
        self._kinds = {name: (view.dtype, view.shape) for name, view in self._views.items()}
        self._shares = _shares(layout)

    def suit(self, named: Mapping[str, torch.Tensor]) -> bool:
        """Tell whether these tensors would lie as the ones do that this was made for."""
        kinds = self._kinds
        return len(named) == len(kinds) and all(
            kinds.get(name) == (tensor.dtype, tensor.shape) for name, tensor in named.items()
        )

    def fill(self, named: Mapping[str, torch.Tensor]) -> None:
        """Copy header and tensors, whatever their devices and strides; all is there at return.

        Copies from CUDA are queued, behind what the current streams still compute, and waited for at the end.
        This has not been run on a GPU yet.
        """
        self.buffer[: len(self.layout.head)] = self.layout.head
        if not named:
            return  # importing torch takes seconds, and this trainer may have none
        import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

        # First the others, so that they copy while this processor does.
        others = [name for share in self._shares for name in share if not named[name].is_cpu]
        cuda = [name for name in others if named[name].is_cuda]
        self._copy(torch, cuda, named, non_blocking=True)
        self._copy(torch, [name for name in others if not named[name].is_cuda], named)
        here = [[name for name in share if named[name].is_cpu] for share in self._shares]
        if len(here) == 1:
            self._copy(torch, here[0], named)
        else:
            with ThreadPoolExecutor(len(here), "spotwatch-copy", _alone, (torch,)) as pool:
                for _ in pool.map(lambda share: self._copy(torch, share, named), here):
                    pass
        for device in {named[name].device for name in cuda}:
            torch.cuda.synchronize(device)

    def _copy(
        self, torch: Any, names: list[str], named: Mapping[str, torch.Tensor], *, non_blocking: bool = False
    ) -> None:
        if names:
            views = [self._views[name] for name in names]
            with torch.no_grad():
                # One call, which holds the lock of Python only to begin and to end.
                torch._foreach_copy_(views, [named[name] for name in names], non_blocking=non_blocking)


def _shares(layout: Layout) -> list[list[str]]:
    """Return the names of what there is to copy, for as many threads as help, of about the same size."""
    data_bytes = layout.size_bytes - len(layout.head)
    count = min(_MOST_THREADS, len(os.sched_getaffinity(0))) if data_bytes >= _THREADS_FROM_BYTES else 1
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for place in sorted(layout.places, key=lambda place: place.begin - place.end):
        if place.end > place.begin:
            least = loads.index(min(loads))
            loads[least] += place.end - place.begin
            shares[least].append(place.name)
    return shares


def _alone(torch: Any) -> None:
    """Let torch, in the thread that calls this, use no others; for threads of our own only."""
    # They would meet at a barrier after each tensor, and where other processes want the cores too, that is a
    # time slice each: 2.4 GB in 600 tensors took 2.0 s instead of 0.5.
    torch.get_num_threads()  # or it would set the number later, when it first sees this thread
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).omp_set_num_threads(1)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python from collecting garbage for as long as training waits."""
    # State of thousands of tensors makes as many small objects, after which Python looks through all that the
    # trainer has: 0.2 s beside a copy that takes 0.1 s.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
