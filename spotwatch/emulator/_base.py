# SPDX-License-Identifier: Apache-2.0
"""What a played cloud is: pages computed from what was announced, the time and the mood.

It does not know sockets, nor how an answer is spoilt on its way; pages are pure but for tokens and etags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, ClassVar

from spotwatch.clock import Clock
from spotwatch.emulator.faults import Mood
from spotwatch.errors import ConfigError

IDENTITY = "identity"
"""The signal name of every page that says which machine this is."""
PAST_SECONDS = 3600.0
"""How long before its announcement the past-time fault puts a notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One complete request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One complete answer."""

    status: int = HTTPStatus.OK
    body: bytes = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """No answer yet: ask the cloud again after a change, or with `expired` after the time."""

    seconds: float | None
    """None: for as long as the client stays."""
    etag: str
    expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A notice in force."""

    id: str
    signal: str
    at: datetime
    window_seconds: float
    details: Mapping[str, Any]

    def deadline(self, mood: Mood, now: datetime) -> datetime:
        """Return the deadline as this mood tells it."""
        start = now if mood.sliding else self.at
        ahead = -PAST_SECONDS if mood.past else self.window_seconds
        return start + timedelta(seconds=ahead + mood.skew_seconds)


@dataclass(kw_only=True)
class Cloud(ABC):
    """One cloud's metadata service. Fields are what its owner chose; `notices` is what it says now."""

    clock: Clock
    notices: list[Announced] = field(default_factory=list, init=False)
    counter: int = field(default=0, init=False)
    """Raised by each announcement and withdrawal."""

    name: ClassVar[str]
    signals: ClassVar[tuple[str, ...]]
    """What can be announced; the first is the main reclaim notice."""
    pages: ClassVar[tuple[str, ...]]
    """What a fault can be put on."""
    closes: ClassVar[bool] = False
    """The service ends the connection after each answer."""

    @abstractmethod
    def environment(self, base_url: str) -> dict[str, str]:
        """Return the variables that point a daemon at `base_url`."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Return the id of the machine played."""

    @abstractmethod
    def page_of(self, path: str) -> str:
        """Return the page name of `path`, for faults and records; empty when it has none."""

    def tells(self, page: str) -> bool:
        """Tell whether `page` shows notices."""
        return page in self.signals

    @abstractmethod
    def answer(self, asked: Asked, mood: Mood, hold: Hold | None = None) -> Reply | Hold:
        """Return the answer; `hold` is what an earlier call for the same request returned."""

    @abstractmethod
    def error_page(self, status: int) -> Reply:
        """Return this cloud's page for a failure."""

    def page_for_fault(self, signal: str) -> str:
        """Return the page that a fault on `signal` concerns.

        Raises:
            ConfigError: there is none.
        """
        if signal not in self.pages:
            raise ConfigError(f"unknown signal {signal!r} of {self.name}; have {', '.join(self.pages)}")
        return signal

    def announce(self, signal: str | None, window_seconds: float, details: Mapping[str, Any]) -> Announced:
        """Put a notice in force and return it; `check` has refused what makes no sense.

        Raises:
            ConfigError: the cloud has no such signal, or the signal no such detail.
        """
        wanted = self.known(signal) or self.signals[0]
        allowed = self.details_of(wanted)
        strange = sorted(set(details) - set(allowed))
        if strange:
            have = ", ".join(allowed) or "none"
            raise ConfigError(f"unknown detail {strange[0]!r} of {self.name} {wanted}; have {have}")
        self.counter += 1
        notice = Announced(
            id=str(details.get("event_id") or self.new_id(wanted)),
            signal=wanted,
            at=self.clock.now(),
            window_seconds=window_seconds,
            details=dict(details),
        )
        self.notices = [n for n in self.notices if not self.replaces(notice, n)] + [notice]
        return notice

    def withdraw(self, signal: str | None) -> tuple[Announced, ...]:
        """Take back every notice, or those of one signal, and return them.

        Raises:
            ConfigError: the cloud has no such signal.
        """
        wanted = self.known(signal)
        gone = tuple(n for n in self.notices if wanted is None or n.signal == wanted)
        self.notices = [n for n in self.notices if n not in gone]
        self.counter += 1
        return gone

    def known(self, signal: str | None) -> str | None:
        """Return `signal`.

        Raises:
            ConfigError: it cannot be announced here.
        """
        if signal is not None and signal not in self.signals:
            raise ConfigError(f"unknown signal {signal!r} of {self.name}; have {', '.join(self.signals)}")
        return signal

    def details_of(self, signal: str) -> tuple[str, ...]:
        """Return the details that `announce` takes for `signal`."""
        del signal
        return ()

    def replaces(self, new: Announced, old: Announced) -> bool:
        """Tell whether `new` takes the place of `old`: one notice a signal, unless a cloud lists several."""
        return new.signal == old.signal

    def new_id(self, signal: str) -> str:
        """Return an id for a notice that was given none."""
        return f"{signal}-{self.counter}"

    def expire(self) -> None:  # noqa: B027 - most clouds hand out no credential
        """Forget every credential handed out."""

    def in_force(self, signal: str, mood: Mood) -> Announced | None:
        """Return the newest notice of `signal`, or None when there is none to be seen in this mood."""
        # A service that speaks for one machine never shows a neighbour's notice.
        if mood.hidden or mood.neighbour:
            return None
        return next((n for n in reversed(self.notices) if n.signal == signal), None)
