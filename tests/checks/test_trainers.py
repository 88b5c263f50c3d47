# SPDX-License-Identifier: Apache-2.0
"""How long a save takes here, and whether launcher, unit and cloud leave it that long."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spotwatch.checks import Result
from spotwatch.checks.machine import Saves
from spotwatch.checks.trainers import judge_status, judge_statuses, judge_windows
from spotwatch.clock import SystemClock
from spotwatch.handshake import Status
from spotwatch.journal import FileJournal
from spotwatch.ledger import Ledger
from spotwatch.policy import Policy
from spotwatch.targets.launcher import TORCH_SHUTDOWN_SECONDS, shutdown_limit
from tests.checks.bench import Bench, named
from tests.families import Family

# A launcher in all that matters: its command line, and a rank below it.
LAUNCHER = """
import subprocess, sys, os
env = {{**os.environ, "LOCAL_RANK": "0"}}
subprocess.run([sys.executable, {script!r}, {said!r}], env=env)
"""


def start_launcher(family: Family, *options: str, env: dict[str, str] | None = None) -> None:
    """Start a command that is called torchrun, with one rank."""
    path = family.folder / "torchrun"
    path.write_text(LAUNCHER.format(script=str(family.script), said=str(family.said)))
    family.start([sys.executable, str(path), *options, str(family.script)], trainers=1, env=env)


@pytest.mark.parametrize(
    ("phase", "code", "result"),
    [("durable", 75, "ok"), ("finished", 0, "ok"), ("failed", 76, "warn"), ("training", None, "fail")],
)
def test_a_trainer_that_has_left(phase: str, code: int | None, result: str) -> None:
    """One that has said how it ended neither hangs nor is missing; one that is only silent may be either."""
    now = datetime(2026, 11, 29, tzinfo=UTC)
    status = Status(run_id="r", pid=7, at=now - timedelta(hours=1), phase=phase, exit_code=code, error="boom")
    finding = judge_status(status, now)
    assert finding.result == result
    assert ("gone or hangs" in finding.found) is (result == "fail")


def test_many_runs_that_are_over_are_one_line() -> None:
    """The one that lives comes first, then the newest that are over; a sweep's seventy others are counted."""
    now = datetime(2026, 11, 29, tzinfo=UTC)
    live = Status(run_id="z", pid=7, at=now)
    over = [
        replace(live, run_id=f"a{n:02}", at=now - timedelta(hours=1 + n), phase="finished", exit_code=0)
        for n in range(70)
    ]
    over[60] = replace(over[60], phase="training", exit_code=None)
    lines = judge_statuses([*reversed(over), live], now)
    assert [line.found.split(" ")[0] for line in lines] == ["z", "a00", "a01", "a02", "67"]
    assert (lines[-1].result, lines[-1].found) == ("ok", "67 earlier runs are over: 66 ended, 1 fell silent")
    assert len(judge_statuses(over[:4], now)) == 4


@pytest.mark.parametrize(
    ("argv", "variables", "expected"),
    [
        (("torchrun", "train.py"), {}, (TORCH_SHUTDOWN_SECONDS, "")),
        (("torchrun", "--shutdown-timeout", "90", "t.py"), {}, (90, "--shutdown-timeout=90")),
        (("torchrun", "--shutdown_timeout=45", "t.py"), {}, (45, "--shutdown-timeout=45")),
        (("torchrun",), {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60"}, (60, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=60")),
        (("torchrun",), {"PET_SHUTDOWN_TIMEOUT": "70"}, (70, "PET_SHUTDOWN_TIMEOUT=70")),
        (
            ("torchrun", "--shutdown-timeout", "5"),
            {"PET_SHUTDOWN_TIMEOUT": "70"},
            (5, "--shutdown-timeout=5"),
        ),
        (("torchrun", "--shutdown-timeout", "soon"), {}, (TORCH_SHUTDOWN_SECONDS, "")),
        (("torchrun", "--shutdown-timeout"), {}, (TORCH_SHUTDOWN_SECONDS, "")),
    ],
)
def test_shutdown_limit(
    argv: tuple[str, ...], variables: dict[str, str], expected: tuple[float, str]
) -> None:
    """The option goes before the variables, and what is no number leaves the default."""
    assert shutdown_limit(argv, variables.get) == expected


@pytest.mark.parametrize(
    ("save_seconds", "options", "env", "result"),
    [
        (20, (), {}, "ok"),
        (100, (), {}, "warn"),
        (100, ("--shutdown-timeout", "300"), {}, "ok"),
        (100, (), {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"}, "ok"),
    ],
)
async def test_launcher_of_a_real_process(
    save_seconds: float, options: tuple[str, ...], env: dict[str, str], result: str, bench: Bench
) -> None:
    """The limit is read from the launcher that really runs above the rank that would be told."""
    start_launcher(bench.family, *options, env=env)
    toml = f"[policy]\nsave_seconds = {save_seconds}\n[[target]]\nprocess = '{bench.family.pattern}'\n"
    findings = await bench.check(toml)
    (line,) = named(findings, "target.launcher")
    assert line.result == result, line
    assert ("--shutdown-timeout 200" in line.mend) is (result == "warn")
    assert named(findings, "target")[0].result is Result.OK


async def test_launcher_in_a_unit_takes_the_whole_stop(bench: Bench) -> None:
    """There systemd tells the launcher, whose limit then ends every save: a failure, not a warning."""
    start_launcher(bench.family)
    (launcher,) = bench.family.started
    bench.systemd({"train.service": {"MainPID": launcher.pid, "TimeoutStopUSec": "10min"}})
    unit = '[policy]\nsave_seconds = 100\n[[target]]\nunit = "train"\n'
    (line,) = named(await bench.check(unit), "target.launcher")
    assert (line.result, 'leaves = "always"' in line.mend) == (Result.FAIL, True)
    (line,) = named(await bench.check(unit + 'leaves = "always"\n'), "target.launcher")
    assert line.result is Result.WARN


async def test_workers_make_the_whole_group_a_failure(bench: Bench) -> None:
    """With workers really there, KillMode=control-group is no longer a matter of taste."""
    script = bench.family.folder / "workers.py"
    script.write_text(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, sys.argv[1], sys.argv[2], '--multiprocessing-fork'])\n"
        "import time; time.sleep(60)\n"
    )
    argv = [sys.executable, str(script), str(bench.family.script), str(bench.family.said)]
    main = bench.family.start(argv, trainers=1)
    bench.systemd({"train.service": {"MainPID": main.pid, "KillMode": "control-group"}})
    (line,) = named(await bench.check('[[target]]\nunit = "train"\n'), "unit.KillMode")
    assert (line.result, "kills the trainer's 1 workers" in line.found) == (Result.FAIL, True)


def journal(bench: Bench, *seconds: float) -> None:
    """Leave the journal of a daemon that saw these saves."""
    clock = SystemClock()
    ledger = Ledger(clock)
    bench.state_dir.mkdir()
    written = FileJournal(bench.state_dir, snapshot=ledger.snapshot, on_error=pytest.fail)
    ledger.subscribe(written.append)
    for step, each in enumerate(seconds):
        ledger.record(
            "saved",
            run_id="r",
            step=step,
            seconds=each,
            stall_seconds=0.1,
            step_seconds=1.0,
            is_durable=True,
            boot=clock.boot(),
        )
    written.close()


async def test_measured_saves_count(bench: Bench) -> None:
    """What the journal has measured goes before what the configuration assumes, the worst of it."""
    journal(bench, 70.0, 99.0, 80.0)
    (line,) = named(await bench.check(bench.unit(TimeoutStopUSec="99s")), "unit.TimeoutStopSec")
    assert "a save may take 100 s (measured over 3 saves)" in line.found
    assert line.result is Result.FAIL


async def test_reported_saves_count_without_a_journal(bench: Bench) -> None:
    """A trainer that has saved before any daemon ran is heard."""
    bench.report(steps_per_second=2.0)
    (line,) = named(await bench.check(bench.unit()), "unit.TimeoutStopSec")
    assert "a save may take 2.5 s (measured over 1 save)" in line.found


def test_windows_are_told_for_each_cloud() -> None:
    """Two clouds, two lines; what fits is said in words."""
    saves = Saves(seconds=30.0, measured=2, unreadable=0)
    long, short = judge_windows({"digitalocean": 7200.0, "gcp": 20.0}, saves, Policy())
    assert (long.result, "a save at once and another one" in long.found) == (Result.OK, True)
    assert (short.result, "only periodic saves count" in short.found) == (Result.WARN, True)
    (none_measured,) = judge_windows({"aws": 120.0}, replace(saves, measured=0), Policy())
    assert "assumed" in none_measured.found
