# SPDX-License-Identifier: Apache-2.0
"""The runtime directory while a daemon runs: taken at its start, kept as the daemon needs it, given back.

The trainer's group may write there, so what the daemon has made may be gone or replaced a moment later; each
look mends it and says so. It knows no order, and reads no file of a trainer.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import islice

from spotwatch.clock import Clock
from spotwatch.config import Settings
from spotwatch.errors import ConfigError
from spotwatch.handshake import NOTICES_DIR, STATUS_DIR
from spotwatch.logs import Logger
from spotwatch.owners import Owner, Owners
from spotwatch.rundir import clear_the_way, prepare_runtime_dir
from spotwatch.runtime_lock import OtherDaemonError, RuntimeLock, lock_runtime_dir, lock_state_dir
from spotwatch.targets import Target

LOOK_SECONDS = 1.0
TIDY_SECONDS = 60.0
KEPT_STATUS_FILES = 16
SILENT_SECONDS = 3600.0
"""A status that nobody has written for an hour is of a run that is over: removed, but for the newest few."""
_MAX_ENTRIES = 10_000
_ATTEMPTS = 5
"""So often the directory is cleared again at the start, where somebody replaces its folders all the time."""


class Upkeep:
    """One daemon's hold on its runtime directory.

    Args:
        settings: `runtime_dir`, `state_dir` and `flag.owner`.
        clock: between looks.
        targets: whose users share the directory.
        log: where is said what was mended.
        is_dry_run: leave the state directory and the files of trainers alone.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        targets: Sequence[Target],
        *,
        log: Logger,
        is_dry_run: bool,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = log
        self.owners = Owners(settings.flag.owner, targets, clock, on_found=self._share)
        self._is_dry_run = is_dry_run
        self._held = ExitStack()
        self._lock: RuntimeLock | None = None
        self._said = ""
        self._tidy_at = float("-inf")

    def begin(self) -> list[str]:
        """Make the directory fit, and become the one daemon on it; return what had to be mended.

        Raises:
            ConfigError: it cannot be, or another daemon runs there.
        """
        lines = self._make_fit()
        self._lock = self._held.enter_context(lock_runtime_dir(self._settings.runtime_dir))
        state_dir = self._settings.state_dir
        if state_dir is None or self._is_dry_run:
            return lines
        try:
            state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._held.enter_context(lock_state_dir(state_dir, self._settings.runtime_dir))
        except OtherDaemonError:
            self.close()
            raise
        except (ConfigError, OSError) as error:
            # A disk that is full or broken must not keep us from watching.
            lines.append(f"state_dir: no second lock against another daemon: {error}")
        return lines

    def close(self) -> None:
        """Let the next daemon in; a second call does nothing."""
        self._held.close()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Mend what somebody has removed or replaced, and remove statuses of runs that are long over.

        What cannot be mended is said once per change, and tried again at the next look.
        """
        try:
            lines = self._mend()
        except (ConfigError, OSError) as error:
            lines = [str(error)]
        said = "\n".join(lines)
        if said != self._said:
            for line in lines:
                self._log.warning("check", problem=line)
        self._said = said
        if not self._is_dry_run and self._clock.monotonic() >= self._tidy_at:
            self._tidy_at = self._clock.monotonic() + TIDY_SECONDS
            self._remove_old_statuses()

    def _share(self, owner: Owner) -> None:
        """Let a trainer in whose user became known only now: it must be able to remove the flag."""
        try:
            prepare_runtime_dir(self._settings, owner)
        except ConfigError as error:
            self._log.warning("check", problem=str(error))

    def _make_fit(self) -> list[str]:
        lines: list[str] = []
        for attempt in range(1, _ATTEMPTS + 1):
            lines += clear_the_way(self._settings.runtime_dir)
            try:
                prepare_runtime_dir(self._settings, self.owners.of_flag())
            except ConfigError:
                if attempt == _ATTEMPTS:
                    raise
            else:
                break
        return lines

    def _mend(self) -> list[str]:
        path = self._settings.runtime_dir
        lines = clear_the_way(path)
        missing = [name for name in (STATUS_DIR, NOTICES_DIR) if not (path / name).is_dir()]
        if missing:
            prepare_runtime_dir(self._settings, self.owners.of_flag())
            if not lines:
                lines.append(f"{', '.join(str(path / name) for name in missing)}: gone, and made anew")
        kept = "" if self._lock is None else self._lock.keep()
        return [*lines, kept] if kept else lines

    def _remove_old_statuses(self) -> None:
        owners = self.owners.of_status()
        silent_since = self._clock.now().timestamp() - SILENT_SECONDS
        ages: dict[int, list[tuple[float, str]]] = defaultdict(list)
        with suppress(OSError), os.scandir(self._settings.runtime_dir / STATUS_DIR) as entries:
            for entry in islice(entries, _MAX_ENTRIES):
                facts = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".json") and facts.st_uid in owners:
                    ages[facts.st_uid].append((facts.st_mtime, entry.path))
        for of_owner in ages.values():
            for modified_at, path in sorted(of_owner, reverse=True)[KEPT_STATUS_FILES:]:
                if modified_at < silent_since:
                    with suppress(OSError):
                        os.unlink(path)  # noqa: PTH108 - the entry's own path
