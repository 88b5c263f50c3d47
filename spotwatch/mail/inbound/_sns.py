# SPDX-License-Identifier: Apache-2.0
"""Messages of Amazon SNS: their form, what their signature covers, and which topics' count.

The string that is signed, and RSA PKCS#1 v1.5 with SHA-1 (version 1, the topics' default) or SHA-256 (version
2): Amazon SNS Developer Guide, "Verifying the signatures of Amazon SNS messages", read 2026-11-29. A genuine
signature alone proves nothing, since anybody may subscribe us to a topic of theirs: so only topics that are
named in the configuration are looked at.

It does not know what a message is about, and opens no address that one contains.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spotwatch.errors import Malformed
from spotwatch.mail.extra import require
from spotwatch.mail.inbound import Refused
from spotwatch.model import from_rfc3339
from spotwatch.untrusted import printable, read_object, read_text

TYPE_HEADER = "x-amz-sns-message-type"
NOTIFICATION = "Notification"
SUBSCRIPTION = "SubscriptionConfirmation"
UNSUBSCRIPTION = "UnsubscribeConfirmation"

_SIGNED = {
    NOTIFICATION: ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    SUBSCRIPTION: ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    UNSUBSCRIPTION: ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}
_HASHES = {"1": "SHA1", "2": "SHA256"}
_TOPIC = re.compile(r"arn:(aws|aws-cn|aws-us-gov):sns:([a-z0-9-]{3,30}):([0-9]{12}):([A-Za-z0-9_.-]{1,256})")
_MESSAGE_ID = re.compile(r"[0-9a-f-]{36}")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z")
_CERTIFICATE_FILE = r"SimpleNotificationService-[0-9a-zA-Z]{16,64}\.pem"
_MAX_SIGNATURE_CHARS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic of Amazon SNS."""

    arn: str
    partition: str
    region: str

    @property
    def host(self) -> str:
        """Return the host that serves the certificates of this topic's region.

        The only one that AWS's own SDK for Java accepts (`SnsHostProvider`, 2.x, read 2026-11-29).
        """
        return f"sns.{self.region}.amazonaws.com" + (".cn" if self.partition == "aws-cn" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message whose form is right and whose topic is ours; genuine once `verify` says so."""

    kind: str
    message_id: str
    topic: Topic
    at: datetime
    """When SNS took it; the same in each attempt to deliver it."""
    text: str
    token: str
    """Of a confirmation."""
    certificate_url: str
    hash_name: str
    signature: bytes
    signed: bytes


def parse_topic(arn: str) -> Topic:
    """Return the topic of that name.

    Raises:
        ValueError: it is none.
    """
    found = _TOPIC.fullmatch(arn)
    if found is None:
        raise ValueError(
            f"{printable(arn, 100)!r} is no topic; write it as arn:aws:sns:us-east-1:123456789012:NAME"
        )
    return Topic(arn=arn, partition=found[1], region=found[2])


def read_message(
    headers: Mapping[str, str], body: bytes, *, topics: Collection[Topic], needs_v2: bool
) -> Message:
    """Return the message in `body`, nothing of it proven yet, its topic one of `topics`.

    Raises:
        Refused: 400, it is no JSON object; 401, it cannot be a genuine message of one of those topics.
    """
    try:
        row = read_object(body)
    except Malformed as error:
        raise Refused.malformed(str(error)) from error
    try:
        return _read(headers, row, {topic.arn: topic for topic in topics}, needs_v2=needs_v2)
    except Malformed as error:
        raise Refused.unsigned(str(error)) from error


def verify(message: Message, key: Any) -> bool:
    """Tell whether the RSA key `key` has signed the message."""
    hashes = require("cryptography.hazmat.primitives.hashes")
    padding = require("cryptography.hazmat.primitives.asymmetric.padding")
    digest = getattr(hashes, message.hash_name)()
    try:
        key.verify(message.signature, message.signed, padding.PKCS1v15(), digest)
    except require("cryptography.exceptions").InvalidSignature:
        return False
    return True


def _read(
    headers: Mapping[str, str], row: Mapping[str, Any], topics: Mapping[str, Topic], *, needs_v2: bool
) -> Message:
    kind = read_text(row, "Type")
    if kind not in _SIGNED:
        raise Malformed(f"Type {printable(kind, 40)!r} is none of SNS")
    if headers.get(TYPE_HEADER) != kind:
        raise Malformed(f"the header {TYPE_HEADER} does not say {kind}")
    arn = read_text(row, "TopicArn")
    if arn not in topics:
        raise Malformed(f"topic {printable(arn, 100)!r} is not in inbound.ses.topics")
    version = read_text(row, "SignatureVersion")
    if version not in _HASHES:
        raise Malformed(f"SignatureVersion {printable(version, 20)!r} is neither 1 nor 2")
    if needs_v2 and version != "2":
        raise Malformed("SignatureVersion 1, and inbound.ses.require_v2 is set; set it to 2 for the topic")
    values = {name: read_text(row, name) for name in _SIGNED[kind] if row.get(name) is not None}
    _check_lines(values)
    topic = topics[arn]
    return Message(
        kind=kind,
        message_id=values["MessageId"],
        topic=topic,
        at=from_rfc3339(values["Timestamp"]),
        text=values.get("Message", ""),
        token=values.get("Token", ""),
        certificate_url=_certificate_url(read_text(row, "SigningCertURL"), topic),
        hash_name=_HASHES[version],
        signature=_signature(read_text(row, "Signature")),
        signed="".join(f"{name}\n{value}\n" for name, value in values.items()).encode(),
    )


def _check_lines(values: Mapping[str, str]) -> None:
    """Refuse what would let one signed string be read as two messages: only Message may have lines.

    Raises:
        Malformed: a field is missing, has a line end, or is of another form.
    """
    for name, form in (("MessageId", _MESSAGE_ID), ("Timestamp", _TIMESTAMP)):
        if not form.fullmatch(values.get(name, "")):
            raise Malformed(f"{name} is {printable(values.get(name, ''), 40)!r}")
    try:
        from_rfc3339(values["Timestamp"])
    except ValueError as error:
        raise Malformed(f"Timestamp is {printable(values['Timestamp'], 40)!r}") from error
    for name, value in values.items():
        if name != "Message" and not value.isprintable():
            raise Malformed(f"{name} has a line end")


def _certificate_url(given: str, topic: Topic) -> str:
    """Return where the certificate is: of the message's own address only the file's name is used.

    Raises:
        Malformed: the address is not on the host of the topic's region.
    """
    found = re.fullmatch(rf"https://{re.escape(topic.host)}/({_CERTIFICATE_FILE})", given)
    if found is None:
        raise Malformed(f"SigningCertURL {printable(given, 100)!r} is no certificate of {topic.host}")
    return f"https://{topic.host}/{found[1]}"


def _signature(text: str) -> bytes:
    if not 0 < len(text) <= _MAX_SIGNATURE_CHARS:
        raise Malformed("Signature is missing or endless")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError as error:
        raise Malformed("Signature is not base64") from error
