# SPDX-License-Identifier: Apache-2.0
"""Which Droplets there are: those of the configuration, and those that the API lists, the last list kept.

An API that is away makes nobody forgotten, also after a restart; but who has come since, is not known then.
It does not know what a mail says of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from spotwatch.clock import Clock
from spotwatch.config import RelayDroplet
from spotwatch.errors import HandshakeError, Malformed, ProviderError, Unavailable
from spotwatch.mail.model import Droplet
from spotwatch.model import from_rfc3339, to_rfc3339
from spotwatch.safe_files import read_small_file, write_atomically
from spotwatch.untrusted import read_object

REFRESH_SECONDS = 60.0
FRESH_SECONDS = 180.0
"""A list that is older may lack a Droplet, or give its name to one that is gone."""
FILE = "relay-fleet.json"

_VERSION = 1
_MAX_BYTES = 16 * 1024 * 1024

List = Callable[[], Awaitable[tuple[Droplet, ...]]]


class Fleet:
    """The Droplets that a mail may be about.

    Args:
        configured: `[[relay.droplet]]`; what they say goes before the API's word.
        ask: returns the account's Droplets, or raises `ProviderError`; None: the API is not asked.
        clock: for the age of a list.
        state_dir: where the last good list is kept; None: nowhere.
    """

    def __init__(
        self,
        configured: Sequence[RelayDroplet],
        ask: List | None,
        clock: Clock,
        *,
        state_dir: Path | None,
    ) -> None:
        self._configured = tuple(map(_configured, configured))
        self._ask = ask
        self._clock = clock
        self._path = None if state_dir is None or ask is None else state_dir / FILE
        self._listed: tuple[Droplet, ...] = ()
        self.listed_at: datetime | None = None
        """When the API gave the list, before a restart perhaps; None: never."""
        self._heard_at: float | None = None
        self._is_answered = ask is None
        self.problem: ProviderError | None = None
        """Why the list gets old, or is not kept; None: neither."""
        self._load()

    @property
    def is_known(self) -> bool:
        """Tell whether the list is whole: there is no API, or it has answered within the last minutes."""
        if self._ask is None:
            return True
        if self._heard_at is not None:
            return self._clock.boot() - self._heard_at <= FRESH_SECONDS
        if self.listed_at is None:
            return False
        # A list from the future was kept by another clock than this one.
        return 0 <= (self._clock.now() - self.listed_at).total_seconds() <= FRESH_SECONDS

    @property
    def is_current(self) -> bool:
        """Tell whether who is not in the list is nobody: the API answered the last time it was asked."""
        return self.is_known and self._is_answered

    @property
    def droplets(self) -> tuple[Droplet, ...]:
        """Return all of them, each once."""
        ours = {one.droplet_id for one in self._configured}
        return (*self._configured, *(one for one in self._listed if one.droplet_id not in ours))

    @property
    def sole(self) -> Droplet | None:
        """Return the only Droplet there is; None: there are others, or it is not known whether."""
        droplets = self.droplets
        return droplets[0] if self.is_known and len(droplets) == 1 else None

    def called(self, name: str) -> tuple[Droplet, ...]:
        """Return those of that name; more than one: the name is nobody's own."""
        wanted = name.strip().casefold()
        return tuple(one for one in self.droplets if wanted in one.names or wanted == one.hostname.casefold())

    async def refresh(self) -> None:
        """Ask the API once; what is wrong is in `problem`, and the last good list stays."""
        if self._ask is None:
            return
        try:
            listed = await self._ask()
        except ProviderError as error:
            self.problem, self._is_answered = error, False
            return
        self.problem, self._listed, self._is_answered = None, listed, True
        self.listed_at, self._heard_at = self._clock.now(), self._clock.boot()
        # Each time, as its age counts.
        await asyncio.to_thread(self._save, listed, self.listed_at)

    def _save(self, listed: Sequence[Droplet], listed_at: datetime) -> None:
        if self._path is None:
            return
        rows = [
            {
                "id": one.droplet_id,
                "names": sorted(one.names),
                "hostname": one.hostname,
                "addresses": sorted(one.addresses),
            }
            for one in listed
        ]
        row = {"version": _VERSION, "listed_at": to_rfc3339(listed_at), "droplets": rows}
        try:
            write_atomically(self._path, json.dumps(row).encode(), mode=0o600)
        except HandshakeError as error:
            # The list itself is here; only a restart without an API would miss it.
            self.problem = Unavailable(str(error))

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            body = read_small_file(self._path, limit=_MAX_BYTES)
            if body is None:
                return
            row = read_object(body)
            if row.get("version") != _VERSION:
                raise Malformed("another version")
            listed = tuple(map(_kept, row["droplets"]))
            # One without a time is as good as an old one.
            listed_at = from_rfc3339(row["listed_at"]) if "listed_at" in row else None
        except (HandshakeError, Malformed, KeyError, TypeError, ValueError) as error:
            self.problem = Unavailable(f"{self._path} is unreadable, the API must be asked: {error}")
            return
        self._listed, self.listed_at = listed, listed_at


def _configured(one: RelayDroplet) -> Droplet:
    return Droplet(
        droplet_id=one.id,
        names=frozenset(name.strip().casefold() for name in one.names if name.strip()),
        addresses=frozenset(one.addresses),
    )


def _kept(row: Any) -> Droplet:
    return Droplet(
        droplet_id=int(row["id"]),
        names=frozenset(map(str, row["names"])),
        hostname=str(row["hostname"]),
        addresses=frozenset(map(str, row["addresses"])),
    )
