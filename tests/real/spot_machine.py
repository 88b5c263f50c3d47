# SPDX-License-Identifier: Apache-2.0
"""A spot machine as docs/virtual-machine.md sets it up: both units, and a cloud at the metadata address.

It is no test: which trainer runs, what the cloud announces and what must follow is said by the test.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.real.machine import OUR_BOOT, OUR_PROGRAM, ROOT, Machine
from tests.real.namespace import ADDRESS, wait_until

WATCH = "spotwatch.service"
TRAIN = "spot-train.service"
DRAINING = "/run/spotwatch/draining"
FLAG = "/run/spotwatch/checkpoint-now"
_CLOUD = "cloud.service"
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"

BASH_TRAINER = "/bin/bash /shared/train.sh"
TORCH_TRAINER = (
    f"{sys.executable} {ROOT}/examples/train.py --url=/shared/run/checkpoints --total-steps=100000 "
    "--step-seconds=0.05 --every-steps=1000 --trace=/shared/run/trace"
)
"""20 steps a second without end; each is a line `STEP PID` of the trace."""


class SpotMachine:
    """A booted machine on which one scenario after the other is played.

    Args:
        machine: booted; what an earlier scenario left on it is removed.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.run_dir = machine.shared / "run"
        self._clean()

    def _clean(self) -> None:
        # Nobody needs what the trainer of an earlier scenario would save now.
        self.machine.run("systemctl", "kill", "--signal=KILL", TRAIN)
        for unit in (_CLOUD, WATCH, TRAIN):
            self.machine.run("systemctl", "stop", unit)
            self.machine.run("systemctl", "reset-failed", unit)
        self.machine.run("sh", "-c", "rm -rf /run/spotwatch /var/lib/spotwatch/*")
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self.run_dir.mkdir()
        page = (ROOT / "docs" / "handshake.md").read_text(encoding="utf-8")
        script = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
        assert script
        (self.machine.shared / "train.sh").write_text(script[1], encoding="utf-8")

    def set_up(
        self,
        trainer: str,
        *,
        settings: str = 'providers = ["file"]\n',
        train: str = "",
        watch: str = "",
        target: str = "",
        shipped: tuple[str, ...] = (),
        is_root: bool = False,
        starts: bool = True,
    ) -> None:
        """Install both units and start them, first the daemon.

        Args:
            trainer: the unit's command; it works in /shared/run.
            settings: begins the daemon's TOML; the target is added.
            train: further lines of the trainer's [Service].
            watch: further lines of the daemon's [Service].
            target: further lines of the target.
            shipped: drop-ins of ours for the daemon, such as `processes.conf`.
            is_root: all as root, instead of the users that the units name.
            starts: False: the units are only installed.
        """
        machine = self.machine
        (machine.shared / "spotwatch.toml").write_text(
            f'{settings}[[target]]\nunit = "{TRAIN}"\n{target}', encoding="utf-8"
        )
        machine.run("useradd", "--system", "--user-group", "trainer")
        self.run_dir.chmod(0o777)
        machine.install(
            WATCH,
            f"[Service]\nEnvironment=SPOTWATCH_CONFIG=/shared/spotwatch.toml\n{OUR_PROGRAM}{OUR_BOOT}{watch}",
            *shipped,
            *(["as-root.conf"] if is_root else []),
        )
        # One thread: what the tests measure is not how torch shares two cores.
        machine.install(
            TRAIN,
            "[Service]\nWorkingDirectory=/shared/run\nRestartSec=1\nEnvironment=OMP_NUM_THREADS=1\n"
            f"ExecStart=\nExecStart={trainer}\n{OUR_BOOT}{'User=root' if is_root else ''}\n{train}",
        )
        if starts:
            self.start(WATCH)
            self.start(TRAIN)

    def start(self, unit: str) -> None:
        """Start `unit`, and wait for the job."""
        done = self.machine.run("systemctl", "start", unit)
        assert done.returncode == 0, self.log(unit)

    def play(self, cloud: str, *options: str) -> None:
        """Let `cloud` answer at the metadata address, in place of one that does already."""
        machine = self.machine
        machine.check("ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo")
        machine.run("systemctl", "stop", _CLOUD)
        emulate = (sys.executable, "-m", "spotwatch", "emulate", cloud, f"--host={ADDRESS}", "--port=80")
        machine.check("systemd-run", "--quiet", "--collect", f"--unit={_CLOUD}", *emulate, *options)
        wait_until(
            lambda: machine.run(sys.executable, "-c", _CONNECT, ADDRESS, "80").returncode == 0,
            20,
            f"{cloud} to be played",
        )

    def spotwatch(self, *command: str) -> str:
        """Run our command inside as root, and return what it printed."""
        return self.machine.check(
            *("env", "SPOTWATCH_CONFIG=/shared/spotwatch.toml", sys.executable, "-m", "spotwatch"), *command
        )

    def status(self) -> dict[str, Any]:
        """Return the daemon's status document."""
        document: dict[str, Any] = json.loads(self.spotwatch("status", "--json"))
        return document

    def plans(self) -> list[tuple[str, str]]:
        """Return id and moment of the planned stop, once for each case in force."""
        document = self.status()
        return [(case["id"], document["plan"]["stop"]["at"]) for case in document["cases"]]

    def orders(self) -> list[dict[str, Any]]:
        """Return the orders of the status document, the oldest first."""
        found: list[dict[str, Any]] = self.status()["orders"]
        return found

    def is_there(self, path: str) -> bool:
        """Tell whether `path` exists inside."""
        return self.machine.run("test", "-e", path).returncode == 0

    def state(self, unit: str) -> str:
        """Return the unit's ActiveState."""
        return self.machine.show(unit, "ActiveState")["ActiveState"]

    def main_pid(self, unit: str = TRAIN) -> int:
        """Return the unit's main process; 0: it has none."""
        return int(self.machine.show(unit, "MainPID")["MainPID"])

    def log(self, unit: str = WATCH) -> str:
        """Return what the unit has logged, for a person who reads why a test failed."""
        return self.machine.journal(unit)

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `condition` holds.

        Raises:
            AssertionError: it did not within `seconds`; says what the units have logged up to then.
        """
        try:
            wait_until(condition, seconds, what)
        except AssertionError as error:
            jobs = self.machine.run("systemctl", "list-jobs").stdout
            raise AssertionError(f"{error}\n{jobs}\n{self.log(TRAIN)}\n{self.log()}") from error

    def wait(self, unit: str, state: str, seconds: float) -> None:
        """Wait until the unit is in `state`."""
        self.wait_for(lambda: self.state(unit) == state, seconds, f"{unit} to be {state}")

    def events(self) -> list[dict[str, Any]]:
        """Return the rows of the daemon's journal."""
        rows: list[dict[str, Any]] = []
        for path in sorted((self.machine.kept / "var/lib/spotwatch").glob("*.jsonl")):
            rows += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return rows

    def trace(self) -> list[tuple[int, int]]:
        """Return (step, pid or rank) for each step that a trainer of `examples/` has executed."""
        path = self.run_dir / "trace"
        if not path.exists():
            return []
        rows = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return [(int(step), int(who)) for step, who, *_ in rows]


def number_in(path: Path) -> int:
    """Return the number that `path` holds; 0: it is not there."""
    return int(path.read_text(encoding="ascii")) if path.exists() else 0
