# SPDX-License-Identifier: Apache-2.0
"""From where the check looks: as the user whom the daemon's unit names, with the environment that it gives.

Whoever asks as root, or without the unit's variables, asks about a daemon that does not exist: one that may
do all, or one without secrets. It changes nothing but who this process is. Sources: systemd.exec(5),
setpriv(1).
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from spotwatch.checks.daemons import UNIT
from spotwatch.checks.environments import read_environment_file, read_shown_environment
from spotwatch.checks.finding import Finding, ok, warn
from spotwatch.errors import ActionError
from spotwatch.targets import UnitFacts, unit_facts

NAME = "asked as"
_TRY_SECONDS = 10.0
_DIRECTORIES = ("SPOTWATCH_RUNTIME_DIR", "RUNTIME_DIRECTORY")
_CREDENTIALS = Path("/run/credentials") / UNIT


def take_standpoint(environ: Mapping[str, str]) -> tuple[dict[str, str], list[Finding]]:
    """Return the environment to ask with, and what there is to say about who asks.

    Root becomes the unit's user by running this very command again, and then this does not return.

    Args:
        environ: ours; what it sets goes before the unit's. One that names another runtime directory is about
            another daemon, and is returned as it is.
    """
    try:
        unit = unit_facts(UNIT)
        entry = pwd.getpwnam(unit.user or "root")
    except (ActionError, KeyError):
        return dict(environ), []  # no systemd here, or it says itself that it cannot start the unit
    if unit.load_state != "loaded" or os.geteuid() not in (0, entry.pw_uid):
        return dict(environ), []
    variables = _variables(unit)
    given = {environ[name] for name in _DIRECTORIES if environ.get(name)}
    if given - {variables.get("SPOTWATCH_RUNTIME_DIR") or variables.get("RUNTIME_DIRECTORY")}:
        return dict(environ), []
    merged = {**variables, **environ}
    if os.geteuid() == entry.pw_uid:
        return merged, [_judge_user(unit, entry.pw_name)]
    setpriv = [shutil.which("setpriv") or "", *_setpriv_options(unit, entry), "--"]
    why = _try_out(setpriv) if setpriv[0] else "setpriv, of util-linux, is not here"
    if not why:
        command = [*setpriv, sys.executable, "-P", "-m", "spotwatch", *sys.argv[1:]]
        os.execve(command[0], command, merged)  # noqa: S606 - an argument list; no shell is wanted
    return merged, [
        warn(
            NAME,
            f"root, as {entry.pw_name}, who runs {UNIT}, cannot ask: {why}; permissions are not judged right",
            f"ask with the command that the unit runs: sudo -u {entry.pw_name} spotwatch check",
        )
    ]


def _judge_user(unit: UnitFacts, user: str) -> Finding:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    has_some = re.search(r"^CapAmb:\s*0*[1-9a-f]", status, re.MULTILINE) is not None
    if unit.ambient_capabilities and user != "root" and not has_some:
        said = f"{user}, who runs {UNIT}, but without what the unit gives it: {unit.ambient_capabilities}"
        return warn(NAME, said, "ask as root, which becomes that user: sudo spotwatch check")
    return ok(NAME, f"{user}, who runs {UNIT}")


def _setpriv_options(unit: UnitFacts, entry: pwd.struct_passwd) -> list[str]:
    wanted = [word.removeprefix("cap_") for word in unit.ambient_capabilities.split()]
    capabilities = ",".join(["-all", *(f"+{word}" for word in wanted)])
    return [
        *(f"--reuid={entry.pw_uid}", f"--regid={unit.group or entry.pw_gid}", "--init-groups"),
        *(f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"),
    ]


def _try_out(setpriv: list[str]) -> str:
    """Return why the unit's user cannot run this interpreter with this package; empty when it can."""
    try:
        done = subprocess.run(  # noqa: S603 - an argument list
            [*setpriv, sys.executable, "-P", "-c", "import spotwatch.checks.frame"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ends at once"])[-1]


def _variables(unit: UnitFacts) -> dict[str, str]:
    """Return what systemd puts into the environment of the unit, as far as it can be known."""
    found: dict[str, str] = {}
    for name, place, listed in (
        ("RUNTIME_DIRECTORY", "/run", unit.runtime_directory),
        ("STATE_DIRECTORY", "/var/lib", unit.state_directory),
    ):
        if first := listed.split()[:1]:
            found[name] = f"{place}/{first[0]}"
    if _CREDENTIALS.is_dir():
        found["CREDENTIALS_DIRECTORY"] = str(_CREDENTIALS)
    found |= read_shown_environment(unit.environment)
    for path in _files(unit.environment_files):
        try:
            found |= read_environment_file(path.read_bytes().decode())
        except (OSError, UnicodeDecodeError):
            continue  # it may be missing, or for root alone; systemd does without one that is no text
    return found


def _files(listed: str) -> Iterator[Path]:
    """Yield the files of EnvironmentFile=, which may be patterns, in systemd's order."""
    for line in listed.splitlines():
        pattern = line.rpartition(" (")[0]
        yield from map(Path, sorted(glob.glob(pattern)))  # noqa: PTH207 - an absolute pattern
