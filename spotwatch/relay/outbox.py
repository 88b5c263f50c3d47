# SPDX-License-Identifier: Apache-2.0
"""Letters on their way to the mailbox: on disk before they are called safe, and tried until written.

For each address only what is in force is kept, so that a flood makes no queue. Strong letters go before all
others, also before those of a pass that is under way. It does not know where the mailbox is, who signs, nor
what a letter means.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from spotwatch.clock import Clock
from spotwatch.errors import HandshakeError, Malformed, ProviderError, Unavailable
from spotwatch.mail.mailbox import Address, Letter, join
from spotwatch.mail.mailbox_form import pack, unpack
from spotwatch.model import Evidence
from spotwatch.safe_files import read_owned_file, write_atomically
from spotwatch.untrusted import read_object

FILE = "relay-outbox.json"
MAX_ADDRESSES = 16_384
"""That letters wait for at once: more than an account's Droplets; beyond it senders are asked to come again.

Those with weak letters only may fill a quarter of it.
"""

_VERSION = 2
_MAX_BYTES = 64 * 1024 * 1024
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_AT_ONCE_SECONDS = 3.0
_GIVES_UP_AFTER = 3
"""Addresses in a row that get no answer: then it is the mailbox that is away, and not one object of it."""


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
        clock: for times and pauses.
        state_dir: where letters wait; None: nowhere, so that each must be written before it is answered for.
        on_written: told each letter that has reached the mailbox.
        on_failed: told why one has not.
    """

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        *,
        state_dir: Path | None,
        on_written: Callable[[Letter], None] = lambda _: None,
        on_failed: Callable[[ProviderError], None] = lambda _: None,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._path = None if state_dir is None else state_dir / FILE
        self._on_written = on_written
        self._on_failed = on_failed
        self._waiting: dict[Address, tuple[Letter, ...]] = {}
        self._urgent: dict[Address, None] = {}
        """Those for whom a strong letter waits, the oldest first."""
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
        addresses, refused = set(), False
        for letter in letters:
            if not self._has_room(letter):
                refused = True
                continue
            addresses.add(letter.to)
            self._set(letter.to, join(self._waiting.get(letter.to, ()), letter, now=now))
        # Also when none was taken: only what is sent makes room.
        self._wake.set()
        if not addresses or await self._save():
            return not refused
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AT_ONCE_SECONDS):
                await self.send()
        return not refused and addresses.isdisjoint(self._waiting)

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
        """Try to write everything once; tell whether something was written.

        An address that is refused, or has no answer, keeps the others waiting neither now nor the next time.
        """
        has_written = False
        unanswered = 0
        async with self._sending:
            tried: dict[Address, tuple[Letter, ...]] = {}
            others = iter(tuple(self._waiting))
            while (to := self._next(tried, others)) is not None:
                letters = tried[to] = self._waiting[to]
                if not any(letter.expires_at > self._clock.now() for letter in letters):
                    self._forget(to, letters)
                    continue
                failure = await self._put(to, letters)
                if failure is not None:
                    self.problem = failure
                    self._on_failed(failure)
                    self._put_last(to)
                    unanswered = unanswered + 1 if isinstance(failure, Unavailable) else 0
                    if unanswered == _GIVES_UP_AFTER:
                        break
                    continue
                has_written = True
                unanswered = 0
                self._forget(to, letters)
                for letter in letters:
                    self._on_written(letter)
            if not self._waiting:
                self.problem = None
        await self._save()
        return has_written

    def _next(self, tried: Mapping[Address, tuple[Letter, ...]], others: Iterator[Address]) -> Address | None:
        """Return whom to write to next in this pass: strong letters first, also those of a moment ago."""
        # A weak letter that joins a strong one which was refused is no reason to ask again at once.
        urgent = (to for to in self._urgent if _strong(tried.get(to, ())) != _strong(self._waiting[to]))
        waiting = (to for to in others if to in self._waiting and to not in tried)
        return next(urgent, None) or next(waiting, None)

    def _has_room(self, letter: Letter) -> bool:
        if letter.to in self._waiting:
            return True
        is_strong = letter.evidence is Evidence.STRONG
        # However many mails are forged, there is room for what is proven.
        weak = len(self._waiting) - len(self._urgent)
        return len(self._waiting) < MAX_ADDRESSES and (is_strong or weak < MAX_ADDRESSES // 4)

    def _set(self, to: Address, letters: tuple[Letter, ...]) -> None:
        """Let exactly `letters` wait for `to`."""
        self._unsaved = True
        if letters:
            self._waiting[to] = letters
        else:
            self._waiting.pop(to, None)
        if _strong(letters):
            self._urgent[to] = None
        else:
            self._urgent.pop(to, None)

    def _put_last(self, to: Address) -> None:
        """Let the next pass begin with another address."""
        if to in self._waiting:
            self._waiting[to] = self._waiting.pop(to)
        if to in self._urgent:
            self._urgent[to] = self._urgent.pop(to)

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
        # What came meanwhile still waits; a strong letter that is written does not make it urgent.
        self._set(to, tuple(one for one in self._waiting.get(to, ()) if one not in letters))

    async def _save(self) -> bool:
        # Whoever waits may be given up meanwhile; the thread still writes, and no later one overtakes it.
        return await asyncio.shield(self._save_in_turn())

    async def _save_in_turn(self) -> bool:
        async with self._saving:
            if self._path is None:
                return False
            if not self._unsaved:
                return not self.disk_problem
            self._unsaved = False
            waiting = dict(self._waiting)
            try:
                await asyncio.to_thread(_write, self._path, waiting)
            except (HandshakeError, OSError) as error:
                self._unsaved = True
                self.disk_problem = f"letters cannot be kept: {error}"
                return False
            self.disk_problem = ""
            return True

    def _load(self) -> None:
        if self._path is None:
            return
        now, problem = self._clock.now(), ""
        try:
            for row in _read_rows(self._path):
                try:
                    letter = unpack(row, now=now)
                except Malformed as error:
                    # One that cannot be read must not take the others with it.
                    problem = str(error)
                    continue
                if letter.expires_at > now:
                    self._set(letter.to, join(self._waiting.get(letter.to, ()), letter, now=now))
        except (HandshakeError, Malformed) as error:
            problem = str(error)
        if problem:
            self.disk_problem = f"{self._path}: letters of an earlier run are unreadable: {problem}"
            # The next letter would overwrite them; people may still find out what they said.
            with contextlib.suppress(OSError):
                aside = self._path.with_name(f"{FILE}.unreadable")
                aside.unlink(missing_ok=True)
                os.link(self._path, aside, follow_symlinks=False)


def _strong(letters: Iterable[Letter]) -> list[Letter]:
    return [letter for letter in letters if letter.evidence is Evidence.STRONG]


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the file; none when there is no file.

    Raises:
        HandshakeError: it cannot be read.
        Malformed: it is not of the form that `_write` gives it, or was written by somebody else.
    """
    found = read_owned_file(path, limit=_MAX_BYTES)
    if found is None:
        return []
    body, owner = found
    # Letters lie here unsigned, so that they outlive a change of the key: who could slip one in could as
    # well take the key from us.
    if owner not in (os.geteuid(), 0):
        raise Malformed(f"it belongs to user {owner}")
    row = read_object(body)
    rows = row.get("letters")
    if row.get("version") != _VERSION or not isinstance(rows, list):
        raise Malformed("another version, or no list of letters")
    if not all(isinstance(one, dict) for one in rows):
        raise Malformed("a letter is no object")
    return rows


def _write(path: Path, waiting: Mapping[Address, tuple[Letter, ...]]) -> None:
    rows = [pack(letter) for letters in waiting.values() for letter in letters]
    write_atomically(path, json.dumps({"version": _VERSION, "letters": rows}).encode(), mode=0o600)
    # The sender is told that it is safe: then it must survive a power cut, too.
    for place in (path, path.parent):
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
