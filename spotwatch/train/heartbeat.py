# SPDX-License-Identifier: Apache-2.0
"""The trainer's word to the daemon: `status/<run_id>.json`, written at every change and every five seconds.

A thread does it, so that a long step does not look like death. It also looks at the orders, so that `seen` is
said while a step still runs. It decides nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotwatch.errors import HandshakeError
from spotwatch.handshake import PHASES, STATUS_DIR, Status, write_status

log = logging.getLogger("spotwatch.train")

REFRESH_SECONDS = 5.0
WATCH_SECONDS = 0.25
# Steps per second are averaged over about this long.
_RATE_SECONDS = 10.0


class Heartbeat:
    """Keeps the status file true.

    Args:
        runtime_dir: where to write; None writes nothing and only watches.
        status: what is true at the start.
        watch: called four times a second in the thread; it looks at the orders.
        step: returns the last finished step.
    """

    def __init__(
        self, runtime_dir: Path | None, status: Status, watch: Callable[[], None], step: Callable[[], int]
    ) -> None:
        self._runtime_dir = runtime_dir
        self._watch = watch
        self._read_step = step
        self._lock = threading.RLock()
        self._status = status
        self._wake = threading.Event()
        self._quit = False
        self._thread: threading.Thread | None = None
        self._written_at = 0.0
        self._rated = (step(), time.monotonic())
        self._warned = False
        self._failed_step = 0

    @property
    def status(self) -> Status:
        """Return what was last said."""
        return self._status

    def start(self) -> None:
        """Begin to watch and to write; more than once is harmless."""
        if self._thread is None:
            self._prepare()
            self._quit = False
            self._thread = threading.Thread(target=self._run, name="spotwatch-heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; the file keeps its last word."""
        self._quit = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
            self._thread = None
        self._wake.clear()

    def tell(self, *, only_in: Collection[str] = PHASES, **changes: Any) -> None:
        """Change the status and write it now, from any thread; not when its phase is outside `only_in`."""
        with self._lock:
            if self._status.phase not in only_in:
                return
            self._status = replace(self._status, **changes)
            if changes.get("phase") == "failed":
                self._failed_step = self._read_step()
            self._write()

    def attach(self, runtime_dir: Path) -> None:
        """Write to a daemon that appeared later."""
        with self._lock:
            self._runtime_dir = runtime_dir
            self._prepare()
            self._write()

    def count_from(self, step: int) -> None:
        """Measure the speed from `step` on: what was resumed took this process no time."""
        with self._lock:
            self._rated = (step, time.monotonic())
            self._status = replace(self._status, step=step, steps_per_second=0.0)

    def _run(self) -> None:
        while not self._quit:
            try:
                self._watch()
                with self._lock:
                    self._measure()
                if time.monotonic() - self._written_at >= REFRESH_SECONDS:
                    self.tell()
            except Exception:  # a defect here must not end the heartbeat, nor the training
                log.exception("the heartbeat stumbled")
            self._wake.wait(WATCH_SECONDS)

    def _measure(self) -> None:
        step, now = self._read_step(), time.monotonic()
        before, since = self._rated
        if self._status.phase == "failed" and step > self._failed_step:
            # It was one save of many, and the loop goes on: one that is killed now has not said goodbye. The
            # error stays until a save succeeds.
            self._status = replace(self._status, phase="training")
        if step > self._status.step:
            self._status = replace(self._status, step=step, step_at=datetime.now(UTC))
        if now - since >= _RATE_SECONDS or (not self._status.steps_per_second and step > before):
            self._status = replace(
                self._status, steps_per_second=max(step - before, 0) / max(now - since, 1e-9)
            )
            self._rated = (step, now)

    def _prepare(self) -> None:
        if self._runtime_dir is None:
            return
        try:
            # The daemon makes it, with the right group; without one a file for the next to read does no harm.
            (self._runtime_dir / STATUS_DIR).mkdir(mode=0o770, exist_ok=True)
        except OSError as error:
            self._warn(f"cannot make {self._runtime_dir / STATUS_DIR}: {error.strerror}")

    def _write(self) -> None:
        self._written_at = time.monotonic()
        if self._runtime_dir is None:
            return
        self._measure()
        self._status = replace(self._status, at=datetime.now(UTC))
        try:
            write_status(self._runtime_dir, self._status)
            self._warned = False
        except HandshakeError as error:
            self._warn(str(error))
            self._prepare()  # a daemon that was restarted may have made the directory anew

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("the daemon cannot be told how we fare; training and saving go on: %s", text)
