# SPDX-License-Identifier: Apache-2.0
"""Everything that a trainer hears and says: orders, signals, status, and the daemon that may come later.

It decides nothing: the `Checkpointer` asks it what is wished, and tells it what is so.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from spotwatch.clock import read_boot_id
from spotwatch.handshake import Status
from spotwatch.train import runtime
from spotwatch.train.heartbeat import Heartbeat
from spotwatch.train.orders import Orders
from spotwatch.train.signals import StopSignals

log = logging.getLogger("spotwatch.train")

# A trainer may start before its daemon has made the runtime directory.
_LOOK_AGAIN_SECONDS = 5.0
_UNDER_WAY = frozenset({"resuming", "training", "seen", "staged", "uploading", "failed"})


class Link:
    """Joins a trainer to the daemon of its machine, if there is one, and to its signals.

    Args:
        run_id: names the status file.
        environ: says where the daemon is.
        step: returns the last finished step.
        speaks: False for all but one rank of a machine: these hear everything, and leave status and
            flags to that one.
    """

    def __init__(
        self, run_id: str, environ: Mapping[str, str], step: Callable[[], int], *, speaks: bool = True
    ) -> None:
        self._speaks = speaks
        self._environ = dict(environ)
        self._runtime_dir, problem = runtime.find_runtime_dir(environ)
        if problem:
            verdict = "passed over" if self._runtime_dir else "no daemon is heard, only signals"
            log.warning("%s: %s", verdict, problem)
        self._looked_at = time.monotonic()
        self._said: tuple[str, int] = ("", 0)
        self.signals = StopSignals()
        flags = runtime.flag_paths(environ, self._runtime_dir)
        self.orders = Orders(self._runtime_dir, flags, read_boot_id(), removes_flags=speaks)
        self.heart = Heartbeat(
            self._runtime_dir if speaks else None,
            Status(run_id=run_id, pid=os.getpid(), at=datetime.now(UTC)),
            self._watch,
            step,
        )

    @property
    def is_stopping(self) -> bool:
        """Tell whether a stop is in force, by order or by signal."""
        return self.signals.stop or self.orders.stop

    def begin(self) -> None:
        """Begin to hear and to speak; more than once is harmless."""
        self.signals.install()
        self.orders.look()
        self.heart.start()

    def end(self, phase: str, error: str, *, leaving: bool, exit_code: int) -> None:
        """Say the last word and give the signals back.

        Args:
            phase: how it ended.
            error: why, if it ended badly; empty keeps what was said before.
            leaving: the process ends because it was told to.
            exit_code: what the program is to end with.
        """
        self.heart.stop()
        said = error[:500] or self.heart.status.error
        self.heart.tell(phase=phase, eta_seconds=None, error=said, exit_code=exit_code)
        self.signals.restore(leaving=leaving)

    def _watch(self) -> None:
        orders, heart = self.orders, self.heart
        if self._runtime_dir is None and time.monotonic() - self._looked_at > _LOOK_AGAIN_SECONDS:
            self._look_for_a_daemon()
        orders.look()
        eta = heart.status.saved.save_seconds or None
        if orders.is_in_force and orders.seq > max(heart.status.seq, orders.saved_seq):
            heart.tell(only_in=_UNDER_WAY, phase="seen", seq=orders.seq, eta_seconds=eta)
        elif self.signals.stop:
            heart.tell(only_in=("training",), phase="seen", eta_seconds=eta)
        elif not orders.is_in_force and heart.status.phase == "seen":
            heart.tell(only_in=("seen",), phase="training", eta_seconds=None)  # it was withdrawn
        self._say_what_was_told()

    def _say_what_was_told(self) -> None:
        orders = self.orders
        told = (self.signals.name, orders.seq if orders.is_in_force else self._said[1])
        if told != self._said:
            self._said = told
            what = "stop" if self.is_stopping else "save"
            log.warning(
                "told to %s (%s): at the next step", what, self.signals.name or orders.why or orders.seq
            )

    def _look_for_a_daemon(self) -> None:
        self._looked_at = time.monotonic()
        self._runtime_dir, _ = runtime.find_runtime_dir(self._environ)
        if self._runtime_dir is not None:
            log.info("a daemon is heard in %s", self._runtime_dir)
            self.orders.attach(self._runtime_dir, runtime.flag_paths(self._environ, self._runtime_dir))
            if self._speaks:
                self.heart.attach(self._runtime_dir)
