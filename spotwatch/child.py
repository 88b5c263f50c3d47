# SPDX-License-Identifier: Apache-2.0
"""The trainer as our own child: started apart from our terminal, waited for, reaped, started again.

It is given a session of its own, so that Ctrl-C and a service manager's signal to our group reach the trainer
once, through us. Who in its family is told of a stop, and when, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotwatch.environ import without_secrets
from spotwatch.errors import ActionError, ConfigError

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
"""What `exec` catches and hands on, each as often as it came."""
# What a terminal sends to all of its foreground group; `sh -c 'python train.py'` needs it in both processes.
_FROM_TERMINALS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH})
# prctl(2), include/uapi/linux/prctl.h.
_PR_SET_CHILD_SUBREAPER = 36


class Child:
    """A command that runs below us.

    Args:
        argv: the command and its arguments; no shell.
        env: our environment; the child gets it without our secrets.
        runtime_dir: where daemon and trainer meet, given to the child as SPOTWATCH_RUNTIME_DIR.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], *, runtime_dir: Path | None = None
    ) -> None:
        if not argv:
            raise ConfigError("no command to run; write it after `--`")
        self.argv = tuple(argv)
        self._env = without_secrets(env)
        if runtime_dir is not None:
            self._env["SPOTWATCH_RUNTIME_DIR"] = str(runtime_dir)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the pid; None before the start and once its end has been seen."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return how it ended, 128 + n for signal n; None before the start and while it runs."""
        code = None if self._process is None else self._process.poll()
        return None if code is None else _as_shells_say(code)

    def start(self) -> None:
        """Start the command; standard input and output are ours.

        Raises:
            ConfigError: there is no such command, or it may not be run.
        """
        if self.pid is not None:
            raise ActionError(f"already runs as pid {self.pid}")
        _adopt_orphans()
        try:
            self._process = subprocess.Popen(self.argv, env=self._env, start_new_session=True)  # noqa: S603 - the user's own command
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"cannot start {self.argv[0]!r}: {reason}") from error
        if os.isatty(0):
            # Ctrl-Z would stop the guard and not the trainer, which has left the terminal's session.
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTSTP, signal.SIG_IGN)

    def respawn(self) -> None:
        """Start the same command again after its end.

        Raises:
            ActionError: it still runs, or it cannot be started.
        """
        try:
            self.start()
        except ConfigError as error:
            raise ActionError(str(error)) from error

    async def wait(self) -> int:
        """Return the exit code, 128 + n for signal n, once the present process has ended.

        May be awaited by several at once, and again after `respawn`.
        """
        if self._process is None:
            raise RuntimeError("Child.wait before start")
        return await wait_for_end(self._process)

    def pass_on(self, signum: int) -> bool:
        """Hand a signal that we received on to the child; tell whether there was one.

        What terminals send goes to the child's process group, which is ours, as it would from the terminal;
        everything else to the process alone, so that no worker of a loader is killed.
        """
        pid = self.pid
        if pid is None:
            return False
        try:
            if signum in _FROM_TERMINALS:
                os.killpg(pid, signum)
            else:
                os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class OrphanReaper:
    """Collects the ended processes that fell to us because their parent went first.

    Whoever starts a process of its own waits for it at once; what is still unreaped at a second sweep is
    nobody's. Sweep every few seconds.

    Args:
        child: its end is for `Child.wait` to see.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._seen: frozenset[tuple[int, str]] = frozenset()

    def sweep(self) -> int:
        """Reap what was unreaped at the last sweep too, and return how many."""
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                self._seen = frozenset()
                return 0
        except ChildProcessError:
            return 0
        zombies = frozenset(_zombies())
        reaped = 0
        for pid, _ in zombies & self._seen:
            if pid != self._child.pid:
                with contextlib.suppress(ChildProcessError):
                    reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
        self._seen = zombies
        return reaped


async def wait_for_end(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of `process` once it has ended, 128 + n for signal n.

    Its own end counts, not that of whoever else holds its pipes (asyncio waits for both until Python 3.12).
    """
    if process.poll() is None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        # pidfd_open(2): readable once the process has terminated. It cannot be reused: only we reap it.
        handle = os.pidfd_open(process.pid)
        try:
            loop.add_reader(handle, ended.set)
            await ended.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
    return _as_shells_say(process.wait())


def _as_shells_say(code: int) -> int:
    return 128 - code if code < 0 else code


def _zombies() -> list[tuple[int, str]]:
    """Return (pid, start time) of our own children that have ended."""
    ours = str(os.getpid())
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                # proc_pid_stat(5); the name in parentheses may hold anything.
                fields = (
                    (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                )
                if fields[0] == "Z" and fields[1] == ours:
                    found.append((int(path.name), fields[19]))
    return found


def _adopt_orphans() -> None:
    """Become the parent of what our descendants leave behind, as PID 1 is anyway; old kernels are let be."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
