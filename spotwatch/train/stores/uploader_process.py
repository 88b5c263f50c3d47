# SPDX-License-Identifier: Apache-2.0
"""The process that sends a trainer's shared memory to S3 through boto3, beside the trainer's lock.

Started by `uploader` with a socket as its standard input. It decides nothing, and outlives the trainer by no
more than a second; what it was sending is then no object.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import threading
from typing import Any

from spotwatch.errors import StoreError, StoreMissing
from spotwatch.train.parts import Held
from spotwatch.train.stores import s3_upload
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket
from spotwatch.train.stores.uploader_wire import FOR_THE_TRAINER, Gone, Wire

_TICK_SECONDS = 1.0


class Abandoned(Exception):
    """The trainer wants the upload no more."""


class Job:
    """One upload, in a thread, while the main thread listens.

    Args:
        wire: to the trainer.
        bucket: where.
        pace: of all uploads.
        order: as `uploader` sends it.
        fd: of the shared memory; closed with this.
    """

    def __init__(self, wire: Wire, bucket: Bucket, pace: Pace, order: dict[str, Any], fd: int) -> None:
        self._wire = wire
        self._bucket = bucket
        self._pace = pace
        self._order = order
        self._fd = fd
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spotwatch-upload", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Tell whether the trainer still waits for an answer."""
        return self._thread.is_alive()

    def abandon(self) -> None:
        """Have the upload ended and its parts removed."""
        self._abandoned.set()

    def _run(self) -> None:
        answer: dict[str, Any]
        try:
            answer = {"crcs": self._upload()}
        except Abandoned:
            answer = {"abandoned": True}
        except StoreError as error:
            text = "; ".join([str(error), *getattr(error, "__notes__", ())])
            answer = {"error": text, "is_missing": isinstance(error, StoreMissing)}
        except BaseException as error:  # noqa: BLE001 - told to the trainer, which raises it
            text = f"the uploader process failed: {type(error).__name__}: {error}"
            answer = {"error": text, "is_missing": False}
        finally:
            os.close(self._fd)
        # Without a trainer the main thread ends the process.
        with contextlib.suppress(Gone):
            self._wire.send({"job": self._order["job"], **answer})

    def _upload(self) -> tuple[str, ...]:
        size = self._order["size_bytes"]
        if os.fstat(self._fd).st_size < size:
            # Reading what is not there would be the end of the process.
            raise StoreError(f"the shared memory has less than {size} bytes")
        # Never closed by hand: an error's traceback may still hold a part.
        memory = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        body = Held(memoryview(memory), self._order["part_bytes"])
        return s3_upload.upload(self._bucket, self._order["key"], body, self._tell, self._pace)

    def _tell(self, sent_bytes: int) -> None:
        if self._abandoned.is_set():
            raise Abandoned
        self._wire.send({"job": self._order["job"], "sent": sent_bytes})


def main() -> None:
    """Serve the trainer until it is gone."""
    for number in FOR_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_TRAINER)
    wire = Wire(socket.socket(fileno=os.dup(0)))
    with contextlib.suppress(Gone):
        _serve(wire)
    # Threads in the middle of a request would keep the interpreter from ending.
    os._exit(0)


def _serve(wire: Wire) -> None:
    hello = wire.receive(60.0)
    if hello is None:
        return
    trainer = hello["pid"]
    bucket = Bucket(hello["bucket"], hello["options"], scheme=hello["scheme"])
    pace = Pace(hello["most_bytes_per_second"])
    # Half a second of imports that the first save need not wait for; what is wrong is told by the save.
    threading.Thread(target=_warm, args=(bucket,), daemon=True).start()
    job: Job | None = None
    # The socket alone would not tell: processes that the trainer forked hold its other end too. Nor would
    # PR_SET_PDEATHSIG: it strikes when the thread that started us ends, and each save has its own thread.
    while os.getppid() == trainer:
        message = wire.receive(_TICK_SECONDS)
        if job is not None and job.is_running:
            wire.send({"alive": True})
        if message is None:
            continue
        if "key" in message:
            job = Job(wire, bucket, pace, message, wire.take_fd())
        elif job is not None:
            job.abandon()


def _warm(bucket: Bucket) -> None:
    # The first upload meets the same error, and tells it to the trainer.
    with contextlib.suppress(Exception):
        _ = bucket.client


if __name__ == "__main__":
    main()
