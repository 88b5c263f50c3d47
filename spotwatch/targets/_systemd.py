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
POLKIT_RULES = "/etc/polkit-1/rules.d/50-spotwatch.rules"
"""Where our install puts the rule by which a daemon that is not root may stop and start units."""
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
    "UnitFileState,Result,ExecMainCode,ExecMainStatus,NRestarts,SupplementaryGroups,Environment,"
    "RuntimeDirectory,RuntimeDirectoryPreserve,StateDirectory,ProtectProc,"
    "StatusText,AmbientCapabilities,EnvironmentFiles"
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
    result: str = ""
    """How its last run ended: `success`, `exit-code`, `resources` and others (systemd.service(5))."""
    exit_status: int = 0
    """Of its last main process; 200 and more: systemd never got as far as running it."""
    restarts: int = 0
    """Automatic ones, since it was last started by hand."""
    groups: str = ""
    """SupplementaryGroups=: names or numbers with blanks between them."""
    environment: str = ""
    """Environment=, quoted as for a shell; what is in EnvironmentFile= is not among it."""
    runtime_directory: str = ""
    """RuntimeDirectory=: names below /run with blanks between them."""
    runtime_directory_preserve: str = ""
    state_directory: str = ""
    """StateDirectory=: names below /var/lib with blanks between them."""
    ambient_capabilities: str = ""
    """AmbientCapabilities=: names such as `cap_kill` with blanks between them."""
    environment_files: str = ""
    """EnvironmentFile=: a line each, a path and ` (ignore_errors=yes)` or the like."""
    status_text: str = ""
    """What it last said of itself (sd_notify(3), STATUS=)."""
    protect_proc: str = ""
    """`invisible` and others: it does not see the processes of other users."""


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


def unit_text(unit: str) -> str:
    """Return the lines of the unit's file and its drop-ins; blocks for at most `SYSTEMCTL_SECONDS`.

    Raises:
        ActionError: as `unit_facts`, or a file may not be read.
    """
    return systemctl("cat", "--", unit_name(unit))


def parse_show(unit: str, text: str) -> UnitFacts:
    """Return the facts in the output of `systemctl show`; what is missing is empty, zero or None."""
    pairs = [line.partition("=")[::2] for line in text.splitlines() if "=" in line]
    rows = dict(pairs)
    # The one property that has a line for each of its values.
    files = [value for name, value in pairs if name == "EnvironmentFiles"]
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
        result=rows.get("Result", ""),
        exit_status=_whole(rows.get("ExecMainStatus", "")) if rows.get("ExecMainCode") == "1" else 0,
        restarts=_whole(rows.get("NRestarts", "")),
        groups=rows.get("SupplementaryGroups", ""),
        environment=rows.get("Environment", ""),
        runtime_directory=rows.get("RuntimeDirectory", ""),
        runtime_directory_preserve=rows.get("RuntimeDirectoryPreserve", ""),
        state_directory=rows.get("StateDirectory", ""),
        ambient_capabilities=rows.get("AmbientCapabilities", ""),
        environment_files="\n".join(files),
        status_text=rows.get("StatusText", ""),
        protect_proc=rows.get("ProtectProc", ""),
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
            # Told of our NOTIFY_SOCKET, it reports each of its failures to systemd, as if it were the daemon.
            env={k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"} | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise ActionError(f"{what}: no answer within {SYSTEMCTL_SECONDS:g} s") from error
    except OSError as error:
        raise ActionError(f"{what}: {error.strerror}; is this a machine with systemd?") from error
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        raise ActionError(f"{what}: {explain_refusal(said.splitlines()[0][:200])}")
    return done.stdout


def explain_refusal(said: str) -> str:
    """Return the line in which systemctl says why not, with what to do about it."""
    said, words = said.rstrip("."), said.lower()
    if "denied" in words or "authentication" in words:
        return f"{said}; name the unit in {POLKIT_RULES} (polkit reads it), or run the daemon as root"
    if "polkit" in words:
        return f"{said}; install and start polkit, or run the daemon as root"
    if "connect to bus" in words:
        return f"{said}; start dbus.service, the system bus: only root can do without it"
    return said


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
