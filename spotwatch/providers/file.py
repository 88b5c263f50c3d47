# SPDX-License-Identifier: Apache-2.0
"""Notices by hand or by another tool: a file in `notices/`, and an end that is known beforehand.

`notices/NAME.json` holds `{"do": "flush"|"stop", "deadline": RFC 3339 or null, "why": text}`; the file gone
is the notice withdrawn. `policy.ends_at` is a notice without any file.

It writes nothing, follows no link, and believes no file of a stranger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import ClassVar, Self

from spotwatch.errors import ConfigError, Denied, HandshakeError, Malformed, ProviderError
from spotwatch.handshake import NOTICES_DIR
from spotwatch.model import Answer, Certainty, Do, Kind, Notice, from_rfc3339, to_rfc3339
from spotwatch.providers import Context
from spotwatch.providers._folder import is_trusted_owner, list_trusted
from spotwatch.safe_files import read_owned_file
from spotwatch.untrusted import printable, read_moment, read_object, read_text

LISTING = "notices"
"""The directory was listed; this signal raises and withdraws."""
FILES = "notice_files"
"""Every file in it could be read; this one only says which could not."""
ENDS_AT = "ends_at"

_MAX_FILES = 256
_MAX_FILE_BYTES = 16 * 1024
_MAX_WHY_CHARS = 200
_MAX_NAMED = 20
"""Bad files beyond the first that are named in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the `file` provider."""

    interval_seconds: float = 0.5

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            ValueError: says which, and what is wanted.
        """
        if not 0 < self.interval_seconds <= 60:  # noqa: PLR2004 - a minute
            raise ValueError(f"interval_seconds {self.interval_seconds:g} is out of range; use above 0 to 60")


def parse(body: bytes, *, name: str, seen_at: datetime) -> Notice:
    """Return the notice in a file called `name` (without `.json`).

    Raises:
        Malformed: it is none; half-written, perhaps.
    """
    row = read_object(body)
    text = read_text(row, "do")
    if text not in (Do.FLUSH, Do.STOP):
        raise Malformed(f"'do' is {printable(text, 40)!r}; write flush or stop", body=body)
    do = Do(text)
    return Notice(
        id=f"file:{printable(name, 255)}",
        provider=File.name,
        signal=LISTING,
        kind=Kind.RECLAIM if do is Do.STOP else Kind.AT_RISK,
        seen_at=seen_at,
        deadline=read_moment(row, "deadline"),
        certainty=Certainty.EXACT,
        ends_machine=do is Do.STOP,
        detail=printable(read_text(row, "why"), _MAX_WHY_CHARS),
        do=do,
    )


class File:
    """Notices from the runtime directory and from the configuration.

    A file that cannot be read, or no longer, changes nothing: the notice it last held stays in force until it
    is gone, and the next poll reads it again.
    """

    name: ClassVar[str] = "file"
    config_class: ClassVar[type] = Config
    absence_withdraws: ClassVar[bool] = True

    def __init__(self, config: Config, context: Context) -> None:
        self._config = config
        self._clock = context.clock
        self._folder = context.runtime_dir / NOTICES_DIR
        self._ends_at = _read_ends_at(context.policy_times.get(ENDS_AT, ""))
        self._last: dict[str, Notice] = {}
        # Files that have been unreadable since the first poll: they may have held a notice in an earlier
        # life of the daemon, so nothing is withdrawn until they are whole or gone.
        self._never_read: set[str] | None = None

    async def __aenter__(self) -> Self:
        """Open nothing."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close nothing."""

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the names of the signals watched."""
        return (LISTING, FILES) if self._ends_at is None else (LISTING, FILES, ENDS_AT)

    @property
    def interval_seconds(self) -> float:
        """Return the time between two looks at the directory."""
        return self._config.interval_seconds

    async def detect(self) -> bool:
        """Say no: files are watched on every machine, and are no cloud."""
        return False

    async def wait(self) -> None:
        """Return after the interval."""
        await self._clock.sleep(self._config.interval_seconds)

    async def notices(self) -> Answer:
        """Return what the files and the configuration say now."""
        now = self._clock.now()
        answered: set[str] = set()
        failed: dict[str, ProviderError] = {}
        found: list[Notice] = []
        try:
            problem = self._read_folder(now)
        except ProviderError as error:
            failed[LISTING] = error
        else:
            found.extend(self._last.values())
            if problem is None:
                answered.add(FILES)
            else:
                failed[FILES] = problem
            if self._never_read and problem is not None:
                failed[LISTING] = problem
            else:
                answered.add(LISTING)
        if self._ends_at is not None:
            found.append(_known_end(self._ends_at, now))
            answered.add(ENDS_AT)
        # Our own clock is the server's here: an end long past at the start is left over, not news.
        return Answer(notices=tuple(found), answered=frozenset(answered), failed=failed, server_at=now)

    def _read_folder(self, now: datetime) -> ProviderError | None:
        """Bring `_last` up to date, and return what is wrong: the first bad file, and the others by name.

        Raises:
            ProviderError: the directory itself cannot be trusted or listed; nothing was changed.
        """
        names, folder_gid = list_trusted(self._folder)
        bad: dict[str, ProviderError] = {}
        last: dict[str, Notice] = {}
        for name in names[:_MAX_FILES]:
            try:
                notice = self._read_file(name, folder_gid, now)
            except ProviderError as error:
                bad[name] = error
                notice = self._last.get(name)
            if notice is not None:
                last[name] = notice
        self._last = last
        self._never_read = set(bad) if self._never_read is None else self._never_read & bad.keys()
        if bad:
            return _summary(bad)
        if len(names) > _MAX_FILES:
            return Malformed(f"{len(names)} files, of which the first {_MAX_FILES} are read")
        return None

    def _read_file(self, name: str, folder_gid: int, now: datetime) -> Notice | None:
        path = self._folder / name
        shown = printable(name, 80)
        try:
            read = read_owned_file(path, limit=_MAX_FILE_BYTES)
        except HandshakeError as error:
            raise Malformed(printable(str(error), 300), mend=f"remove {shown}") from error
        if read is None:
            return None
        body, uid = read
        if not is_trusted_owner(uid, folder_gid):
            raise Denied(
                f"{shown} is owned by uid {uid}, who is neither root, nor us, nor in the directory's group",
                mend=f"write it as another user, or add uid {uid} to group {folder_gid}",
            )
        try:
            return parse(body, name=name.removesuffix(".json"), seen_at=now)
        except Malformed as error:
            raise Malformed(f"{shown}: {error}", body=body, mend="write it whole, or remove it") from error


def _summary(bad: Mapping[str, ProviderError]) -> ProviderError:
    """Return the problem of the first bad file, with the names of the others, which need a look as well."""
    (_, first), *others = bad.items()
    if not others:
        return first
    shown = ", ".join(printable(name, 40) for name, _ in others[:_MAX_NAMED])
    text = f"{first}; and {len(others)} more: {shown}" + (", ..." if len(others) > _MAX_NAMED else "")
    if isinstance(first, Malformed):
        return Malformed(text, body=first.body, mend=first.mend)
    return type(first)(text, mend=first.mend)


def _read_ends_at(text: str) -> datetime | None:
    if not text:
        return None
    try:
        return from_rfc3339(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"policy.ends_at = {text!r}: {error}") from error


def _known_end(ends_at: datetime, now: datetime) -> Notice:
    return Notice(
        id=f"{ENDS_AT}:{to_rfc3339(ends_at)}",
        provider=File.name,
        signal=ENDS_AT,
        kind=Kind.RECLAIM,
        seen_at=now,
        deadline=ends_at,
        certainty=Certainty.EXACT,
        detail="the end set in policy.ends_at",
    )


PROVIDER = File
