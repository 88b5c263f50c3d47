# SPDX-License-Identifier: Apache-2.0
"""The lives of workers on one batch, which a test begins, tells and kills, and what they have executed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotwatch.train import DoneList

from .conftest import Daemon
from .launching import WORKERS, clean_environ

SECONDS = 60.0
"""Longer than anything takes that a test waits for, on a slow machine too."""


class Batch:
    """A batch of so many items, and the process that its workers are forked from.

    Args:
        base: an empty folder.
        store: where the outputs go; None: a folder below `base`.
        environ: more variables for the workers.
        options: for each life.
    """

    def __init__(
        self, base: Path, store: str | None = None, environ: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        base.mkdir(parents=True, exist_ok=True)
        self.store = store or str(base / "store")
        self.trace = base / "trace"
        self.trace.touch()
        self.options = options
        runtime_dir = base / "runtime"
        runtime_dir.mkdir(mode=0o700, exist_ok=True)
        self.daemon = Daemon(runtime_dir)
        self.lives = 0
        self.alive: list[int] = []
        self.environ = clean_environ() | {"SPOTWATCH_RUNTIME_DIR": str(runtime_dir)} | dict(environ or {})
        self.log = base / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKERS / "done_run.py"), self.store, str(self.trace)],
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def start(self, **options: Any) -> int:
        """Begin another life and return its process id."""
        self.lives += 1
        pid = int(self._ask({"life": self.lives} | self.options | options))
        self.alive.append(pid)
        return pid

    def end(self, pid: int, status: int) -> None:
        """Wait for the end of a life, which must have this status."""
        found = int(self._ask({"wait": pid}))
        self.alive.remove(pid)
        assert found == status, self.log.read_text()[-4000:]

    def kill(self, pid: int) -> None:
        """Take a worker's machine away."""
        os.kill(pid, signal.SIGKILL)
        self.end(pid, -signal.SIGKILL)

    def run(self, status: int = 0, **options: Any) -> None:
        """Live a life to its end."""
        self.end(self.start(**options), status)

    def executed(self) -> list[tuple[int, str]]:
        """Return life and number of each item that was begun, in order."""
        return [(int(row.split()[0]), row.split()[1]) for row in self.trace.read_text().splitlines()]

    def count(self) -> int:
        """Return how many items were begun."""
        return self.trace.read_bytes().count(b"\n")

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        until = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < until, f"not in time\n{self.log.read_text()[-4000:]}"
            time.sleep(0.001)

    def redone(self) -> Counter[int]:
        """Return for each life how many of its items were begun again later."""
        rows = self.executed()
        last = {number: at for at, (_, number) in enumerate(rows)}
        return Counter(life for at, (life, number) in enumerate(rows) if last[number] != at)

    def outputs(self) -> dict[Any, Any]:
        """Return all outputs; no key may come twice."""
        rows = list(DoneList.outputs(self.store, "batch", environ=self.environ))
        assert len(rows) == len(dict(rows))
        return dict(rows)

    def expect_all(self, items: int) -> None:
        """Check that each item has exactly one output, its own."""
        outputs = self.outputs()
        assert sorted(output["number"] for output in outputs.values()) == list(range(items))
        assert all(key == f"item-{output['number']}" for key, output in outputs.items())

    def close(self) -> None:
        """Leave no process behind."""
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        self._process.communicate(timeout=SECONDS)

    def _ask(self, told: dict[str, Any]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.log.read_text()[-4000:]
        return answer


@contextmanager
def batch(base: Path, store: str | None = None, **options: Any) -> Iterator[Batch]:
    """Give a batch, and leave no process of it behind."""
    made = Batch(base, store, **options)
    try:
        yield made
    finally:
        made.close()
