# SPDX-License-Identifier: Apache-2.0
"""DataLoader workers shielded from the signals that ask their trainer to stop.

A signal to the whole process group would kill the workers, and the trainer would fail before it has saved. It
knows nothing of the trainer's own signals.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

from spotwatch.train.signals import STOPPING


def worker_init(worker_id: int) -> None:
    """Shield a DataLoader worker: give it as `worker_init_fn`.

    The worker still ends with its loader, by itself when the trainer is gone, and by the SIGTERM that the
    trainer itself sends it on its way out.

    Args:
        worker_id: given by the DataLoader, not used.
    """
    del worker_id
    for number in STOPPING:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    # Python ends child processes by SIGTERM when it leaves, and waits for them: were that ignored, for ever.
    # Only who sent it tells the two apart, and only waiting for a signal tells who sent it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    parent = multiprocessing.parent_process()
    trainer = os.getppid() if parent is None else parent.pid
    threading.Thread(target=_obey, args=(trainer,), name="spotwatch-shield", daemon=True).start()


def _obey(trainer: int | None) -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != trainer:
        pass
    os._exit(0)  # as torch's own handler does, when it is the trainer who asks
