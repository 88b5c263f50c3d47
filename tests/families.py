# SPDX-License-Identifier: Apache-2.0
"""Real processes for tests: trainers, shells and launchers, started and surely ended.

A trainer here is `trainer(tag)`: a python that handles SIGTERM by writing a line to its own file. It knows
nothing of what is tested.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process as another user")

# Becomes TRAIN_UID where that is set: another user may be unable to start our interpreter. Writes READY once
# it handles signals, then TOLD for the first, and ends.
TRAINER = """
import os, signal, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
if uid := int(os.environ.get("TRAIN_UID", "0")):
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
def told(signum, frame):
    os.write(out, f"TOLD {os.getpid()} {signal.Signals(signum).name}\\n".encode())
    sys.exit(75)
for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(signum, told)
os.write(out, f"READY {os.getpid()}\\n".encode())
time.sleep(60)
"""


def wait_for(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return the first true value of `condition`; fail when there is none in time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"did not happen within {seconds:g} s")
        time.sleep(0.01)
    return value


class Family:
    """The processes of one test: a folder for their words, and an end for all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / f"train_{folder.name}.py"
        self.script.write_text(TRAINER)
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def pattern(self) -> str:
        """Return a regular expression that fits this test's trainers and no other's."""
        return re.escape(str(self.script))

    @property
    def said(self) -> Path:
        """Return the file into which trainers write."""
        return self.folder / "said"

    def words(self, first: str) -> list[list[str]]:
        """Return the lines that begin with `first`, as words."""
        text = self.said.read_text() if self.said.exists() else ""
        return [line.split() for line in text.splitlines() if line.startswith(first)]

    def trainer(self, *arguments: str) -> list[str]:
        """Return the command line of a trainer."""
        return [sys.executable, str(self.script), str(self.said), *arguments]

    def start(
        self, argv: list[str], *, trainers: int = 0, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own and wait until `trainers` more are ready."""
        ready = len(self.words("READY")) + trainers
        process = subprocess.Popen(argv, start_new_session=True, env={**os.environ, **(env or {})}, **options)
        self.started.append(process)
        wait_for(lambda: len(self.words("READY")) >= ready, 15)
        return process

    def ready(self) -> list[int]:
        """Return the pids of the trainers that got ready, in order."""
        return [int(words[1]) for words in self.words("READY")]

    def told(self) -> list[int]:
        """Return the pids of the trainers that were told, in order."""
        return [int(words[1]) for words in self.words("TOLD")]

    def end(self) -> None:
        """Kill what the test started, and what that started."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        # Those that were orphaned or have a group of their own; the script's path is this test's alone.
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.script) in path.read_text(errors="replace"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
        for process in self.started:
            process.wait()


@contextlib.contextmanager
def family(folder: Path) -> Iterator[Family]:
    """Give a test its processes, and end them after it."""
    one = Family(folder)
    try:
        yield one
    finally:
        one.end()
