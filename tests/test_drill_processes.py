# SPDX-License-Identifier: Apache-2.0
"""The end of a machine, with processes that fork, change their session or hide their environment."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from pathlib import Path

import pytest

from spotwatch.drill.machine import Machine, wait_until
from spotwatch.drill.processes import members
from spotwatch.errors import SpotwatchError

FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
plain = subprocess.Popen(sleep)
session = subprocess.Popen(sleep, start_new_session=True)
bare = subprocess.Popen(sleep, env={})
print(plain.pid, session.pid, bare.pid, flush=True)
time.sleep(300)
"""


def machine(folder: Path, name: str = "aws-1") -> Machine:
    """Return a machine whose log lies beside it."""
    return Machine(folder / name, folder, name, {})


async def start_family(made: Machine) -> list[int]:
    """Start a trainer with three children and return all four pids."""
    trainer = await made.start_trainer((sys.executable, "-c", textwrap.dedent(FAMILY)), {}, made.folder)
    await wait_until(lambda: made.trainer_log.read_text().endswith("\n"), 10, "the children")
    return [trainer.pid, *map(int, made.trainer_log.read_text().split())]


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_nothing_survives_its_machine(tmp_path: Path) -> None:
    """Children with a session of their own or an empty environment go too, and so does the directory."""
    made = machine(tmp_path)
    pids = await start_family(made)
    (made.folder / "tmp" / "left").write_text("x")
    assert await made.destroy() == 4
    assert not any(is_alive(pid) for pid in pids)
    assert not made.folder.exists()
    assert made.trainer_log.exists()
    assert await made.destroy() == 0


async def test_a_neighbour_is_left_alone(tmp_path: Path) -> None:
    """The end of one machine does not touch another one, nor us."""
    doomed, neighbour = machine(tmp_path), machine(tmp_path, "aws-2")
    try:
        await start_family(doomed)
        pids = await start_family(neighbour)
        await doomed.destroy()
        assert all(is_alive(pid) for pid in pids)
        assert os.getpid() not in members("", ())
    finally:
        await doomed.destroy()
        await neighbour.destroy()


async def test_orphans_are_found(tmp_path: Path) -> None:
    """A child whose parent has left is found by its mark."""
    made = machine(tmp_path)
    script = "import subprocess as s; s.Popen(['sleep', '300'], start_new_session=True)"
    trainer = await made.start_trainer((sys.executable, "-c", script), {}, made.folder)
    await trainer.wait()
    assert await made.destroy() == 1


async def test_processes_are_told_nothing_of_a_real_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leads to a real cloud, run or service manager stays out; the rest of the environment goes in."""
    for name in ("SPOTWATCH_CONFIG", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "NOTIFY_SOCKET", "STATE_DIRECTORY"):
        monkeypatch.setenv(name, "/real")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store")
    made = machine(tmp_path)
    assert "/real" not in made.environment.values()
    assert made.environment["AWS_ENDPOINT_URL"] == "http://store"
    await made.destroy()


async def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    """A misspelt command is named."""
    made = machine(tmp_path)
    with pytest.raises(SpotwatchError, match="cannot run nonesuch: No such file"):
        await made.start_trainer(("nonesuch",), {}, made.folder)
    await made.destroy()


async def test_a_daemon_that_cannot_start(tmp_path: Path) -> None:
    """A daemon that refuses its settings ends the rehearsal at once, not after the time limit."""
    made = machine(tmp_path)
    async with asyncio.timeout(15):
        with pytest.raises(SpotwatchError, match="the daemon ended with 2 before it watched"):
            await made.start_daemon("aws", {"SPOTWATCH_POLICY__SAVE_SECONDS": "soon"})
    await made.destroy()
