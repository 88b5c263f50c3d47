# SPDX-License-Identifier: Apache-2.0
"""The trainer as a child: started apart, waited for, signalled once, reaped, started again."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.child import Child, OrphanReaper
from spotwatch.config import TargetSettings
from spotwatch.errors import ActionError, ConfigError
from spotwatch.targets import make_targets
from tests.families import Family, family, wait_for
from tests.leaks import open_descriptors


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


def child_of(argv: list[str], **env: str) -> Child:
    """Return a started child."""
    child = Child(argv, {**os.environ, **env})
    child.start()
    return child


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(75)", 75),
        ("import os; os.kill(os.getpid(), 15)", 128 + 15),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
    ],
)
async def test_its_end_is_its_exit_code(code: str, expected: int) -> None:
    """A signal counts as shells count it."""
    child = child_of([sys.executable, "-c", code])
    pid = child.pid
    assert pid is not None
    assert await child.wait() == expected
    assert child.pid is None
    assert child.exit_code == expected
    assert await child.wait() == expected


async def test_several_may_wait(fam: Family) -> None:
    """The runner and the daemon both do."""
    child = child_of(fam.trainer())
    wait_for(fam.ready)
    waiting = [asyncio.create_task(child.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert child.pass_on(signal.SIGTERM)
    assert await asyncio.gather(*waiting) == [75, 75, 75]
    assert not child.pass_on(signal.SIGTERM)
    assert fam.told() == fam.ready()


async def test_waiting_can_be_given_up(fam: Family) -> None:
    """A cancelled wait leaves no descriptor and harms no other."""
    child = child_of(fam.trainer())
    wait_for(fam.ready)
    before = open_descriptors()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(child.wait(), 0.05)
    assert not open_descriptors() - before
    child.pass_on(signal.SIGTERM)
    assert await child.wait() == 75


async def test_it_has_a_session_of_its_own_and_no_secrets(tmp_path: Path) -> None:
    """What is sent to our group does not reach it twice, and our secrets not at all."""
    out = tmp_path / "out"
    code = (
        "import json, os, sys; json.dump([os.getsid(0) == os.getpid(), dict(os.environ)], "
        "open(sys.argv[1], 'w'))"
    )
    env = {**os.environ, "SPOTWATCH_WEBHOOK__SECRET": "whsec_x", "NOTIFY_SOCKET": "/run/x"}
    child = Child([sys.executable, "-c", code, str(out)], env, runtime_dir=tmp_path / "run")
    child.start()
    assert await child.wait() == 0
    leads, environ = json.loads(read(out))
    assert leads is True
    assert environ["SPOTWATCH_RUNTIME_DIR"] == str(tmp_path / "run")
    assert environ["PATH"] == os.environ["PATH"]
    assert not {"SPOTWATCH_WEBHOOK__SECRET", "NOTIFY_SOCKET"} & set(environ)


def read(path: Path) -> str:
    """Return a file's text."""
    return path.read_text()


async def test_ctrl_c_reaches_shell_and_trainer_and_other_signals_the_process_alone(fam: Family) -> None:
    """A terminal sends SIGINT to all; SIGTERM to all would kill a loader's workers."""
    line = " ".join(fam.trainer())
    child = child_of(["dash", "-c", f"trap 'echo SHELL 0 >> {fam.said}' INT USR1; {line}; wait; exit 3"])
    wait_for(fam.ready)
    child.pass_on(signal.SIGUSR1)
    child.pass_on(signal.SIGINT)
    assert await child.wait() == 3
    assert len(fam.words("SHELL")) >= 1
    assert [words[2] for words in fam.words("TOLD")] == ["SIGINT"]


async def test_it_can_be_started_again(fam: Family) -> None:
    """When the reclaim never came, the same command runs on."""
    child = child_of(fam.trainer())
    wait_for(fam.ready)
    (target,) = make_targets((), child)
    assert target.label == "child"
    with pytest.raises(ActionError, match="already runs as pid"):
        child.respawn()
    assert await target.start() == ""
    procs = target.find()
    assert [proc.pid for proc in procs] == [child.pid]
    assert target.owner() == (os.geteuid(), os.getegid())
    await target.stop(procs)
    assert await child.wait() == 75
    with pytest.raises(ActionError, match="child: the trainer has exited"):
        target.find()
    assert await target.start() == f"child: started again as pid {child.pid}"
    wait_for(lambda: len(fam.ready()) == 2)
    await target.stop(target.find())
    assert await child.wait() == 75
    assert fam.told() == fam.ready()


async def test_under_a_shell_the_child_target_is_the_trainer(fam: Family) -> None:
    """`exec -- sh -c '…'` stops what the shell runs, with the signal that the configuration names."""
    child = child_of(["dash", "-c", f"{' '.join(fam.trainer())}; exit 4"])
    wait_for(fam.ready)
    (target,) = make_targets((TargetSettings(signal="SIGUSR1"),), child)
    await target.stop(target.find())
    assert await child.wait() == 4
    assert fam.words("TOLD") == [["TOLD", str(fam.ready()[0]), "SIGUSR1"]]


def test_a_command_that_is_none_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    """Said before anything is watched; on a restart it is a failed action."""
    with pytest.raises(ConfigError, match="write it after `--`"):
        Child([], {})
    child = Child(["/no/such/trainer"], {})
    with pytest.raises(ConfigError, match="cannot start '/no/such/trainer': No such file"):
        child.start()
    with pytest.raises(ActionError, match="No such file"):
        child.respawn()
    assert child.pid is None
    assert child.exit_code is None


async def test_waiting_before_the_start_is_a_mistake_of_ours() -> None:
    """Nothing could end."""
    with pytest.raises(RuntimeError, match="before start"):
        await Child(["true"], {}).wait()


REAPER = """
import os, subprocess, sys, time
from spotwatch.child import Child, OrphanReaper
# The child leaves a process behind that ends later, and goes.
child = Child(["sh", "-c", "(sleep 0.2; exit 7) & exit 5"], dict(os.environ))
child.start()
reaper = OrphanReaper(child)
own = subprocess.Popen(["true"])
reaped = 0
end = time.monotonic() + 10
while reaped < 1 and time.monotonic() < end:
    # Our own are waited for in between, as asyncio and subprocess.run do at once.
    if own is not None and own.poll() is not None:
        assert own.returncode == 0
        own = None
    reaped += reaper.sweep()
    time.sleep(0.05)
assert child.exit_code == 5, child.exit_code
assert reaper.sweep() == 0
print("reaped", reaped)
"""


def test_orphans_fall_to_us_and_are_reaped() -> None:
    """As PID 1 of a container, or as subreaper: no zombie stays, and no exit code is stolen."""
    done = subprocess.run(
        [sys.executable, "-c", REAPER],
        capture_output=True,
        text=True,
        check=False,
        timeout=15,
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout == "reaped 1\n", done.stderr


def test_without_children_there_is_nothing_to_reap() -> None:
    """A sweep costs one system call then."""
    code = "from spotwatch.child import Child, OrphanReaper;print(OrphanReaper(Child(['true'], {})).sweep())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    assert OrphanReaper(Child(["true"], {})).sweep() == 0


TERMINAL = """
import asyncio, fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from spotwatch.child import Child
async def main():
    child = Child([sys.executable, "-c", sys.argv[1]], dict(os.environ))
    child.start()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, child.pass_on, signal.SIGINT)
    return await child.wait()
raise SystemExit(asyncio.run(main()))
"""
COUNTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("GO", input(), flush=True)
end = time.monotonic() + 10
while not seen and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.2)
print("SEEN", len(seen), flush=True)
"""


def test_at_a_terminal_input_works_and_ctrl_c_comes_once(tmp_path: Path) -> None:
    """The child reads the terminal although it left its session; Ctrl-Z stops neither of us."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, COUNTS],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=Path(__file__).parents[1],
    )
    os.close(theirs)
    try:
        screen = b""

        def until(word: bytes) -> None:
            nonlocal screen
            while word not in screen:
                screen += os.read(terminal, 1000)

        os.write(terminal, b"hello\n")
        until(b"GO hello")
        os.write(terminal, b"\x1a")
        os.write(terminal, b"\x03")
        until(b"SEEN ")
        screen = screen[screen.index(b"SEEN ") :]
        until(b"\n")
        assert b"SEEN 1" in screen
        assert process.wait() == 0
    finally:
        os.close(terminal)
        process.kill()
        process.wait()
