# SPDX-License-Identifier: Apache-2.0
"""Mail that SES publishes: what comes out of a genuine message, and what becomes of subscriptions.

What makes a message genuine is tested in test_sns.py.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from spotwatch.errors import ConfigError, Unavailable
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._sns_confirm import confirm_subscription
from spotwatch.mail.inbound._sns_keys import Keys
from spotwatch.mail.inbound.ses import Config, Ses
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict
from tests.mail.inbound.requests_ses import (
    FOREIGN_TOPIC,
    TOPIC,
    confirmation,
    envelope,
    fetch,
    good,
    post,
    received,
    sign,
)
from tests.mail.inbound.services import MAIL, NOW
from tests.mail.inbound.still import Still


@dataclass
class Bench:
    """The service, and what it has confirmed."""

    confirmed: list[tuple[str, str]] = field(default_factory=list)
    fails: bool = False

    def confirm(self, arn: str, token: str) -> None:
        """Play AWS."""
        if self.fails:
            raise Unavailable("no answer")
        self.confirmed.append((arn, token))

    def service(self, **settings: Any) -> Ses:
        """Return the service at NOW."""
        clock = Still(NOW)
        return Ses(
            Config(**{"topics": (TOPIC,), **settings}),
            read_secret=str,
            clock=clock,
            tolerance_seconds=300,
            keys=Keys(clock, fetch),
            confirm=self.confirm,
        )

    async def deliver(self, message: object) -> Delivery:
        """Open a genuine notification that must hand over a mail."""
        delivery = await self.service().open(post(sign(envelope(message))))
        assert isinstance(delivery, Delivery)
        return delivery

    async def refusal(self, request: Received, **settings: Any) -> Verdict:
        """Return what a refused request is answered."""
        with pytest.raises(Refused) as caught:
            await self.service(**settings).open(request)
        return caught.value.verdict


@pytest.mark.parametrize("encoding", ["BASE64", "Base64"])
async def test_a_mail_in_base64_comes_out_byte_for_byte(encoding: str) -> None:
    """All that SNS signed is known: the mail, when it was published, and what makes it count once."""
    raw = MAIL + bytes(range(256))
    delivery = await Bench().deliver(received(base64.b64encode(raw).decode(), encoding=encoding))
    assert delivery == Delivery(
        service="ses",
        raw=raw,
        is_original=True,
        covers_body=True,
        replay_id="ses:22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        signed_at=datetime(2026, 11, 29, 12, 0, 0, 123000, tzinfo=UTC),
        received_at=NOW,
    )


@pytest.mark.parametrize("encoding", ["UTF-8", None], ids=["UTF-8", "without encoding"])
async def test_a_mail_as_text_is_an_original_unless_bytes_were_lost(encoding: str | None) -> None:
    """What SES could not write as UTF-8 is a replacement character, and then no signature can hold."""
    action = {"type": "SNS", "topicArn": TOPIC, **({} if encoding is None else {"encoding": encoding})}
    for text, is_original in (
        (MAIL.decode(), True),
        (MAIL.decode() + "é", True),
        (MAIL.decode() + "�", False),
    ):
        delivery = await Bench().deliver(received(text, action=action))
        assert (delivery.raw, delivery.is_original) == (text.encode(), is_original)


@pytest.mark.hostile(22)
@pytest.mark.parametrize(
    "content_type", ["text/plain; charset=UTF-8", "application/json", "x/y; charset=bogus"]
)
async def test_the_content_type_says_nothing(content_type: str) -> None:
    """SNS calls its JSON plain text; what counts is what was signed."""
    request = good()
    changed = replace(request, headers={**request.headers, "content-type": content_type})
    assert isinstance(await Bench().service().open(changed), Delivery)


@pytest.mark.hostile(31)
@pytest.mark.parametrize("verdict", ["dkimVerdict", "spamVerdict", "virusVerdict"])
async def test_what_ses_found_wrong_is_a_doubt(verdict: str) -> None:
    """The mail is handed on, and can only be weak."""
    found: dict[str, Any] = {verdict: {"status": "FAIL"}}
    delivery = await Bench().deliver(received(**found))
    assert delivery.doubts == (f"SES: {verdict} FAIL",)


@pytest.mark.parametrize("status", ["PASS", "GRAY", "PROCESSING_FAILED", "DISABLED"])
async def test_what_ses_could_not_tell_is_none(status: str) -> None:
    """GRAY means that there was no signature, and DISABLED that nobody looked."""
    delivery = await Bench().deliver(received(dkimVerdict={"status": status}, spfVerdict={"status": "FAIL"}))
    assert delivery.doubts == ()


@pytest.mark.hostile(30)
@pytest.mark.parametrize(
    "message",
    [
        "Successfully validated SNS topic for Amazon SES event publishing.",
        {"notificationType": "Bounce", "bounce": {}},
        {},
    ],
    ids=["greeting", "bounce", "another message"],
)
async def test_what_is_no_received_mail_is_answered_and_ignored(message: object) -> None:
    """SES's greeting in words and its other notifications are no error."""
    request = post(sign(envelope(message if isinstance(message, str) else json.dumps(message))))
    assert await Bench().service().open(request) == Verdict(status=200, result="ignored")


@pytest.mark.hostile(21, 23)
@pytest.mark.parametrize(
    "message",
    [
        "",
        "hello",
        "[]",
        "[" * 20_000,
        '{"notificationType": "Received", "notificationType": "Received"}',
        json.dumps({"notificationType": 5}),
        json.dumps({"notificationType": "Received"}),
        json.dumps({"notificationType": "Received", "receipt": [], "content": "x"}),
        json.dumps({"notificationType": "Received", "receipt": {"action": 1}, "content": "x"}),
        json.dumps({"notificationType": "Received", "receipt": {"spamVerdict": "FAIL"}, "content": "x"}),
        json.dumps({"notificationType": "Received", "content": 5}),
        json.dumps(received("", action={"type": "S3", "bucketName": "b", "objectKey": "k"})),
        json.dumps(received("!")),
        json.dumps(received("é")),
        json.dumps(received(encoding="GZIP")),
    ],
    ids=lambda text: text[:60],
)
async def test_a_genuine_message_without_a_mail_gets_400(message: str) -> None:
    """Of another form, or with the mail elsewhere: refused for good, and nothing is fetched."""
    assert await Bench().refusal(post(sign(envelope(message or "")))) == Verdict(
        status=400, result="malformed"
    )


async def test_mail_that_lies_in_a_bucket_says_what_to_set() -> None:
    """The log says which action a receipt rule needs."""
    with pytest.raises(Refused, match="give the receipt rule an SNS action"):
        await Bench().service().open(post(sign(envelope(received("")))))


async def test_a_subscription_to_our_topic_is_confirmed() -> None:
    """By AWS's interface, with the topic of the configuration and the token of the request."""
    bench = Bench()
    answer = await bench.service().open(post(sign(confirmation())))
    assert answer == Verdict(status=200, result="accepted")
    assert bench.confirmed == [(TOPIC, "a1b2c3")]


@pytest.mark.hostile(26)
async def test_a_subscription_to_a_foreign_topic_is_refused() -> None:
    """Rightly signed by SNS: anybody may point a topic of theirs at us."""
    bench = Bench()
    request = post(sign(confirmation(TopicArn=FOREIGN_TOPIC)))
    assert await bench.refusal(request) == Verdict(status=401, result="unsigned")
    assert bench.confirmed == []


@pytest.mark.parametrize("request_", [post(sign(confirmation(), who="stranger")), post(confirmation())])
async def test_a_subscription_that_sns_did_not_sign_is_refused(request_: Received) -> None:
    """A stranger's token confirms nothing."""
    bench = Bench()
    assert (await bench.refusal(request_)).status == 401
    assert bench.confirmed == []


async def test_a_confirmation_that_fails_is_asked_for_again() -> None:
    """SNS sends it again after a 503."""
    bench = Bench(fails=True)
    assert (await bench.refusal(post(sign(confirmation())))).status == 503


async def test_the_end_of_a_subscription_is_said() -> None:
    """It is answered, and the log says that no mail comes any more; it is not taken back by itself."""
    bench = Bench()
    with pytest.raises(Refused, match=re.escape(f"the subscription to {TOPIC} was ended")) as caught:
        await bench.service().open(post(sign(confirmation("UnsubscribeConfirmation"))))
    assert caught.value.verdict == Verdict(status=200, result="ignored")
    assert bench.confirmed == []


@pytest.mark.parametrize(
    "settings",
    [
        {"topics": ()},
        {"topics": ("mail",)},
        {"topics": (TOPIC, "arn:aws:sqs:eu-west-1:123456789012:mail")},
        {"topics": (TOPIC + "\n",)},
        {"topics": (TOPIC,), "max_age_seconds": 0},
        {"topics": (TOPIC,), "max_age_seconds": float("nan")},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings: Mapping[str, Any]) -> None:
    """No topic, no ARN, no time: the daemon does not start with it."""
    with pytest.raises(ValueError, match=r"topics|is no topic|max_age_seconds"):
        Config(**settings)


def test_without_the_extra_the_daemon_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What checks signatures is missed at the start, and named."""
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'spotwatch[mail]'")):
        Bench().service()


@dataclass
class Aws:
    """SNS's interface, played: what it was asked, and what it answers."""

    url: str
    asked: list[tuple[dict[str, str], bool]] = field(default_factory=list)
    status: int = 200


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    """Give a server that boto3 takes for SNS, and an environment without credentials."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            query = {name: values[0] for name, values in parse_qs(body).items()}
            played.asked.append((query, "authorization" in self.headers))
            answer = (
                b"<ConfirmSubscriptionResponse><ConfirmSubscriptionResult><SubscriptionArn>x</SubscriptionArn>"
                b"</ConfirmSubscriptionResult></ConfirmSubscriptionResponse>"
            )
            self.send_response(played.status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    played = Aws(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SNS", played.url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    yield played
    server.shutdown()
    thread.join()
    server.server_close()


def test_without_credentials_a_subscription_is_confirmed_unsigned(aws: Aws) -> None:
    """A Droplet has no keys of AWS, and the call needs none."""
    confirm_subscription(TOPIC, "a1b2c3")
    ((query, is_signed),) = aws.asked
    assert (query["Action"], query["TopicArn"], query["Token"]) == ("ConfirmSubscription", TOPIC, "a1b2c3")
    assert not is_signed
    assert "AuthenticateOnUnsubscribe" not in query


def test_with_credentials_strangers_cannot_end_the_subscription(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are keys, only their owner may unsubscribe."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    confirm_subscription(TOPIC, "a1b2c3")
    ((query, is_signed),) = aws.asked
    assert (query["AuthenticateOnUnsubscribe"], is_signed) == ("true", True)


def test_a_refusal_of_aws_is_unavailable(aws: Aws) -> None:
    """A token that is too old is said, once, without tries of boto3's own."""
    aws.status = 403
    with pytest.raises(Unavailable, match="could not be confirmed"):
        confirm_subscription(TOPIC, "old")
    assert len(aws.asked) == 1
