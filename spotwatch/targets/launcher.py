# SPDX-License-Identifier: Apache-2.0
"""What stands above a trainer: the launcher, with its own limit for a shutdown.

Only for people to be warned; nobody is chosen or signalled by it. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from spotwatch.targets._choice import Variable, is_launcher
from spotwatch.targets._proc import Proc, Row, read_row, read_variable

TORCH_SHUTDOWN_SECONDS = 30.0
"""torch 2.13, torch.distributed.launcher.api: LaunchConfig.shutdown_timeout without option or variable."""
_OPTION = re.compile(r"--shutdown[-_]timeout(?:=(.*))?")
# torch.distributed.argparse_util.env gives each option a variable with the prefix PET_.
_VARIABLES = ("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A process that starts ranks, and kills the others some time after one of them has ended."""

    pid: int
    command: str
    shutdown_seconds: float
    source: str
    """Which option or variable says so; empty: its default."""


def find_launcher(
    proc: Proc, *, row: Callable[[int], Row | None] = read_row, variable: Variable = read_variable
) -> Launcher | None:
    """Return the nearest launcher that `proc` is, or is below; None when there is none."""
    above = row(proc.pid)
    for _ in range(_MAX_DEPTH):
        if above is None or above.pid <= 1:
            return None
        if is_launcher(above.argv):
            seconds, source = shutdown_limit(above.argv, partial(variable, above.pid))
            return Launcher(
                pid=above.pid, command=above.proc.command, shutdown_seconds=seconds, source=source
            )
        above = row(above.ppid)
    return None


def shutdown_limit(argv: tuple[str, ...], variable: Callable[[str], str | None]) -> tuple[float, str]:
    """Return how long a launcher lets its ranks end, in seconds, and what says so; empty: its default."""
    for at, arg in enumerate(argv):
        match = _OPTION.fullmatch(arg)
        if match is None:
            continue
        value = match[1] if match[1] is not None else (argv[at + 1] if at + 1 < len(argv) else "")
        if value.isdigit():
            return float(value), f"--shutdown-timeout={value}"
    for name in _VARIABLES:
        value = variable(name) or ""
        if value.isdigit():
            return float(value), f"{name}={value}"
    return TORCH_SHUTDOWN_SECONDS, ""
