# SPDX-License-Identifier: Apache-2.0
"""What only SendGrid does: ECDSA over the raw body, and a charset for each field."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from spotwatch.errors import ConfigError
from spotwatch.mail.inbound.sendgrid import SIGNATURE, Config
from spotwatch.mail.reading import read_mail
from spotwatch.received import Received
from tests.mail.inbound.requests_sendgrid import good, key, multipart, public, request
from tests.mail.inbound.services import MAIL, NOW, bench, deliver, refusal

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


async def test_the_signature_covers_the_mail() -> None:
    """It does, and has a time."""
    delivery = await deliver(bench("sendgrid").service, good())
    assert delivery.covers_body
    assert delivery.signed_at == NOW


async def test_the_other_signature_of_the_same_request_is_the_same_replay() -> None:
    """ECDSA has two signatures for each content, and anybody can make the second of the first."""
    service = bench("sendgrid").service
    first = good()
    r, s = decode_dss_signature(base64.b64decode(first.headers[SIGNATURE]))
    twin = base64.b64encode(encode_dss_signature(r, P256_ORDER - s)).decode()
    second = Received(headers={**first.headers, SIGNATURE: twin}, body=first.body)
    assert (await deliver(service, first)).replay_id == (await deliver(service, second)).replay_id


@pytest.mark.hostile(9)
async def test_both_keys_count_during_a_rotation() -> None:
    """The old key is heard while it is configured, and no longer after."""
    made = request(multipart(email=MAIL), number=2)
    await deliver(bench("sendgrid").service, made)
    later = bench("sendgrid", config=Config(verification_keys=(public(key(1)),)))
    assert (await refusal(later.service, made)).result == "unsigned"


@pytest.mark.hostile(10)
@pytest.mark.parametrize("age_seconds", [302, -302])
async def test_a_stamp_of_another_time_is_a_replay(age_seconds: int) -> None:
    """Five minutes either way."""
    verdict = await refusal(
        bench("sendgrid").service, request(multipart(email=MAIL), age_seconds=age_seconds)
    )
    assert (verdict.status, verdict.result) == (401, "replayed")


@pytest.mark.hostile(25)
@pytest.mark.parametrize("charset", ["iso-8859-1", "GB18030", "utf-8"])
async def test_each_field_is_read_in_its_own_charset(charset: str) -> None:
    """Parsed fields come as they were sent, with a table of charsets beside them."""
    word = "Übung" if charset == "iso-8859-1" else "通知"
    body = multipart(
        text=word.encode(charset),
        subject="Gruß".encode(),
        to=b"me@example.com",
        charsets=json.dumps({"text": charset, "subject": "UTF-8"}).encode(),
        **{"from": b"support@digitalocean.com"},
    )
    delivery = await deliver(bench("sendgrid").service, request(body))
    assert not delivery.is_original
    mail = read_mail(delivery.raw)
    assert (mail.subject, mail.sender, word in mail.text) == ("Gruß", "support@digitalocean.com", True)


@pytest.mark.hostile(21, 23)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"to": b"me@example.com"},
        {"text": b"x", "charsets": b"{"},
        {"text": b"x", "charsets": b"[]"},
        {"text": b"x", "charsets": b"[" * 20000},
    ],
)
async def test_signed_nonsense_is_malformed(fields: dict[str, bytes]) -> None:
    """A form without a mail, or with other types, is refused for good."""
    verdict = await refusal(bench("sendgrid").service, request(multipart(**fields)))
    assert (verdict.status, verdict.result) == (400, "malformed")


@pytest.mark.hostile(34)
@pytest.mark.parametrize("charset", ["rot13", "zlib", "idna", "nonsense", "utf-8\0", 5, None, ["utf-8"]])
async def test_a_charset_that_is_none_is_read_as_utf_8(charset: object) -> None:
    """No codec but those of letters is ever asked for."""
    charsets = json.dumps({"text": charset}).encode()
    body = multipart(text="Übung".encode(), subject=b"s", charsets=charsets)
    delivery = await deliver(bench("sendgrid").service, request(body))
    assert "Übung" in read_mail(delivery.raw).text


async def test_two_mails_in_one_form_are_malformed() -> None:
    """The one that is verified might not be the one that is read."""
    body = multipart(email=MAIL).replace(b"--xYzZY--", b"")
    both = body + multipart(email=MAIL + b"x")
    assert (await refusal(bench("sendgrid").service, request(both))).result == "malformed"


@pytest.mark.parametrize("text", ["", "AAAA", "no base64!", public(key(1))[:-8]])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    """What does not load is said before anything starts."""
    with pytest.raises(ConfigError, match="no public key"):
        bench("sendgrid", config=Config(verification_keys=(text,)))


def test_a_key_of_another_curve_is_refused() -> None:
    """Only P-256 is SendGrid's."""
    other = public(ec.derive_private_key(7, ec.SECP384R1()))
    with pytest.raises(ConfigError, match="no ECDSA P-256 key"):
        bench("sendgrid", config=Config(verification_keys=(other,)))


def test_no_key_is_refused_before_anything_starts() -> None:
    """A service without a key would hear anybody."""
    with pytest.raises(ValueError, match="has no verification_keys; make a security policy"):
        Config()
