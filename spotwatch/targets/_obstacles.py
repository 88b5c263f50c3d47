# SPDX-License-Identifier: Apache-2.0
"""What would keep a stop from reaching a unit, and why a unit does not run: known before anything is ordered.

It starts and stops nothing, and repairs nothing. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

from spotwatch.errors import ActionError
from spotwatch.targets._proc import read_row
from spotwatch.targets._systemd import UnitFacts, systemctl

HIDDEN_OTHERS = (
    "the processes of other users are hidden from us (ProtectProc=, hidepid=): "
    "systemd/install.sh --with processes, or run the daemon as root"
)
# systemd.exec(5), "Process Exit Codes": what systemd could not do before it ran the program.
_STEPS = {
    200: ("CHDIR", "its WorkingDirectory= is not there, or closed to its user"),
    203: ("EXEC", "its ExecStart= names no program that can be run"),
    206: ("CGROUP", "its control group could not be set up"),
    208: ("STDIN", "its StandardInput= could not be set up"),
    209: ("STDOUT", "its StandardOutput= could not be set up (is the folder there?)"),
    216: ("GROUP", "its Group= or SupplementaryGroups= names no group"),
    217: ("USER", "its User= names no user"),
    226: ("NAMESPACE", "a path of its sandbox is not there: ReadWritePaths=, BindPaths= and their like"),
    233: ("RUNTIME_DIRECTORY", "its RuntimeDirectory= could not be made"),
    238: ("STATE_DIRECTORY", "its StateDirectory= could not be made"),
    243: ("CREDENTIALS", "the file of a LoadCredential= is not there"),
}
_LOAD_STATES = {
    "not-found": "systemd knows no such unit; mend target.unit, or install the unit and run "
    "`systemctl daemon-reload`",
    "masked": "systemd never starts it; run `systemctl unmask {unit}`",
    "bad-setting": "its file has a line that systemd refuses; run `systemd-analyze verify {unit}`",
    "error": "its file cannot be read; run `systemctl status {unit}`",
}
_OF_USERS = ("/etc/systemd/user", "/run/systemd/user", "/usr/local/lib/systemd/user", "/usr/lib/systemd/user")
_RUNNING_OF_USERS = "user.slice/user-*.slice/user@*.service/*.slice/"
_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/systemd"))


def load_problem(facts: UnitFacts) -> str:
    """Return why systemd cannot run the unit at all, and what to do; empty when it can."""
    if facts.load_state in ("loaded", ""):
        return ""
    why = _LOAD_STATES.get(facts.load_state, "systemd cannot run it; run `systemctl status {unit}`")
    if facts.load_state == "not-found" and _is_of_a_user(facts.unit):
        why = "it is a unit of a user's own systemd (--user), which the daemon cannot stop; move it to "
        why += "/etc/systemd/system, with User="
    return f"unit {facts.unit} is {facts.load_state}: {why.format(unit=facts.unit)}"


def explain_end(facts: UnitFacts) -> str:
    """Return how the unit's last run ended, if badly, and what to do; begins with a colon."""
    if facts.result in ("", "success"):
        return ""
    if facts.exit_status in _STEPS:
        name, why = _STEPS[facts.exit_status]
        mend = f"mend it, run `systemctl daemon-reload`, and start {facts.unit}"
        return f": its last start failed with status {facts.exit_status}/{name}, {why}; {mend}"
    status = f", exit status {facts.exit_status}" if facts.exit_status else ""
    return f": its last run ended with {facts.result}{status}"


def verb_problem(unit: str) -> str:
    """Return why systemd would not stop and start `unit` for us, and what to do; empty when it would.

    Each verb is asked for in a way that systemd refuses as senseless, though only after it has asked polkit
    (systemd's `manager_add_job`: isolate is for a start alone, triggering for a stop alone). Whose request is
    called senseless is allowed to make sensible ones. Root is allowed without being asked. Blocks for 4 s at
    most.
    """
    if os.geteuid() == 0:
        return ""
    for verb, mode in (("stop", "isolate"), ("start", "triggering")):
        try:
            systemctl(verb, "--no-block", f"--job-mode={mode}", "--", unit)
        except ActionError as error:
            if "is only valid for" not in str(error):
                return str(error)
    return ""


def sees_others() -> bool:
    """Tell whether /proc shows us the processes of other users: the first one is always there."""
    return read_row(1) is not None


def _is_of_a_user(unit: str) -> bool:
    return any(Path(folder, unit).exists() for folder in _OF_USERS) or any(
        next(root.glob(f"{_RUNNING_OF_USERS}{unit}"), None) is not None for root in _CGROUPS
    )
