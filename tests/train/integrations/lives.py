# SPDX-License-Identifier: Apache-2.0
"""The lives of one run: each a process that trains, is told or killed, and notes every step it executes.

A worker is started as `worker.py STORE TRACE ARGUMENT...` and appends one line a step by `note`; the test
reads them and does to the process what a daemon, a machine or a kernel would. It knows none of the libraries.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotwatch.model import Do
from tests.train.conftest import Daemon
from tests.train.launching import LAUNCH_SECONDS, WORKERS, clean_environ
from tests.train.rendezvous import rendezvous

HERE = Path(__file__).parent / "workers"


def note(trace: str | Path, **what: Any) -> None:
    """Append what a worker has just done, in one write: what is there has happened, also before a SIGKILL."""
    line = json.dumps(what) + "\n"
    fd = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


@dataclass
class Lives:
    """One run over several lives.

    Args:
        base: an empty folder.
        worker: a script below `workers`.
        arguments: for the script, after STORE and TRACE.
        ranks: how many processes a life has.
    """

    base: Path
    worker: str
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    count: int = 0
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def daemon(self) -> Daemon:
        """Return the hand of a daemon of this life, on the machine of all its ranks."""
        runtime_dir = self.base / f"runtime-{self.count}"
        runtime_dir.mkdir(mode=0o700, exist_ok=True)
        return Daemon(runtime_dir)

    def start(self, *more: str, **environ: str) -> subprocess.Popen[str]:
        """Begin the next life, on a machine whose daemon has said nothing yet."""
        self.count += 1
        launcher = [WORKERS / "launch.py", self.ranks] if self.ranks > 1 else []
        command = [sys.executable, *launcher, HERE / self.worker, self.base / "store", self.base / "trace"]
        process = subprocess.Popen(
            [str(part) for part in (*command, *self.arguments, *more)],
            env=clean_environ()
            | (rendezvous() if self.ranks > 1 else {})
            | {"SPOTWATCH_RUNTIME_DIR": str(self.daemon.runtime_dir)}
            | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def rows(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return what all lives have noted, in order; those rows that hold what is wanted."""
        path = self.base / "trace"
        rows = [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if wanted.items() <= row.items()]

    def wait(self, process: subprocess.Popen[str], condition: Callable[[], object]) -> None:
        """Wait until something is so; the process must live until then."""
        until = time.monotonic() + LAUNCH_SECONDS
        while not condition():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until, "not in time"
            time.sleep(0.01)

    def order(self, do: Do, seq: int = 1) -> None:
        """Give an order, as the daemon of this life does."""
        if do is Do.FLUSH:
            self.daemon.flag(seq)
        self.daemon.order(do, seq)

    def end(self, process: subprocess.Popen[str], status: int) -> str:
        """Wait for the end, which must have this status, and return what was printed."""
        output, _ = process.communicate(timeout=LAUNCH_SECONDS)
        assert process.returncode == status, f"{process.returncode}\n{output}"
        return output

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Take the machine away: SIGKILL, to all ranks."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=LAUNCH_SECONDS)

    def run(self, status: int = 0, *more: str, **environ: str) -> str:
        """Live one life to its end."""
        return self.end(self.start(*more, **environ), status)


@contextmanager
def lives(base: Path, worker: str, *arguments: str, ranks: int = 1) -> Iterator[Lives]:
    """Give a run in a new folder, and leave no process of it behind."""
    base.mkdir(parents=True)
    made = Lives(base, worker, arguments, ranks)
    try:
        yield made
    finally:
        for process in made.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # ranks may outlive their launcher
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
