# SPDX-License-Identifier: Apache-2.0
"""The mailbox of a fleet as one Droplet sees it: its own letters, everybody's, and the relay's sign of life.

A letter is handed on once; what is in force stays in the mailbox, so that a restart reads it again. Nothing
here can raise beyond a problem that is told, and nothing decides what a letter makes of a notice.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from spotwatch.clock import Clock
from spotwatch.errors import ConfigError, Denied, Malformed, ProviderError, Unavailable
from spotwatch.mail.mailbox import (
    BROADCAST,
    HEARTBEAT_KEY,
    Address,
    Heartbeat,
    Letter,
    address_of_name,
)
from spotwatch.mail.mailbox_client import Fetched, Reader, open_reader
from spotwatch.mail.mailbox_credentials import open_with_file
from spotwatch.mail.mailbox_form import read_heartbeat, read_letters
from spotwatch.mail.mailbox_keys import PublicKey

INTERVAL_SECONDS = 20.0
SILENT_SECONDS = 600.0
"""A heartbeat older than this, or than five of the relay's intervals, is a problem."""
SILENT_INTERVALS = 5

_MAX_NAMES = 8
_MAX_KNOWN = 256
_HEARTBEAT_SECONDS = 60.0
_LONGEST_PAUSE = 2.0  # in intervals
_STEPPED_SECONDS = 60.0
"""A wall clock that moves so much against the boot clock was set, and what was read is judged anew."""
_AHEAD_SECONDS = 600.0
"""A sign of life that is farther in the future: one of the two clocks is wrong."""
_UNFORESEEN = ""  # the key of a problem that is no object's
_MEND_AHEAD = "set this machine's clock and the relay's (`timedatectl`); until then its letters only flush"
_MEND_AWAY = (
    "see whether the mailbox can be reached from here (firewall, DNS), and whether "
    "provider.digitalocean.mailbox is where the relay writes"
)
_MEND_OBJECT = (
    "see whether provider.digitalocean.mailbox is where the relay writes, whether mailbox_keys is what its "
    "--make-key printed, and who else writes there"
)
_MEND_SILENT = "see whether `spotwatch relay` runs and writes to this mailbox; a notice would not arrive now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Whose letters are read."""

    droplet_id: int
    names: tuple[str, ...] = ()
    """All that it may be called: configured names and the hostname; a letter to a name is weak."""


class DropletMailbox:
    """Polls a mailbox for one Droplet.

    Args:
        reader: of the mailbox.
        keys: whose letters count.
        clock: for ages and pauses.
        whose: returns whose letters to read; None: unknown yet, and only what is for everybody is read.
        interval_seconds: between two polls, at most.
        chance: returns a number from 0 to 1; how much of the jitter is taken off.
    """

    def __init__(
        self,
        reader: Reader,
        keys: Sequence[PublicKey],
        clock: Clock,
        *,
        whose: Callable[[], Whose | None],
        interval_seconds: float = INTERVAL_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._reader = reader
        self._keys = tuple(keys)
        self._clock = clock
        self._whose = whose
        self._interval_seconds = interval_seconds
        self._chance = chance
        self._etags: dict[str, str] = {}
        self._known: dict[str, None] = {}
        self._problems: dict[str, ProviderError] = {}
        self._failures = 0
        self._is_first_in_hand = False
        self._heartbeat: Heartbeat | None = None
        self._heartbeat_read_at: float | None = None
        self._heartbeat_new_at = 0.0
        self._owner: int | None = None
        self._wall_at_boot: float | None = None

    @property
    def heartbeat_age_seconds(self) -> float | None:
        """Return the age of the last sign of life by the clock that says more; None: none was read."""
        if self._heartbeat is None:
            return None
        by_wall = (self._clock.now() - self._heartbeat.at).total_seconds()
        return max(by_wall, self._clock.monotonic() - self._heartbeat_new_at)

    @property
    def problem(self) -> ProviderError | None:
        """Return why a letter might not arrive, the gravest reason first, with what to do; None: it would."""
        found = self._problem()
        if found is None or found.mend:
            return found
        return type(found)(str(found), mend=_MEND_OBJECT if isinstance(found, Malformed) else _MEND_AWAY)

    def _problem(self) -> ProviderError | None:
        # Until somebody has them, letters that are there are no notices, and an answer would speak of none.
        if (self._heartbeat_read_at is None or self._is_first_in_hand) and not self._problems:
            return Unavailable("the mailbox has not been read yet")
        if self._problems:
            return min(self._problems.values(), key=_gravity)
        age = self.heartbeat_age_seconds
        if self._heartbeat is None or age is None:
            return Unavailable("the mailbox holds no sign of life of a relay", mend=_MEND_SILENT)
        ahead = (self._heartbeat.at - self._clock.now()).total_seconds()
        if ahead > _AHEAD_SECONDS:
            return Unavailable(f"the relay's sign of life is {ahead:.0f} s in the future", mend=_MEND_AHEAD)
        limit = max(SILENT_SECONDS, SILENT_INTERVALS * self._heartbeat.interval_seconds)
        if age > limit:
            return Unavailable(f"the relay has been silent for {age:.0f} s", mend=_MEND_SILENT)
        return None

    async def poll(self) -> Sequence[Letter]:
        """Return the letters that are new since the last poll: verified, in force, the oldest first."""
        whose = self._whose()
        if whose is not None and whose.droplet_id != self._owner:
            # Whoever was told before knew less, or was another Droplet: everything is told again.
            self._owner = whose.droplet_id
            self._forget()
        wall_at_boot = self._clock.now().timestamp() - self._clock.boot()
        if self._wall_at_boot is None or abs(wall_at_boot - self._wall_at_boot) > _STEPPED_SECONDS:
            # What was too late, too early or expired by the clock that was wrong may be none of it.
            self._wall_at_boot = wall_at_boot
            self._forget()
        addresses = {one.key: one for one in _addresses(whose)}
        # The letters first: when the mailbox stops answering, the rest of a poll is not asked.
        keys = [*addresses, *([HEARTBEAT_KEY] if self._wants_heartbeat() else [])]
        found = dict(await self._reader.fetch({key: self._etags.get(key, "") for key in keys}))
        self._problems = {key: kept for key, kept in self._problems.items() if key not in found}
        self._take_heartbeat(found.pop(HEARTBEAT_KEY, None))
        letters = [letter for key, result in found.items() for letter in self._take(addresses[key], result)]
        is_down = any(isinstance(error, Unavailable) for error in self._problems.values())
        self._failures = self._failures + 1 if is_down else 0
        return tuple(sorted(letters, key=lambda letter: letter.issued_at))

    async def run(self, deliver: Callable[[Sequence[Letter]], Awaitable[None]]) -> None:
        """Poll until cancelled, and hand each poll's letters to `deliver`, an empty poll's too.

        What goes wrong unforeseen is a problem until the next good poll, and ends nothing.
        """
        self._is_first_in_hand = True
        while True:
            try:
                letters = await self.poll()
                self._problems.pop(_UNFORESEEN, None)
                await deliver(letters)
                self._is_first_in_hand = False
            except Exception as error:  # noqa: BLE001 - a mailbox that nobody polls any more looks healthy
                self._problems[_UNFORESEEN] = ProviderError(f"{type(error).__name__}: {error}")
                # What was read and perhaps not taken is read again.
                self._forget()
            await self._clock.sleep(self.pause_seconds())

    async def close(self) -> None:
        """Close what the reader has open."""
        await self._reader.close()

    def pause_seconds(self) -> float:
        """Return the time to the next poll: jitter only shortens it, failures at most double it."""
        longest = self._interval_seconds * min(_LONGEST_PAUSE, 1.0 + 0.25 * self._failures)
        return longest * (1.0 - 0.25 * self._chance())

    def _forget(self) -> None:
        """Have everything read and handed on again."""
        self._etags.clear()
        self._known.clear()

    def _wants_heartbeat(self) -> bool:
        read_at = self._heartbeat_read_at
        return (
            read_at is None
            # None was there yet: the relay may have started since.
            or self._heartbeat is None
            or HEARTBEAT_KEY in self._problems
            or self._clock.monotonic() - read_at >= _HEARTBEAT_SECONDS
        )

    def _take_heartbeat(self, result: Fetched | ProviderError | None) -> None:
        if result is None:
            return
        if isinstance(result, ProviderError):
            self._problems[HEARTBEAT_KEY] = result
            return
        self._heartbeat_read_at = self._clock.monotonic()
        if result.state != "new":
            return
        try:
            heartbeat = read_heartbeat(result.body, self._keys)
        except Malformed as error:
            self._problems[HEARTBEAT_KEY] = error
            return
        if self._heartbeat is None or heartbeat.at != self._heartbeat.at:
            self._heartbeat_new_at = self._clock.monotonic()
        self._heartbeat = heartbeat
        self._etags[HEARTBEAT_KEY] = result.etag

    def _take(self, to: Address, result: Fetched | ProviderError) -> list[Letter]:
        """Return what is new in one object, and keep what is wrong with it."""
        if isinstance(result, Denied) and self._heartbeat is not None and HEARTBEAT_KEY not in self._problems:
            # Who may read but not list is told 403 of what is not there (Amazon S3 API, GetObject,
            # "Permissions", 2026-11-29); that we may read is shown by the sign of life beside it.
            return []
        if isinstance(result, ProviderError):
            self._problems[to.key] = result
            return []
        if result.state != "new":
            if result.state == "missing":
                self._etags.pop(to.key, None)
            return []
        opened = read_letters(result.body, self._keys, to=to, now=self._clock.now())
        if opened.problem is not None:
            self._problems[to.key] = opened.problem
        elif not opened.early:
            self._etags[to.key] = result.etag
        fresh = [letter for letter in opened.letters if letter.letter_id not in self._known]
        for letter in fresh:
            if letter.letter_id not in opened.early:
                self._known[letter.letter_id] = None
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return fresh


def open_mailbox(
    url: str,
    keys: Sequence[str],
    clock: Clock,
    *,
    whose: Callable[[], Whose | None],
    environ: Mapping[str, str],
    credentials_file: str = "",
    interval_seconds: float = INTERVAL_SECONDS,
) -> DropletMailbox:
    """Return the mailbox of `provider.digitalocean.mailbox`; nothing is opened before its first poll.

    Args:
        url: `s3://`, `spaces://`, `file:///` or `https://`, as the relay writes it.
        keys: `whpk_…` texts; several during a rotation.
        clock: for ages and pauses.
        whose: returns whose letters to read; None: unknown yet.
        environ: holds the credentials of a bucket, unless there is a file.
        credentials_file: lines `SPACES_KEY=…`, for the mailbox alone: a trainer's key is another one. It is
            read again when the mailbox refuses.
        interval_seconds: between two polls.

    Raises:
        ConfigError: the address, a key or the file cannot be used.
    """
    if not keys:
        raise ConfigError(
            "provider.digitalocean.mailbox_keys is empty, so that no letter could be believed; it takes what "
            "`spotwatch relay --make-key FILE` prints (whpk_…)"
        )
    public = tuple(PublicKey.parse(text) for text in keys)
    reader = open_with_file(url, credentials_file, environ) if credentials_file else open_reader(url, environ)
    return DropletMailbox(reader, public, clock, whose=whose, interval_seconds=interval_seconds)


def _addresses(whose: Whose | None) -> list[Address]:
    if whose is None:
        return [BROADCAST]
    names = dict.fromkeys(name.strip().casefold() for name in whose.names if name.strip())
    return [Address(whose.droplet_id), *map(address_of_name, list(names)[:_MAX_NAMES]), BROADCAST]


def _gravity(error: ProviderError) -> int:
    """Return the rank of a problem: what the user must mend goes before what may mend itself."""
    return next((rank for rank, kind in enumerate((Denied, Malformed)) if isinstance(error, kind)), 2)
