# SPDX-License-Identifier: Apache-2.0
"""SendGrid Inbound Parse: the mail as a form, raw when "POST the raw, full MIME message" is checked.

With a security policy of the kind "signature" each request carries an ECDSA P-256 signature over timestamp +
raw body (Twilio SendGrid, "Securing your Parse Webhook", read 2026-11-29; that the headers are those of the
Event Webhook was not seen in that page, and rests on django-anymail's notes). Without a policy nothing is
signed, and nothing is accepted. SendGrid follows no redirects, and repeats after 5xx for three days.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from spotwatch.clock import Clock
from spotwatch.errors import ConfigError, Malformed
from spotwatch.mail.extra import require
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._composed import compose
from spotwatch.mail.inbound._forms import Form, read_form
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict

SIGNATURE = "x-twilio-email-event-webhook-signature"
TIMESTAMP = "x-twilio-email-event-webhook-timestamp"
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_MAX_SIGNATURE_CHARS = 200
# What Inbound Parse names for mail that is not UTF-8; a codec that does more than letters is not wanted here.
_CHARSETS = re.compile(
    r"utf-?8|us-ascii|iso-8859-(?:[1-9]|1[013-6])|windows-125[0-8]|gb2312|gbk|gb18030|big5", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of `[inbound.sendgrid]`."""

    verification_keys: tuple[str, ...] = ()
    """Public keys as the console shows them: base64 without armour; several for rotation."""

    def __post_init__(self) -> None:
        """Refuse a configuration that lets anybody in.

        Raises:
            ValueError: says what is missing.
        """
        if not self.verification_keys:
            raise ValueError(
                "has no verification_keys; make a security policy for the webhook and copy its public key"
            )


class SendGrid:
    """Requests of SendGrid's parse webhook."""

    name: ClassVar[str] = "sendgrid"
    config_class: ClassVar[type] = Config
    permanent_status: ClassVar[int] = 400

    def __init__(
        self, config: Config, *, read_secret: Callable[[str], str], clock: Clock, tolerance_seconds: float
    ) -> None:
        del read_secret  # public keys only
        self._keys = [_read_key(text) for text in config.verification_keys]
        self._clock = clock
        self._tolerance_seconds = tolerance_seconds

    async def open(self, request: Received) -> Delivery | Verdict:
        """Check the signature over the raw body, then take the mail out of the form."""
        signed_at, timestamp = self._authenticate(request)
        try:
            form = await read_form(request)
            raw = form.only("email")
            is_original = bool(raw)
            if not raw:
                raw = _composed(form)
        except Malformed as error:
            raise Refused.malformed(str(error), self.permanent_status) from error
        # Of what was signed, not of the signature: to each ECDSA signature there is a second one.
        digest = hashlib.sha256(timestamp.encode() + request.body).hexdigest()
        return Delivery(
            service=self.name,
            raw=raw,
            is_original=is_original,
            covers_body=True,
            replay_id=f"sendgrid:{digest}",
            signed_at=signed_at,
            received_at=self._clock.now(),
        )

    def _authenticate(self, request: Received) -> tuple[datetime, str]:
        timestamp, text = request.headers.get(TIMESTAMP, ""), request.headers.get(SIGNATURE, "")
        if not _TIMESTAMP.fullmatch(timestamp) or not 0 < len(text) <= _MAX_SIGNATURE_CHARS:
            raise Refused.unsigned("timestamp or signature is missing or of another form")
        try:
            signature = base64.b64decode(text.encode("ascii"), validate=True)
        except ValueError as error:
            raise Refused.unsigned("the signature is no base64") from error
        if not any(_verifies(key, signature, timestamp.encode() + request.body) for key in self._keys):
            raise Refused.unsigned("the signature is by another key")
        # As numbers: twelve digits reach beyond the calendar.
        age_seconds = self._clock.now().timestamp() - int(timestamp)
        if abs(age_seconds) > self._tolerance_seconds:
            raise Refused.replayed(f"signed {age_seconds:.0f} s ago")
        return datetime.fromtimestamp(int(timestamp), UTC), timestamp


def _read_key(text: str) -> Any:
    serialization = require("cryptography.hazmat.primitives.serialization")
    ec = require("cryptography.hazmat.primitives.asymmetric.ec")
    body = "".join(line for line in text.split() if not line.startswith("-----"))
    try:
        key = serialization.load_der_public_key(base64.b64decode(body, validate=True))
    except ValueError as error:
        raise ConfigError(
            "inbound.sendgrid.verification_keys: one is no public key; copy it as the console shows it"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise ConfigError("inbound.sendgrid.verification_keys: one is no ECDSA P-256 key")
    return key


def _verifies(key: Any, signature: bytes, content: bytes) -> bool:
    ec = require("cryptography.hazmat.primitives.asymmetric.ec")
    hashes = require("cryptography.hazmat.primitives.hashes")
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except require("cryptography.exceptions").InvalidSignature:
        return False
    return True


def _composed(form: Form) -> bytes:
    charsets = _read_charsets(form.only("charsets"))

    def text(name: str) -> str:
        return form.only(name).decode(charsets.get(name, "utf-8"), "replace")

    if "text" not in form and "html" not in form:
        raise Malformed("no mail in it: neither email nor text nor html")
    return compose(
        subject=text("subject"),
        sender=text("from"),
        recipients=text("to"),
        text=text("text"),
        html=text("html"),
    )


def _read_charsets(body: bytes) -> Mapping[str, str]:
    """Return the charset of each field that names one we know."""
    try:
        row = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Malformed("charsets is no JSON") from error
    if not isinstance(row, dict):
        raise Malformed("charsets is no object")
    return {k: v for k, v in row.items() if isinstance(v, str) and _CHARSETS.fullmatch(v)}


SERVICE = SendGrid
