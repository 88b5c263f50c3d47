# SPDX-License-Identifier: Apache-2.0
"""What systemd says about a service, and how it is asked: `systemctl`, no shell, a time limit.

It decides nothing, and knows no process. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import dataclass

from spotwatch.errors import ActionError, ConfigError

SYSTEMCTL_SECONDS = 2.0
"""`systemctl` only asks or queues a job; one that takes longer hangs."""
# systemd.unit(5): the characters of a unit name, and its length with the suffix.
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_OTHER_TYPES = (
    *(".socket", ".device", ".mount", ".automount", ".swap"),
    *(".target", ".path", ".timer", ".slice", ".scope"),
)
# systemd.time(7), as systemd's format_timespan writes it.
_SECONDS = {
    "y": 31557600.0,
    "month": 2629800.0,
    "w": 604800.0,
    "d": 86400.0,
    "h": 3600.0,
    "min": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
}
_PROPERTIES = (
    "LoadState,ActiveState,SubState,MainPID,ControlGroup,User,Group,KillMode,KillSignal,SendSIGKILL,"
    "TimeoutStopUSec,Restart,RestartUSec,Type,SuccessExitStatus,RestartPreventExitStatus,PrivateTmp,"
    "UnitFileState"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """What systemd says about a service."""

    unit: str
    load_state: str
    active_state: str
    sub_state: str
    main_pid: int
    """0: it has none."""
    control_group: str
    user: str
    """Empty: root."""
    group: str
    kill_mode: str
    kill_signal: int
    send_sigkill: bool
    timeout_stop_seconds: float | None
    """None: infinity."""
    restart: str
    restart_seconds: float | None
    type: str
    success_exit_status: str = ""
    """As systemd writes it: numbers and names of signals, with blanks between them."""
    restart_prevent_exit_status: str = ""
    private_tmp: bool = False
    """It has a /tmp of its own, in which nobody else sees a file."""
    unit_file_state: str = ""
    """`enabled`, `disabled`, `static` and others."""


def unit_name(text: str) -> str:
    """Return `text` as the full name of a service.

    Raises:
        ConfigError: it cannot be one.
    """
    if not _UNIT_NAME.fullmatch(text) or text.startswith(("-", ".")):
        raise ConfigError(
            f"target.unit {text[:80]!r} is no unit name; expected one such as spot-train.service"
        )
    if text.endswith(_OTHER_TYPES):
        raise ConfigError(f"target.unit {text!r} is no service; only services have a main process to tell")
    name = text if text.endswith(".service") else f"{text}.service"
    if name.endswith("@.service"):
        raise ConfigError(f"target.unit {text!r} is a template; name an instance, such as train@1.service")
    return name


def unit_facts(unit: str) -> UnitFacts:
    """Return what systemd says about `unit`; blocks for at most `SYSTEMCTL_SECONDS`.

    Raises:
        ConfigError: `unit` cannot be the name of a service.
        ActionError: there is no systemd here, or it does not answer.
    """
    name = unit_name(unit)
    return parse_show(name, systemctl("show", f"--property={_PROPERTIES}", "--", name))


def parse_show(unit: str, text: str) -> UnitFacts:
    """Return the facts in the output of `systemctl show`; what is missing is empty, zero or None."""
    rows = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    return UnitFacts(
        unit=unit,
        load_state=rows.get("LoadState", ""),
        active_state=rows.get("ActiveState", ""),
        sub_state=rows.get("SubState", ""),
        main_pid=_whole(rows.get("MainPID", "")),
        control_group=rows.get("ControlGroup", ""),
        user=rows.get("User", ""),
        group=rows.get("Group", ""),
        kill_mode=rows.get("KillMode", ""),
        kill_signal=_whole(rows.get("KillSignal", "")) or signal.SIGTERM,
        send_sigkill=rows.get("SendSIGKILL", "yes") != "no",
        timeout_stop_seconds=parse_timespan(rows.get("TimeoutStopUSec", "")),
        restart=rows.get("Restart", ""),
        restart_seconds=parse_timespan(rows.get("RestartUSec", "")),
        type=rows.get("Type", ""),
        success_exit_status=rows.get("SuccessExitStatus", ""),
        restart_prevent_exit_status=rows.get("RestartPreventExitStatus", ""),
        # systemd 258 also knows "disconnected".
        private_tmp=rows.get("PrivateTmp", "no") not in ("", "no"),
        unit_file_state=rows.get("UnitFileState", ""),
    )


def parse_timespan(text: str) -> float | None:
    """Return the seconds in a span as systemd writes it, `1min 30s`; None for `infinity` and what is none."""
    seconds = 0.0
    if not text.strip():
        return None
    for part in text.split():
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(y|month|w|d|h|min|s|ms|us)?", part)
        if match is None:
            return None
        seconds += float(match[1]) * _SECONDS[match[2] or "s"]
    return seconds


def systemctl(*arguments: str) -> str:
    """Return what `systemctl` prints; blocks for at most `SYSTEMCTL_SECONDS`.

    Raises:
        ActionError: it is not installed, hangs, or refuses; its first line says why.
    """
    what = f"systemctl {arguments[0]}"
    try:
        done = subprocess.run(  # noqa: S603 - an argument list, its unit name checked
            ["systemctl", "--no-pager", "--no-ask-password", *arguments],  # noqa: S607 - wherever the system has it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SYSTEMCTL_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise ActionError(f"{what}: no answer within {SYSTEMCTL_SECONDS:g} s") from error
    except OSError as error:
        raise ActionError(f"{what}: {error.strerror}; is this a machine with systemd?") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[
            0
        ]
        denied = "denied" in said.lower() or "authentication" in said.lower()
        mend = "; run as root, or allow it by a polkit rule for this unit" if denied else ""
        raise ActionError(f"{what}: {said[:200]}{mend}")
    return done.stdout


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
