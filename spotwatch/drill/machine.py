# SPDX-License-Identifier: Apache-2.0
"""A machine that can be taken away: its directories, its daemon, its trainer, and their end.

It knows no cloud and judges nothing. Logs lie outside, so that they outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spotwatch.drill.processes import VARIABLE, kill_all
from spotwatch.errors import SpotwatchError

DAEMON_START_SECONDS = 30.0
_LOOK_SECONDS = 0.02
# What would lead a rehearsed daemon or trainer to a real cloud, run or service manager.
_FOREIGN = (
    "SPOTWATCH_",
    "AWS_EC2_METADATA_",
    "GCE_METADATA_",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "KUBERNETES_",
)


class Machine:
    """One machine, played by a directory and the processes that belong to it.

    Args:
        folder: is made here and vanishes with the machine.
        logs: an existing directory outside of it.
        name: of the log files.
        environment: for all its processes, beside what they inherit.
    """

    def __init__(self, folder: Path, logs: Path, name: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.runtime_dir = folder / "run"
        self.state_dir = folder / "state"
        self.daemon_log = logs / f"{name}-daemon.log"
        self.trainer_log = logs / f"{name}-trainer.log"
        self._mark = f"{name}-{uuid.uuid4().hex}"
        self._sessions: set[int] = set()
        self._running: list[asyncio.subprocess.Process] = []
        for path in (folder, self.runtime_dir, self.state_dir, folder / "tmp"):
            path.mkdir(mode=0o700)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)},
            **environment,
            "SPOTWATCH_RUNTIME_DIR": str(self.runtime_dir),
            "TMPDIR": str(folder / "tmp"),
            VARIABLE: self._mark,
        }

    async def start_daemon(self, cloud: str, environment: Mapping[str, str]) -> None:
        """Start `spotwatch run` beside the trainer, and return once it watches.

        Raises:
            SpotwatchError: it ended, or does not watch within half a minute.
        """
        # A file of our own: the machine's may hold hooks and receivers, which a rehearsal must not reach.
        config = self.folder / "spotwatch.toml"
        config.touch()
        options = ("--config", str(config), "--provider", cloud, "--pidfile", str(self._pidfile))
        daemon = await self._start(
            (sys.executable, "-m", "spotwatch", "run", *options),
            {
                "SPOTWATCH_STATE_DIR": str(self.state_dir),
                "SPOTWATCH_HTTP__LISTEN": "",
                "SPOTWATCH_LOG__FORMAT": "json",
                **environment,
            },
            self.daemon_log,
            self.folder,
        )

        def is_watching() -> bool:
            if daemon.returncode is not None:
                raise SpotwatchError(f"the daemon ended with {daemon.returncode} before it watched")
            return self._has_logged("watching")

        await wait_until(is_watching, DAEMON_START_SECONDS, "the daemon to watch")

    async def start_trainer(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path
    ) -> asyncio.subprocess.Process:
        """Start the trainer, and leave its pid where the daemon looks for it.

        Raises:
            SpotwatchError: the command cannot be run.
        """
        trainer = await self._start(command, environment, self.trainer_log, cwd)
        fresh = self._pidfile.with_suffix(".new")
        fresh.write_text(f"{trainer.pid}\n", encoding="ascii")
        fresh.rename(self._pidfile)
        return trainer

    async def destroy(self) -> int:
        """Kill every process, remove the directory, and return how many processes there were.

        Raises:
            SpotwatchError: a process survives SIGKILL.
        """
        killed = kill_all(self._mark, self._sessions)
        for process in self._running:
            await process.wait()
        self._running.clear()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)
        return killed

    @property
    def _pidfile(self) -> Path:
        return self.folder / "trainer.pid"

    async def _start(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path
    ) -> asyncio.subprocess.Process:
        with log.open("ab") as file:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env={**self.environment, **environment},
                    cwd=cwd,
                    # Ctrl-C is ours to handle, and a session tells whose child a process is.
                    start_new_session=True,
                )
            except OSError as error:
                raise SpotwatchError(f"cannot run {command[0]}: {error.strerror}") from error
        self._sessions.add(process.pid)
        self._running.append(process)
        return process

    def _has_logged(self, event: str) -> bool:
        for line in self.daemon_log.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and row.get("event") == event:
                    return True
        return False


async def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Return once `condition` holds.

    Raises:
        SpotwatchError: it did not within `seconds`; says what was waited for.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + seconds
    while not condition():
        if loop.time() > give_up_at:
            raise SpotwatchError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(_LOOK_SECONDS)
