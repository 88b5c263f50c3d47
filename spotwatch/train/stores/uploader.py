# SPDX-License-Identifier: Apache-2.0
"""An S3 bucket's large bodies through boto3 in a process of its own, which reads the trainer's shared memory.

It copies no bytes and holds no lock while they are sent. It takes only bodies that lie in shared memory, and
reads nothing. Not multiprocessing: that runs the user's main module again.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import spotwatch
from spotwatch.errors import StoreError, StoreMissing
from spotwatch.train.parts import Body
from spotwatch.train.store import OnPart
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket
from spotwatch.train.stores.uploader_wire import FOR_THE_TRAINER, Gone, Wire

log = logging.getLogger("spotwatch.train")

LEAST_BYTES = 64 * 2**20
"""Below this the way through another process gains nothing."""
_TRIES = 2
_TICK_SECONDS = 0.25
# While it uploads, the process says each second that it lives; one that is stopped is replaced.
_SILENCE_SECONDS = 60.0
_ABANDON_SECONDS = 5.0
_END_SECONDS = 2.0
# With these, spotwatch's daemon would take the process for one of the run's ranks.
_RANK = frozenset({"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"})
_RANK_PREFIXES = ("ROLE_", "TORCHELASTIC_")


class ProcessBulk:
    """Sends what lies in shared memory; the process is started at first use, used again, replaced if it dies.

    Args:
        bucket: where; its options go to the process over a socket, never as arguments.
        pace: of all uploads.
        least_bytes: of a body that is worth it.
    """

    def __init__(self, bucket: Bucket, pace: Pace, *, least_bytes: int = LEAST_BYTES) -> None:
        self._bucket = bucket
        self._pace = pace
        self._least_bytes = least_bytes
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def prepare(self, size_bytes: int) -> None:
        """Start the process if it will be used; it takes about a second until it is ready."""
        if size_bytes >= self._least_bytes:
            with self._lock:
                self._started()

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...] | None:
        """Have `body` sent; once more, by a new process, when the first one dies."""
        fd = body.fd
        if fd is None or body.size_bytes < self._least_bytes:
            return None
        order = {"key": key, "size_bytes": body.size_bytes, "part_bytes": body.part_bytes}
        with self._lock:
            for _ in range(_TRIES):
                process = self._started()
                if process is None:
                    return None
                try:
                    return process.upload(order, fd, on_part)
                except Gone as error:
                    log.warning("the uploader process is gone (%s)", error)
                    self._stop()
        raise StoreError(
            f"cannot write {self._bucket.url(key)}: the uploader process has died {_TRIES} times; "
            "was it killed for lack of memory?"
        )

    def read_into(self, key: str, begin: int, target: memoryview) -> bool:  # noqa: ARG002 - as `Bulk`
        """Read nothing: the store does."""
        return False

    def close(self) -> None:
        """End the process, once an upload that is under way is over."""
        with self._lock:
            self._stop()

    def _started(self) -> _Process | None:
        # None: there can be no process here; what is to be sent goes the general way.
        if self._process is not None and not self._process.is_ours:
            # We were forked; it serves the process that started it.
            self._stop()
        if self._process is not None and not self._process.is_alive:
            self._stop()
        if self._process is None:
            try:
                self._process = _Process(self._bucket, self._pace)
            except OSError as error:
                log.warning("no uploader process (%s); this process sends checkpoints itself", error)
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _Process:
    """A running uploader process."""

    def __init__(self, bucket: Bucket, pace: Pace) -> None:
        self._bucket = bucket
        self._owner = os.getpid()
        self._jobs = itertools.count(1)
        self._child, self._wire = _start()
        # Also when nobody closes us: at the end of the interpreter, but not in a process that was forked.
        self.end = weakref.finalize(self, _end, self._child, self._wire, os.getpid())
        hello = {
            "pid": os.getpid(),
            "bucket": bucket.name,
            "options": bucket.options,
            "scheme": bucket.url("").partition(":")[0],
            "most_bytes_per_second": pace.most_bytes_per_second,
        }
        try:
            self._wire.send(hello)
        except Gone as error:
            self.end()
            raise OSError(f"it ended at once: {error}") from error

    @property
    def is_ours(self) -> bool:
        """Tell whether this very process started it."""
        return self._owner == os.getpid()

    @property
    def is_alive(self) -> bool:
        """Tell whether the process runs."""
        return self._child.poll() is None

    def upload(self, order: dict[str, Any], fd: int, on_part: OnPart) -> tuple[str, ...]:
        """Have the memory behind `fd` sent; raise `Gone` when the process dies over it."""
        job = next(self._jobs)
        self._wire.send({"job": job, **order}, fd)
        sent_bytes = 0
        heard_at = time.monotonic()
        while True:
            message = self._wire.receive(_TICK_SECONDS)
            if message is not None:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > _SILENCE_SECONDS:
                raise Gone(f"it has said nothing for {_SILENCE_SECONDS:g} s")
            if message is not None and message.get("job") == job:
                if "error" in message:
                    raise (StoreMissing if message["is_missing"] else StoreError)(message["error"])
                if "crcs" in message:
                    return tuple(message["crcs"])
                sent_bytes = message["sent"]
            try:
                on_part(sent_bytes)
            except BaseException:
                self._abandon(job, order["key"])
                raise

    def _abandon(self, job: int, key: str) -> None:
        until = time.monotonic() + _ABANDON_SECONDS
        try:
            self._wire.send({"abandon": job})
            while (left := until - time.monotonic()) > 0:
                message = self._wire.receive(left)
                if message is None or message.get("job") != job or "sent" in message:
                    continue
                if "crcs" in message:
                    # It was whole before the process heard of it.
                    self._bucket.ask("delete", key, lambda s3: s3.delete_object(**self._bucket.at(key)))
                return
        except Gone:
            pass
        # What it still does must not become an object.
        self.end()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the process is given: all but what makes a rank, and the trainer's places of modules.

    The script's own directory is left out: a module there may bear the name of one that boto3 needs.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _RANK and not name.startswith(_RANK_PREFIXES)
    }
    ours = str(Path(spotwatch.__file__).parent.parent)
    paths = [path for index, path in enumerate(sys.path) if path and (index > 0 or path == ours)]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths if ours in paths else [*paths, ours])}


def _start() -> tuple[subprocess.Popen[bytes], Wire]:
    if not sys.executable:
        raise OSError("there is no Python executable to start")
    ours, theirs = socket.socketpair()
    # Inherited by the process, so that none of them strikes before it says that it ignores them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_TRAINER)
    with theirs:
        try:
            child = subprocess.Popen(
                # -P: what lies in the working directory must not stand in for a module.
                [sys.executable, "-P", "-m", "spotwatch.train.stores.uploader_process"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment(os.environ),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child, Wire(ours)


def _end(child: subprocess.Popen[bytes], wire: Wire, owner: int) -> None:
    if os.getpid() != owner:
        wire.let_go()
        return
    wire.close()
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
