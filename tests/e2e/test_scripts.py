# SPDX-License-Identifier: Apache-2.0
"""A script that knows only a flag and SIGTERM, and a daemon that dies at the worst moments."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from spotwatch.emulator import Emulator
from tests.e2e.harness import NOBODY, Machine, until

Maker = Callable[[Mapping[str, str]], Machine]

# A tenth of the real times: a window of twelve seconds instead of two minutes.
QUICK = {
    "SPOTWATCH_POLICY__SAVE_SECONDS": "2",
    "SPOTWATCH_POLICY__STOP_MARGIN_SECONDS": "1",
    "SPOTWATCH_PROVIDER__AWS__INTERVAL_SECONDS": "0.2",
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="starts processes as another user: needs root")


@pytest.fixture
def tmp_flag() -> Iterator[Path]:
    """Return a flag path in the sticky /tmp, of a name of its own."""
    path = Path(f"/tmp/checkpoint-now-{uuid.uuid4().hex[:8]}")
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["runtime_dir", "tmp"])
@pytest.mark.parametrize("user", [None, pytest.param(NOBODY, marks=needs_root)])
async def test_a_script_of_another_user(
    make_machine: Maker, tmp_flag: Path, place: str, user: int | None
) -> None:
    """It saves for the flag, goes on, and exits at the stop, wherever the flag is and whoever it runs as."""
    async with Emulator("aws") as cloud:
        machine = make_machine({**cloud.environment, **QUICK})
        flag = tmp_flag if place == "tmp" else machine.runtime_dir / "checkpoint-now"
        machine.environment["SPOTWATCH_FLAG__PATH"] = str(flag)
        for path in (machine.trainer_log, machine.pidfile):
            path.touch()
            if user is not None:
                os.chown(path, user, user)
        trainer = await machine.start_script(
            "legacy.py", str(flag), str(machine.trainer_log), str(machine.pidfile), user=user
        )
        await machine.start_daemon("--provider", "aws", "--pidfile", str(machine.pidfile))
        cloud.announce(window_seconds=12)
        await until(lambda: machine.trainer_lines("saved for the flag"), what="a save for the flag")
        assert trainer.poll() is None
        await until(lambda: trainer.poll() is not None, 20, "the trainer exits")
        assert trainer.returncode == 0
        await until(lambda: machine.log_rows()[-1]["event"] == "answered", what="the answer")
    assert machine.ordered() == ["flush", "stop"]
    assert len(machine.trainer_lines("SIGTERM")) == 1
    answers = [row["answer"] for row in machine.log_rows() if row["event"] == "answered"]
    assert answers == ["acknowledged", "acknowledged"]


@pytest.mark.timeout(300)
async def test_killed_at_twenty_random_moments(make_machine: Maker) -> None:
    """Between notice and stop, each time started again: one stop order, one SIGTERM, every flush answered."""
    chance = random.Random()  # a new twenty moments each time is the point
    async with Emulator("aws") as cloud:
        slow = {**QUICK, "SPOTWATCH_POLICY__SAVE_SECONDS": "5"}
        machine = make_machine({**cloud.environment, **slow})
        flag = machine.runtime_dir / "checkpoint-now"
        trainer = await machine.start_script(
            "legacy.py", str(flag), str(machine.trainer_log), str(machine.pidfile)
        )
        arguments = ("--provider", "aws", "--pidfile", str(machine.pidfile))
        await machine.start_daemon(*arguments)
        cloud.announce(window_seconds=50)
        for _ in range(20):
            await asyncio.sleep(chance.uniform(0, 1.2))
            machine.kill_daemon()
            await machine.start_daemon(*arguments)
        await until(lambda: trainer.poll() is not None, 60, "the trainer exits")
        await until(lambda: machine.order().get("do") == "stop")
        await until(lambda: machine.count_in_log("answered") >= 2, what="both answers")
    assert machine.ordered() == ["flush", "stop"]
    assert len(machine.trainer_lines("SIGTERM")) == 1
    assert len(machine.trainer_lines("saved for the flag of order 1")) >= 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("habit", ["kill-on-flag", "kill-on-order", "kill-the-sender"])
async def test_killed_at_the_worst_moment(make_machine: Maker, habit: str) -> None:
    """When flag or order.json appears, or between signal and record: nothing lost, one or two SIGTERMs."""
    async with Emulator("aws") as cloud:
        machine = make_machine({**cloud.environment, **QUICK})
        flag = machine.runtime_dir / "checkpoint-now"
        trainer = await machine.start_script(
            "legacy.py",
            str(flag),
            str(machine.trainer_log),
            str(machine.pidfile),
            f"{habit}={machine.runtime_dir}",
        )
        arguments = ("--provider", "aws", "--pidfile", str(machine.pidfile))
        daemon = await machine.start_daemon(*arguments)
        cloud.announce(window_seconds=12)
        await until(lambda: daemon.poll() is not None, 20, "the daemon is killed")
        await machine.start_daemon(*arguments)
        await until(lambda: trainer.poll() is not None, 20, "the trainer exits")
        await until(lambda: machine.count_in_log("answered") >= 2, what="both answers")
    assert machine.ordered() == ["flush", "stop"]
    assert len(machine.trainer_lines("saved for the flag of order 1")) >= 1
    assert 1 <= len(machine.trainer_lines("SIGTERM")) <= 2
