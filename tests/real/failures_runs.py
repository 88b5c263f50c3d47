# SPDX-License-Identifier: Apache-2.0
"""Trainers as processes for the tests of failures: started, waited for, told, and what they have said.

It makes nothing fail. The fixtures are in `failures_fixtures`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import signal as signals
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.real.failures_bucket import Place
from tests.train.launching import clean_environ

HERE = Path(__file__).parent
TRAINER = HERE / "failures_trainer.py"
WAIT_SECONDS = 45.0
"""For anything that a trainer does."""
LOST_STEPS = (4, 8)
"""What a run that was lost has saved; see `Runs.lose`."""
_TICK_SECONDS = 0.01
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank of a trainer has said."""

    resumed: int | None
    losses: dict[int, str]
    """Of each step it has taken, every bit."""
    left: int | None
    digest: str | None
    """Of the weights after the last of all steps; None when it did not come to that."""


class Trainer:
    """One process, started by the zygote."""

    def __init__(self, zygote: Zygote, number: int, log: Path) -> None:
        self._zygote = zygote
        self._log = log
        self.number = number
        self.pid = 0
        self.status: int | None = None

    @property
    def text(self) -> str:
        """Return all that it and its own processes have printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def told(self, rank: int = 0) -> Told:
        """Return what a rank has said so far."""
        resumed = left = digest = None
        losses: dict[int, str] = {}
        for words in re.findall(rf"^rank {rank}: (.*)$", self.text, re.MULTILINE):
            match words.split():
                case ["resumed", step]:
                    resumed = int(step)
                case ["step", step, loss]:
                    losses[int(step)] = loss
                case ["left", step]:
                    left = int(step)
                case ["digest", digest]:
                    pass
        return Told(resumed, losses, left, digest)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until `condition` holds, while the process lives."""
        until = time.monotonic() + WAIT_SECONDS
        while not condition():
            self._zygote.hear(0.0)
            assert self.status is None, f"ended with {self.status} before {what}:\n{self.text}"
            assert time.monotonic() < until, f"not within {WAIT_SECONDS:g} s: {what}\n{self.text}"
            time.sleep(_TICK_SECONDS)

    def wait_for(self, text: str) -> None:
        """Wait until it has printed `text`, a regular expression."""
        self.wait(lambda: re.search(text, self.text, re.MULTILINE), text)

    def end(self) -> int:
        """Wait for its end and return its status; a signal that ended it is a negative number."""
        until = time.monotonic() + WAIT_SECONDS
        while self.status is None:
            assert time.monotonic() < until, f"has not ended\n{self.text}"
            self._zygote.hear(0.1)
        return self.status

    def signal(self, number: signals.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def signal_group(self, number: signals.Signals) -> None:
        """Send a signal to it and to all processes of its group."""
        os.killpg(self.pid, number)

    def children(self, mark: bytes) -> list[int]:
        """Return its child processes whose arguments or variables contain `mark`."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for pid in (task / "children").read_text(encoding="ascii").split():
                    child = Path("/proc", pid)
                    if mark in (child / "cmdline").read_bytes() + (child / "environ").read_bytes():
                        found.append(int(pid))
        return found

    def kill(self) -> None:
        """Let its machine go: the process and all that it has started."""
        self.signal_group(signals.SIGKILL)
        self.end()


class Zygote:
    """Starts trainers; see `failures_zygote`."""

    def __init__(self, log: Path) -> None:
        self.trainers: dict[int, Trainer] = {}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "failures_zygote.py")],
                env=clean_environ() | {"PYTHONPATH": str(HERE.parents[1])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,
            )
        self._heard = b""

    def start(
        self, command: list[str], environ: dict[str, str], log: Path, groups: tuple[Path, ...] = ()
    ) -> Trainer:
        """Run a script with its arguments in a process and a session of its own.

        Args:
            command: the script's path and its arguments.
            environ: all variables.
            log: takes what it prints.
            groups: files of control groups that take its number.
        """
        trainer = Trainer(self, next(_numbers), log)
        self.trainers[trainer.number] = trainer
        log.touch()
        row = {
            "number": trainer.number,
            "command": command,
            "environ": environ,
            "log": str(log),
            "groups": [str(group) for group in groups],
        }
        _pipe(self._process.stdin).write(json.dumps(row).encode() + b"\n")
        until = time.monotonic() + WAIT_SECONDS
        while not trainer.pid:
            assert time.monotonic() < until, "the zygote starts nothing"
            self.hear(0.1)
        return trainer

    def hear(self, seconds: float) -> None:
        """Take note of what the zygote says within so many seconds."""
        out = _pipe(self._process.stdout)
        while select.select([out], [], [], seconds)[0]:
            more = os.read(out.fileno(), 65_536)
            assert more, "the zygote is gone"
            *lines, self._heard = (self._heard + more).split(b"\n")
            for line in lines:
                row = json.loads(line)
                trainer = self.trainers[row["number"]]
                trainer.pid = row.get("pid", trainer.pid)
                trainer.status = row.get("status", trainer.status)
            seconds = 0.0

    def close(self) -> None:
        """End it, and what it has started."""
        _pipe(self._process.stdin).close()
        self._process.wait(10)
        _pipe(self._process.stdout).close()


class Runs:
    """Starts trainers of one test, kills what is left of them, and knows what an unbroken run says."""

    def __init__(self, zygote: Zygote, tmp_path: Path, straight: Callable[..., Told]) -> None:
        self.tmp_path = tmp_path
        self.runtime_dir = tmp_path / "runtime"
        self.runtime_dir.mkdir(mode=0o700)
        self._release = tmp_path / "release"
        self._release.mkdir()
        self.started: list[Trainer] = []
        self._zygote = zygote
        self._straight = straight

    def start(
        self,
        url: str,
        *options: str,
        environ: dict[str, str] | None = None,
        groups: tuple[Path, ...] = (),
        program: list[str] | None = None,
    ) -> Trainer:
        """Start the trainer with `options`."""
        given = ["--url", url, "--release", str(self._release), *options]
        env = clean_environ() | {"SPOTWATCH_RUNTIME_DIR": str(self.runtime_dir)} | (environ or {})
        log = self.tmp_path / f"trainer-{len(self.started)}.log"
        trainer = self._zygote.start([*(program or [str(TRAINER)]), *given], env, log, groups)
        self.started.append(trainer)
        return trainer

    def at(self, place: Place, *options: str, **more: str) -> Trainer:
        """Start it on a place in a bucket; `more` are variables."""
        return self.start(place.url, *options, environ=place.environ | more)

    def go_on(self, step: int) -> None:
        """Let the trainers take further steps after one at which they hold."""
        (self._release / str(step)).touch()

    def expect(
        self, trainer: Trainer, *, resumed: int, options: tuple[str, ...] = (), status: int = 0
    ) -> None:
        """Expect that it goes on at a step and ends as if nothing had happened, to the last bit."""
        ended = trainer.end()
        assert ended == status, trainer.text
        told, straight = trainer.told(), self._straight(*options)
        assert told.resumed == resumed, trainer.text
        assert told.losses == {step: loss for step, loss in straight.losses.items() if step > resumed}
        assert told.digest == straight.digest, trainer.text

    def lose(self, place: Place) -> None:
        """Leave a run there that was killed after step 10, with checkpoints of `LOST_STEPS`."""
        trainer = self.at(place, "--blocking", "--hold-at", "10")
        trainer.wait_for("holds 10$")
        trainer.kill()
        assert place.latest_step() == LOST_STEPS[-1]

    def close(self) -> None:
        """Kill what still runs."""
        for trainer in self.started:
            with contextlib.suppress(ProcessLookupError):
                trainer.signal_group(signals.SIGKILL)
            trainer.end()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
