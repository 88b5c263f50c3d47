# SPDX-License-Identifier: Apache-2.0
"""Postmark inbound: JSON with `RawEmail`, when "Include raw email content in JSON payload" is checked.

Nothing is signed; Postmark offers a user name and password in the webhook's address, and says from which
addresses it posts (postmarkapp.com, "Inbound webhook" and "Webhooks overview", read 2026-11-29). The
password is all that stands between us and anybody, so TLS is not optional here. 403 ends Postmark's ten
repetitions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from spotwatch.clock import Clock
from spotwatch.errors import ConfigError, Malformed
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._composed import compose
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict
from spotwatch.untrusted import read_object, read_text

_MESSAGE_ID = re.compile(r"[0-9A-Za-z-]{8,64}")
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="spotwatch"'}
_LEAST_PASSWORD_CHARS = 16
_MAX_HEADER_CHARS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of `[inbound.postmark]`."""

    password_files: tuple[str, ...] = ()
    """Files with `USER:PASSWORD` each, as they stand in the webhook's address; several for rotation."""

    def __post_init__(self) -> None:
        """Refuse a configuration that lets anybody in.

        Raises:
            ValueError: says what is missing.
        """
        if not self.password_files:
            raise ValueError(
                "has no password_files; put USER:PASSWORD into a file, and https://USER:PASSWORD@HOST/… into "
                "Postmark"
            )


class Postmark:
    """Requests of Postmark's inbound webhook."""

    name: ClassVar[str] = "postmark"
    config_class: ClassVar[type] = Config
    permanent_status: ClassVar[int] = 403

    def __init__(
        self, config: Config, *, read_secret: Callable[[str], str], clock: Clock, tolerance_seconds: float
    ) -> None:
        del tolerance_seconds  # Postmark signs no time
        self._digests = [_digest(_read_password(read_secret(name))) for name in config.password_files]
        self._clock = clock

    async def open(self, request: Received) -> Delivery | Verdict:
        """Check the password, then take the mail out of the JSON."""
        self._authenticate(request.headers.get("authorization", ""))
        try:
            row = read_object(request.body)
            message_id = read_text(row, "MessageID")
            if not _MESSAGE_ID.fullmatch(message_id):
                raise Malformed("MessageID is missing or of another form")
            raw = read_text(row, "RawEmail")
            content = raw.encode() if raw else _composed(row)
        except Malformed as error:
            raise Refused.malformed(str(error), self.permanent_status) from error
        return Delivery(
            service=self.name,
            raw=content,
            is_original=bool(raw),
            # The password is for the connection, and says nothing of what comes through it.
            covers_body=False,
            replay_id=f"postmark:{message_id}",
            signed_at=None,
            received_at=self._clock.now(),
        )

    def _authenticate(self, header: str) -> None:
        kind, _, text = header.partition(" ")
        given = b""
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(text.strip().encode("ascii"), validate=True)
            except (UnicodeEncodeError, binascii.Error):
                given = b""
        is_known = False
        for digest in self._digests:
            # Digests have one length: the time taken says nothing of the password's.
            is_known |= hmac.compare_digest(digest, _digest(given))
        if not is_known:
            raise Refused.unsigned("no password, or another", **_CHALLENGE)


def _read_password(text: str) -> bytes:
    user, colon, password = text.partition(":")
    if not colon or not user or len(password) < _LEAST_PASSWORD_CHARS:
        raise ConfigError(
            "inbound.postmark.password_files: write USER:PASSWORD, the password of at least "
            f"{_LEAST_PASSWORD_CHARS} characters, made with: openssl rand -hex 24"
        )
    return text.encode()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _composed(row: Mapping[str, Any]) -> bytes:
    headers = _read_headers(row.get("Headers"))
    return compose(
        subject=read_text(row, "Subject"),
        sender=read_text(row, "From"),
        recipients=read_text(row, "To"),
        date=read_text(row, "Date"),
        message_id=headers.get("message-id", ""),
        text=read_text(row, "TextBody"),
        html=read_text(row, "HtmlBody"),
    )


def _read_headers(rows: Any) -> Mapping[str, str]:
    """Return the header fields by lower-case name."""
    if not isinstance(rows, list):
        raise Malformed("Headers is no list")
    headers: dict[str, str] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise Malformed("a header is no object")
        headers[read_text(row, "Name").lower()] = read_text(row, "Value")[:_MAX_HEADER_CHARS]
    return headers


SERVICE = Postmark
