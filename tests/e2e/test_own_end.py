# SPDX-License-Identifier: Apache-2.0
"""What the daemon's own SIGTERM means where it runs, and the runs that are not a watch: once, dry, second."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.e2e.harness import Machine, until

Maker = Callable[[Mapping[str, str]], Machine]
pytestmark = pytest.mark.timeout(60)


def put_notice(machine: Machine, do: str, name: str = "hand.json") -> Path:
    """Write a notice by hand, complete at once."""
    folder = machine.runtime_dir / "notices"
    fresh = folder.parent / f"{name}.new"
    fresh.write_text(json.dumps({"do": do, "deadline": None, "why": "a test"}), encoding="utf-8")
    return fresh.rename(folder / name)


async def with_trainer(machine: Machine) -> subprocess.Popen[bytes]:
    """Start the script and a daemon that watches hand-made notices only."""
    flag = machine.runtime_dir / "checkpoint-now"
    trainer = await machine.start_script(
        "legacy.py", str(flag), str(machine.trainer_log), str(machine.pidfile)
    )
    await machine.start_daemon("--provider", "file", "--pidfile", str(machine.pidfile))
    return trainer


def end_daemon(machine: Machine, signum: signal.Signals = signal.SIGTERM) -> int:
    """Send a signal to the daemon and return its exit code."""
    assert machine.daemon is not None
    machine.daemon.send_signal(signum)
    return machine.daemon.wait(20)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
async def test_a_restarted_service_leaves_the_trainer_alone(
    make_machine: Maker, signum: signal.Signals
) -> None:
    """SIGTERM to a service, a closed terminal: no order, no signal, no draining; exit 0."""
    machine = make_machine({})
    trainer = await with_trainer(machine)
    assert end_daemon(machine, signum) == 0
    assert (machine.ordered(), trainer.poll()) == ([], None)
    assert not (machine.runtime_dir / "draining").exists()


@pytest.mark.parametrize("where", ["pod", "shutdown"])
async def test_where_the_trainer_goes_with_us(make_machine: Maker, tmp_path: Path, where: str) -> None:
    """In a pod, or when systemd shuts the machine down: one stop, and we stay until the trainer has left."""
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    if where == "shutdown":
        systemctl = tmp_path / "systemctl"
        systemctl.write_text("#!/bin/sh\necho stopping\nexit 1\n", encoding="ascii")
        systemctl.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    machine = make_machine(environment)
    trainer = await with_trainer(machine)
    assert end_daemon(machine) == 0
    assert trainer.wait(20) == 0
    assert machine.ordered() == ["stop"]
    assert len(machine.trainer_lines("SIGTERM")) == 1
    assert (machine.runtime_dir / "draining").exists()


async def test_the_next_life_lifts_the_stop_of_the_last_end(make_machine: Maker) -> None:
    """A container that is restarted in its pod finds its own stop, which no notice explains: it is lifted."""
    machine = make_machine({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    await with_trainer(machine)
    end_daemon(machine)
    await machine.start_daemon("--provider", "file", "--pidfile", str(machine.pidfile))
    await until(lambda: machine.order().get("do") == "none", what="the stop is lifted")
    await until(lambda: not (machine.runtime_dir / "draining").exists(), what="and draining is over")


@pytest.mark.parametrize(("do", "line"), [("flush", "saved for the flag"), ("stop", "SIGTERM")])
async def test_a_notice_of_the_last_moment(make_machine: Maker, do: str, line: str) -> None:
    """What appears just before our SIGTERM is seen by the forced poll, and the trainer is told."""
    machine = make_machine({"SPOTWATCH_PROVIDER__FILE__INTERVAL_SECONDS": "30"})
    await with_trainer(machine)
    put_notice(machine, do)
    assert end_daemon(machine) == 0
    assert machine.ordered() == [do]
    await until(lambda: machine.trainer_lines(line), what=line)


async def test_a_stop_outlives_restarts(make_machine: Maker) -> None:
    """Three restarts of the service while a stop is in force: one order, one signal."""
    machine = make_machine({})
    await with_trainer(machine)
    put_notice(machine, "stop")
    await until(lambda: machine.trainer_lines("saved and out"), what="the trainer stops")
    for _ in range(3):
        end_daemon(machine)
        await machine.start_daemon("--provider", "file", "--pidfile", str(machine.pidfile))
    await asyncio.sleep(0)
    assert machine.ordered() == ["stop"]
    assert len(machine.trainer_lines("SIGTERM")) == 1
    assert (machine.runtime_dir / "draining").exists()


async def test_a_second_sigterm_ends_at_once(make_machine: Maker) -> None:
    """Someone who insists is not kept waiting by a trainer that does not leave."""
    machine = make_machine({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SPOTWATCH_POLICY__DRAIN_SECONDS": "60"})
    with machine.trainer_log.open("wb"):
        deaf = subprocess.Popen(  # noqa: ASYNC220 - a few milliseconds, and killed by pid later
            [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"]
        )
    machine.processes.append(deaf)
    machine.pidfile.write_text(str(deaf.pid), encoding="ascii")
    daemon = await machine.start_daemon("--provider", "file", "--pidfile", str(machine.pidfile))
    daemon.terminate()
    await until(lambda: machine.ordered() == ["stop"], what="the stop")
    assert daemon.poll() is None
    daemon.terminate()
    assert daemon.wait(10) == -signal.SIGTERM


async def test_once(make_machine: Maker) -> None:
    """One poll, the due step, exit 0."""
    machine = make_machine({})
    (machine.runtime_dir / "notices").mkdir(parents=True)
    machine.runtime_dir.chmod(0o700)
    put_notice(machine, "flush")
    done = await run(machine, "run", "--once", "--provider", "file")
    assert done == 0
    assert (machine.ordered(), machine.order()["do"]) == (["flush"], "flush")
    assert (machine.runtime_dir / "checkpoint-now").exists()


async def test_a_dry_run(make_machine: Maker) -> None:
    """Everything but actions: no file, no signal, no row, and each deed told as `would`."""
    machine = make_machine({})
    trainer = await with_trainer(machine)
    end_daemon(machine)
    state = {path.name: path.read_bytes() for path in machine.state_dir.iterdir() if path.is_file()}
    put_notice(machine, "stop")
    await machine.start_daemon("--dry-run", "--provider", "file", "--pidfile", str(machine.pidfile))
    told = [f"would tell {trainer.pid}", "would write order.json and draining (order 1)"]

    def details() -> list[str]:
        rows = [row for row in machine.log_rows() if row.get("event") == "acted"]
        return [str(row.get("detail")) for row in rows if row.get("action") in ("signal", "handshake")]

    await until(lambda: sorted(details()) == sorted(told), what="told as would")
    assert trainer.poll() is None
    names = {path.name for path in machine.runtime_dir.iterdir()}
    assert names.isdisjoint({"order.json", "draining", "checkpoint-now"})
    end_daemon(machine)
    assert state == {path.name: path.read_bytes() for path in machine.state_dir.iterdir() if path.is_file()}


async def test_a_second_daemon(make_machine: Maker) -> None:
    """It exits 2 and names the first, which goes on."""
    machine = make_machine({})
    daemon = await machine.start_daemon("--provider", "file")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spotwatch", "run", "--provider", "file",
        env=machine.environment, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()
    assert process.returncode == 2
    assert str(daemon.pid) in said.decode()
    assert daemon.poll() is None


SAVES_UNTIL_LET = """
import pathlib, signal, sys, time
log = pathlib.Path(sys.argv[1])
def note(what):
    with log.open("a") as file:
        file.write(what + "\\n")
def leave(*_):
    note("SIGTERM")
    while not log.with_name("may-leave").exists():
        time.sleep(0.02)
    note("out")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
note("start")
time.sleep(60)
"""


async def test_withdrawn_while_the_child_saves(make_machine: Maker) -> None:
    """It was told and will leave, though the stop is lifted meanwhile: `exec` starts it again after that."""
    machine = make_machine({})
    with machine.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "spotwatch", "exec", "--provider", "file", "--",
            sys.executable, "-c", SAVES_UNTIL_LET, str(machine.trainer_log),
            env=machine.environment, stderr=log,
        )  # fmt: skip
    try:
        await until(lambda: machine.trainer_lines("start"), 20, "the child runs")
        notice = put_notice(machine, "stop")
        await until(lambda: machine.trainer_lines("SIGTERM"), what="the signal")
        notice.unlink()
        await until(lambda: machine.order().get("do") == "none", what="the stop is lifted")
        assert machine.trainer_lines("out") == []
        machine.trainer_log.with_name("may-leave").touch()
        await until(lambda: len(machine.trainer_lines("start")) == 2, 20, "it runs again")
        assert process.returncode is None
        assert len(machine.trainer_lines("SIGTERM")) == 1
    finally:
        process.kill()
        await process.wait()


async def run(machine: Machine, *arguments: str) -> int:
    """Run a command to its end, its log beside the daemons'."""
    with machine.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "spotwatch", *arguments, env=machine.environment, stderr=log
        )
        return await asyncio.wait_for(process.wait(), 30)
