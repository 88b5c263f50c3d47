# SPDX-License-Identifier: Apache-2.0
"""Where the daemon on this machine leaves its files, and whether the place can be trusted.

It reads no order and makes nothing. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from spotwatch import handshake

COMMON_FLAG = Path("/tmp") / handshake.FLAG  # noqa: S108 - a flag that anyone may touch; it is rate limited
"""The flag that people touch by hand, and that older scripts know."""
_SYSTEM_DIR = Path("/run/spotwatch")


def find_runtime_dir(environ: Mapping[str, str]) -> tuple[Path | None, str]:
    """Return the directory shared with the daemon, if one can be trusted, and what is wrong with others."""
    named = environ.get("SPOTWATCH_RUNTIME_DIR")
    problems: list[str] = []
    for path in [Path(named).expanduser().absolute()] if named else _usual(environ):
        if not named and not os.path.lexists(path):
            continue
        problem = distrust(path)
        if not problem:
            return path, "; ".join(problems)
        problems.append(f"runtime directory {path} {problem}")
    return None, "; ".join(problems)


def _usual(environ: Mapping[str, str]) -> list[Path]:
    session = environ.get("XDG_RUNTIME_DIR")
    return [
        _SYSTEM_DIR,
        *([Path(session) / "spotwatch"] if session else []),
        COMMON_FLAG.with_name(f"spotwatch-{os.getuid()}"),
    ]


def distrust(path: Path) -> str:
    """Return why `path` is no place to take orders from; empty when it is one.

    Trusted is a directory of root, of this user, or of one of this user's groups, into which not everyone may
    write: whoever can write there can stop the training.
    """
    mine = (0, os.getuid())
    try:
        link = path.lstat()
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in mine:
            return f"is a link of uid {link.st_uid}; remove it"
        facts = path.stat()
    except OSError as error:
        return (
            f"cannot be used: {error.strerror}; is the daemon running, with the same SPOTWATCH_RUNTIME_DIR?"
        )
    if not stat.S_ISDIR(facts.st_mode):
        return "is not a directory"
    if facts.st_mode & stat.S_IWOTH:
        return "may be written by everyone; chmod o-w"
    if facts.st_uid not in mine and facts.st_gid not in (os.getgid(), *os.getgroups()):
        return f"belongs to uid {facts.st_uid}, gid {facts.st_gid}, neither of them ours; chgrp it"
    return ""


def flag_paths(environ: Mapping[str, str], runtime_dir: Path | None) -> list[tuple[Path, bool]]:
    """Return the flags to watch, each with whether only trusted users can make it.

    The daemon's `SPOTWATCH_FLAG__PATH` is honoured. The common flag is left alone when a runtime directory is
    named, so that a rehearsal never takes the flag of a real run.
    """
    paths: list[tuple[Path, bool]] = []
    named = environ.get("SPOTWATCH_FLAG__PATH") or handshake.FLAG
    if runtime_dir is not None:
        paths.append((runtime_dir / named, not Path(named).is_absolute()))
    elif Path(named).is_absolute():
        paths.append((Path(named), False))
    if not environ.get("SPOTWATCH_RUNTIME_DIR") and COMMON_FLAG not in [path for path, _ in paths]:
        paths.append((COMMON_FLAG, False))
    return paths
