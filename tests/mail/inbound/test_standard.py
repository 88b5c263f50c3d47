# SPDX-License-Identifier: Apache-2.0
"""A mail posted with a Standard Webhooks signature: which bytes count, and what is answered to the rest.

It does not test the signature itself in all its forms; tests/test_webhooks.py does.
"""

from __future__ import annotations

import base64
import email
import email.policy
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import ConfigError
from spotwatch.mail import inbound
from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._composed import compose
from spotwatch.mail.inbound.standard import Config, Standard
from spotwatch.mail.model import Delivery
from spotwatch.received import Received
from tests.mail.inbound.requests_standard import (
    SECRET,
    SECRET_TEXT,
    SECRETS,
    as_json,
    config,
    good,
    signed,
    tampered,
)
from tests.mail.inbound.services import MAIL, NOW
from tests.mail.inbound.still import Still

OLD_SECRET = bytes(range(100, 132))


def service(made_from: Config = config, *, fallback: tuple[bytes, ...] = ()) -> Standard:
    """Return the service at NOW."""
    return Standard(
        made_from,
        read_secret=SECRETS.__getitem__,
        clock=Still(NOW),
        tolerance_seconds=300,
        secrets=fallback,
    )


async def opened(request: Received) -> Delivery:
    """Return the mail in `request`."""
    delivery = await service().open(request)
    assert isinstance(delivery, Delivery)
    return delivery


async def refusal(request: Received, of: Standard | None = None) -> tuple[int, str]:
    """Return status and metric label of a refused request."""
    with pytest.raises(Refused) as caught:
        await (of or service()).open(request)
    return caught.value.verdict.status, caught.value.verdict.result


def test_the_service_is_found_by_its_name() -> None:
    """A section, a path and a page called `standard` lead here."""
    assert inbound.load("standard") is Standard


@pytest.mark.parametrize("content_type", ["message/rfc822", "Application/Octet-Stream; x=y"])
async def test_a_raw_mail_is_handed_on_byte_for_byte(content_type: str) -> None:
    """DKIM holds only over what the mail server received, 8-bit and control bytes included."""
    raw = MAIL + bytes(range(256))
    assert await opened(signed(raw, content_type)) == Delivery(
        service="standard",
        raw=raw,
        is_original=True,
        covers_body=True,
        replay_id="standard:msg_1",
        signed_at=NOW,
        received_at=NOW,
    )


@pytest.mark.parametrize(
    "encoded",
    [
        base64.b64encode(MAIL + b"\xff\xfe").decode(),
        base64.encodebytes(MAIL + b"\xff\xfe").decode(),
        base64.urlsafe_b64encode(MAIL + b"\xff\xfe").decode().rstrip("="),
    ],
    ids=["plain", "wrapped", "as Gmail's interface gives it"],
)
async def test_a_raw_mail_may_come_in_json(encoded: str) -> None:
    """`raw_b64` is as good as the bytes, in either alphabet of base64."""
    delivery = await opened(
        as_json({"type": "email.received", "timestamp": "x", "data": {"raw_b64": encoded}})
    )
    assert (delivery.raw, delivery.is_original) == (MAIL + b"\xff\xfe", True)


async def test_fields_are_composed_into_a_mail_that_is_no_original() -> None:
    """A workflow that has only subject and text is heard, and can never prove anything by DKIM."""
    data = {
        "subject": "Réclamation: spot-trainer-01",
        "from": "DigitalOcean <support@digitalocean.com>",
        "to": "ops@example.com",
        "date": "2026-11-29T12:00:00+01:00",
        "message_id": "<a@b>",
        "text": "Ihr Droplet geht um 14:00 UTC.\nGrüße",
        "html": "<p>Grüße</p>",
    }
    delivery = await opened(as_json({"type": "email.received", "data": data}))
    assert (delivery.is_original, delivery.covers_body) == (False, True)
    mail = email.message_from_bytes(delivery.raw, policy=email.policy.default)
    assert mail["subject"] == data["subject"]
    assert mail["from"] == data["from"]
    assert mail["to"] == data["to"]
    assert mail["date"].datetime == datetime(2026, 11, 29, 11, tzinfo=UTC)
    assert mail["message-id"] == data["message_id"]
    bodies = {part.get_content_type(): part.get_content() for part in mail.walk() if not part.is_multipart()}
    assert bodies == {"text/plain": data["text"], "text/html": data["html"]}


@pytest.mark.hostile(7, 8, 10, 11)
@pytest.mark.parametrize(("why", "request_"), tampered(), ids=[why for why, _ in tampered()])
async def test_what_is_not_signed_as_it_is_gets_401(why: str, request_: Received) -> None:
    """Whatever is missing, changed, endless or in another script: 401, and nothing is parsed."""
    assert await refusal(request_) == (401, "replayed" if why.startswith("too ") else "unsigned")


@pytest.mark.hostile(7)
async def test_a_json_body_that_was_written_anew_gets_401() -> None:
    """The same document with other blanks is another message."""
    request = as_json({"type": "email.received", "data": {"text": "x"}})
    again = json.dumps(json.loads(request.body), separators=(",", ":")).encode()
    assert await refusal(replace(request, body=again)) == (401, "unsigned")


@pytest.mark.hostile(9)
async def test_an_old_secret_counts_until_it_is_removed() -> None:
    """During a rotation both count; afterwards only the new one."""
    both = Config(secret_files=("standard-secret", "old"))
    request = signed(MAIL, secret=OLD_SECRET)
    texts = {**SECRETS, "old": "whsec_" + base64.b64encode(OLD_SECRET).decode()}
    rotating = Standard(both, read_secret=texts.__getitem__, clock=Still(NOW), tolerance_seconds=300)
    assert isinstance(await rotating.open(request), Delivery)
    assert await refusal(request) == (401, "unsigned")


@pytest.mark.hostile(12)
async def test_a_repeated_request_has_one_replay_id() -> None:
    """What is sent twice is known by its `webhook-id`, which is signed."""
    first, second = await opened(good()), await opened(good())
    assert first.replay_id == second.replay_id == "standard:msg_1"


@pytest.mark.hostile(22)
@pytest.mark.parametrize(
    "content_type", ["application/json; charset=bogus", 'application/json;charset="utf-16"']
)
async def test_json_in_another_charset_gets_400(content_type: str) -> None:
    """JSON is UTF-8; a charset that nobody knows is an answer, not a crash."""
    body = json.dumps({"type": "email.received", "data": {"text": "x"}}).encode()
    assert await refusal(signed(body, content_type)) == (400, "malformed")


async def test_json_may_say_that_it_is_utf8() -> None:
    """Most libraries write the charset, which says nothing new."""
    body = b'\xef\xbb\xbf{"type": "email.received", "data": {"text": "x"}}'
    delivery = await service().open(signed(body, "application/json; charset=UTF-8"))
    assert isinstance(delivery, Delivery)


@pytest.mark.hostile(21, 23)
@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "x",
        {},
        {"type": "email.received"},
        {"type": "email.received", "data": None},
        {"type": "email.received", "data": []},
        {"type": "email.received", "data": {}},
        {"type": "email.received", "data": {"raw_b64": 5}},
        {"type": "email.received", "data": {"raw_b64": "not base64!"}},
        {"type": "email.received", "data": {"raw_b64": "é"}},
        {"type": "email.received", "data": {"raw_b64": "A"}},
        {"type": "email.received", "data": {"raw_b64": "=="}},
        {"type": "email.received", "data": {"text": "  "}},
        {"type": "email.received", "data": {"text": ["x"]}},
        {"type": "email.received", "data": {"text": "x", "from": []}},
        {"type": "email.received", "data": {"text": "x", "date": 5}},
        {"type": ["email.received"], "data": {"text": "x"}},
        {"type": "email.sent", "data": {"text": "x"}},
        {"event": "reclaim", "droplet_id": 512345678},
    ],
    ids=str,
)
async def test_signed_json_of_another_form_gets_400(document: Any) -> None:
    """Signed, and no mail: a permanent answer, so that nobody tries for ever."""
    assert await refusal(as_json(document)) == (400, "malformed")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "message/rfc822"),
        (b"\r\n", "message/rfc822"),
        (MAIL, ""),
        (MAIL, "text/plain"),
        (b"{", "application/json"),
    ],
)
async def test_a_body_that_is_no_mail_gets_400(body: bytes, content_type: str) -> None:
    """An empty mail, an unknown type and half a document are refused for good."""
    assert await refusal(signed(body, content_type)) == (400, "malformed")


async def test_the_reason_says_what_to_send_instead() -> None:
    """The log names the type that came and those that are wanted."""
    with pytest.raises(
        Refused, match="'text/plain'; send the mail as message/rfc822, or as application/json"
    ):
        await service().open(signed(MAIL, "text/plain"))


def test_secrets_of_the_webhook_count_where_the_section_has_none() -> None:
    """One secret is enough for a small setup; a section with its own keeps the webhook's out."""
    assert service(Config(), fallback=(SECRET,))._secrets == (SECRET,)
    assert service(fallback=(OLD_SECRET,))._secrets == (SECRET,)


@pytest.mark.hostile(16)
@pytest.mark.parametrize("text", ["", "secret", "whsec_", "whsec_AAAA"])
def test_without_a_secret_there_is_no_service(text: str) -> None:
    """A missing, short or other secret is a configuration error with what to do."""
    with pytest.raises(ConfigError, match="openssl rand"):
        Standard(
            Config(secret_files=("s",)),
            read_secret={"s": text}.__getitem__,
            clock=Still(NOW),
            tolerance_seconds=1,
        )
    with pytest.raises(ConfigError, match=r"inbound\.standard\.secret_files"):
        service(Config())
    with pytest.raises(ValueError, match="empty name"):
        Config(secret_files=(" ",))


def test_the_secret_of_the_tests_is_the_one_that_they_name() -> None:
    """The text and the key of the tests belong together."""
    assert SECRET_TEXT == "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    assert base64.b64decode(SECRET_TEXT.removeprefix("whsec_")) == SECRET


@given(
    fields=st.fixed_dictionaries(
        {
            key: st.text(max_size=200)
            for key in ("subject", "sender", "recipients", "date", "message_id", "text", "html")
        }
    )
)
def test_a_field_never_becomes_another_header(fields: dict[str, str]) -> None:
    """Whatever a field holds, the mail has the headers that we write, each once, and plain line ends."""
    raw = compose(**fields)
    head = raw.partition(b"\r\n\r\n")[0]
    names = [line.partition(b":")[0] for line in head.split(b"\r\n") if not line.startswith(b" ")]
    known = {b"From", b"To", b"Subject", b"Date", b"Message-ID", b"MIME-Version", b"Content-Type"}
    assert set(names) <= known | {b"Content-Transfer-Encoding"}
    assert len(set(names)) == len(names)
    assert raw.isascii()
    assert raw.count(b"\n") == raw.count(b"\r\n") == raw.count(b"\r")


@given(text=st.text(max_size=300), html=st.text(min_size=1, max_size=300))
def test_composed_bodies_read_as_they_were(text: str, html: str) -> None:
    """Both bodies survive, whatever characters they have."""
    mail = email.message_from_bytes(compose(text=text, html=html), policy=email.policy.compat32)
    leaves = [part for part in mail.walk() if not part.is_multipart()]
    bodies = [bytes(part.get_payload(decode=True)).decode() for part in leaves]
    assert bodies == ([text, html] if text else [html])


@pytest.mark.hostile(39)
def test_an_address_in_another_script_does_not_become_the_right_one() -> None:
    """A Cyrillic letter within the address stays a fault; in a name it is kept."""
    raw = compose(sender="Иван <support@digital\u043ecean.com>", text="x")
    sender = email.message_from_bytes(raw)["from"]
    assert sender.endswith("<support@digital?cean.com>")
    assert compose(sender="Иван <a@b.c>", text="x").startswith(b"From: =?utf-8?b?")


async def test_a_clock_that_is_off_is_told_from_a_stranger() -> None:
    """A rightly signed request of another hour is `replayed`, which the metric shows."""
    late = signed(MAIL, at=int((NOW - timedelta(hours=1)).timestamp()))
    assert await refusal(late) == (401, "replayed")
