# SPDX-License-Identifier: Apache-2.0
"""Which directory of notices can be trusted, and whose files in it count.

It does not read a file, and creates nothing.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from spotwatch.errors import Denied, Unavailable


def list_trusted(folder: Path) -> tuple[list[str], int]:
    """Return the sorted names of the `*.json` files and the directory's group; none when it does not exist.

    Raises:
        Denied: it is a link, someone else's, or everyone may write there.
        Unavailable: it cannot be listed, which is not the same as empty.
    """
    try:
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            raise Denied(f"{folder} is no directory", mend=f"remove {folder}")
        if facts.st_mode & stat.S_IWOTH:
            raise Denied(
                f"{folder} is writable by everyone, so that anyone could stop the trainer",
                mend=f"chmod o-w {folder}",
            )
        if facts.st_uid not in (0, os.geteuid()):
            raise Denied(
                f"{folder} is owned by uid {facts.st_uid}, who is neither root nor us",
                mend=f"chown {os.geteuid()} {folder}",
            )
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.endswith(".json") and not e.name.startswith(".")]
    except FileNotFoundError:
        return [], -1
    except OSError as error:
        raise Unavailable(f"cannot list {folder}: {error.strerror}") from error
    return sorted(names), facts.st_gid


def is_trusted_owner(uid: int, folder_gid: int) -> bool:
    """Tell whether `uid` is root, we, or a member of the group that may write in the directory."""
    if uid in (0, os.geteuid()):
        return True
    try:
        user = pwd.getpwuid(uid)
        return user.pw_gid == folder_gid or user.pw_name in grp.getgrgid(folder_gid).gr_mem
    except KeyError:
        return False
