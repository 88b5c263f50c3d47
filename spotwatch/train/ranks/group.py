# SPDX-License-Identifier: Apache-2.0
"""One gloo group of all ranks: the greatest of each integer, and everyone's JSON. One thread uses it.

Nothing is pickled. It knows neither steps nor checkpoints. Importing it does not import torch.
"""

from __future__ import annotations

import ctypes
import json
import logging
import sys
from datetime import timedelta
from threading import current_thread
from time import monotonic, sleep
from types import FrameType
from typing import TYPE_CHECKING

from spotwatch.clock import SystemClock
from spotwatch.errors import RankGone, StoreError
from spotwatch.model import JSON, to_rfc3339

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup, Work

log = logging.getLogger("spotwatch.train")

# One rank may evaluate for hours while the others wait for it. A rank that has died is noticed at once, by
# its connection; this limit is for a machine that has vanished without a word.
_LONGEST_WAIT_HOURS = 24
# A wait may be all right: only one that lasts is told, and again for those who read the last lines alone.
_TELL_AFTER_SECONDS = 60.0
_TELL_AGAIN_SECONDS = 600.0
_FIRST_NAP_SECONDS = 2e-5
_LONGEST_NAP_SECONDS = 2e-3
_PACKAGE = "spotwatch."
_OWN_THREADS = "spotwatch-"
# What fits into the first exchange costs no second one.
_INLINE_BYTES = 2048
_LENGTH_BYTES = 8


class Round:
    """Integers on their way to all ranks."""

    def __init__(self, work: Work, values: torch.Tensor) -> None:
        self._work = work
        self._values = values

    def wait(self) -> list[int]:
        """Return the greatest of each integer over all ranks.

        Raises:
            RankGone: a rank has gone.
        """
        _wait(self._work)
        return [int(value) for value in self._values.tolist()]

    def is_over_within(self, limit_seconds: float) -> bool:
        """Tell whether all ranks answer within a time; raise `RankGone` when one has gone."""
        return _wait(self._work, limit_seconds)


class Group:
    """All ranks, connected once more, beside the trainer's own groups; each makes it at the same point."""

    def __init__(self) -> None:
        import torch.distributed as dist  # noqa: PLC0415 - trainers bring it; this package does not need it

        try:
            self.process_group: ProcessGroup = dist.new_group(
                backend="gloo", timeout=timedelta(hours=_LONGEST_WAIT_HOURS)
            )
        except RuntimeError as error:
            raise StoreError(f"the ranks cannot connect with each other by gloo: {error}") from error
        self._size = dist.get_world_size()
        if dist.get_backend() == "gloo":
            _keep(dist.group.WORLD)

    def begin(self, values: list[int]) -> Round:
        """Send integers to all ranks and return at once.

        Raises:
            RankGone: a rank has gone.
        """
        import torch  # noqa: PLC0415 - as above
        import torch.distributed as dist  # noqa: PLC0415 - as above

        tensor = torch.tensor(values, dtype=torch.int64)
        try:
            work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.process_group, async_op=True)
        except RuntimeError as error:
            raise _gone(error) from error
        return Round(work, tensor)

    def gather(self, value: JSON) -> list[JSON]:
        """Return every rank's value, by rank.

        Raises:
            RankGone: a rank has gone.
        """
        body = json.dumps(value).encode()
        head = len(body).to_bytes(_LENGTH_BYTES, "little")
        first = self._gather(head + body[:_INLINE_BYTES], _INLINE_BYTES)
        lengths = [int.from_bytes(part[:_LENGTH_BYTES], "little") for part in first]
        bodies = [part[_LENGTH_BYTES:] for part in first]
        if (longest := max(lengths)) > _INLINE_BYTES:
            rest = self._gather(bytes(_LENGTH_BYTES) + body[_INLINE_BYTES:], longest - _INLINE_BYTES)
            bodies = [begin + end[_LENGTH_BYTES:] for begin, end in zip(bodies, rest, strict=True)]
        return [json.loads(whole[:length]) for whole, length in zip(bodies, lengths, strict=True)]

    def _gather(self, body: bytes, room: int) -> list[bytes]:
        import torch  # noqa: PLC0415 - as above
        import torch.distributed as dist  # noqa: PLC0415 - as above

        mine = torch.frombuffer(bytearray(body.ljust(_LENGTH_BYTES + room, b"\0")), dtype=torch.uint8)
        all_of_them = [torch.empty_like(mine) for _ in range(self._size)]
        try:
            work = dist.all_gather(all_of_them, mine, group=self.process_group, async_op=True)
        except RuntimeError as error:
            raise _gone(error) from error
        _wait(work)
        return [tensor.numpy().tobytes() for tensor in all_of_them]

    def close(self) -> None:
        """Disconnect; only once nothing is on its way."""
        import torch.distributed as dist  # noqa: PLC0415 - as above

        if dist.is_initialized():  # else the program has taken everything down, ours with it
            try:
                dist.destroy_process_group(self.process_group)
            except (RuntimeError, ValueError) as error:
                log.warning("a group of ranks does not close: %s", error)


def _keep(world: ProcessGroup | None) -> None:
    """Keep the trainer's own gloo group in memory until the process ends, so that its end cannot hang.

    A DistributedDataParallel is freed with the interpreter's lock held. When it is the last one to hold its
    group, as after `destroy_process_group()`, it waits for the group's threads, and one of these may wait for
    the lock, to free what the last collective was given (torch 2.13; pytorch issue 56297).
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(world))


def _wait(work: Work, limit_seconds: float | None = None) -> bool:
    # Not Work.wait from the start: inside it no signal handler of Python's would run, for hours.
    begun_at = monotonic()
    end = None if limit_seconds is None else begun_at + limit_seconds
    tell_at = begun_at + _TELL_AFTER_SECONDS
    nap = _FIRST_NAP_SECONDS
    while not work.is_completed():
        now = monotonic()
        if end is not None and now >= end:
            return False
        if now >= tell_at:
            tell_at = now + _TELL_AGAIN_SECONDS
            _tell(now - begun_at)
        sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP_SECONDS)
    try:
        work.wait()
    except RuntimeError as error:
        raise _gone(error, monotonic() - begun_at) from error
    return True


def _tell(waited_seconds: float) -> None:
    if current_thread().name.startswith(_OWN_THREADS):
        return  # it waits for the uploads of all ranks, which may last
    log.warning(
        "training has waited since %s, for %.0f s, for the other ranks of this run, in %s. A rank may be "
        "busy alone (evaluating, or with its store), or wait in another collective, and then no wait ends: "
        "DistributedDataParallel.join() is not supported, and each rank must call step() equally often",
        to_rfc3339(SystemClock().now() - timedelta(seconds=waited_seconds)),
        waited_seconds,
        _call(),
    )


def _call() -> str:
    """Return which call of this package the program is in, and where it stands in the program."""
    name = ""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the traceback module reads files for it
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        name, frame = frame.f_code.co_name, frame.f_back
    where = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
    return f"{name}(){where}"


def _gone(error: RuntimeError, waited_seconds: float = 0.0) -> RankGone:
    is_saving = current_thread().name.startswith(_OWN_THREADS)
    deed = "the save that is under way" if is_saving else _call()
    is_silent = waited_seconds >= _LONGEST_WAIT_HOURS * 3600
    what = f"not answered for {_LONGEST_WAIT_HOURS} hours" if is_silent else "gone"
    return RankGone(
        f"a rank of this run has {what}: it was waited for in {deed}, for {waited_seconds:.0f} s: {error}"
    )
