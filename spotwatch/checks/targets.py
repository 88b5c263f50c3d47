# SPDX-License-Identifier: Apache-2.0
"""Who would be told of a stop: found, signallable, one and not many, and how long a launcher lets them save.

It signals nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from spotwatch.checks.finding import Finding, fail, ok, warn
from spotwatch.checks.limits import in_thread
from spotwatch.checks.machine import Machine, Saves, TargetLook
from spotwatch.checks.places import SUDO, hidden
from spotwatch.errors import ConfigError
from spotwatch.targets import Proc
from spotwatch.targets.launcher import Launcher, find_launcher

NAME = "target"
_SHOWN_PIDS = 8
_NONE_MEND = "name the trainer in a [[target]] (unit, pidfile or process), or start it with `spotwatch exec`"


async def ask_targets(machine: Machine) -> list[Finding]:
    """Return a line for each target, and one for each launcher whose limit matters."""
    try:
        looks = await machine.targets()
    except ConfigError as error:
        pairs = (problem.partition("; ")[::2] for problem in error.problems)
        return [fail(NAME, found, mend or "mend it in the configuration") for found, mend in pairs]
    if not looks:
        pid = await machine.daemon()
        if pid and await in_thread(_is_exec, pid):
            return [ok(NAME, f"the command that `spotwatch exec`, pid {pid}, has started")]
        said = "none is configured: a trainer is told through order.json and the flag only, and never stopped"
        return [warn(NAME, said, _NONE_MEND)]
    saves = await machine.saves()
    findings: list[Finding] = []
    for look in looks:
        launchers = await in_thread(_launchers, look.procs)
        findings += _judge(look, launchers)
        findings += (judge_launcher(look, launcher, saves) for launcher in launchers)
    return findings


def _is_exec(pid: int) -> bool:
    """Tell whether a daemon is one that brings its own trainer, by its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    ours = words[: words.index(b"--")] if b"--" in words else words
    names = [word.rpartition(b"/")[2] for word in ours]
    return any(pair == (b"spotwatch", b"exec") for pair in pairwise(names))


def _launchers(procs: tuple[Proc, ...]) -> list[Launcher]:
    found = {launcher.pid: launcher for proc in procs if (launcher := find_launcher(proc)) is not None}
    return list(found.values())


def _judge(look: TargetLook, launchers: list[Launcher]) -> Iterator[Finding]:
    settings = look.settings
    problems = [look.problem] if not look.procs else []
    if look.obstacle:
        problems.append(look.obstacle)
    for problem in dict.fromkeys(problems):
        found, _, mend = problem.partition("; ")
        found = found if found.startswith(look.label) else f"{look.label}: {found}"
        yield fail(NAME, found, mend or _missing_mend(look))
    if problems:
        return
    pids = ", ".join(str(proc.pid) for proc in look.procs[:_SHOWN_PIDS])
    told = f"{look.label}: pid {pids}" + (" and more" if len(look.procs) > _SHOWN_PIDS else "")
    commands = sorted({proc.command[:80] for proc in look.procs})
    if settings.process and len(look.procs) > 1 and not launchers:
        yield warn(
            NAME,
            f"{told}: {len(look.procs)} processes match and all would be told: {' | '.join(commands[:3])}",
            "make target.process longer until it fits the trainer alone, unless all of them are trainers",
        )
    else:
        yield ok(NAME, f"{told}, {commands[0] or 'hidden from us'}")


def _missing_mend(look: TargetLook) -> str:
    settings = look.settings
    if settings.unit:
        return f"look at `systemctl status {settings.unit}`, and start it; or mend target.unit"
    if settings.pidfile and hidden(Path(settings.pidfile)):
        return f"{SUDO}, who has to be able to read it"
    if settings.pidfile:
        return "start the trainer and have it write its pid, or mend target.pidfile"
    return "start the trainer, or mend target.process: it is searched for in the whole command line"


def judge_launcher(look: TargetLook, launcher: Launcher, saves: Saves) -> Finding:
    """Return whether a launcher lets its ranks finish a save."""
    name = "target.launcher"
    limit, save = launcher.shutdown_seconds, saves.seconds
    origin = launcher.source or "its default"
    said = (
        f"pid {launcher.pid} kills its ranks {limit:g} s ({origin}) after it is told to end or the first of "
        f"them has ended; a save may take {save:.3g} s ({saves.source})"
    )
    if limit >= save:
        return ok(name, said)
    wanted = max(60, round(2 * save))
    mend = f"start it with --shutdown-timeout {wanted}, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT={wanted}"
    if look.settings.unit and look.settings.leaves != "always":
        return fail(name, said, f'{mend}; or set leaves = "always", so that the ranks are told themselves')
    return warn(name, said, mend)
