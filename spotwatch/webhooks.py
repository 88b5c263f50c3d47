# SPDX-License-Identifier: Apache-2.0
"""Standard Webhooks 1.0.0: whether a request was signed by a holder of a secret, and whether it is a replay.

https://www.standardwebhooks.com (specification 1.0.0): the signature is HMAC-SHA256 over `id.timestamp.body`,
the body as raw bytes; `whsec_` secrets have 24 to 64 bytes; the id names the message, not the attempt. Only
symmetric `v1` signatures count here. The memory of what was acted on refuses rather than forgets: when it is
full, and for what was signed before a start that found its file unreadable.

It does not parse a body, and knows no provider. Standard library only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from spotwatch.errors import ConfigError, HandshakeError, SpotwatchError
from spotwatch.kept_state import KeptState

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
TOLERANCE_SECONDS = 300.0
CAPACITY = 10_000
KEEP_SECONDS = 3 * 3600.0
"""Longer than twice any tolerance, and than a two-hour window with its corrections."""
_MAX_CACHE_BYTES = 4 * 1024 * 1024
_CACHE_VERSION = 1

Novelty = Literal["new", "duplicate", "reused", "full", "unknown"]

_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)
_MAX_ID_CHARS = 256
_MAX_SIGNATURES = 16
_MAX_SIGNATURE_CHARS = 4096
# [0-9], not \d: that one takes the digits of every script.
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


class Rejected(SpotwatchError):
    """A request is not proven to come from a holder of a secret; tell the peer nothing but 401.

    Args:
        reason: for the log: `missing`, `malformed`, `signature`, or (rightly signed) `too old`, `too new`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def is_signed(self) -> bool:
        """Tell whether only the time was wrong: a replay, or a clock that is off."""
        return self.reason.startswith("too ")


def parse_secret(text: str) -> bytes:
    """Return the key in `whsec_<base64>`.

    Raises:
        ConfigError: it is empty, of another form, or not 24 to 64 bytes long; the text is not repeated.
    """
    mend = "make one with: echo whsec_$(openssl rand -base64 32)"
    text = text.strip()
    if not text:
        raise ConfigError(f"the webhook secret is empty; {mend}")
    if not text.startswith(_PREFIX):
        raise ConfigError(f"the webhook secret does not begin with {_PREFIX}; {mend}")
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX).encode(), validate=True)
    except ValueError as error:
        raise ConfigError(f"the webhook secret is not base64 after {_PREFIX}; {mend}") from error
    if len(secret) not in _SECRET_BYTES:
        raise ConfigError(f"the webhook secret has {len(secret)} bytes, not 24 to 64; {mend}")
    return secret


def sign(secret: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the `webhook-signature` header; `timestamp` is in Unix seconds."""
    return "v1," + base64.b64encode(_digest(secret, webhook_id, str(timestamp), body)).decode()


def signed_headers(secret: bytes, webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers of a signed request."""
    return {
        ID: webhook_id,
        TIMESTAMP: str(timestamp),
        SIGNATURE: sign(secret, webhook_id, timestamp, body),
    }


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[bytes],
    *,
    now: datetime,
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> str:
    """Return the id of a request that one of `secrets` has signed.

    Args:
        headers: names in lower case; a header sent twice is absent.
        body: as received, before anything has parsed it.
        secrets: all that are valid now; several during a rotation.
        now: aware.
        tolerance_seconds: how far the timestamp may be from `now`, either way.

    Raises:
        Rejected: it is not.
    """
    webhook_id, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    signatures = headers.get(SIGNATURE, "")
    if not (webhook_id and timestamp and signatures):
        raise Rejected("missing")
    if len(webhook_id) > _MAX_ID_CHARS or not (webhook_id.isascii() and webhook_id.isprintable()):
        raise Rejected("malformed")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise Rejected("malformed")
    given = _read_signatures(signatures)
    is_genuine = False
    for secret in secrets:
        expected = _digest(secret, webhook_id, timestamp, body)
        for candidate in given:
            # No early exit: the time taken says nothing about which secret or entry was right.
            is_genuine |= hmac.compare_digest(expected, candidate)
    if not is_genuine:
        raise Rejected("signature")
    # The time comes last, so that a clock that is off can be told from a stranger.
    age_seconds = now.timestamp() - int(timestamp)
    if age_seconds > tolerance_seconds:
        raise Rejected("too old")
    if age_seconds < -tolerance_seconds:
        raise Rejected("too new")
    return webhook_id


def signed_at(headers: Mapping[str, str]) -> datetime:
    """Return when a request that `verify` accepted was signed, aware UTC, whole seconds."""
    return datetime.fromtimestamp(int(headers[TIMESTAMP]), UTC)


class ReplayCache:
    """The ids of requests that had an effect, each with a digest of its body.

    Args:
        path: the file that outlives a restart; None: memory only, and a restart forgets.
        now: the start; aware.
        capacity: how many unexpired ids are kept.
        keep_seconds: how long; at least twice the verifier's tolerance.
        forgets: when it is full, the oldest goes instead of the newest being refused: for what may be
            repeated without harm.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        now: datetime,
        capacity: int = CAPACITY,
        keep_seconds: float = KEEP_SECONDS,
        forgets: bool = False,
    ) -> None:
        self._capacity = capacity
        self._keep_seconds = keep_seconds
        self._forgets = forgets
        self._kept: dict[str, tuple[float, str]] = {}
        self._unknown_before: datetime | None = None
        self._state = KeptState(path, self._to_bytes, limit=_MAX_CACHE_BYTES)
        try:
            self._load()
        except HandshakeError as error:
            self._state.problem = (
                f"replay cache unreadable, what was signed before this start is refused: {error}"
            )
            self._unknown_before = now

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def problem(self) -> str:
        """Return why the file could not be read or written; empty when it could."""
        return self._state.problem

    def novelty(self, webhook_id: str, body: bytes, *, signed_at: datetime, now: datetime) -> Novelty:
        """Tell whether a verified request is new.

        Returns:
            new: act on it, then `remember` it. duplicate: the same request once more. reused: its id was
            used for another body. full: no room to remember it. unknown: it may be a replay from before a
            restart that lost the memory.
        """
        found = self._kept.get(_hash(webhook_id.encode()))
        if found is not None and found[0] > now.timestamp():
            return "duplicate" if found[1] == _hash(body) else "reused"
        if self._unknown_before is not None and signed_at <= self._unknown_before:
            return "unknown"
        self._drop_expired(now)
        return "new" if self._forgets or len(self._kept) < self._capacity else "full"

    def remember(self, webhook_id: str, body: bytes, *, now: datetime) -> None:
        """Keep a request that has had its effect; `save` makes it last."""
        key = _hash(webhook_id.encode())
        self._kept.pop(key, None)
        while self._forgets and len(self._kept) >= self._capacity:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (now.timestamp() + self._keep_seconds, _hash(body))
        self._state.changed()

    def save(self) -> bool:
        """Write what has changed; tell whether all is on disk, or none is wanted there.

        May run in a thread beside `remember`, but only one at a time.
        """
        return self._state.save()

    def _drop_expired(self, now: datetime) -> None:
        """Drop the oldest ones that have expired, and look at all only when there is no room otherwise."""
        while self._kept and self._kept[key := next(iter(self._kept))][0] <= now.timestamp():
            del self._kept[key]
        if len(self._kept) >= self._capacity:
            # A clock that was set back has left them in another order.
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > now.timestamp()}

    def _to_bytes(self) -> bytes:
        rows = {key: list(value) for key, value in self._kept.copy().items()}
        return json.dumps({"version": _CACHE_VERSION, "kept": rows}).encode()

    def _load(self) -> None:
        body = self._state.read()
        if body is None:
            return
        try:
            self._kept = _read_rows(json.loads(body))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise HandshakeError(f"{self._state.path}: {type(error).__name__}") from error


def _read_signatures(text: str) -> list[bytes]:
    """Return the decoded `v1` entries; other versions and nonsense are left out."""
    entries = text.split(" ") if len(text) <= _MAX_SIGNATURE_CHARS else []
    if not entries or len(entries) > _MAX_SIGNATURES:
        raise Rejected("malformed")
    decoded = []
    for entry in entries:
        version, _, signature = entry.partition(",")
        if version != "v1":
            continue
        try:
            decoded.append(base64.b64decode(signature.encode("ascii"), validate=True))
        except (UnicodeEncodeError, binascii.Error):
            continue
    return decoded


def _digest(secret: bytes, webhook_id: str, timestamp: str, body: bytes) -> bytes:
    return hmac.new(secret, f"{webhook_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()


def _read_rows(document: Any) -> dict[str, tuple[float, str]]:
    if document["version"] != _CACHE_VERSION:
        raise ValueError("another version")
    return {str(key): (float(until), str(digest)) for key, (until, digest) in document["kept"].items()}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
