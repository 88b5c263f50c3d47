# SPDX-License-Identifier: Apache-2.0
"""The files in `status/`, read at each tick: the newest, and those that do not change any more only once.

They are removed late (`upkeep`): a machine on which a hundred runs have followed each other has a hundred. It
believes nothing that is in them and decides nothing; `Trainers` does.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from spotwatch.errors import HandshakeError
from spotwatch.handshake import MAX_STATUS_FILES, STATUS_DIR, Status
from spotwatch.safe_files import list_newest_json_files, read_owned_file

_Identity = tuple[int, int, int, int]


class StatusFiles:
    """What lies in `status/`.

    Args:
        runtime_dir: the daemon's.
    """

    def __init__(self, runtime_dir: Path) -> None:
        self._folder = runtime_dir / STATUS_DIR
        self._kept: dict[str, tuple[_Identity, Status | str]] = {}

    def read(self, owners: Collection[int], now: datetime) -> tuple[list[Status], list[str]]:
        """Return the statuses of those who may speak here, and a line for each file refused.

        Of more files than are read the oldest are left out, and told only where they may still be spoken by
        somebody.

        Args:
            owners: the user ids whose files count.
            now: the present.
        """
        statuses: list[Status] = []
        refused: list[str] = []
        kept: dict[str, tuple[_Identity, Status | str]] = {}
        files, are_more = list_newest_json_files(self._folder, MAX_STATUS_FILES, owners=owners)
        for path, facts in files:
            identity = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            known = self._kept.get(path.name)
            found = known[1] if known is not None and known[0] == identity else _read(path)
            if found is None:
                continue
            # One that is still spoken may change again within the same tick of the file system's clock.
            if isinstance(found, str) or not found.is_fresh(now):
                kept[path.name] = (identity, found)
            if isinstance(found, str):
                refused.append(f"{path.name[:80]}: {found}")
            elif found.owner_uid not in owners:
                uid = found.owner_uid
                refused.append(
                    f"{path.name[:80]}: owned by uid {uid}, who is neither the trainer's user nor ours"
                )
            else:
                statuses.append(found)
        self._kept = kept
        if are_more and len(statuses) == MAX_STATUS_FILES and all(s.is_fresh(now) for s in statuses):
            refused.append(f"{MAX_STATUS_FILES} trainers report at once: what more of them say is not read")
        return statuses, refused


def _read(path: Path) -> Status | str | None:
    """Return what one trainer says, why its file is refused, or None when it is gone."""
    try:
        read = read_owned_file(path)
        return None if read is None else Status.from_bytes(read[0], owner_uid=read[1])
    except HandshakeError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - one file, whatever is in it, must not hide the others
        return f"{type(error).__name__}: {error}"
