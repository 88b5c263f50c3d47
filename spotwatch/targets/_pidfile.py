# SPDX-License-Identifier: Apache-2.0
"""The trainer whose pid is in a file, believed only where file and process agree.

A pidfile is a number that someone wrote some time ago: each check here is a way in which it was not the
trainer's any more, or never. It signals nobody. Standard library only.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from spotwatch.errors import ActionError, HandshakeError
from spotwatch.safe_files import read_small_file
from spotwatch.targets._obstacles import HIDDEN_OTHERS, sees_others
from spotwatch.targets._proc import Row
from spotwatch.targets._send import refusal

MAX_PIDFILE_BYTES = 64
# How much later than its pidfile a process may seem to have started: both are rounded by the kernel.
_SLACK_SECONDS = 1.0


class PidfileFinder:
    """The trainer's pid is in a file, believed only where file and process agree.

    Args:
        path: the file.
        uid: whose process it must be; None: anyone's.
    """

    def __init__(self, path: Path, uid: int | None) -> None:
        self._path = path
        self._uid = uid

    def heads(self, table: Mapping[int, Row]) -> tuple[Row, ...]:
        """Return the process that the file names."""
        try:
            return (self._head(table),)
        except HandshakeError as error:
            raise ActionError(f"pidfile {self._path}: {error}") from error

    def _head(self, table: Mapping[int, Row]) -> Row:
        facts, pid = self._read()
        row = table.get(pid)
        self._refuse_a_containers(pid, facts, table)
        if row is None and not sees_others() and _is_used(pid):
            raise HandshakeError(f"names pid {pid}, which we do not see; {HIDDEN_OTHERS}")
        if row is None or row.is_gone:
            raise HandshakeError(f"names pid {pid}, which does not run" + self._thread_hint(pid))
        if reason := refusal(row):
            raise HandshakeError(f"names pid {pid}, which is never signalled: {reason}")
        if self._uid is not None and row.proc.uid != self._uid:
            raise HandshakeError(
                f"names pid {pid} of uid {row.proc.uid}, expected uid {self._uid}; set `user`"
            )
        if facts.st_uid not in (0, os.geteuid(), row.proc.uid):
            raise HandshakeError(f"is owned by uid {facts.st_uid}, who is neither root, the trainer nor we")
        if row.is_nested:
            raise HandshakeError(
                f"names pid {pid}, which is numbered otherwise in its container; use `process` instead"
            )
        # The number was given away again if its process is younger than the file. Compared by age, so that
        # neither the second of boot nor its rounding matters.
        file_age = time.time() - facts.st_mtime
        process_age = time.clock_gettime(time.CLOCK_BOOTTIME) - row.proc.start_ticks / os.sysconf(
            "SC_CLK_TCK"
        )
        if file_age > process_age + _SLACK_SECONDS:
            raise HandshakeError(
                f"is {file_age - process_age:.0f} s older than the process of pid {pid}: "
                "the number was reused, or the clock was set; write the file anew"
            )
        return row

    def _refuse_a_containers(self, pid: int, facts: os.stat_result, table: Mapping[int, Row]) -> None:
        """Refuse a number that a container's process has written: here it is another process, or none."""
        inside = [row for row in table.values() if row.inner_pid == pid and row.proc.uid == facts.st_uid]
        if inside:
            raise HandshakeError(
                f"names pid {pid}, as pid {inside[0].pid} is numbered in its container, whose user wrote it; "
                "use `process` instead"
            )

    def _read(self) -> tuple[os.stat_result, int]:
        before = self._lstat()
        if stat.S_ISLNK(before.st_mode):
            raise HandshakeError("is a link; name the file itself")
        body = read_small_file(self._path, limit=MAX_PIDFILE_BYTES)
        facts = self._lstat()
        if body is None or (before.st_ino, before.st_mtime_ns) != (facts.st_ino, facts.st_mtime_ns):
            raise HandshakeError("is being replaced")
        if facts.st_mode & stat.S_IWOTH:
            raise HandshakeError("is writable by everyone; make it 0644")
        if not re.fullmatch(rb"\s*[0-9]{1,10}\s*", body) or int(body) <= 1:
            hint = "; 1 is the first process of a container" if body.strip() == b"1" else ""
            raise HandshakeError(f"holds {body[:20]!r}, expected one pid above 1{hint}")
        return facts, int(body)

    def _lstat(self) -> os.stat_result:
        try:
            return self._path.lstat()
        except OSError as error:
            raise HandshakeError(f"cannot be read: {error.strerror}") from error

    def _thread_hint(self, pid: int) -> str:
        # A thread has a folder in /proc, but is not listed there.
        return " as a process of its own: it is a thread" if Path(f"/proc/{pid}").exists() else ""

    def matches(self, row: Row) -> bool:
        """Return False: a pidfile says nothing about children."""
        del row
        return False

    def start(self) -> str:
        """Return nothing: who wrote the pidfile starts the trainer."""
        return ""


def _is_used(pid: int) -> bool:
    """Tell whether some process has this number, seen or not."""
    try:
        os.close(os.pidfd_open(pid))
    except OSError:
        return False
    return True
