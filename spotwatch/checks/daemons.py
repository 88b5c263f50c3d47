# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon runs, and what is in force, or left over, in its directory.

It only reads: no order is written and none is taken back.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from spotwatch.checks.finding import Finding, fail, ok, skip, warn
from spotwatch.checks.limits import in_thread, told
from spotwatch.checks.machine import UNIT, Machine, Owner
from spotwatch.checks.places import SUDO, hidden
from spotwatch.checks.sockets import is_stopped
from spotwatch.checks.units import is_private_place
from spotwatch.config_check import LOCK
from spotwatch.config_places import RUN
from spotwatch.errors import ActionError, HandshakeError
from spotwatch.handshake import DRAINING, ORDER, read_order
from spotwatch.model import Do
from spotwatch.runtime_lock import find_daemon
from spotwatch.safe_files import read_small_file
from spotwatch.targets import UnitFacts, explain_end, unit_facts


async def ask_daemon(machine: Machine) -> list[Finding]:
    """Return whether the daemon runs."""
    pid = await machine.daemon()
    runtime_dir = machine.settings.runtime_dir
    unit = await in_thread(_own_unit) if machine.is_units else None
    findings = await told(judge_daemon, runtime_dir, pid, unit, flag=machine.flag)
    if unit is not None and unit.load_state == "loaded":
        # Whose processes the daemon sees is not known to another user.
        looks = () if machine.is_strange else await machine.known_targets()
        owners = frozenset(look.owner for look in looks if not look.settings.unit)
        findings += judge_own_unit(unit, owners)
    return findings


def _own_unit() -> UnitFacts | None:
    try:
        return unit_facts(UNIT)
    except ActionError:
        return None  # no systemd here


def judge_own_unit(unit: UnitFacts, owners: frozenset[Owner | None]) -> Iterator[Finding]:
    """Yield what the daemon's unit keeps it from.

    Args:
        unit: what systemd says of it.
        owners: of the trainers that are found as processes; None: one is not known.
    """
    if unit.runtime_directory and unit.runtime_directory_preserve == "no":
        yield warn(
            "daemon.RuntimeDirectoryPreserve",
            f"{unit.unit}: no, so that a restart takes the flag, and what trainers have reported, with it",
            f"set RuntimeDirectoryPreserve=yes in {unit.unit}",
        )
    if unit.restart in ("", "no"):
        mend = f"set Restart=always in {unit.unit}"
        yield warn("daemon.Restart", f"{unit.unit}: no, so that nobody watches once it has ended", mend)
    is_root = unit.user in ("", "root", "0")
    is_blind = unit.protect_proc in ("invisible", "noaccess", "ptraceable") and not is_root
    if is_blind and any(owner is None or owner[0] != os.geteuid() for owner in owners):
        yield fail(
            "daemon.ProtectProc",
            f"{unit.unit}: {unit.protect_proc}, so that it sees no process of another user and signals none",
            "systemd/install.sh --with processes; or name the trainer's unit in [[target]]",
        )


def judge_daemon(
    runtime_dir: Path, pid: int | None, unit: UnitFacts | None, *, flag: Path
) -> Iterator[Finding]:
    """Yield whether a daemon runs here, and will after the next boot.

    Args:
        runtime_dir: where it would be.
        pid: as its lock names it; None: none is seen.
        unit: what systemd says of it; None: there is no systemd to ask, or it is none of a unit.
        flag: where it would put the flag.
    """
    name = "daemon"
    lock = runtime_dir / LOCK
    is_installed = unit is not None and unit.load_state == "loaded"
    if unit is not None and is_installed and unit.private_tmp and is_private_place(flag):
        said = f"{UNIT} has a /tmp of its own, and nobody else would see {flag}"
        yield fail(
            "daemon.PrivateTmp", said, "leave flag.path out, or set PrivateTmp=no in the daemon's unit"
        )
    is_hidden = hidden(lock)
    if os.path.lexists(lock) and not stat.S_ISREG(lock.lstat().st_mode):
        yield fail(name, f"{lock} is no regular file, so that no daemon can start", "remove it")
    elif pid is not None and is_stopped(pid):
        said = (
            f"runs on {runtime_dir}, but pid {pid} is stopped by a signal or a debugger, and sees no notice"
        )
        yield fail(name, said, f"let it go on: kill -CONT {pid}; or restart it")
    elif pid is not None:
        yield ok(name, f"runs on {runtime_dir}" + (f", pid {pid}" if pid else ""))
        if unit is not None and is_installed and unit.unit_file_state == "disabled":
            yield warn(
                "daemon.boot",
                f"{UNIT} is disabled: nothing watches after a reboot",
                "systemctl enable spotwatch",
            )
    elif is_hidden and not is_installed:
        yield skip(name, f"{is_hidden}: whether one runs cannot be seen", SUDO)
    elif runtime_dir != RUN and find_daemon(RUN) is not None:
        yield warn(
            name,
            f"runs on {RUN}, but this check, run as uid {os.geteuid()}, looks at {runtime_dir}",
            "run the check as the daemon's user (sudo), or with its --runtime-dir",
        )
    elif unit is not None and is_installed:
        yield _judge_down(unit)
    else:
        mend = "start it: spotwatch run, or systemctl enable --now spotwatch; `spotwatch exec` brings its own"
        yield warn(name, f"none runs on {runtime_dir} now", mend)


def _judge_down(unit: UnitFacts) -> Finding:
    said = f"{unit.unit} is installed but does not run, a notice would be missed"
    why, _, mend = explain_end(unit).partition("; ")
    refusal, _, remedy = unit.status_text.partition("; ")
    if refusal.startswith("refused: "):
        why, mend = f": it was {refusal}", remedy
    usual = "systemctl enable --now spotwatch; if it does not stay: journalctl -u spotwatch"
    return fail("daemon", said + why, mend or usual)


async def ask_last_words() -> list[Finding]:
    """Return why the daemon does not run; nothing while it runs, or where there is no unit of its."""
    unit = await in_thread(_own_unit)
    is_down = unit is not None and unit.load_state == "loaded" and unit.sub_state != "running"
    return [_judge_down(unit)] if unit is not None and is_down else []


async def ask_orders(machine: Machine) -> list[Finding]:
    """Return what is in force, or left over, in the runtime directory."""
    pid = await machine.daemon()
    runtime_dir, boot_id = machine.settings.runtime_dir, machine.clock.boot_id
    return await told(judge_orders, runtime_dir, boot_id, is_running=pid is not None)


def judge_orders(runtime_dir: Path, boot_id: str, *, is_running: bool) -> Iterator[Finding]:
    """Yield what a trainer that starts now would be told."""
    path = runtime_dir / ORDER
    order = None
    if is_hidden := hidden(path):
        yield skip("order", f"{is_hidden}: what is in force cannot be read", SUDO)
    else:
        try:
            order = read_order(runtime_dir)
        except HandshakeError as error:
            yield fail("order", f"{path} cannot be believed: {error}", f"remove {path}")
    if order is not None and order.boot_id != boot_id:
        said = f"{path} holds order {order.seq} ({order.do.value}) of an earlier boot"
        yield warn("order", said, f"remove {path}; trainers with the library leave it alone anyway")
    elif order is not None and order.do is not Do.NONE:
        yield warn(
            "order",
            f"order {order.seq} ({order.do.value}) is in force: {order.why}",
            "`spotwatch status` tells more",
        )
    draining = runtime_dir / DRAINING
    if not os.path.lexists(draining):
        return
    if is_hidden := hidden(draining):
        yield skip("draining", f"{is_hidden}: which boot it is of cannot be read", SUDO)
    elif not stat.S_ISREG(draining.lstat().st_mode):
        said = f"{draining} is no file, so not the daemon's, and keeps the trainer's unit from starting"
        yield fail("draining", said, f"start the daemon, which sets it aside, or remove {draining}")
    elif _boot_of(draining) != boot_id:
        said = f"{draining} is left over from an earlier boot and keeps the trainer's unit from starting"
        yield fail("draining", said, f"start the daemon, which removes it, or remove {draining}")
    elif is_running:
        mend = (
            "wait for its end, which `spotwatch status` tells; of a notice by hand: spotwatch trigger clear"
        )
        yield warn("draining", "a stop is in force: the trainer's unit does not start", mend)
    else:
        mend = f"start the daemon, which lifts it when its cause is gone, or remove {draining}"
        yield fail("draining", "a stop is in force, and no daemon runs that could lift it", mend)


def _boot_of(draining: Path) -> str | None:
    try:
        row = json.loads(read_small_file(draining) or b"{}")
    except (HandshakeError, ValueError, RecursionError):
        return None
    boot_id = row.get("boot_id") if isinstance(row, dict) else None
    return boot_id if isinstance(boot_id, str) else None
