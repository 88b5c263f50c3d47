# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of two nodes, both of them this machine: its own configuration, keys, ports and folders.

It has a partition `spot`, which is preempted with a grace time, and `urgent`, which preempts. There is no
accounting, and no control group: processes are found by their parents. It knows nothing of spotwatch.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

_Wanted = TypeVar("_Wanted")
TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol")
WAIT_SECONDS = 120.0
"""For anything that the cluster or a job on it does."""
NODES = ("spot1", "spot2")
_REFUSED_SECONDS = 3.0
"""slurmd compares whole seconds: "Job 1 already killed, do not launch batch job" (22.05, seen here)."""
_DAEMONS = ("slurmctld", *(f"slurmd-{node}" for node in NODES), "munged")

_CONFIGURATION = """\
ClusterName=recipes
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=spot1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=spot2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
PartitionName=spot Nodes=spot1,spot2 Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=spot1,spot2 PriorityTier=10 PreemptMode=OFF
"""


class Cluster:
    """A cluster that runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environ = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def sbatch(self, *arguments: str, cwd: Path, environ: Mapping[str, str]) -> str:
        """Submit a job from a folder, and return its number."""
        return self.run("sbatch", "--parsable", *arguments, cwd=cwd, environ=environ).strip()

    def scontrol(self, *arguments: str) -> str:
        """Return what scontrol says."""
        return self.run("scontrol", *arguments)

    def job(self, number: str) -> dict[str, str]:
        """Return what the controller knows of a job, as it calls it."""
        words = self.scontrol("show", "job", number, "--oneliner").split()
        return {key: value for key, _, value in (word.partition("=") for word in words)}

    def wait_for(self, number: str, **wanted: str) -> dict[str, str]:
        """Return the job once it is as wanted: `JobState="RUNNING"`."""

        def is_so() -> dict[str, str] | None:
            job = self.job(number)
            return job if wanted.items() <= job.items() else None

        return until(is_so, f"job {number} is {wanted}")

    def start_again(self, number: str) -> None:
        """Start a requeued job soon; Slurm would wait for two minutes, counted anew as nodes report.

        Not at once: a node refuses the job whose number was killed on it within the same second.
        """

        def has_started() -> bool:
            job = self.job(number)
            state = job["JobState"]
            assert state in ("PENDING", "CONFIGURING", "RUNNING"), job
            if state == "PENDING" and job["Reason"] == "BeginTime" and time.monotonic() > may_start:
                self.scontrol("update", f"JobId={number}", "StartTime=now")
            return state == "RUNNING"

        may_start = time.monotonic() + _REFUSED_SECONDS
        try:
            until(has_started, f"job {number} starts again")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.job(number)}\n{self.logs()}") from error

    def run(self, *command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
        """Return what one of Slurm's commands prints; it must succeed."""
        run = subprocess.run(
            command,
            cwd=cwd,
            env=self._environ | dict(environ or {}),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert run.returncode == 0, f"{command}: {run.stderr}{self.logs()}"
        return run.stdout

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        logs = [self._folder / f"{name}.log" for name in _DAEMONS]
        return "".join(f"\n== {log.name}\n{log.read_text()[-2000:]}" for log in logs if log.exists())

    def clear(self) -> None:
        """End all jobs, and wait until none of their processes is left."""
        self.run("scancel", "--signal=KILL", "--full", "--user=root")
        self.run("scancel", "--user=root")
        until(lambda: not self.run("squeue", "--noheader"), "no job is left")


def until(condition: Callable[[], _Wanted | None], what: str) -> _Wanted:
    """Return what `condition` returns, once it is something.

    Raises:
        AssertionError: it was not in time.
    """
    end = time.monotonic() + WAIT_SECONDS
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {WAIT_SECONDS:g} s: {what}"
        time.sleep(0.1)
    return result


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster in an empty folder; costs two to five seconds."""
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, host=host, ports=_free_ports(3)))
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    names = (f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid", f"--key-file={folder}/key")
    common = ("-D", "-f", str(folder / "slurm.conf"))
    with ExitStack() as stack:
        stack.enter_context(
            _daemon(folder, "munged", "--foreground", "--force", f"--seed-file={folder}/seed", *names)
        )
        until((folder / "munge.socket").exists, "munged has its socket")
        stack.enter_context(_daemon(folder, "slurmctld", *common))
        for node in NODES:
            stack.enter_context(_daemon(folder, f"slurmd-{node}", *common, "-N", node))
        made = Cluster(folder)
        idle = ("sinfo", "--noheader", "--partition=spot", "--states=idle", "--format=%D")
        until(lambda: made.run(*idle).strip() == str(len(NODES)), "both nodes are up")
        try:
            yield made
        finally:
            made.clear()


@contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([name.partition("-")[0], *arguments], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
