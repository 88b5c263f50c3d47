# SPDX-License-Identifier: Apache-2.0
"""Amazon SES: mail that a receipt rule publishes to an SNS topic, which posts it here.

The mail is in `content`, as it is or in base64 ("Contents of notifications for Amazon SES email receiving",
read 2026-11-29); the SNS action takes mail of 150 KB at most, larger ones bounce. SNS signs the whole
message, and tries three times more, 20 seconds apart, unless the subscription has a delivery policy of an
hour at most ("Amazon SNS message delivery retries", read 2026-11-29). A subscription is confirmed through
AWS's interface, only for a topic of the configuration, and never by opening the address in the request.

Mail that only lies in S3 is not fetched.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from spotwatch.clock import Clock
from spotwatch.errors import Malformed, Unavailable
from spotwatch.mail.extra import require
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._sns import (
    SUBSCRIPTION,
    UNSUBSCRIPTION,
    Message,
    parse_topic,
    read_message,
    verify,
)
from spotwatch.mail.inbound._sns_confirm import confirm_subscription
from spotwatch.mail.inbound._sns_keys import FILE, Keys
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict
from spotwatch.untrusted import printable, read_object, read_text

# The longest delivery policy of SNS is an hour ("Amazon SNS message delivery retries", read 2026-11-29).
_MAX_AGE_SECONDS = 3600.0
_LONGEST_AGE_SECONDS = 86400.0
# SES says so once to each topic that a rule is given, in words instead of JSON.
_GREETING = "Successfully validated SNS topic"
_RECEIVED = "Received"
_DOUBTFUL = ("dkimVerdict", "spamVerdict", "virusVerdict")
_LOST = "\ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of `[inbound.ses]`."""

    topics: tuple[str, ...] = ()
    """The ARNs of the topics that the receipt rules publish to; all others are refused."""
    require_v2: bool = False
    """Refuse signatures over SHA-1, which a topic makes unless its SignatureVersion is 2."""
    max_age_seconds: float = _MAX_AGE_SECONDS
    """How long after a message was published it counts: SNS tries for an hour at most."""

    def __post_init__(self) -> None:
        """Refuse what nobody or anybody could be heard with.

        Raises:
            ValueError: says which, and what is wanted.
        """
        if not self.topics:
            raise ValueError('has no topics; write topics = ["arn:aws:sns:us-east-1:123456789012:NAME"]')
        for arn in self.topics:
            parse_topic(arn)
        if not 0 < self.max_age_seconds <= _LONGEST_AGE_SECONDS:
            raise ValueError(
                f"max_age_seconds {self.max_age_seconds:g} is out of range; use above 0 to "
                f"{_LONGEST_AGE_SECONDS:g}"
            )


class Ses:
    """Requests of SNS topics that SES publishes mail to.

    Args:
        config: which topics.
        read_secret: unused: SNS signs with keys that Amazon publishes.
        clock: what time it is.
        tolerance_seconds: how far the clock of SNS may be from ours, beyond what a delayed delivery explains.
        keys: where the signing keys come from; None: Amazon's hosts.
        confirm: confirms the subscription to a topic, given its ARN and the token; blocks.

    Raises:
        ConfigError: `spotwatch[mail]` is not installed.
    """

    name: ClassVar[str] = "ses"
    config_class: ClassVar[type] = Config
    permanent_status: ClassVar[int] = 400

    def __init__(
        self,
        config: Config,
        *,
        read_secret: Callable[[str], str],
        clock: Clock,
        tolerance_seconds: float,
        keys: Keys | None = None,
        confirm: Callable[[str, str], None] = confirm_subscription,
    ) -> None:
        del read_secret
        require("cryptography.x509")  # if it is missing, that is said at the start and not at the first mail
        self._topics = tuple(parse_topic(arn) for arn in config.topics)
        self._config = config
        self._clock = clock
        self._tolerance_seconds = tolerance_seconds
        self._keys = keys or Keys(clock)
        self._confirm = confirm

    @staticmethod
    def shared(clock: Clock, state_dir: Path | None) -> dict[str, Any]:
        """Return what several of one daemon have in common: the keys, and their file in `state_dir`."""
        return {"keys": Keys(clock, path=None if state_dir is None else state_dir / FILE)}

    async def open(self, request: Received) -> Delivery | Verdict:
        """Check form, topic, signature and age, then confirm a subscription or take the mail out.

        Raises:
            Refused: 401 not a genuine message of our topics, or too old; 400 genuine, but no mail; 503 the
                certificate or the confirmation could not be had now.
        """
        message = read_message(
            request.headers, request.body, topics=self._topics, needs_v2=self._config.require_v2
        )
        await self._authenticate(message, request.peer)
        if message.kind == SUBSCRIPTION:
            return await self._subscribe(message)
        if message.kind == UNSUBSCRIPTION:
            raise Refused(
                Verdict(status=200, result="ignored"),
                f"the subscription to {message.topic.arn} was ended; subscribe again, or no mail comes",
            )
        if message.text.startswith(_GREETING):
            return Verdict(status=200, result="ignored")
        try:
            return self._take_out(message)
        except Malformed as error:
            raise Refused.malformed(str(error), self.permanent_status) from error

    async def _authenticate(self, message: Message, peer: str) -> None:
        try:
            key = await self._keys.find(message.certificate_url, message.topic, peer=peer)
        except Unavailable as error:
            raise Refused(Verdict(status=503, result="pending"), str(error)) from error
        except Malformed as error:
            raise Refused.unsigned(str(error)) from error
        if not verify(message, key):
            raise Refused.unsigned("the signature is not over this message")
        age_seconds = (self._clock.now() - message.at).total_seconds()
        longest_seconds = max(self._config.max_age_seconds, self._tolerance_seconds)
        if not -self._tolerance_seconds <= age_seconds <= longest_seconds:
            raise Refused.replayed(f"published {age_seconds:.0f} s ago")
        await self._keys.vouch(message.certificate_url, peer)

    async def _subscribe(self, message: Message) -> Verdict:
        try:
            await asyncio.to_thread(self._confirm, message.topic.arn, message.token)
        except Unavailable as error:
            raise Refused(Verdict(status=503, result="pending"), str(error)) from error
        return Verdict(status=200, result="accepted")

    def _take_out(self, message: Message) -> Delivery | Verdict:
        row = read_object(message.text.encode())
        kind = read_text(row, "notificationType")
        if kind != _RECEIVED:
            return Verdict(status=200, result="ignored")
        receipt = _read_table(row, "receipt")
        content = read_text(row, "content")
        if not content:
            raise Malformed(
                "there is no content: give the receipt rule an SNS action, not one that stores mail"
            )
        # The rule says Base64, the notification BASE64.
        encoding = read_text(_read_table(receipt, "action"), "encoding").upper()
        return Delivery(
            service=self.name,
            raw=_decode(content, encoding),
            # What was no UTF-8 is lost then, and a signature over it cannot hold.
            is_original=encoding == "BASE64" or _LOST not in content,
            covers_body=True,
            replay_id=f"ses:{message.message_id}",
            signed_at=message.at,
            received_at=self._clock.now(),
            doubts=tuple(_doubts(receipt)),
        )


def _read_table(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"{key!r} is no object")
    return value


def _decode(content: str, encoding: str) -> bytes:
    if encoding == "BASE64":
        try:
            return base64.b64decode("".join(content.split()).encode("ascii"), validate=True)
        except ValueError as error:
            raise Malformed("'content' is not base64") from error
    if encoding not in {"", "UTF-8"}:
        raise Malformed(f"encoding {printable(encoding, 40)!r} is neither BASE64 nor UTF-8")
    return content.encode()


def _doubts(receipt: Mapping[str, Any]) -> list[str]:
    statuses = {key: read_text(_read_table(receipt, key), "status") for key in _DOUBTFUL}
    return [f"SES: {key} {status}" for key, status in statuses.items() if status == "FAIL"]


SERVICE = Ses
