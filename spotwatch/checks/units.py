# SPDX-License-Identifier: Apache-2.0
"""Whether the trainer's systemd unit gives a save the time and the peace that it needs.

It reads what systemd says and changes no unit. Sources: systemd.service(5), systemd.kill(5), systemd.exec(5).
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from spotwatch.checks.environments import read_shown_environment
from spotwatch.checks.finding import Finding, fail, ok, warn
from spotwatch.checks.limits import in_thread
from spotwatch.checks.machine import Machine, Saves
from spotwatch.errors import ActionError, ConfigError
from spotwatch.handshake import DRAINING
from spotwatch.policy import Policy
from spotwatch.targets import UnitFacts, unit_facts, unit_text
from spotwatch.targets.workers import count_workers

TAKEN = "77"
"""The trainer's exit status after another machine has taken the run."""
SAVED = "75"
_RUNTIME_DIR = "SPOTWATCH_RUNTIME_DIR"
_PRIVATE_PLACES = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - PrivateTmp= replaces these, nothing is written


async def ask_units(machine: Machine) -> list[Finding]:
    """Return a line for each setting of each unit that a stop depends on."""
    findings: list[Finding] = []
    try:
        looks = await machine.targets()
    except ConfigError:
        return []  # told by the question about targets
    saves = await machine.saves()
    for look in looks:
        if not look.settings.unit:
            continue
        try:
            facts = await in_thread(unit_facts, look.settings.unit)
        except (ActionError, ConfigError):
            continue  # told by the question about targets
        if facts.load_state not in ("loaded", ""):
            continue
        workers = await in_thread(count_workers, look.procs)
        findings += judge_unit(facts, saves, machine.settings.policy, flag=machine.flag, workers=workers)
        with contextlib.suppress(ActionError):  # a file that only root may read
            text = await in_thread(unit_text, facts.unit)
            findings += judge_meeting(facts, text, machine.settings.runtime_dir)
    return findings


def judge_meeting(facts: UnitFacts, text: str, runtime_dir: Path) -> Iterator[Finding]:
    """Yield where a unit does not heed the daemon's directory.

    Args:
        facts: what systemd says.
        text: of its file and drop-ins; systemd tells no conditions otherwise.
        runtime_dir: the daemon's.
    """
    draining = runtime_dir / DRAINING
    conditions = [line.strip().partition("=")[2] for line in text.splitlines() if "Condition" in line]
    if f"!{draining}" not in (condition.lstrip("|") for condition in conditions):
        yield warn(
            "unit.draining",
            f"{facts.unit} also starts while a stop is in force, to be cut off when the machine goes",
            f"set ConditionPathExists=!{draining} in its [Unit]",
        )
    told = read_shown_environment(facts.environment).get(_RUNTIME_DIR)
    if told is not None and Path(told) != runtime_dir:
        yield fail(
            "unit.Environment",
            f"{facts.unit} looks in {told}, the daemon writes in {runtime_dir}",
            f"set Environment={_RUNTIME_DIR}={runtime_dir} in {facts.unit}",
        )


def judge_unit(
    facts: UnitFacts, saves: Saves, policy: Policy, *, flag: Path, workers: int
) -> Iterator[Finding]:
    """Yield what is right and wrong with a unit.

    Args:
        facts: what systemd says.
        saves: how long a save takes.
        policy: gives the safety factor.
        flag: where the flag is to appear.
        workers: processes that the trainer made for its own use.
    """
    yield _judge_timeout(facts, saves, policy)
    yield _judge_kill_mode(facts, workers)
    if facts.kill_signal == signal.SIGKILL:
        yield fail(
            "unit.KillSignal", f"{facts.unit}: SIGKILL, which nobody can save on", "set KillSignal=SIGTERM"
        )
    if not facts.send_sigkill:
        yield warn(
            "unit.SendSIGKILL",
            f"{facts.unit}: no, so that a trainer that hangs keeps its unit, which then cannot start again",
            f"take SendSIGKILL=no out of {facts.unit}; TimeoutStopSec= is what gives a save its time",
        )
    yield _judge_restart(facts)
    if facts.private_tmp and is_private_place(flag):
        yield fail(
            "unit.PrivateTmp",
            f"{facts.unit} has a /tmp of its own and would never see {flag}",
            "leave flag.path out, so that the flag is in runtime_dir, or set PrivateTmp=no",
        )


def is_private_place(path: Path) -> bool:
    """Tell whether `path` is where a unit with PrivateTmp= sees something of its own."""
    return any(place in path.parents for place in _PRIVATE_PLACES)


def _judge_timeout(facts: UnitFacts, saves: Saves, policy: Policy) -> Finding:
    name = "unit.TimeoutStopSec"
    limit = facts.timeout_stop_seconds
    careful = saves.seconds * policy.safety_factor
    allowed = "infinity" if limit is None else f"{limit:g} s"
    said = f"{facts.unit}: {allowed}; a save may take {saves.seconds:.3g} s ({saves.source})"
    if limit is None or limit >= careful:
        return ok(name, said)
    mend = f"set TimeoutStopSec={max(60, round(2 * careful))} in {facts.unit}"
    return fail(name, said, mend) if limit < saves.seconds else warn(name, said, mend)


def _judge_kill_mode(facts: UnitFacts, workers: int) -> Finding:
    name = "unit.KillMode"
    said = f"{facts.unit}: {facts.kill_mode or 'unknown'}"
    mend = f"set KillMode=mixed in {facts.unit}"
    if facts.kill_mode in ("mixed", "process", ""):
        return ok(name, said)
    if facts.kill_mode == "none":
        return fail(name, f"{said}, so that a stop tells nobody", mend)
    if workers:
        said += f", so that a stop kills the trainer's {workers} workers, and its save with them"
        return fail(name, said, mend)
    return warn(name, f"{said}, so that a stop also kills DataLoader's workers, if there are any", mend)


def _judge_restart(facts: UnitFacts) -> Finding:
    name = "unit.Restart"
    prevented, good = facts.restart_prevent_exit_status.split(), facts.success_exit_status.split()
    said = f"{facts.unit}: {facts.restart or 'no'}"
    if facts.restart in ("", "no", "on-abnormal", "on-abort", "on-watchdog", "on-success"):
        mend = f"set Restart=on-failure in {facts.unit}"
        return warn(name, f"{said}, so that a crash is not mended by the last checkpoint", mend)
    if facts.restart == "always":
        return warn(
            name,
            f"{said}, so that a run that has finished begins again",
            f"set Restart=on-failure in {facts.unit}",
        )
    if TAKEN not in prevented:
        return warn(
            name,
            f"{said}, also after exit status {TAKEN}: two machines would write one run",
            f"set RestartPreventExitStatus={TAKEN} in {facts.unit}",
        )
    if facts.restart == "on-failure" and SAVED not in (*prevented, *good):
        return warn(
            name,
            f"{said}, and exit status {SAVED} (stopped and saved) counts as a failure",
            f"set SuccessExitStatus={SAVED} in {facts.unit}",
        )
    return ok(name, said)
