# SPDX-License-Identifier: Apache-2.0
"""Why a directory can be no store until somebody changes something, and what is to be changed.

It asks only what the file system refused. What may pass by itself, such as a full disk, is not its business.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from spotwatch.errors import ConfigError, StoreError

_NO_DIRECTORY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ELOOP})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# ENOENT: directories are made as far as they are missing, so that none can be made there at all, as in /proc.
_IMPOSSIBLE = frozenset({errno.ENAMETOOLONG, errno.ENOENT, errno.EINVAL})


def why_unfit(root: Path, error: StoreError) -> ConfigError | None:
    """Return what the user must change after `error` of a first write; None: it may pass, ask again.

    Args:
        root: of the store.
        error: what the write raised, because of an `OSError`.
    """
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return None
    number, reason = cause.errno, cause.strerror
    # As deep as there is something; all below would have been made.
    there = next(path for path in (root, *root.parents) if os.path.lexists(path) or path == path.parent)
    begin = f"{root} can be no checkpoint directory"
    if number in _NO_DIRECTORY and not os.path.isdir(there):  # noqa: PTH112 - Path.is_dir may raise
        return ConfigError(f"{begin}: {there} is no directory; name one, or what can be made one")
    if number in _FORBIDDEN:
        return ConfigError(
            f"{begin}: {there} cannot be written to ({reason}); let the user with id {os.geteuid()} "
            "write there, or name another directory"
        )
    if number in _IMPOSSIBLE:
        return ConfigError(f"{begin}: none can be made in {there} ({reason}); name another directory")
    return None
