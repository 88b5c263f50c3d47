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
from dataclasses import dataclass, field
from pathlib import Path

from spotwatch.checks.environments import read_environment_file, read_shown_environment
from spotwatch.checks.finding import ASKED_AS as NAME
from spotwatch.checks.finding import Finding, ok, skip, warn
from spotwatch.checks.frame import PUBLIC
from spotwatch.checks.machine import UNIT
from spotwatch.config_check import LOCK
from spotwatch.config_places import RUN, closed_folder
from spotwatch.errors import ActionError
from spotwatch.runtime_lock import find_daemon
from spotwatch.targets import UnitFacts, unit_facts

_TRY_SECONDS = 10.0
_BY_CAPABILITY = frozenset({"target", "flag"})
"""Whom the daemon may signal (CAP_KILL), and to whom it may give the flag (CAP_CHOWN)."""
_CREDENTIALS = Path("/run/credentials") / UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Standpoint:
    """Who asks, and with what environment."""

    environ: Mapping[str, str]
    findings: list[Finding] = field(default_factory=list)
    """What there is to say about who asks."""
    is_strange: bool = False
    """The daemon of this machine is another user's: only what everybody can tell may be asked."""
    is_units: bool = False
    """It is that of spotwatch.service, as far as there is one."""
    left_out: frozenset[str] = frozenset()
    """Questions whose answers depend on what the unit gives the daemon and we have not."""
    place: Path | None = None
    """Its runtime directory, then."""


def take_standpoint(environ: Mapping[str, str], *, runtime_dir: Path | None = None) -> Standpoint:
    """Return from where to ask.

    Root becomes the unit's user by running this very command again, and then this does not return.

    Args:
        environ: ours; what it sets goes before the unit's.
        runtime_dir: as the command line names it. Whoever names one, here or in `environ`, that is not the
            unit's asks about another daemon.
    """
    unit, entry = _find_unit()
    variables = {} if unit is None else _variables(unit)
    theirs = variables.get("SPOTWATCH_RUNTIME_DIR") or variables.get("RUNTIME_DIRECTORY")
    given = environ.get("SPOTWATCH_RUNTIME_DIR") or environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if runtime_dir is not None:
        given = os.fspath(runtime_dir)
    if unit is not None and entry is not None and given in ("", theirs):
        merged = {**variables, **environ}
        if os.geteuid() not in (0, entry.pw_uid):
            place = Path(theirs or RUN)
            return _stand_outside(merged, place, f"{entry.pw_name} runs {UNIT}", "", is_units=True)
        return (
            Standpoint(environ=environ, is_units=True) if runtime_dir else _stand_as_unit(unit, entry, merged)
        )
    place = Path(given or RUN)
    owner = find_owner(place)
    if owner is None:
        return Standpoint(environ=environ, is_units=not given)
    named = environ if given else {**environ, "RUNTIME_DIRECTORY": os.fspath(place)}
    whose = f"uid {owner} has the daemon on {place}"
    return _stand_outside(named, place, whose, f" -u {_name(owner)}", is_units=not given)


def revise(here: Standpoint, environ: Mapping[str, str], runtime_dir: Path) -> Standpoint:
    """Return from where to ask, now that the configuration has been read.

    Args:
        here: where we stand so far.
        environ: ours.
        runtime_dir: as the configuration has it.
    """
    if here.is_strange:
        is_told = here.place == runtime_dir
    else:
        is_told = bool(here.findings) or find_owner(runtime_dir) is None
    return here if is_told else take_standpoint(environ, runtime_dir=runtime_dir)


def find_owner(place: Path) -> int | None:
    """Return the uid of another user whose daemon a runtime directory is; None: ours, or nobody's yet."""
    uid = os.geteuid()
    try:
        owner = (closed_folder(place) or place).stat().st_uid
        if uid != owner or uid == 0:
            owner = (place / LOCK).lstat().st_uid
    except FileNotFoundError:
        return None
    except PermissionError:
        return owner
    except OSError:
        return None
    # Root takes over what an earlier daemon of somebody else has left.
    is_ours = uid == owner or (uid == 0 and find_daemon(place) is None)
    return None if is_ours else owner


def _stand_outside(
    environ: Mapping[str, str], place: Path, whose: str, become: str, *, is_units: bool
) -> Standpoint:
    said = (
        f"uid {os.geteuid()}, but {whose}: only what everybody can tell is asked: {', '.join(sorted(PUBLIC))}"
    )
    mend = (
        f"for all the rest: sudo{become} spotwatch check, or, in a pod, in the daemon's container; about a "
        "daemon of your own: give its --runtime-dir"
    )
    return Standpoint(
        environ=environ,
        findings=[skip(NAME, said, mend)],
        is_strange=True,
        is_units=is_units,
        place=place,
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"'#{uid}'"


def _find_unit() -> tuple[UnitFacts | None, pwd.struct_passwd | None]:
    try:
        unit = unit_facts(UNIT)
        entry = pwd.getpwnam(unit.user or "root")
    except (ActionError, KeyError):
        return None, None  # no systemd here, or it says itself that it cannot start the unit
    return (unit, entry) if unit.load_state == "loaded" else (None, None)


def _stand_as_unit(unit: UnitFacts, entry: pwd.struct_passwd, environ: dict[str, str]) -> Standpoint:
    if os.geteuid() == entry.pw_uid:
        return _stand_as_user(unit, entry.pw_name, environ)
    setpriv = [shutil.which("setpriv") or "", *_setpriv_options(unit, entry), "--"]
    why = _try_out(setpriv) if setpriv[0] else "setpriv, of util-linux, is not here"
    if not why:
        command = [*setpriv, sys.executable, "-P", "-m", "spotwatch", *sys.argv[1:]]
        os.execve(command[0], command, environ)  # noqa: S606 - an argument list; no shell is wanted
    said = (
        f"root, and cannot ask as {entry.pw_name}, who runs {UNIT}: {why}; only what everybody can tell is "
        f"asked: {', '.join(sorted(PUBLIC))}"
    )
    mend = f"ask with the command that the unit runs: sudo -u {entry.pw_name} spotwatch check"
    place = Path(environ.get("SPOTWATCH_RUNTIME_DIR") or environ.get("RUNTIME_DIRECTORY") or RUN)
    return Standpoint(
        environ=environ, findings=[skip(NAME, said, mend)], is_strange=True, is_units=True, place=place
    )


def _stand_as_user(unit: UnitFacts, user: str, environ: dict[str, str]) -> Standpoint:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    has_some = re.search(r"^CapAmb:\s*0*[1-9a-f]", status, re.MULTILINE) is not None
    if not unit.ambient_capabilities or user == "root" or has_some:
        return Standpoint(environ=environ, findings=[ok(NAME, f"{user}, who runs {UNIT}")], is_units=True)
    said = (
        f"{user}, who runs {UNIT}, but without what the unit gives it: {unit.ambient_capabilities}; so not "
        f"asked: {' and '.join(sorted(_BY_CAPABILITY))}"
    )
    line = warn(NAME, said, "ask as root, which becomes that user: sudo spotwatch check")
    return Standpoint(environ=environ, findings=[line], is_units=True, left_out=_BY_CAPABILITY)


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
    if os.path.isdir(_CREDENTIALS):  # noqa: PTH112 - Path's raises where a folder above is closed
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
