# SPDX-License-Identifier: Apache-2.0
"""The keys that Amazon SNS signs with, and the certificates that have proven a message, kept over restarts.

So a flood of messages with invented certificates, while the host of the real ones is asked as often as it may
be, does not keep out the one genuine message: its certificate has been here since the subscription was
confirmed. What a certificate must be is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from spotwatch.clock import Clock
from spotwatch.errors import HandshakeError, Malformed
from spotwatch.kept_state import KeptState
from spotwatch.mail.inbound._sns import Topic
from spotwatch.mail.inbound._sns_asking import Asking
from spotwatch.mail.inbound._sns_certificate import (
    MAX_BYTES,
    Certificate,
    NoSuchFile,
    download,
    read_certificate,
)

FILE = "sns-certificates.json"
_VERSION = 1
_CAPACITY = 8
_MAX_FILE_BYTES = 2 * _CAPACITY * MAX_BYTES


class Keys:
    """Signing keys by the address of their certificate, fetched when first asked for.

    Args:
        clock: what time it is.
        fetch: returns the bytes at an address, or raises Unavailable or Malformed; None: Amazon's hosts.
        path: where the certificates that have proven a message outlive a restart; None: memory only.
    """

    def __init__(
        self,
        clock: Clock,
        fetch: Callable[[str], Awaitable[bytes]] | None = None,
        *,
        path: Path | None = None,
    ) -> None:
        self._clock = clock
        self._fetch = fetch or download
        self._read: dict[str, Certificate] = {}
        self._files: dict[str, bytes] = {}
        """As fetched, those of `_read`."""
        self._proven: dict[str, bytes] = {}
        """Those that have proven a message, the latest last."""
        self._asking = Asking()
        self._state = KeptState(path, self._to_bytes, limit=_MAX_FILE_BYTES)
        self._saving = asyncio.Lock()
        try:
            self._load()
        except HandshakeError as error:
            # They are fetched again; a new file takes the place of this one.
            self._state.problem = str(error)

    @property
    def problem(self) -> str:
        """Return why the file could not be read or written; empty when it could."""
        return self._state.problem

    async def find(self, url: str, topic: Topic, *, peer: str = "") -> Any:
        """Return the RSA key of the certificate at `url`.

        Args:
            url: put together by the caller.
            topic: whose message it is.
            peer: who has sent it.

        Raises:
            Unavailable: it cannot be had now.
            Malformed: it is no certificate that SNS signs messages of `topic` with.
        """
        now = self._clock.now()
        known = self._read.get(url) or self._from_file(url, topic)
        if known is None or known.until < now:
            self._asking.begin(url, peer, self._clock.monotonic())
            try:
                found = await self._fetch(url)
            except NoSuchFile:
                self._asking.missing(url, self._clock.monotonic())
                raise
            known = read_certificate(found, topic, now)
            self._remember(url, found, known)
        return known.key

    async def vouch(self, url: str, peer: str) -> None:
        """Say that the certificate at `url` has proven a message of `peer`; it is kept for good."""
        is_new = self._asking.vouch(peer)
        found = self._files.get(url, self._proven.get(url))
        if found is not None and self._proven.get(url) != found:
            self._proven.pop(url, None)
            self._proven[url] = found
            while len(self._proven) > _CAPACITY:
                del self._proven[next(iter(self._proven))]
            is_new = True
        if is_new:
            self._state.changed()
        async with self._saving:
            await asyncio.to_thread(self._state.save)

    def _from_file(self, url: str, topic: Topic) -> Certificate | None:
        """Return what an earlier life has kept, if it still counts."""
        found = self._proven.get(url)
        if found is None:
            return None
        try:
            known = read_certificate(found, topic, self._clock.now())
        except Malformed:
            # Expired, or what somebody else has written into the file.
            del self._proven[url]
            return None
        self._remember(url, found, known)
        return known

    def _remember(self, url: str, found: bytes, known: Certificate) -> None:
        for kept in (self._read, self._files):
            kept.pop(url, None)
        while len(self._read) >= _CAPACITY:
            # Anybody may name certificates that SNS has signed with long ago, for others.
            oldest = next((one for one in self._read if one not in self._proven), next(iter(self._read)))
            del self._read[oldest], self._files[oldest]
        self._read[url], self._files[url] = known, found

    def _to_bytes(self) -> bytes:
        certificates = {url: found.decode("ascii") for url, found in self._proven.copy().items()}
        row = {"version": _VERSION, "certificates": certificates, "networks": list(self._asking.known)}
        return json.dumps(row).encode()

    def _load(self) -> None:
        body = self._state.read()
        if body is None:
            return
        try:
            row = json.loads(body)
            if row["version"] != _VERSION:
                raise ValueError("another version")
            certificates = {str(url): str(text).encode("ascii") for url, text in row["certificates"].items()}
            asking = Asking(str(network) for network in row["networks"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise HandshakeError(f"{self._state.path}: {type(error).__name__}") from error
        self._proven = dict(list(certificates.items())[-_CAPACITY:])
        self._asking = asking
