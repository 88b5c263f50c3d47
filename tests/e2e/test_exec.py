# SPDX-License-Identifier: Apache-2.0
"""`spotwatch exec`: the trainer as a child, its outcome as our exit code."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spotwatch.emulator import Emulator
from tests.e2e.harness import SCRIPTS, Machine, until

Maker = Callable[[Mapping[str, str]], Machine]
EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"
pytest.importorskip("torch", reason="the trainers in these tests are torch programs")


def start_exec(machine: Machine, *command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Start `spotwatch exec` with the machine's directories."""
    with machine.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "spotwatch", "exec", "--provider", "file", *options, "--", *command],
            env=machine.environment,
            stderr=log,
            stdout=log,
        )
    machine.processes.append(process)
    return process


def trigger(machine: Machine, *arguments: str) -> None:
    """Run `spotwatch trigger` on the machine."""
    subprocess.run(
        [sys.executable, "-m", "spotwatch", "trigger", *arguments],
        env=machine.environment,
        check=True,
        timeout=30,
        stdout=subprocess.DEVNULL,
    )


def status(machine: Machine, run_id: str) -> dict[str, object]:
    """Return what a trainer says of itself; empty before it has said anything."""
    path = machine.runtime_dir / "status" / f"{run_id}.json"
    if not path.exists():
        return {}
    row: dict[str, object] = json.loads(path.read_bytes())
    return row


def example(machine: Machine, total_steps: int = 100_000) -> list[str]:
    """Return the command of the example trainer on this machine."""
    return [
        sys.executable, str(EXAMPLE), "--url", str(machine.log.parent / "store"), "--run-id", "r",
        "--total-steps", str(total_steps), "--step-seconds", "0.005",
    ]  # fmt: skip


@pytest.mark.timeout(300)
async def test_stopped_is_75_and_finished_is_0(make_machine: Maker) -> None:
    """A stop by hand: saved, 75; the same command goes on at that step, and 0 when it is through."""
    machine = make_machine({})
    process = start_exec(machine, *example(machine))
    await until(lambda: int(str(status(machine, "r").get("step", 0))) > 20, 40, "the trainer trains")
    await asyncio.to_thread(trigger, machine, "stop")
    assert await asyncio.to_thread(process.wait, 40) == 75
    saved = status(machine, "r")["saved"]
    assert isinstance(saved, dict)
    step = int(saved["step"])
    await asyncio.to_thread(trigger, machine, "clear")
    # The stop is withdrawn after three answers without it: the command waits for that, and then goes on.
    again = start_exec(machine, *example(machine, total_steps=step + 30))
    assert await asyncio.to_thread(again.wait, 60) == 0
    assert f"goes on from step {step} " in machine.log.read_text()


@pytest.mark.timeout(300)
async def test_while_a_stop_is_in_force(make_machine: Maker) -> None:
    """The command is not started on a machine that is going, and the code says that nothing is lost."""
    machine = make_machine({"SPOTWATCH_POLICY__DRAIN_SECONDS": "2"})
    process = start_exec(machine, *example(machine))
    await until(lambda: int(str(status(machine, "r").get("step", 0))) > 20, 40, "the trainer trains")
    await asyncio.to_thread(trigger, machine, "stop")
    assert await asyncio.to_thread(process.wait, 40) == 75
    pid = status(machine, "r")["pid"]
    assert await asyncio.to_thread(start_exec(machine, *example(machine)).wait, 40) == 75
    assert status(machine, "r")["pid"] == pid


@pytest.mark.timeout(300)
async def test_no_such_command(make_machine: Maker) -> None:
    """A usage error: 2, with the name and what is wrong."""
    machine = make_machine({})
    assert await asyncio.to_thread(start_exec(machine, "/nonexistent").wait, 25) == 2
    assert "cannot start '/nonexistent'" in machine.log.read_text()


@pytest.mark.timeout(300)
async def test_torchrun(make_machine: Maker) -> None:
    """Two ranks: the stop reaches them and not the launcher, both save, and exec exits 75."""
    machine = make_machine({})
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
        str(SCRIPTS / "ranks.py"), str(machine.log.parent / "store"), str(machine.trainer_log),
    ]  # fmt: skip
    process = start_exec(machine, *command)
    await until(lambda: len(machine.trainer_lines("resumed")) == 2, 60, "both ranks train")
    await until(lambda: int(str(status(machine, "ranks-1").get("step", 0))) > 5, 20)
    await asyncio.to_thread(trigger, machine, "stop")
    assert await asyncio.to_thread(process.wait, 60) == 75
    left = machine.trainer_lines("left")
    assert len(left) == 2
    # The one that was told first takes the other along: both save the step at which both leave.
    assert any("code 75" in line for line in left)
    steps = {line.split(" left at ")[1].split()[0] for line in left}
    assert len(steps) == 1
    saved = [status(machine, f"ranks-{rank}")["saved"] for rank in (0, 1)]
    assert {str(row["step"]) for row in saved if isinstance(row, dict)} == steps
    told = [row for row in machine.log_rows() if row.get("action") == "signal"]
    pids = sorted(line.split()[-1] for line in machine.trainer_lines("resumed"))
    assert len(told) == 1
    assert sorted(str(told[0]["detail"]).replace(",", "").split()[-2:]) == pids


@pytest.mark.timeout(300)
async def test_our_own_sigterm_stops_the_trainer(make_machine: Maker) -> None:
    """A scheduler that ends exec ends the trainer with it: saved first, then 75."""
    machine = make_machine({})
    process = start_exec(machine, *example(machine))
    await until(lambda: int(str(status(machine, "r").get("step", 0))) > 20, 40, "the trainer trains")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 40) == 75


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ending", "code"), [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("os.abort()", 134)])
async def test_its_own_exit_code(make_machine: Maker, ending: str, code: int) -> None:
    """Without a stop, the child's code is ours, 128 + n for a signal."""
    machine = make_machine({})
    process = start_exec(machine, sys.executable, "-c", f"import os, sys; {ending}")
    assert await asyncio.to_thread(process.wait, 30) == code


@pytest.mark.timeout(300)
async def test_a_trainer_that_ignores_everything(make_machine: Maker) -> None:
    """It leaves without a save when it is killed: 76."""
    machine = make_machine({"SPOTWATCH_POLICY__SAVE_SECONDS": "1"})
    code = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os._exit(1)); time.sleep(60)"
    process = start_exec(machine, sys.executable, "-c", code)
    await until(lambda: machine.count_in_log("watching") == 1, 20)
    await asyncio.to_thread(trigger, machine, "stop")
    assert await asyncio.to_thread(process.wait, 40) == 76


@pytest.mark.timeout(300)
async def test_withdrawn_while_it_stays(make_machine: Maker) -> None:
    """With --stay, a withdrawn stop starts the command again, and it goes on where it was."""
    async with Emulator("aws") as cloud:
        machine = make_machine({**cloud.environment, "SPOTWATCH_POLICY__SAVE_SECONDS": "1"})
        process = start_exec(machine, *example(machine), options=("--provider", "aws", "--stay"))
        await until(lambda: int(str(status(machine, "r").get("step", 0))) > 20, 40, "the trainer trains")
        first = status(machine, "r")["pid"]
        cloud.announce(window_seconds=5)
        await until(lambda: machine.count_in_log("trainer_exited") == 1, 40, "the trainer leaves")
        assert process.poll() is None
        cloud.withdraw()
        await until(lambda: status(machine, "r")["pid"] != first, 40, "the trainer runs again")
        assert not (machine.runtime_dir / "draining").exists()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 40) == 75
