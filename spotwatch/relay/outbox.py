# SPDX-License-Identifier: Apache-2.0
"""Letters on their way to the mailbox: on disk before they are called safe, and tried until written.

For each address only what is in force is kept, so that a flood makes no queue. It does not know where the
mailbox is, nor what a letter means.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from spotwatch.clock import Clock
from spotwatch.errors import HandshakeError, Malformed, ProviderError, Unavailable
from spotwatch.mail.mailbox import Address, Letter, join
from spotwatch.mail.mailbox_form import read_letters, write_letters
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.model import Evidence
from spotwatch.safe_files import read_small_file, write_atomically
from spotwatch.untrusted import read_object

FILE = "relay-outbox.json"
MAX_ADDRESSES = 4096
"""That letters wait for at once; beyond it senders are asked to come again."""

_VERSION = 1
_MAX_BYTES = 32 * 1024 * 1024
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_AT_ONCE_SECONDS = 3.0


class Writer(Protocol):
    """Writes what is in force for one address."""

    async def put(self, to: Address, letters: tuple[Letter, ...], *, now: datetime) -> None:
        """Join `letters` with what is there.

        Raises:
            ProviderError: not now.
        """


class Outbox:
    """What is to be written.

    Args:
        writer: of the mailbox.
        key: signs what lies on disk, too: nobody slips a letter in.
        clock: for times and pauses.
        state_dir: where letters wait; None: nowhere, so that each must be written before it is answered for.
        on_written: told each letter that has reached the mailbox.
        on_failed: told why one has not.
    """

    def __init__(
        self,
        writer: Writer,
        key: SigningKey,
        clock: Clock,
        *,
        state_dir: Path | None,
        on_written: Callable[[Letter], None] = lambda _: None,
        on_failed: Callable[[ProviderError], None] = lambda _: None,
    ) -> None:
        self._writer = writer
        self._key = key
        self._clock = clock
        self._path = None if state_dir is None else state_dir / FILE
        self._on_written = on_written
        self._on_failed = on_failed
        self._waiting: dict[Address, tuple[Letter, ...]] = {}
        self._wake = asyncio.Event()
        self._saving = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._unsaved = False
        self.problem: ProviderError | None = None
        """Why letters wait; None: none does, or none was tried yet."""
        self.disk_problem = ""
        """Why they cannot be kept on disk; empty: they can."""
        self._load()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def post(self, letters: Iterable[Letter]) -> bool:
        """Take letters; tell whether they can no longer be lost: they are on disk, or in the mailbox.

        Those that can be lost are still tried, but whoever brought them must come again.
        """
        now = self._clock.now()
        addresses = set()
        for letter in letters:
            if letter.to not in self._waiting and len(self._waiting) >= MAX_ADDRESSES:
                return False
            addresses.add(letter.to)
            self._waiting[letter.to] = join(self._waiting.get(letter.to, ()), letter, now=now)
            self._unsaved = True
        if not addresses:
            return True
        self._wake.set()
        if await self._save():
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AT_ONCE_SECONDS):
                await self.send()
        return addresses.isdisjoint(self._waiting)

    async def run(self) -> None:
        """Send until cancelled, with growing pauses while the mailbox does not take anything."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            self._wake.clear()
            if self._waiting and not await self.send():
                # However fast letters come, a mailbox that refuses is not asked more often than this.
                await self._clock.sleep(_FIRST_PAUSE_SECONDS)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                pause = _FIRST_PAUSE_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause if self._waiting else None):
                    await self._wake.wait()

    async def send(self) -> bool:
        """Try to write everything once; tell whether something was written."""
        has_written = False
        async with self._sending:
            for to, letters in sorted(self._waiting.items(), key=_urgency):
                if not any(letter.expires_at > self._clock.now() for letter in letters):
                    self._forget(to, letters)
                    continue
                failure = await self._put(to, letters)
                if failure is not None:
                    self.problem = failure
                    self._on_failed(failure)
                    if isinstance(failure, Unavailable):
                        break
                    continue
                has_written = True
                self._forget(to, letters)
                for letter in letters:
                    self._on_written(letter)
            if not self._waiting:
                self.problem = None
        await self._save()
        return has_written

    async def _put(self, to: Address, letters: tuple[Letter, ...]) -> ProviderError | None:
        """Try to write letters to one address; return why they were not."""
        try:
            await self._writer.put(to, letters, now=self._clock.now())
        except ProviderError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one address must not end the sending to all others
            return ProviderError(f"{type(error).__name__}: {error}")
        return None

    def _forget(self, to: Address, letters: tuple[Letter, ...]) -> None:
        # A letter that came meanwhile has made another tuple of them, which still waits.
        if self._waiting.get(to) is letters:
            del self._waiting[to]
            self._unsaved = True

    async def _save(self) -> bool:
        async with self._saving:
            if self._path is None:
                return False
            if not self._unsaved:
                return not self.disk_problem
            self._unsaved = False
            waiting = dict(self._waiting)
            try:
                await asyncio.to_thread(_write, self._path, waiting, self._key, self._clock.now())
            except (HandshakeError, OSError) as error:
                self._unsaved = True
                self.disk_problem = f"letters cannot be kept: {error}"
                return False
            self.disk_problem = ""
            return True

    def _load(self) -> None:
        if self._path is None:
            return
        now = self._clock.now()
        try:
            body = read_small_file(self._path, limit=_MAX_BYTES)
            row: dict[str, Any] = {"version": _VERSION, "waiting": []} if body is None else read_object(body)
            if row.get("version") != _VERSION:
                raise Malformed("another version")
            for one in row["waiting"]:
                to = Address(one["droplet_id"], one["name_hash"])
                opened = read_letters(one["object"].encode(), [self._key.public], to=to, now=now)
                if opened.problem is not None:
                    raise opened.problem
                if opened.letters:
                    self._waiting[to] = opened.letters
        except (HandshakeError, Malformed, KeyError, TypeError, AttributeError) as error:
            self.disk_problem = f"{self._path}: letters of an earlier run are unreadable: {error}"


def _urgency(waiting: tuple[Address, tuple[Letter, ...]]) -> bool:
    """Return what sorts strong letters first: a flood of weak ones must not hold them up."""
    return all(letter.evidence is not Evidence.STRONG for letter in waiting[1])


def _write(path: Path, waiting: Mapping[Address, tuple[Letter, ...]], key: SigningKey, now: datetime) -> None:
    rows = [
        {
            "droplet_id": to.droplet_id,
            "name_hash": to.name_hash,
            "object": write_letters(letters, key, now=now).decode(),
        }
        for to, letters in waiting.items()
    ]
    write_atomically(path, json.dumps({"version": _VERSION, "waiting": rows}).encode(), mode=0o600)
    # The sender is told that it is safe: then it must survive a power cut, too.
    for place in (path, path.parent):
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
