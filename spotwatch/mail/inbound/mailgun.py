# SPDX-License-Identifier: Apache-2.0
"""Mailgun Routes: `forward("https://HOST/webhook/digitalocean/mailgun/mime")`, which posts the raw mail.

The signature is hex(HMAC-SHA256(signing key, timestamp + token)); it does not cover the mail (Mailgun
documentation, "Securing Webhooks" and "Receiving messages via HTTP", read 2026-11-29). So it proves that
Mailgun posts, not what: a mail is strong by DKIM only. A URL that ends in `mime` gets `body-mime`; another
gets parsed fields, of which a mail is composed that proves nothing. What `store()` posts has only an address
to fetch from, and nothing is fetched. 406 makes Mailgun give up; all but that and 2xx is repeated for 8
hours, whether with the first timestamp or a new one it does not say. So the signature is good for as long:
it says nothing of a mail's age, which DKIM and the mail's own date decide, and who has caught one can do no
more with it than who writes to the address that the route matches.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from spotwatch.clock import Clock
from spotwatch.errors import ConfigError, Malformed
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._composed import compose
from spotwatch.mail.inbound._forms import Form, read_form
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict

_TIMESTAMP = re.compile(rb"[0-9]{1,12}")
# 50 characters, says the documentation; a longer one would be somebody's own.
_TOKEN = re.compile(rb"[0-9A-Za-z_-]{8,100}")
_SIGNATURE = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of `[inbound.mailgun]`."""

    signing_key_files: tuple[str, ...] = ()
    """Files with one HTTP webhook signing key each; several for rotation."""
    max_age_seconds: float = 30600.0
    """How old the signed timestamp may be: 8 h 30 min, for the last repetition comes after 8 hours."""

    def __post_init__(self) -> None:
        """Refuse a configuration that lets anybody in.

        Raises:
            ValueError: says what is missing.
        """
        if not self.signing_key_files:
            raise ValueError(
                "has no signing_key_files; copy the account's HTTP webhook signing key into a file"
            )


class Mailgun:
    """Requests of Mailgun's routes."""

    name: ClassVar[str] = "mailgun"
    config_class: ClassVar[type] = Config
    permanent_status: ClassVar[int] = 406

    def __init__(
        self, config: Config, *, read_secret: Callable[[str], str], clock: Clock, tolerance_seconds: float
    ) -> None:
        self._keys = [read_secret(name).encode() for name in config.signing_key_files]
        if not all(self._keys):
            raise ConfigError("inbound.mailgun.signing_key_files: one of them is empty")
        self._clock = clock
        self._max_age_seconds = config.max_age_seconds
        self._tolerance_seconds = tolerance_seconds

    async def open(self, request: Received) -> Delivery | Verdict:
        """Check the signature among the fields, then take the mail."""
        try:
            form = await read_form(request)
        except Malformed as error:
            raise Refused.malformed(str(error)) from error
        signed_at, token = self._authenticate(form)
        raw = form.last("body-mime")
        return Delivery(
            service=self.name,
            raw=raw or self._composed(form),
            is_original=bool(raw),
            covers_body=False,
            replay_id=f"mailgun:{token}",
            signed_at=signed_at,
            received_at=self._clock.now(),
        )

    def _authenticate(self, form: Form) -> tuple[datetime, str]:
        # The last of each: the mail's own fields come first, and may be called the same.
        timestamp, token, signature = (form.last(name) for name in ("timestamp", "token", "signature"))
        fits = _TIMESTAMP.fullmatch(timestamp) and _TOKEN.fullmatch(token) and _SIGNATURE.fullmatch(signature)
        if not fits:
            raise Refused.unsigned("timestamp, token or signature is missing or of another form")
        is_genuine = False
        for key in self._keys:
            expected = hmac.new(key, timestamp + token, hashlib.sha256).hexdigest().encode()
            is_genuine |= hmac.compare_digest(expected, signature)
        if not is_genuine:
            raise Refused.unsigned("the signature is by another key")
        # As numbers: twelve digits reach beyond the calendar.
        age_seconds = self._clock.now().timestamp() - int(timestamp)
        longest_seconds = max(self._max_age_seconds, self._tolerance_seconds)
        if not -self._tolerance_seconds <= age_seconds <= longest_seconds:
            raise Refused.replayed(f"signed {age_seconds:.0f} s ago")
        return datetime.fromtimestamp(int(timestamp), UTC), token.decode()

    def _composed(self, form: Form) -> bytes:
        if "body-plain" not in form and "body-html" not in form:
            raise Refused.malformed(
                "no mail in it; use forward() with an address that ends in /mime, not store()",
                self.permanent_status,
            )
        # `recipient` and `sender` are the envelope's; only the header fields say whom the mail names.
        return compose(
            subject=_text(form, "subject"),
            sender=_text(form, "from"),
            recipients=_text(form, "To"),
            date=_text(form, "Date"),
            message_id=_text(form, "Message-Id"),
            text=_text(form, "body-plain"),
            html=_text(form, "body-html"),
        )


def _text(form: Form, name: str) -> str:
    return form.last(name).decode("utf-8", "replace")


SERVICE = Mailgun
