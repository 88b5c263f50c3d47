# SPDX-License-Identifier: Apache-2.0
"""How a relay writes its mailbox: what is in force for an address, and its sign of life.

What the mailbox already holds is read first and joined, so that a relay that has lost its own state, or
stands beside another one with the same key, displaces nothing. It does not try again: the outbox does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from spotwatch.errors import ConfigError, Denied, HandshakeError, Malformed, Unavailable
from spotwatch.mail.mailbox import HEARTBEAT_KEY, Address, Heartbeat, Letter, join
from spotwatch.mail.mailbox_client import Fetched, FileReader, Reader, file_root
from spotwatch.mail.mailbox_form import others_letters, read_letters, write_heartbeat, write_letters
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.model import Evidence
from spotwatch.safe_files import write_atomically

_MEND_LIST = (
    "let the relay's key list the bucket as well (s3:ListBucket): without it what is missing looks like what "
    "is forbidden, and nothing weak is written, which could displace a proven letter. After a rotation "
    "of the key restart the relay; and check the clock"
)
_MEND_OTHERS = "look who else writes to the mailbox: its bucket is for the relays of one fleet alone"


class Objects(Reader, Protocol):
    """A mailbox that one may write to."""

    async def put(self, key: str, body: bytes) -> None:
        """Store an object whole.

        Raises:
            ProviderError: it was refused, or not answered.
        """


def open_objects(url: str, environ: Mapping[str, str]) -> Objects:
    """Return a mailbox to write to; nothing is opened before its first use.

    Args:
        url: `s3://BUCKET/PREFIX`, `spaces://BUCKET/PREFIX` or `file:///DIR`.
        environ: holds credentials and endpoints: `AWS_*`, `SPACES_*`.

    Raises:
        ConfigError: it is none of these, or a variable is missing.
    """
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return FileObjects(file_root(url))
    if scheme not in ("s3", "spaces"):
        raise ConfigError(
            f"relay.mailbox: {scheme or 'nothing'}:// cannot be written to; have s3, spaces, file"
        )
    # Imported late: it belongs to buckets, and brings what they need.
    from spotwatch.mail.mailbox_bucket import BucketObjects, bucket_of  # noqa: PLC0415

    return BucketObjects(*bucket_of(url, environ))


class FileObjects(FileReader):
    """A mailbox in a directory.

    Args:
        root: made when first written to.
    """

    async def put(self, key: str, body: bytes) -> None:
        """Put a file in place, whole."""
        path = self._root / key
        try:
            await asyncio.to_thread(_put, path, body)
        except (HandshakeError, OSError) as error:
            raise Unavailable(f"cannot write {path}: {error}") from error


class MailboxWriter:
    """Writes signed objects.

    Args:
        objects: the mailbox.
        key: signs.
    """

    def __init__(self, objects: Objects, key: SigningKey) -> None:
        self._objects = objects
        self._key = key
        # A bucket answers one request at a time, and what was read must still hold when it is written.
        self._turn = asyncio.Lock()

    async def put(self, to: Address, letters: Sequence[Letter], *, now: datetime) -> None:
        """Join `letters` with what the mailbox holds for `to`, and write that.

        Raises:
            ProviderError: the mailbox cannot be read or written now.
        """
        async with self._turn:
            await self._put(to, letters, now)

    async def beat(self, heartbeat: Heartbeat) -> None:
        """Write the sign of life.

        Raises:
            ProviderError: the mailbox cannot be written now.
        """
        async with self._turn:
            await self._objects.put(HEARTBEAT_KEY, write_heartbeat(heartbeat, self._key))

    async def close(self) -> None:
        """Close what is open."""
        await self._objects.close()

    async def _put(self, to: Address, letters: Sequence[Letter], now: datetime) -> None:
        raw = await self._raw(to, is_strong=any(one.evidence is Evidence.STRONG for one in letters))
        held = self._read(raw or b"", to, now)
        joined = held
        for letter in letters:
            joined = join(joined, letter, now=now)
        # What a relay with another key has written, before a rotation perhaps, is not ours to judge: the
        # Droplets know which keys count, and a letter of theirs must not be lost by one of ours.
        others = others_letters(raw or b"", (self._key.public,), now=now)
        body = write_letters(joined, self._key, now=now, others=others)
        wanted = self._ids(self._read(body, to, now))
        if wanted == self._ids(held):
            return
        await self._objects.put(to.key, body)
        # Who was told that it is written relies on it: another relay, or a bucket that lies, is seen now.
        if raw is not None:
            now_there = await self._raw(to, is_strong=True)
            if self._ids(self._read(now_there or b"", to, now)) != wanted:
                raise Malformed(f"{to.key} holds something else than was written", mend=_MEND_OTHERS)

    async def _raw(self, to: Address, *, is_strong: bool) -> bytes | None:
        """Return what the mailbox holds for `to`, empty if nothing; None: it cannot be read.

        Args:
            to: whose object.
            is_strong: what is to be written is proven, and may replace what nobody can read.

        Raises:
            ProviderError: it does not answer; or a strong letter may be there that a weak one would displace.
        """
        found = (await self._objects.fetch({to.key: ""}))[to.key]
        if isinstance(found, Fetched):
            return found.body if found.state == "new" else b""
        if isinstance(found, Unavailable) or not is_strong:
            if isinstance(found, Denied):
                raise Denied(str(found), mend=_MEND_LIST)
            raise found
        # 403 is also what is missing, to who may not list; then what we know ourselves has to do.
        return None

    def _read(self, body: bytes, to: Address, now: datetime) -> tuple[Letter, ...]:
        return read_letters(body, (self._key.public,), to=to, now=now).letters

    @staticmethod
    def _ids(letters: Sequence[Letter]) -> frozenset[str]:
        """Return what tells letters apart as they are written: a moment loses its microseconds there."""
        return frozenset(letter.letter_id for letter in letters)


def _put(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whoever may enter the directory may read: the letters are signed, and no secret.
    write_atomically(path, body, mode=0o644)
