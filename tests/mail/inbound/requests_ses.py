# SPDX-License-Identifier: Apache-2.0
"""Messages as SNS signs them for mail that SES received, with a certificate of our own making.

It holds no test.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from spotwatch.clock import Clock
from spotwatch.mail.inbound._sns_keys import Keys
from spotwatch.mail.inbound.ses import Config
from spotwatch.received import Received
from tests.mail.inbound.services import MAIL, NOW

TOPIC = "arn:aws:sns:eu-west-1:123456789012:mail"
FOREIGN_TOPIC = "arn:aws:sns:eu-west-1:999999999999:mail"
CERTIFICATE_URL = (
    "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem"
)
SUBSCRIBE_URL = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=x&Token=y"

config = Config(topics=(TOPIC,))
SECRETS: Mapping[str, str] = {}


@functools.cache
def key_of(who: str) -> rsa.RSAPrivateKey:
    """Return the key of that owner, made once a run."""
    return rsa.generate_private_key(public_exponent=65537, key_size=1024 if who == "short" else 2048)


def _name(common_name: str, organization: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def certificate(
    who: str = "sns",
    *,
    names: tuple[str, ...] = ("sns.amazonaws.com",),
    owner: str = "SNS",
    issuer: str = "Amazon",
    signed_by: str = "authority",
    is_authority: bool = False,
    begins: datetime = NOW - timedelta(days=30),
    ends: datetime = NOW + timedelta(days=30),
) -> bytes:
    """Return a certificate, PEM, of the key of `who`; without `names` its common name says whose it is."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name("sns.amazonaws.com" if who == "sns" else who, owner))
        .issuer_name(_name("sns.amazonaws.com" if signed_by == "sns" else signed_by, issuer))
        .public_key(key_of(who).public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if names:
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(key_of(signed_by), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


async def fetch(url: str) -> bytes:
    """Play the host of the certificates, which is asked for one only."""
    assert url == CERTIFICATE_URL
    return certificate()


def more(clock: Clock) -> dict[str, Any]:
    """Return what the class takes beyond the rest: keys of our own certificate, and nobody to confirm to."""

    def confirm(arn: str, token: str) -> None:
        raise AssertionError(f"{arn} must not be confirmed")

    return {"keys": Keys(clock, fetch), "confirm": confirm}


def received(content: str | None = None, *, encoding: str = "BASE64", **receipt: Any) -> dict[str, Any]:
    """Return what SES publishes for a mail; `receipt` adds to or replaces its facts."""
    verdicts = ("spamVerdict", "virusVerdict", "spfVerdict", "dkimVerdict", "dmarcVerdict")
    return {
        "notificationType": "Received",
        "mail": {"timestamp": "2026-11-29T12:00:00.000Z", "messageId": "d6iitobk75ur44p8kdnnp7g2n800"},
        "receipt": {
            "timestamp": "2026-11-29T12:00:00.000Z",
            **{name: {"status": "PASS"} for name in verdicts},
            "action": {"type": "SNS", "topicArn": TOPIC, "encoding": encoding},
            **receipt,
        },
        "content": base64.b64encode(MAIL).decode() if content is None else content,
    }


def envelope(message: object = None, **changes: str | None) -> dict[str, str]:
    """Return a message of SNS without its signature; a change to None leaves the field out."""
    text = message if isinstance(message, str) else json.dumps(message or received())
    fields: dict[str, str | None] = {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": TOPIC,
        "Subject": "Amazon SES Email Receipt Notification",
        "Message": text,
        "Timestamp": "2026-11-29T12:00:00.123Z",
        "SignatureVersion": "2",
        "SigningCertURL": CERTIFICATE_URL,
        "UnsubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=Unsubscribe&SubscriptionArn=x",
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


def confirmation(kind: str = "SubscriptionConfirmation", **changes: str | None) -> dict[str, str]:
    """Return the message that asks to confirm a subscription, without its signature."""
    return envelope(
        "You have chosen to subscribe to the topic.",
        **{
            "Type": kind, "Subject": None, "Token": "a1b2c3", "SubscribeURL": SUBSCRIBE_URL,
            "UnsubscribeURL": None, **changes,
        },
    )  # fmt: skip


def sign(row: Mapping[str, str], who: str = "sns") -> dict[str, str]:
    """Return the message with the signature of `who`, by the version that it names, else by version 2."""
    names = (
        ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
        if row["Type"] == "Notification"
        else ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
    )
    text = "".join(f"{name}\n{row[name]}\n" for name in names if name in row)
    digest = hashes.SHA1() if row.get("SignatureVersion") == "1" else hashes.SHA256()
    signature = key_of(who).sign(text.encode(), padding.PKCS1v15(), digest)
    return {**row, "Signature": base64.b64encode(signature).decode()}


def post(row: Mapping[str, str]) -> Received:
    """Return the request that SNS posts: JSON, called plain text."""
    headers = {"content-type": "text/plain; charset=UTF-8", "x-amz-sns-message-type": row["Type"]}
    return Received(headers=headers, body=json.dumps(row).encode(), path="ses")


def good() -> Received:
    """Return a genuine message with MAIL in base64."""
    return post(sign(envelope()))


def tampered() -> list[tuple[str, Received]]:
    """Return requests that must be refused, each with what is wrong about it."""
    genuine = sign(envelope())
    found = [
        ("another key", post(sign(envelope(), who="stranger"))),
        ("a foreign topic, rightly signed", post(sign(envelope(TopicArn=FOREIGN_TOPIC)))),
        ("a foreign topic's confirmation", post(sign(confirmation(TopicArn=FOREIGN_TOPIC)))),
        ("too old", post(sign(envelope(Timestamp="2026-11-29T10:59:59.000Z")))),
        ("too new", post(sign(envelope(Timestamp="2026-11-29T12:05:01.000Z")))),
        ("another mail", post({**genuine, "Message": genuine["Message"].replace("PASS", "PASs")})),
        ("another id", post({**genuine, "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf325"})),
        ("another subject", post({**genuine, "Subject": "x"})),
        ("another time", post({**genuine, "Timestamp": "2026-11-29T12:00:01.123Z"})),
        ("a line in the subject", post(sign(envelope(Subject="x\nTimestamp")))),
        ("an id that is none", post(sign(envelope(MessageId="1\nTimestamp\n2")))),
        ("a notification called confirmation", post({**genuine, "Type": "SubscriptionConfirmation"})),
        ("another hash", post({**genuine, "SignatureVersion": "1"})),
        ("an unknown type", post(sign(envelope(Type="Other")))),
    ]
    for field in ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type", "Signature"):
        rest = {name: value for name, value in genuine.items() if name != field}
        request = replace(post(genuine), body=json.dumps(rest).encode())
        found.append((f"no {field}", request))
    signatures = ("", "!", "AAAA", "é", "A" * 1_000_000)
    return found + [(f"signature {text[:4]!r}", post({**genuine, "Signature": text})) for text in signatures]
