# SPDX-License-Identifier: Apache-2.0
"""The lives of Lightning runs, forked from one process that has imported it, for importing takes seconds.

What a life does is in `workers/lightning_run.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from spotwatch.handshake import Status
from tests.train.launching import LAUNCH_SECONDS, clean_environ
from tests.train.rendezvous import rendezvous

ROOT = Path(__file__).parents[3]


class Server:
    """The process that forks lives."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.integrations.workers.lightning_run"],
            cwd=ROOT,
            env=clean_environ() | {"HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._answer("ready")

    def _answer(self, wanted: str = "") -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the server of lives has ended"
        assert wanted in ("", line)
        return line

    def fork(self, request: dict[str, Any]) -> int:
        """Begin a life; return its process."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self._answer())

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()  # it would take seconds to leave torch
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Run:
    """One run over several lives.

    Args:
        server: forks them.
        base: a new folder.
        case: what all lives have in common.
        ranks: how many processes a life has.
    """

    def __init__(self, server: Server, base: Path, case: dict[str, Any], ranks: int = 1) -> None:
        base.mkdir(parents=True)
        self.base = base
        self.ranks = ranks
        self._server = server
        self._case = case
        self.count = 0
        self._pids: list[int] = []

    def live(self, status: int = 0, **more: Any) -> str:
        """Live one life to its end, which must have this status; return what was printed."""
        return self.begin(**more).end(status)

    def begin(self, **more: Any) -> Self:
        """Begin a life."""
        self.count += 1
        runtime_dir = self.base / f"runtime-{self.count}"
        runtime_dir.mkdir(mode=0o700)
        environ = {"SPOTWATCH_RUNTIME_DIR": str(runtime_dir), **more.pop("environ", {})}
        if self.ranks > 1:
            environ |= {"WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks), "GROUP_RANK": "0"}
            environ |= rendezvous() | {"TORCHELASTIC_RUN_ID": "test"}
        self._pids = []
        for rank in range(self.ranks):
            numbers = (
                {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"} if self.ranks > 1 else {}
            )
            request = {
                "case": {**self._case, **more, "life": self.count},
                "environ": environ | numbers,
                "store": str(self.base / "store"),
                "trace": str(self.base / "trace"),
                "output": str(self._path("output", rank)),
                "status": str(self._path("status", rank)),
            }
            self._pids.append(self._server.fork(request))
        return self

    def end(self, status: int) -> str:
        """Wait for the end of the life, which must have this status on every rank."""
        until = time.monotonic() + LAUNCH_SECONDS
        texts = []
        for rank in range(self.ranks):
            path = self._path("status", rank)
            while not (path.exists() and path.read_text()):
                assert time.monotonic() < until, self._path("output", rank).read_text()
                time.sleep(0.01)
            output = self._path("output", rank).read_text()
            assert int(path.read_text()) == status, f"rank {rank}: {path.read_text()}\n{output}"
            texts.append(output)
        return "\n".join(texts)

    def rows(self, rank: int | None = None) -> list[dict[str, Any]]:
        """Return what the lives have noted, in order."""
        return self._read("trace" if rank is None else f"trace.{rank}")

    def quiet(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return what they have noted of what is not training."""
        return [row for row in self._read("trace.quiet") if wanted.items() <= row.items()]

    def status(self) -> Status:
        """Return what the trainer has told the daemon in this life."""
        path = self.base / f"runtime-{self.count}" / "status" / "run.json"
        return Status.from_bytes(path.read_bytes())

    def flag_is_there(self) -> bool:
        """Tell whether the flag of this life still asks for a save."""
        return (self.base / f"runtime-{self.count}" / "checkpoint-now").exists()

    def wait_for_death(self, rank: int) -> None:
        """Wait until a rank has ended."""
        until = time.monotonic() + LAUNCH_SECONDS
        while not self._path("status", rank).exists():
            assert time.monotonic() < until, self._path("output", rank).read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        """Take the machine away."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _path(self, name: str, rank: int) -> Path:
        return self.base / f"{name}-{self.count}-{rank}"

    def _read(self, name: str) -> list[dict[str, Any]]:
        path = self.base / name
        return [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []


class World:
    """A server of lives, and what each case does in one life, made once."""

    def __init__(self, server: Server, base: Path) -> None:
        self.server = server
        self.base = base
        self._whole: dict[str, list[dict[str, Any]]] = {}
        self._count = 0

    def run(self, case: dict[str, Any]) -> Run:
        """Return a new run."""
        self._count += 1
        return Run(self.server, self.base / str(self._count), case)

    def whole(self, case: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what an undisturbed run of the case notes."""
        key = json.dumps(case, sort_keys=True)
        if key not in self._whole:
            run = self.run(case)
            run.live(0)
            self._whole[key] = run.rows()
        return self._whole[key]


@contextmanager
def serving() -> Iterator[Server]:
    """Give a server, and end it."""
    server = Server()
    try:
        yield server
    finally:
        server.close()
