# SPDX-License-Identifier: Apache-2.0
"""A machine for checks: scratch directories, a configuration, a played systemctl, and all findings by name.

Nothing of the real machine's configuration is seen. The tests are in the files beside this one.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from spotwatch.checks import Finding, run_checks
from spotwatch.cli._options import inbound_config, provider_config
from spotwatch.clock import SystemClock
from spotwatch.config_load import Loaded, load
from spotwatch.handshake import Order, Saved, Status, write_status
from spotwatch.model import Do
from spotwatch.safe_files import write_atomically
from tests.families import Family

SYSTEMCTL = """#!{python}
import os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
if os.path.exists(here + "/hangs"):
    time.sleep(30)
unit = here + "/" + sys.argv[-1]
print(open(unit).read() if os.path.exists(unit) else "LoadState=not-found\\nActiveState=inactive", end="")
"""
GOOD_UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "KillMode": "mixed",
    "KillSignal": "15",
    "TimeoutStopUSec": "5min",
    "Restart": "on-failure",
    "SuccessExitStatus": "75",
    "RestartPreventExitStatus": "77",
    "PrivateTmp": "no",
    "UnitFileState": "enabled",
}


@dataclass(slots=True)
class Bench:
    """One machine of a test."""

    home: Path
    family: Family
    """Its real processes."""
    patch: Callable[[str, str], None]
    """Sets a variable of our own environment."""
    kept: list[socket.socket] = field(default_factory=list)
    """Open until the test ends."""

    def __post_init__(self) -> None:
        self.runtime_dir.mkdir(mode=0o700)
        for name in ("status", "notices"):
            (self.runtime_dir / name).mkdir(mode=0o700)

    @property
    def runtime_dir(self) -> Path:
        """Return the runtime directory."""
        return self.home / "run"

    @property
    def state_dir(self) -> Path:
        """Return the state directory."""
        return self.home / "state"

    @property
    def boot_id(self) -> str:
        """Return this boot's id."""
        return SystemClock().boot_id

    @property
    def now(self) -> datetime:
        """Return the present."""
        return SystemClock().now()

    def load(self, toml: str = "", **flags: object) -> Loaded:
        """Return the settings of a configuration that watches no cloud and listens nowhere, and `toml`."""
        path = self.home / "spotwatch.toml"
        path.write_text(toml)
        path.chmod(0o600)
        keys = {
            "providers": None if "providers" in toml else ["file"],
            "runtime_dir": None if "runtime_dir" in toml else self.runtime_dir,
            "state_dir": None if "state_dir" in toml else self.state_dir,
            "http.listen": None if "[http]" in toml else "",
        }
        return load(
            path=path,
            environ={},
            flags={**keys, **flags},
            provider_configs=provider_config,
            inbound_configs=inbound_config,
            default_path=self.home / "absent.toml",
        )

    async def check(self, toml: str = "", **options: Any) -> list[Finding]:
        """Return all findings for a configuration."""
        return await self.run(self.load(toml), **options)

    async def run(self, loaded: Loaded, **options: Any) -> list[Finding]:
        """Return all findings for these settings."""
        return await run_checks(loaded, SystemClock(), os.environ, **options)

    def systemd(self, units: Mapping[str, Mapping[str, object]], *, hangs: bool = False) -> None:
        """Play a systemctl that knows these units, by full name, with what differs from a good one."""
        folder = self.home / "bin"
        folder.mkdir()
        program = folder / "systemctl"
        program.write_text(SYSTEMCTL.replace("{python}", sys.executable))
        program.chmod(0o755)
        for name, changes in units.items():
            # For `systemctl cat`; `show` has no such line.
            heeds = {"ConditionPathExists": f"!{self.runtime_dir}/draining"}
            rows = {**GOOD_UNIT, **heeds, **changes}
            (folder / name).write_text("".join(f"{key}={value}\n" for key, value in rows.items()))
        if hangs:
            (folder / "hangs").touch()
        self.patch("PATH", f"{folder}:{os.environ['PATH']}")

    def unit(self, **changes: object) -> str:
        """Play a trainer's unit around a real process, and return the target's configuration."""
        process = self.family.start(self.family.trainer(), trainers=1)
        self.systemd({"train.service": {"MainPID": process.pid, **changes}})
        return '[[target]]\nunit = "train"\n'

    def report(self, *, age_seconds: float = 0.0, **fields: Any) -> None:
        """Write a trainer's status."""
        saved = Saved(step=90, at=self.now - timedelta(seconds=5), url="file:///c", save_seconds=2.0)
        known = {"run_id": "run-1", "pid": os.getpid(), "step": 100, "saved": saved, **fields}
        write_status(self.runtime_dir, Status(at=self.now - timedelta(seconds=age_seconds), **known))

    def order(self, boot_id: str) -> None:
        """Write a stop of that boot."""
        order = Order(boot_id=boot_id, seq=7, do=Do.STOP, why="reclaim")
        write_atomically(self.runtime_dir / "order.json", order.to_bytes())


def named(findings: list[Finding], name: str) -> list[Finding]:
    """Return the findings of one question."""
    return [finding for finding in findings if finding.name == name]


def free_port() -> int:
    """Return a port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
