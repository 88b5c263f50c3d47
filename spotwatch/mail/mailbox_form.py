# SPDX-License-Identifier: Apache-2.0
"""How letters and the sign of life are written as objects: JSON in which each text is signed by itself.

`{"letters": [{"webhook-id", "webhook-timestamp", "webhook-signature", "body"}, ...]}`: a body is read only
after its signature holds (Standard Webhooks 1.0.0, ed25519), and what does not hold is left out without the
rest. It does not fetch or keep objects.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from spotwatch.errors import Malformed
from spotwatch.mail.mailbox import EXPIRES_AFTER, MAX_STRONG, Address, Heartbeat, Letter, LetterEvent
from spotwatch.mail.mailbox_keys import PublicKey, SigningKey, is_signed
from spotwatch.model import Evidence, to_rfc3339
from spotwatch.untrusted import printable, read_moment, read_object, read_text

VERSION = 1
MAX_OBJECT_BYTES = 64 * 1024

_MAX_ID = 2**53
_MAX_LETTERS = 16
# The rest is for our own: the strong ones and a weak one.
_MAX_OTHERS = _MAX_LETTERS - MAX_STRONG - 1
_MAX_OTHERS_CHARS = 4096
_MAX_DETAIL_CHARS = 200
_MAX_INTERVAL_SECONDS = 86400.0
# What is signed for later than this comes from a clock that is wrong, ours or the relay's.
_AHEAD = timedelta(minutes=10)
# A letter of a later version, whose end we cannot read: two hours of notice, and what a letter outlives it.
_UNREADABLE_LASTS = timedelta(hours=2) + EXPIRES_AFTER
_ENVELOPE = ("webhook-id", "webhook-timestamp", "webhook-signature", "body")
_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What an object holds for its address."""

    letters: tuple[Letter, ...] = ()
    """Verified, in force, the oldest first."""
    problem: Malformed | None = None
    """Why part of it was left out."""
    early: frozenset[str] = frozenset()
    """Letters out of the future: once their time has come they are worth more."""


def write_letters(
    letters: Iterable[Letter],
    key: SigningKey,
    *,
    now: datetime,
    others: Iterable[Mapping[str, str]] = (),
) -> bytes:
    """Return the object that holds `letters`, each signed at `now`, and beside them `others` as they are."""
    envelopes = [*others, *(_seal(pack(letter), key, now) for letter in letters)]
    return json.dumps({"letters": envelopes}, indent=1).encode()


def pack(letter: Letter) -> dict[str, Any]:
    """Return what is written of a letter, and can be read again by `unpack`."""
    return {
        "version": VERSION,
        "event": letter.event,
        "droplet_id": letter.to.droplet_id,
        "name_hash": letter.to.name_hash,
        "at": None if letter.at is None else to_rfc3339(letter.at),
        "issued_at": to_rfc3339(letter.issued_at),
        "expires_at": to_rfc3339(letter.expires_at),
        "evidence": str(letter.evidence),
        "message": letter.message,
        "detail": letter.detail[:_MAX_DETAIL_CHARS],
    }


def unpack(row: dict[str, Any], *, now: datetime) -> Letter:
    """Return the letter in what `pack` made, from a place where nobody else can write; it has no id.

    Raises:
        Malformed: it is none.
    """
    return _read_letter("", now, row, to=_read_address(row), now=now)


def others_letters(raw: bytes, keys: Sequence[PublicKey], *, now: datetime) -> tuple[dict[str, str], ...]:
    """Return the newest of what somebody else than `keys` may have signed in an object, unread.

    What is too large for a letter, or says itself that it was signed too long ago to be in force, is not of
    them.
    """
    try:
        envelopes = _envelopes(raw)
    except Malformed:
        return ()
    found = []
    for envelope in envelopes:
        kept = {name: text for name in _ENVELOPE if isinstance(text := envelope.get(name), str)}
        text = "".join(kept.values())
        if len(kept) < len(_ENVELOPE) or len(text) > _MAX_OTHERS_CHARS:
            continue
        if not (text.isascii() and text.isprintable() and _ID.fullmatch(kept["webhook-id"])):
            continue
        if not _TIMESTAMP.fullmatch(kept["webhook-timestamp"]):
            continue
        age = timedelta(seconds=now.timestamp() - int(kept["webhook-timestamp"]))
        if -_AHEAD <= age <= _UNREADABLE_LASTS and not _is_by(keys, kept):
            found.append(kept)
    return tuple(sorted(found, key=lambda kept: int(kept["webhook-timestamp"]))[-_MAX_OTHERS:])


def read_letters(raw: bytes, keys: Sequence[PublicKey], *, to: Address, now: datetime) -> Opened:
    """Return the letters of an object that concern `to`; those that do not count are left out.

    Args:
        raw: the object, from anybody who may write to the bucket.
        keys: whose signature counts.
        to: whom the object's name is for; a letter to another is one that was moved.
        now: aware.
    """
    problems: list[Malformed] = []
    letters, early = [], set()
    try:
        envelopes = _envelopes(raw)
    except Malformed as error:
        return Opened(problem=error)
    for envelope in envelopes:
        try:
            letter_id, signed_at, row = _open(envelope, keys)
            letters.append(_read_letter(letter_id, signed_at, row, to=to, now=now))
            if signed_at > now + _AHEAD:
                early.add(letter_id)
        except Malformed as error:
            problems.append(error)
    in_force = [letter for letter in letters if letter.expires_at > now]
    return Opened(
        letters=tuple(sorted(in_force, key=lambda letter: letter.issued_at)),
        problem=problems[0] if problems else None,
        early=frozenset(early),
    )


def write_heartbeat(heartbeat: Heartbeat, key: SigningKey) -> bytes:
    """Return the object that says that the relay lives."""
    row = {
        "version": VERSION,
        "event": "heartbeat",
        "at": to_rfc3339(heartbeat.at),
        "interval_seconds": heartbeat.interval_seconds,
    }
    return json.dumps(_seal(row, key, heartbeat.at), indent=1).encode()


def read_heartbeat(raw: bytes, keys: Sequence[PublicKey]) -> Heartbeat:
    """Return a relay's sign of life.

    Raises:
        Malformed: it is none, or signed by nobody we know.
    """
    _, signed_at, row = _open(read_object(_limited(raw)), keys)
    if read_text(row, "event") != "heartbeat":
        raise Malformed("a signed object that is no heartbeat")
    interval = row.get("interval_seconds")
    if not isinstance(interval, int | float) or isinstance(interval, bool):
        interval = 0.0
    at = read_moment(row, "at") or signed_at
    return Heartbeat(at=at, interval_seconds=min(max(0.0, float(interval)), _MAX_INTERVAL_SECONDS))


def _seal(row: dict[str, Any], key: SigningKey, now: datetime) -> dict[str, str]:
    body = json.dumps(row, separators=(",", ":"), ensure_ascii=True)
    webhook_id = f"msg_{hashlib.sha256(body.encode()).hexdigest()[:32]}"
    timestamp = int(now.timestamp())
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": key.sign(webhook_id, timestamp, body.encode()),
        "body": body,
    }


def _limited(raw: bytes) -> bytes:
    if len(raw) > MAX_OBJECT_BYTES:
        raise Malformed(f"object of {len(raw)} bytes, more than {MAX_OBJECT_BYTES}")
    if not raw:
        raise Malformed("object is empty")
    return raw


def _envelopes(raw: bytes) -> list[dict[str, Any]]:
    found = read_object(_limited(raw)).get("letters")
    if not isinstance(found, list) or len(found) > _MAX_LETTERS:
        raise Malformed(f"'letters' is no list of at most {_MAX_LETTERS}", body=raw)
    if not all(isinstance(one, dict) for one in found):
        raise Malformed("a letter is no object", body=raw)
    return found


def _open(envelope: dict[str, Any], keys: Sequence[PublicKey]) -> tuple[str, datetime, dict[str, Any]]:
    """Return id, moment of signing and content of what one of `keys` has signed.

    Raises:
        Malformed: nobody whom we know has signed it.
    """
    webhook_id, timestamp = read_text(envelope, "webhook-id"), read_text(envelope, "webhook-timestamp")
    body = read_text(envelope, "body").encode()
    if not _ID.fullmatch(webhook_id) or not _TIMESTAMP.fullmatch(timestamp):
        raise Malformed("unsigned: webhook-id or webhook-timestamp is missing or of another form")
    if not _is_by(keys, envelope):
        raise Malformed(
            "the signature is of none of mailbox_keys",
            mend="compare mailbox_keys with what `spotwatch relay --make-key` printed; if they agree, "
            "somebody else writes to the mailbox",
        )
    try:
        signed_at = datetime.fromtimestamp(int(timestamp), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise Malformed(f"webhook-timestamp {timestamp} is no time") from error
    return webhook_id, signed_at, read_object(body)


def _is_by(keys: Sequence[PublicKey], envelope: Mapping[str, Any]) -> bool:
    webhook_id, timestamp, signature, body = (read_text(envelope, name) for name in _ENVELOPE)
    return is_signed(keys, signature, webhook_id, timestamp, body.encode())


def _read_letter(
    letter_id: str, signed_at: datetime, row: dict[str, Any], *, to: Address, now: datetime
) -> Letter:
    """Return a verified letter.

    Raises:
        Malformed: it is to another, or not as documented.
    """
    version = row.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise Malformed("a letter without a version")
    addressee = _read_address(row)
    if addressee != to:
        raise Malformed("a letter to another Droplet; somebody has moved it")
    if version > VERSION:
        return _of_later_version(letter_id, signed_at, version, to)
    event = read_text(row, "event")
    if event not in get_args(LetterEvent):
        raise Malformed(f"'event' is {printable(event, 40)!r}")
    at, issued_at = read_moment(row, "at"), read_moment(row, "issued_at")
    expires_at, evidence = read_moment(row, "expires_at"), read_text(row, "evidence")
    if issued_at is None or expires_at is None or (at is None and event != "cancel"):
        raise Malformed("a letter without its times")
    if evidence not in set(Evidence):
        raise Malformed(f"'evidence' is {printable(evidence, 40)!r}")
    # Only a Droplet that the relay has identified is told for certain; and no letter out of the future.
    is_strong = to.droplet_id is not None and signed_at <= now + _AHEAD
    return Letter(
        to=to,
        event=event,  # type: ignore[arg-type]  # one of its arguments, as was just asked
        at=at,
        issued_at=issued_at,
        expires_at=expires_at,
        evidence=Evidence(evidence) if is_strong else Evidence.WEAK,
        message=printable(read_text(row, "message"), 64),
        detail=printable(read_text(row, "detail"), _MAX_DETAIL_CHARS),
        letter_id=letter_id,
    )


def _read_address(row: dict[str, Any]) -> Address:
    droplet_id, name_hash = row.get("droplet_id"), read_text(row, "name_hash")
    if droplet_id is not None and (
        not isinstance(droplet_id, int) or isinstance(droplet_id, bool) or not 1 <= droplet_id <= _MAX_ID
    ):
        raise Malformed("'droplet_id' is no Droplet's number")
    if name_hash and not _HASH.fullmatch(name_hash):
        raise Malformed("'name_hash' is no SHA-256")
    return Address(droplet_id, name_hash)


def _of_later_version(letter_id: str, signed_at: datetime, version: int, to: Address) -> Letter:
    """Return what a letter is worth that a newer relay wrote: a flush."""
    return Letter(
        to=to,
        event="reclaim",
        at=signed_at + timedelta(hours=2),
        issued_at=signed_at,
        expires_at=signed_at + _UNREADABLE_LASTS,
        evidence=Evidence.WEAK,
        detail=f"a letter of version {version}, which this spotwatch cannot read; update it",
        letter_id=letter_id,
    )
