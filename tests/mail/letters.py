# SPDX-License-Identifier: Apache-2.0
"""Letters, keys and a mailbox in memory, for tests of what becomes of them.

It holds no test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from spotwatch.errors import ProviderError
from spotwatch.mail.mailbox import Address, Letter, LetterEvent, expiry
from spotwatch.mail.mailbox_client import Fetched
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.model import Evidence
from spotwatch.testing import EPOCH

KEY = SigningKey(b"k" * 32)
STRANGER = SigningKey(b"s" * 32)
OURS = 512345678
HOUR = timedelta(hours=1)


def letter(
    event: LetterEvent = "reclaim",
    *,
    to: Address = Address(OURS),  # noqa: B008 - frozen
    evidence: Literal["strong", "weak"] = "strong",
    issued_at: datetime = EPOCH,
    at: datetime | None = None,
    message: str = "m1",
) -> Letter:
    """Return a letter of a mail sent at `issued_at`, two hours before the end unless `at` says so."""
    if event != "cancel" and at is None:
        at = issued_at + 2 * HOUR
    return Letter(
        to=to,
        event=event,
        at=at,
        issued_at=issued_at,
        expires_at=expiry(at, issued_at),
        evidence=Evidence(evidence),
        message=message,
        detail="said by a test",
    )


@dataclass
class MemoryObjects:
    """A mailbox in a dictionary, which can be told to fail."""

    objects: dict[str, bytes] = field(default_factory=dict)
    errors: dict[str, ProviderError] = field(default_factory=dict)
    """By key; the empty one is for all."""
    asked: list[dict[str, str]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    flaps: bool = False
    """The ETag is another one at each reading, though nothing has changed."""

    async def fetch(self, etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
        """Return what became of each object."""
        self.asked.append(dict(etags))
        return {key: self._fetch(key, etag) for key, etag in etags.items()}

    async def put(self, key: str, body: bytes) -> None:
        """Keep an object."""
        error = self.errors.get(key) or self.errors.get("")
        if error is not None:
            raise error
        self.objects[key] = body
        self.written.append(key)

    async def close(self) -> None:
        """Do nothing."""

    def _fetch(self, key: str, etag: str) -> Fetched | ProviderError:
        error = self.errors.get(key) or self.errors.get("")
        if error is not None:
            return error
        if key not in self.objects:
            return Fetched(state="missing")
        now = hashlib.sha256(self.objects[key]).hexdigest() + (str(len(self.asked)) if self.flaps else "")
        if now == etag:
            return Fetched(state="same", etag=etag)
        return Fetched(state="new", body=self.objects[key], etag=now)
