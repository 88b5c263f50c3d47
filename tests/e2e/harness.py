# SPDX-License-Identifier: Apache-2.0
"""A machine made of real processes: daemons that can be killed and started again, and scripts as trainers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
"""Another user may not be allowed to run ours; the script needs only the standard library."""


async def until(condition: Callable[[], Any], seconds: float = 15.0, what: str = "") -> Any:
    """Return what `condition` returns once it is true.

    Raises:
        AssertionError: it was not within `seconds`.
    """
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or condition}"
        await asyncio.sleep(0.01)
    return result


class Machine:
    """One machine's directories, its daemon and its trainers."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.runtime_dir = folder / "run"
        self.state_dir = folder / "state"
        self.log = folder / "daemon.log"
        self.trainer_log = folder / "trainer.log"
        self.pidfile = folder / "trainer.pid"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SPOTWATCH_")},
            "SPOTWATCH_RUNTIME_DIR": str(self.runtime_dir),
            "SPOTWATCH_STATE_DIR": str(self.state_dir),
            "SPOTWATCH_HTTP__LISTEN": "",
            "SPOTWATCH_LOG__FORMAT": "json",
            **environment,
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.daemon: subprocess.Popen[bytes] | None = None

    async def start_daemon(self, *arguments: str, user: int | None = None) -> subprocess.Popen[bytes]:
        """Start `spotwatch run`, and wait until it watches."""
        seen = self.count_in_log("watching")
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(  # noqa: ASYNC220 - a few milliseconds, and killed by pid later
                [sys.executable, "-m", "spotwatch", "run", *arguments],
                env=self.environment,
                stderr=log,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        self.processes.append(self.daemon)
        daemon = self.daemon

        def is_watching() -> bool:
            return self.count_in_log("watching") > seen or daemon.poll() is not None

        await until(is_watching, 20, "the daemon watches")
        return daemon

    async def start_script(
        self, name: str, *arguments: str, user: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start one of our scripts as a trainer, and wait until it has begun."""
        python = sys.executable if user is None else SYSTEM_PYTHON
        process = subprocess.Popen(  # noqa: ASYNC220 - a few milliseconds, and killed by pid later
            [python, str(SCRIPTS / name), *arguments],
            env=self.environment,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        self.processes.append(process)
        await until(lambda: self.trainer_lines("start"), 10, "the trainer has begun")
        return process

    def end(self) -> None:
        """Kill everything."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def count_in_log(self, event: str) -> int:
        """Return how often the daemons have logged an event."""
        return sum(row.get("event") == event for row in self.log_rows())

    def log_rows(self) -> list[dict[str, Any]]:
        """Return the daemons' log."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def ordered(self) -> list[str]:
        """Return what all daemons together have ordered."""
        return [str(row["do"]) for row in self.log_rows() if row.get("event") == "ordered"]

    def trainer_lines(self, part: str) -> list[str]:
        """Return the lines of the trainer's log that contain `part`."""
        if not self.trainer_log.exists():
            return []
        return [line for line in self.trainer_log.read_text(encoding="ascii").splitlines() if part in line]

    def order(self) -> dict[str, Any]:
        """Return order.json; empty when there is none."""
        path = self.runtime_dir / "order.json"
        if not path.exists():
            return {}
        row: dict[str, Any] = json.loads(path.read_bytes())
        return row

    def kill_daemon(self) -> None:
        """Send SIGKILL to the daemon."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()
