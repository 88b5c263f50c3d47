# SPDX-License-Identifier: Apache-2.0
"""Where the daemon keeps its files when nobody says so.

Pure decisions over the environment and an `is_writable` that is handed in; nothing is created here, that is
`rundir`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

RUN = Path("/run/spotwatch")
STATE = Path("/var/lib/spotwatch")


def is_writable(path: Path) -> bool:
    """Tell whether this process may create files in `path`, or may create `path` first."""
    place = os.fspath(path)
    # os.path, not Path: its tests answer no, where Path's raise, when a parent may not be searched.
    while not os.path.lexists(place) and place != os.path.dirname(place):  # noqa: PTH120 - as above
        place = os.path.dirname(place)  # noqa: PTH120 - as above
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)  # noqa: PTH112 - as above


def closed_folder(path: Path) -> Path | None:
    """Return the directory above `path` that this process may not search; None: nothing hides `path`."""
    for folder in reversed(path.parents):
        if not os.path.isdir(folder):  # noqa: PTH112 - as above
            return None
        if not os.access(folder, os.X_OK):
            return folder
    return None


def choose_runtime_dir(
    environ: Mapping[str, str], *, uid: int, is_writable: Callable[[Path], bool] = is_writable
) -> tuple[Path, str]:
    """Return the runtime directory and where that answer came from.

    `$RUNTIME_DIRECTORY` (systemd), else `/run/spotwatch` if writable, else `$XDG_RUNTIME_DIR/spotwatch`, else
    `/tmp/spotwatch-UID`.
    """
    if given := _first(environ.get("RUNTIME_DIRECTORY", "")):
        return given, "RUNTIME_DIRECTORY"
    if is_writable(RUN):
        return RUN, "default"
    # su and sudo leave the variable pointing at a directory that is not ours, or is gone.
    xdg = _first(environ.get("XDG_RUNTIME_DIR", ""))
    if xdg is not None and is_writable(xdg):
        return xdg / "spotwatch", "XDG_RUNTIME_DIR"
    return private_runtime_dir(uid), "default"


def private_runtime_dir(uid: int) -> Path:
    """Return the last resort in `/tmp`, for this user alone."""
    return Path(f"/tmp/spotwatch-{uid}")  # noqa: S108 - owner and mode are checked by rundir before any use


def choose_state_dir(
    environ: Mapping[str, str], *, is_writable: Callable[[Path], bool] = is_writable
) -> tuple[Path | None, str, str]:
    """Return the state directory, where that answer came from, and a warning, which is mostly empty.

    `$STATE_DIRECTORY` (systemd), else `/var/lib/spotwatch`, else `$XDG_STATE_HOME/spotwatch` (by its own rule
    `~/.local/state` when unset); None with a warning when nothing is writable.
    """
    if given := _first(environ.get("STATE_DIRECTORY", "")):
        kept, warning = keep_if_writable(given, is_writable=is_writable)
        return kept, "STATE_DIRECTORY", warning
    if is_writable(STATE):
        return STATE, "default", ""
    home = _first(environ.get("HOME", ""))
    xdg = _first(environ.get("XDG_STATE_HOME", "")) or (home and home / ".local" / "state")
    if xdg and is_writable(xdg / "spotwatch"):
        return xdg / "spotwatch", "XDG_STATE_HOME" if environ.get("XDG_STATE_HOME") else "default", ""
    return None, "default", "state_dir: no place is writable; memory only, nothing outlives a restart"


def keep_if_writable(
    path: Path, *, is_writable: Callable[[Path], bool] = is_writable
) -> tuple[Path | None, str]:
    """Return `path`, or None and a warning when nothing can be kept there."""
    if is_writable(path):
        return path, ""
    return None, f"state_dir: {path} is not writable; memory only, nothing outlives a restart"


def _first(text: str) -> Path | None:
    """Return the first of systemd's colon-separated directories; None for none, or for a relative one."""
    path = Path(text.split(":", 1)[0])
    return path if path.is_absolute() else None
