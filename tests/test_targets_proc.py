# SPDX-License-Identifier: Apache-2.0
"""The identity of a process, and that a signal never reaches another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotwatch.errors import ActionError
from spotwatch.targets import Proc, has_pending, is_alive
from spotwatch.targets._proc import HIDDEN, Row, read_row, read_table, read_variable
from spotwatch.targets._send import check_signallable, refusal, send_signal
from tests.families import NOBODY, Family, family, needs_root, wait_for


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


def row_of(pid: int) -> Row:
    """Return what /proc says, which must be something."""
    row = read_row(pid)
    assert row is not None
    return row


def test_a_row_knows_identity_parent_and_arguments(fam: Family) -> None:
    """Everything that a choice needs is read at one look."""
    process = fam.start(fam.trainer("--lr", "3e-4"), trainers=1)
    row = row_of(process.pid)
    assert row.argv == tuple(fam.trainer("--lr", "3e-4"))
    assert row.proc.command == " ".join(fam.trainer("--lr", "3e-4"))
    assert (row.ppid, row.proc.uid, row.proc.gid) == (os.getpid(), os.geteuid(), os.getegid())
    assert (row.is_gone, row.is_kernel, row.is_thread) == (False, False, False)
    assert row.proc.start_ticks > 0
    assert read_table()[process.pid].proc == row.proc


def test_a_name_with_parentheses_does_not_shift_the_fields(tmp_path: Path, fam: Family) -> None:
    """The kernel puts the name as it is into stat: only what follows the last parenthesis counts."""
    odd = tmp_path / "a) R 1 (x"
    odd.symlink_to("/bin/sleep")
    process = fam.start([str(odd), "60"])
    wait_for(lambda: row_of(process.pid).comm == "a) R 1 (x")
    assert row_of(process.pid).ppid == os.getpid()
    assert is_alive(row_of(process.pid).proc)


def test_an_identity_survives_json() -> None:
    """What the journal keeps is what was found."""
    proc = row_of(os.getpid()).proc
    assert Proc.from_json(json.loads(json.dumps(proc.to_json()))) == proc
    with pytest.raises(KeyError):
        Proc.from_json({"pid": 7})
    with pytest.raises(ValueError, match="invalid literal"):
        Proc.from_json({**proc.to_json(), "uid": "root"})


def test_a_process_that_ended_is_not_alive_nor_is_a_zombie(fam: Family) -> None:
    """A zombie keeps its pid and takes signals, but nobody is there."""
    process = fam.start(fam.trainer(), trainers=1)
    proc = row_of(process.pid).proc
    assert is_alive(proc)
    process.kill()
    wait_for(lambda: row_of(process.pid).is_gone)
    os.kill(process.pid, 0)
    assert not is_alive(proc)
    assert send_signal(proc, signal.SIGTERM) is False
    process.wait()
    assert read_row(process.pid) is None
    assert not is_alive(proc)
    assert send_signal(proc, signal.SIGTERM) is False
    with pytest.raises(ActionError, match="exited a moment ago"):
        check_signallable(proc)


def test_a_process_on_its_way_out_is_left_alone(fam: Family) -> None:
    """Its command line is gone a moment before it is: that is no other process, and no fault."""
    # The first thread of a process that ends before the others stays in just that state.
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
    number = 60 if os.uname().machine == "x86_64" else 93  # exit(2), of this thread alone
    process = fam.start([sys.executable, "-c", f"{code} ctypes.CDLL(None).syscall({number}, 0)"])
    before = wait_for(lambda: read_row(process.pid))
    wait_for(lambda: row_of(process.pid).is_exiting)
    assert row_of(process.pid).argv == ()
    assert not before.is_exiting
    assert send_signal(before.proc, signal.SIGTERM) is False
    assert process.poll() is None


def test_a_reused_pid_is_left_alone(fam: Family) -> None:
    """Another start time is another process: for the one that was meant, all is over."""
    process = fam.start(fam.trainer(), trainers=1)
    earlier = replace(row_of(process.pid).proc, start_ticks=row_of(process.pid).proc.start_ticks - 100)
    assert not is_alive(earlier)
    assert send_signal(earlier, signal.SIGTERM) is False
    assert process.poll() is None
    assert fam.told() == []
    assert send_signal(row_of(process.pid).proc, signal.SIGTERM) is True
    assert process.wait() == 75
    assert fam.told() == [process.pid]


@pytest.mark.parametrize("change", [{"command": "python serve.py"}, {"uid": 4242}, {"gid": 4242}])
def test_another_command_line_or_user_is_refused(fam: Family, change: dict[str, object]) -> None:
    """A process that became something else since it was found is found anew, not signalled."""
    process = fam.start(fam.trainer(), trainers=1)
    other = replace(row_of(process.pid).proc, **change)  # type: ignore[arg-type]
    with pytest.raises(ActionError, match="another user or command line"):
        send_signal(other, signal.SIGTERM)
    assert process.poll() is None


def test_sigkill_is_never_sent(fam: Family) -> None:
    """Whatever the caller says: SIGKILL would lose the save."""
    process = fam.start(fam.trainer(), trainers=1)
    with pytest.raises(ActionError, match="SIGKILL is never sent"):
        send_signal(row_of(process.pid).proc, signal.SIGKILL)
    assert process.poll() is None


def test_some_are_never_signalled() -> None:
    """PID 1, we, who started us, threads and the kernel's own are refused, each with its reason."""
    assert refusal(row_of(1)) == "it is PID 1"
    ourselves = row_of(os.getpid())
    assert refusal(ourselves) == "it is this daemon itself"
    if os.getppid() > 1:
        assert refusal(row_of(os.getppid())) == "this daemon was started by it"
    assert "kernel" in refusal(replace(ourselves, is_kernel=True))
    with pytest.raises(ActionError, match="this daemon itself"):
        send_signal(ourselves.proc, signal.SIGTERM)


def test_a_thread_is_no_process() -> None:
    """A thread has a folder in /proc under its own number."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        row = row_of(thread.native_id)
        assert row.is_thread
        assert "thread" in refusal(row)
    finally:
        go.set()
        thread.join()


def test_a_pending_signal_is_seen_until_it_is_taken(fam: Family) -> None:
    """A signal that a process blocks shows that it arrived."""
    code = (
        "import signal, sys, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM});"
        f"open({str(fam.said)!r}, 'a').write('READY 0\\n'); time.sleep(60)"
    )
    process = fam.start([sys.executable, "-c", code], trainers=1)
    proc = row_of(process.pid).proc
    assert not has_pending(proc, signal.SIGTERM)
    assert send_signal(proc, signal.SIGTERM)
    assert has_pending(proc, signal.SIGTERM)
    assert not has_pending(proc, signal.SIGUSR1)
    assert not has_pending(replace(proc, start_ticks=proc.start_ticks + 1), signal.SIGTERM)
    process.kill()
    process.wait()
    assert not has_pending(proc, signal.SIGTERM)


def test_the_first_environment_is_read(fam: Family) -> None:
    """LOCAL_RANK tells a rank from everything else that a launcher starts."""
    process = fam.start(fam.trainer(), trainers=1, env={"LOCAL_RANK": "3"})
    assert read_variable(process.pid, "LOCAL_RANK") == "3"
    assert read_variable(process.pid, "LOCAL_RAN") is None
    assert read_variable(2**22 - 1, "LOCAL_RANK") is None


def test_a_hidden_process_is_watched_but_never_signalled(fam: Family) -> None:
    """Under ProtectProc= only the existence of a pid can be known."""
    process = fam.start(fam.trainer(), trainers=1)
    hidden = replace(row_of(process.pid).proc, start_ticks=HIDDEN)
    assert is_alive(hidden)
    with pytest.raises(ActionError, match="hidden"):
        send_signal(hidden, signal.SIGTERM)
    process.kill()
    process.wait()
    assert not is_alive(hidden)


@needs_root
def test_a_process_of_another_user_needs_a_right(fam: Family) -> None:
    """An ordinary user is told what would help, and nothing happens."""
    process = fam.start(fam.trainer(), trainers=1)
    proc = row_of(process.pid).proc
    code = (
        "import json, os, sys; from spotwatch.errors import ActionError\n"
        "from spotwatch.targets._proc import Proc; from spotwatch.targets._send import send_signal\n"
        f"os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "try: send_signal(Proc.from_json(json.loads(sys.argv[1])), 15)\n"
        "except ActionError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(proc.to_json())],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert "not allowed to signal pid" in done.stdout
    assert "CAP_KILL" in done.stdout
    assert process.poll() is None
