# SPDX-License-Identifier: Apache-2.0
"""ForwardEmail: JSON with `raw`, signed when a webhook key is set for the domain.

`X-Webhook-Signature` is hex(HMAC-SHA256(key, body)), without a time (forwardemail.net,
`helpers/on-data-mx.js` at 004b5f1, read 2026-11-29): a request is good for ever, so each body counts once,
and the mail's own date limits its age. `raw` went through a UTF-8 decoder and may have lost bytes of an
8-bit mail, which DKIM then shows. Refusals become bounces or deferrals of the mail itself.
"""

from __future__ import annotations

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

SIGNATURE = "x-webhook-signature"
_SIGNATURE = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of `[inbound.forwardemail]`."""

    key_files: tuple[str, ...] = ()
    """Files with one webhook signature key each; several for rotation."""

    def __post_init__(self) -> None:
        """Refuse a configuration that lets anybody in.

        Raises:
            ValueError: says what is missing.
        """
        if not self.key_files:
            raise ValueError(
                "has no key_files; set a webhook signature key for the domain and copy it into a file"
            )


class ForwardEmail:
    """Requests of ForwardEmail's webhooks."""

    name: ClassVar[str] = "forwardemail"
    config_class: ClassVar[type] = Config
    permanent_status: ClassVar[int] = 400

    def __init__(
        self, config: Config, *, read_secret: Callable[[str], str], clock: Clock, tolerance_seconds: float
    ) -> None:
        del tolerance_seconds  # no time is signed
        self._keys = [read_secret(name).encode() for name in config.key_files]
        if not all(self._keys):
            raise ConfigError("inbound.forwardemail.key_files: one of them is empty")
        self._clock = clock

    async def open(self, request: Received) -> Delivery | Verdict:
        """Check the signature over the raw body, then take the mail out of the JSON."""
        self._authenticate(request)
        try:
            row = read_object(request.body)
            raw = read_text(row, "raw")
            content = raw.encode() if raw else _composed(row)
        except Malformed as error:
            raise Refused.malformed(str(error), self.permanent_status) from error
        return Delivery(
            service=self.name,
            raw=content,
            is_original=bool(raw),
            covers_body=True,
            replay_id=f"forwardemail:{hashlib.sha256(request.body).hexdigest()}",
            signed_at=None,
            received_at=self._clock.now(),
        )

    def _authenticate(self, request: Received) -> None:
        text = request.headers.get(SIGNATURE, "")
        if not _SIGNATURE.fullmatch(text):
            raise Refused.unsigned("the signature is missing or of another form")
        is_genuine = False
        for key in self._keys:
            expected = hmac.new(key, request.body, hashlib.sha256).hexdigest()
            is_genuine |= hmac.compare_digest(expected.encode(), text.encode())
        if not is_genuine:
            raise Refused.unsigned("the signature is by another key")


def _composed(row: Mapping[str, Any]) -> bytes:
    if row.get("text") is None and row.get("html") in (None, False):
        raise Malformed("no mail in it: neither raw nor text nor html")
    # mailparser writes false where a mail has no HTML.
    html = "" if row.get("html") is False else read_text(row, "html")
    return compose(
        subject=read_text(row, "subject"),
        sender=_addresses(row, "from"),
        recipients=_addresses(row, "to"),
        date=read_text(row, "date"),
        message_id=read_text(row, "messageId"),
        text=read_text(row, "text"),
        html=html,
    )


def _addresses(row: Mapping[str, Any], key: str) -> str:
    """Return the header text of mailparser's address object; empty when there is none."""
    value = row.get(key)
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise Malformed(f"{key!r} is no address object")
    return read_text(value, "text")


SERVICE = ForwardEmail
