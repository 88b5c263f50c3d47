# SPDX-License-Identifier: Apache-2.0
"""Standard Webhooks: a mail from a worker, a script, a mail server's pipe or a workflow of one's own.

The body is the mail itself (`message/rfc822`, `application/octet-stream`) or JSON, `{"type":
"email.received", "data": ...}` with the mail as `raw_b64` or taken apart into `subject`, `from`, `to`,
`date`, `message_id`, `text` and `html`. Signed as https://www.standardwebhooks.com says (1.0.0,
2023-12-11): HMAC-SHA256 over id, time and the whole body.

It keeps no id: that one counts only once is the receiver's business.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spotwatch.clock import Clock
from spotwatch.errors import ConfigError, Malformed
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._composed import compose
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict
from spotwatch.untrusted import printable, read_object, read_text
from spotwatch.webhooks import Rejected, parse_secret, signed_at, verify

EVENT = "email.received"

_RAW_TYPES = frozenset({"message/rfc822", "application/octet-stream"})
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\";\s]*)", re.IGNORECASE)
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})
_URL_SAFE = str.maketrans("-_", "+/")
_MALFORMED = Verdict(status=400, result="malformed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of `[inbound.standard]`."""

    secret_files: tuple[str, ...] = ()
    """Files with one `whsec_…` secret each, several for rotation; none: those of `[webhook]`."""

    def __post_init__(self) -> None:
        """Refuse a name that names no file.

        Raises:
            ValueError: says so.
        """
        if not all(name.strip() for name in self.secret_files):
            raise ValueError("secret_files has an empty name; leave it out")


class Standard:
    """What holders of one of our secrets post.

    Args:
        config: which secrets.
        read_secret: returns the text of a secret file.
        clock: what time it is.
        tolerance_seconds: how far `webhook-timestamp` may be from ours.
        secrets: the keys that count where `config` names none.

    Raises:
        ConfigError: there is no secret at all, or one of another form.
    """

    name: ClassVar[str] = "standard"
    config_class: ClassVar[type] = Config
    permanent_status: ClassVar[int] = 400

    def __init__(
        self,
        config: Config,
        *,
        read_secret: Callable[[str], str],
        clock: Clock,
        tolerance_seconds: float,
        secrets: Sequence[bytes] = (),
    ) -> None:
        own = tuple(parse_secret(read_secret(name)) for name in config.secret_files)
        self._secrets = own or tuple(secrets)
        if not self._secrets:
            raise ConfigError(
                "inbound.standard has no secret; put one into a file of mode 0600 with "
                "`echo whsec_$(openssl rand -base64 32)`, and name it in inbound.standard.secret_files or "
                "webhook.secret_files"
            )
        self._clock = clock
        self._tolerance_seconds = tolerance_seconds

    async def open(self, request: Received) -> Delivery | Verdict:
        """Verify the raw bytes, then take the mail out of them.

        Raises:
            Refused: 401 not signed by a secret of ours, or too old; 400 signed, but no mail.
        """
        now = self._clock.now()
        try:
            webhook_id = verify(
                request.headers,
                request.body,
                self._secrets,
                now=now,
                tolerance_seconds=self._tolerance_seconds,
            )
        except Rejected as rejected:
            result = "replayed" if rejected.is_signed else "unsigned"
            raise Refused(Verdict(status=401, result=result), rejected.reason) from rejected
        try:
            raw, is_original = _read(request.headers.get("content-type", ""), request.body)
        except Malformed as error:
            raise Refused(_MALFORMED, str(error)) from error
        return Delivery(
            service=self.name,
            raw=raw,
            is_original=is_original,
            covers_body=True,
            replay_id=f"standard:{webhook_id}",
            signed_at=signed_at(request.headers),
            received_at=now,
        )


def _read(content_type: str, body: bytes) -> tuple[bytes, bool]:
    """Return the mail, and whether it is as it was received."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _RAW_TYPES:
        if not body.strip():
            raise Malformed("the mail is empty")
        return body, True
    if kind != "application/json":
        raise Malformed(
            f"content type {printable(kind, 60)!r}; send the mail as message/rfc822, or as application/json"
        )
    charset = _CHARSET.search(content_type)
    if charset is not None and charset[1].lower() not in _UTF8:
        raise Malformed(f"charset {printable(charset[1], 40)!r}; JSON is UTF-8")
    return _read_event(read_object(body))


def _read_event(row: Mapping[str, Any]) -> tuple[bytes, bool]:
    kind = read_text(row, "type")
    if kind != EVENT:
        raise Malformed(
            f"type {printable(kind, 40)!r} is not {EVENT!r}; a notice without a mail goes to "
            "/webhook/digitalocean itself"
        )
    data = row.get("data")
    if not isinstance(data, dict):
        raise Malformed("'data' is no object")
    encoded = read_text(data, "raw_b64")
    if encoded:
        return _decode(encoded), True
    fields = {key: read_text(data, key) for key in ("subject", "text", "html")}
    if not any(text.strip() for text in fields.values()):
        raise Malformed("'data' has neither raw_b64 nor a subject, text or html")
    mail = compose(
        **fields,
        sender=read_text(data, "from"),
        recipients=read_text(data, "to"),
        date=read_text(data, "date"),
        message_id=read_text(data, "message_id"),
    )
    return mail, False


def _decode(encoded: str) -> bytes:
    """Return the bytes of base64 in either alphabet, wrapped or not: Gmail's own interface is URL-safe."""
    text = "".join(encoded.split()).translate(_URL_SAFE).rstrip("=")
    try:
        raw = base64.b64decode((text + "=" * (-len(text) % 4)).encode("ascii"), validate=True)
    except ValueError as error:
        raise Malformed("'raw_b64' is not base64") from error
    if not raw.strip():
        raise Malformed("the mail is empty")
    return raw


SERVICE = Standard
