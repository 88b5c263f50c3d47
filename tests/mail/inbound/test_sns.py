# SPDX-License-Identifier: Apache-2.0
"""What makes a message of SNS genuine: its form, its signature, its certificate, and where that came from.

What a genuine one brings is tested in test_ses.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from spotwatch.errors import Malformed, Unavailable
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._sns import parse_topic, read_message, verify
from spotwatch.mail.inbound._sns_certificate import read_certificate
from spotwatch.mail.inbound._sns_keys import Keys
from spotwatch.mail.inbound.ses import Config, Ses
from spotwatch.mail.model import Delivery
from spotwatch.received import Received
from tests.mail.inbound.requests_ses import (
    CERTIFICATE_URL,
    TOPIC,
    certificate,
    envelope,
    good,
    key_of,
    post,
    sign,
)
from tests.mail.inbound.services import NOW
from tests.mail.inbound.still import Still

OURS = parse_topic(TOPIC)


@dataclass
class Host:
    """The host of the certificates, played: what it serves, and how often it was asked."""

    answer: Callable[[], bytes] = certificate
    asked: list[str] = field(default_factory=list)

    async def fetch(self, url: str) -> bytes:
        """Serve whatever is asked for."""
        self.asked.append(url)
        return self.answer()


@dataclass
class Bench:
    """The service beside a host of certificates and a clock."""

    host: Host = field(default_factory=Host)
    clock: Still = field(default_factory=lambda: Still(NOW))
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the service, which remembers certificates."""
        self.service = Ses(
            Config(topics=(TOPIC,), **self.settings),
            read_secret=str,
            clock=self.clock,
            tolerance_seconds=300,
            keys=Keys(self.clock, self.host.fetch),
        )

    async def refusal(self, request: Received) -> tuple[int, str]:
        """Return status and label of a refused request."""
        with pytest.raises(Refused) as caught:
            await self.service.open(request)
        return caught.value.verdict.status, caught.value.verdict.result


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", ["Amazon SES Email Receipt Notification", None])
async def test_both_versions_of_the_signature_hold(version: str, subject: str | None) -> None:
    """SHA-1 as topics sign by default, SHA-256 as they should, with a subject and without."""
    request = post(sign(envelope(SignatureVersion=version, Subject=subject)))
    assert isinstance(await Bench().service.open(request), Delivery)


async def test_a_subject_of_null_is_none() -> None:
    """A field that is there and empty of all is not signed."""
    row: dict[str, Any] = sign(envelope(Subject=None))
    row["Subject"] = None
    assert isinstance(await Bench().service.open(post(row)), Delivery)


@pytest.mark.hostile(28)
@pytest.mark.parametrize("version", ["3", "", "02", None])
async def test_an_unknown_version_is_refused_unasked(version: str | None) -> None:
    """Nothing is fetched for a signature that nobody could check."""
    bench = Bench()
    assert await bench.refusal(post(sign(envelope(SignatureVersion=version)))) == (401, "unsigned")
    assert bench.host.asked == []


@pytest.mark.hostile(28)
async def test_version_1_can_be_refused() -> None:
    """With `require_v2` a signature over SHA-1 does not count, and one over SHA-256 does."""
    bench = Bench(settings={"require_v2": True})
    assert await bench.refusal(post(sign(envelope(SignatureVersion="1")))) == (401, "unsigned")
    assert bench.host.asked == []
    assert isinstance(await bench.service.open(good()), Delivery)


@pytest.mark.hostile(29)
@pytest.mark.parametrize("said", ["SubscriptionConfirmation", "notification", "", None])
async def test_the_header_must_say_what_the_body_says(said: str | None) -> None:
    """A proxy that looked at the header alone and we would not see the same message."""
    request = good()
    headers = {name: value for name, value in request.headers.items() if name != "x-amz-sns-message-type"}
    if said is not None:
        headers["x-amz-sns-message-type"] = said
    assert await Bench().refusal(Received(headers=headers, body=request.body)) == (401, "unsigned")


@pytest.mark.hostile(27)
@pytest.mark.parametrize(
    "url",
    [
        "https://sns.eu-west-1.amazonaws.com.evil.com/SimpleNotificationService-0123456789abcdef.pem",
        "http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
        "https://sns.eu-west-1.amazonaws.com@evil.com/SimpleNotificationService-0123456789abcdef.pem",
        "https://evil@sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
        "https://sns.eu-west-1.amazonaws.com:8443/SimpleNotificationService-0123456789abcdef.pem",
        "https://169.254.169.254/SimpleNotificationService-0123456789abcdef.pem",
        "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem?x",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem#x",
        "https://sns.eu-west-1.amazonaws.com/../SimpleNotificationService-0123456789abcdef.pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-short.pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem\n",
        "https://bucket.s3.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
        "https://SNS.eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
        "file:///etc/passwd",
        "",
        None,
    ],
)
async def test_a_certificate_elsewhere_is_not_fetched(url: str | None) -> None:
    """Only a file of that form, on the host of the topic's own region, by https and no other port."""
    bench = Bench()
    assert await bench.refusal(post(sign(envelope(SigningCertURL=url)))) == (401, "unsigned")
    assert bench.host.asked == []


@pytest.mark.hostile(21)
@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"null", b"[" * 20_000, b'{"Type":"a","Type":"b"}'])
async def test_a_body_that_is_no_message_is_refused(body: bytes) -> None:
    """No JSON is 400, JSON without a message 401; never an exception."""
    assert (await Bench().refusal(Received(headers={}, body=body)))[0] in {400, 401}


async def test_a_certificate_is_fetched_once_and_again_when_it_has_ended() -> None:
    """The key of a certificate counts as long as the certificate does."""
    bench = Bench()
    for _ in range(3):
        await bench.service.open(good())
    assert bench.host.asked == [CERTIFICATE_URL]
    bench.clock.wall_offset_seconds = timedelta(days=31).total_seconds()
    late = post(sign(envelope(Timestamp="2026-12-30T12:00:00.000Z")))
    assert await bench.refusal(late) == (401, "unsigned")
    assert len(bench.host.asked) == 2


async def test_a_host_that_does_not_answer_means_try_again() -> None:
    """SNS repeats after 503; a message that could not be checked does nothing meanwhile."""

    async def fails(url: str) -> bytes:
        raise Unavailable(f"{url} does not answer")

    bench = Bench()
    bench.service = Ses(
        Config(topics=(TOPIC,)),
        read_secret=str,
        clock=bench.clock,
        tolerance_seconds=300,
        keys=Keys(bench.clock, fails),
    )
    assert await bench.refusal(good()) == (503, "pending")


@pytest.mark.parametrize(
    ("pem", "why"),
    [
        (certificate(ends=NOW - timedelta(seconds=1)), "holds from"),
        (certificate(begins=NOW + timedelta(seconds=1)), "holds from"),
        (certificate(names=("sns.amazonaws.com.evil.com",)), r"not one of sns\.eu-west-1"),
        (certificate(names=("*.amazonaws.com",)), r"not one of sns\.eu-west-1"),
        (certificate(names=("sns-signing.us-east-1.amazonaws.com",)), r"not one of sns\.eu-west-1"),
        (certificate("stranger", names=()), r"not one of sns\.eu-west-1"),
        (certificate(issuer="Let's Encrypt"), "not issued by Amazon"),
        (certificate(is_authority=True), "an authority's"),
        (certificate("short"), "2048 bits"),
        (certificate() + certificate("stranger"), "do not belong together"),
        (certificate() * 5, "more than 4"),
        (b"", "no certificate"),
        (b"<html>", "no certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificate"),
        (
            key_of("sns").public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
            "no certificate",
        ),
    ],
    ids=[
        "ended", "not begun", "other host", "wildcard", "other region", "other common name", "other issuer",
        "authority", "short key", "foreign chain", "long chain", "empty", "html", "nonsense", "a key",
    ],
)  # fmt: skip
def test_a_certificate_that_sns_does_not_sign_with_is_refused(pem: bytes, why: str) -> None:
    """Time, names, issuer, purpose, key and chain are looked at, each."""
    with pytest.raises(Malformed, match=why):
        read_certificate(pem, OURS, NOW)


def test_a_certificate_that_signed_itself_is_refused() -> None:
    """Who says so himself says nothing."""
    name = "sns.amazonaws.com"
    with pytest.raises(Malformed, match="its own"):
        read_certificate(certificate(signed_by="sns", issuer="SNS", names=(name,)), OURS, NOW)


@pytest.mark.parametrize(
    ("arn", "name"),
    [
        (TOPIC, "sns.amazonaws.com"),
        (TOPIC, "sns.eu-west-1.amazonaws.com"),
        ("arn:aws:sns:af-south-1:123456789012:m", "sns-signing.af-south-1.amazonaws.com"),
        ("arn:aws-us-gov:sns:us-gov-east-1:123456789012:m", "sns-us-gov-west-1.amazonaws.com"),
        ("arn:aws-cn:sns:cn-north-1:123456789012:m", "sns-cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_names_of_each_partition_are_known(arn: str, name: str) -> None:
    """Certificates are called by region in some, and by one name in the rest."""
    topic = parse_topic(arn)
    known = read_certificate(certificate(names=("x.example.com", name)), topic, NOW)
    request = sign(
        envelope(TopicArn=arn, SigningCertURL=f"https://{topic.host}/{CERTIFICATE_URL.rsplit('/')[-1]}")
    )
    received = post(request)
    message = read_message(received.headers, received.body, topics=[topic], needs_v2=True)
    assert verify(message, known.key)


def test_a_certificate_with_the_common_name_alone_counts() -> None:
    """Older ones have no alternative names."""
    assert read_certificate(certificate(names=()), OURS, NOW).until == NOW + timedelta(days=30)


def test_a_chain_that_belongs_together_counts() -> None:
    """As much of a chain as the file brings is checked link by link."""
    above = certificate("authority", owner="Amazon", signed_by="root", is_authority=True, names=())
    assert read_certificate(certificate() + above, OURS, NOW).until == NOW + timedelta(days=30)
