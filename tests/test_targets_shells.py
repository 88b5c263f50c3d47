# SPDX-License-Identifier: Apache-2.0
"""When a shell is the trainer, and when it only runs it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.errors import ActionError
from spotwatch.targets._choice import choose
from spotwatch.targets._proc import Row, read_row, read_table
from tests.families import Family, family, wait_for
from tests.test_targets_choice import row

TERM = (signal.SIGTERM,)
FOR_EXIT = (signal.SIGTERM, signal.SIGILL, signal.SIGXCPU, signal.SIGVTALRM)
"""What bash catches once it has a trap on EXIT."""


def told(*rows: Row, signum: int = signal.SIGTERM) -> list[int]:
    """Return the pids told when the first of `rows` was found."""
    return [one.pid for one in choose(rows[0], {one.pid: one for one in rows}, "auto", signum=signum)]


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


@pytest.mark.parametrize("below", [[], ["sleep 0.1"], ["python step.py"], ["./step"], ["bash train.sh"]])
def test_a_script_with_a_trap_is_told_itself(below: list[str]) -> None:
    """What happens to run below it saves nothing; a copy of the shell is a command about to begin."""
    rows = [
        row(10 + i, 2, command, catches=() if "bash" not in command else TERM)
        for i, command in enumerate(below)
    ]
    assert told(row(2, 1, "bash train.sh", catches=TERM), *rows) == [2]


def test_a_trap_for_another_signal_is_none() -> None:
    """It counts for the signal that is sent."""
    rows = (row(2, 1, "sh -c x", catches=(signal.SIGUSR1,)), row(3, 2, "python train.py"))
    assert told(*rows) == [3]
    assert told(*rows, signum=signal.SIGUSR1) == [2]


@pytest.mark.parametrize("traps", [TERM, FOR_EXIT])
@pytest.mark.parametrize("command", ["python train.py", "./train"])
def test_below_a_trap_whoever_handles_the_signal_is_told(traps: tuple[int, ...], command: str) -> None:
    """The trap hands the signal on or cleans up afterwards; bash runs it only when the trainer has left."""
    assert told(row(2, 1, "bash entry.sh", catches=traps), row(3, 2, command, catches=TERM)) == [3]


def test_below_a_trap_launchers_and_wrappers_are_gone_through() -> None:
    """`timeout` and torchrun catch it for themselves: what counts is who runs below them."""
    shell = row(2, 1, "bash entry.sh", catches=TERM)
    timeout = row(3, 2, "timeout 60 x", catches=TERM)
    assert told(shell, timeout, row(4, 3, "sleep 9")) == [2]
    assert told(shell, timeout, row(4, 3, "python train.py", catches=TERM)) == [4]
    assert told(shell, row(3, 2, "torchrun train.py"), row(4, 3, "python train.py")) == [4]


def test_a_trap_on_exit_alone_looks_like_one_for_all_signals() -> None:
    """SIGTERM would end bash, which would clean up under a trainer that runs on."""
    shell = row(2, 1, "bash entry.sh", catches=FOR_EXIT)
    assert told(shell, row(3, 2, "python train.py")) == [3]
    assert told(shell, row(3, 2, "sleep 1")) == [2]


def test_a_script_without_a_trap_is_told_itself_between_its_tools() -> None:
    """It ends, as without us; to end its `sleep` would let it go on."""
    assert told(row(2, 1, "bash train.sh"), row(3, 2, "sleep 60"), row(4, 2, "tee log")) == [2]
    assert told(row(2, 1, "bash train.sh"), row(3, 2, "sleep 60"), row(4, 2, "./train")) == [4]
    with pytest.raises(ActionError, match="runs nothing at the moment"):
        told(row(2, 1, "bash train.sh"))


def test_the_one_that_handles_the_signal_is_told_of_several() -> None:
    """A program that is no python shows so that it is a trainer."""
    shell = row(2, 1, "sh run.sh")
    assert told(shell, row(3, 2, "./log"), row(4, 2, "./train", catches=TERM)) == [4]


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_real_shells(fam: Family, shell: str) -> None:
    """The kernel's word for a trap, for both shells; and a python below it that handles SIGTERM."""
    loop = fam.start([shell, "-c", "trap 'exit 75' TERM; while :; do sleep 0.05; done"])
    wait_for(lambda: (one := read_row(loop.pid)) is not None and one.catches(signal.SIGTERM))
    for _ in range(50):
        table = read_table()
        assert [one.pid for one in choose(table[loop.pid], table, "auto")] == [loop.pid]
    line = " ".join(fam.trainer())
    around = fam.start([shell, "-c", f"trap 'exit 1' TERM EXIT; {line}; exit 3"], trainers=1)
    table = read_table()
    assert [one.pid for one in choose(table[around.pid], table, "auto")] == fam.ready()


def test_a_script_with_a_trap_on_exit_of_a_real_bash(fam: Family) -> None:
    """What is told is the trainer, and the trap runs after it."""
    line = " ".join(fam.trainer())
    shell: subprocess.Popen[bytes] = fam.start(
        ["bash", "-c", f"trap 'echo CLEAN 0 >> {fam.said}' EXIT; {line}; exit 3"], trainers=1
    )
    table = read_table()
    assert [one.pid for one in choose(table[shell.pid], table, "auto")] == fam.ready()
