# SPDX-License-Identifier: Apache-2.0
"""A signature counts in its time, by a safe algorithm, and when it is well written."""

from __future__ import annotations

import importlib.util

import pytest

from spotwatch.mail.model import Proven
from tests.mail.proving import DO, MAIL, NOW, changed, is_right_for_dkimpy, names_asked, proof_of
from tests.mail.signing import Signer


def test_sha1_is_not_proven() -> None:
    """SHA-1 collides (RFC 8301), though dkimpy still takes it."""
    raw = DO.sign(MAIL, algorithm="rsa-sha1")
    assert is_right_for_dkimpy(raw, DO)
    assert "rsa-sha1 can be forged" in proof_of(raw).findings[0]


def test_short_key_is_not_proven() -> None:
    """A key of 768 bits is broken at home (RFC 8301); 1024 are still in use."""
    short, usual = Signer(bits=768), Signer(bits=1024)
    raw = short.sign(MAIL)
    assert is_right_for_dkimpy(raw, short)
    proof = proof_of(raw, short.answers)
    assert proof.result is Proven.NO
    assert "the key has 768 bits" in proof.findings[0]
    assert proof_of(usual.sign(MAIL), usual.answers).result is Proven.YES


def test_ed25519_is_proven_where_it_can_be_checked() -> None:
    """Checking it takes pynacl; without, the mail is unproven and says why, and DNS is not asked."""
    signer = Signer(record="v=DKIM1; k=ed25519; p={p}")
    raw = signer.sign(MAIL, algorithm="ed25519-sha256")
    proof = proof_of(raw, signer.answers)
    if importlib.util.find_spec("nacl") is None:
        assert proof.result is Proven.NO
        assert "this installation cannot check ed25519" in proof.findings[0]
        assert names_asked(raw) == ()
    else:
        assert proof.result is Proven.YES
        assert proof_of(changed(raw, b"spot-1", b"spot-2"), signer.answers).result is Proven.NO
        short = raw[: raw.index(b"b=", raw.index(b"bh=") + 3)] + b"b=YWJj\r\n" + raw[raw.index(b"From: ") :]
        assert "cannot be checked" in proof_of(short, signer.answers).findings[0]


@pytest.mark.parametrize(
    ("tags", "result"),
    [
        ({"t": "0"}, Proven.YES),
        ({"t": "{now}"}, Proven.YES),
        ({"t": "{now+300}"}, Proven.YES),
        ({"t": "{now+3600}"}, Proven.NO),
        ({"x": "{now+3600}"}, Proven.YES),
        ({"x": "{now-3600}"}, Proven.NO),
        ({"t": "{now}", "x": "{now-60}"}, Proven.NO),
    ],
)
def test_signature_counts_in_its_time(tags: dict[str, str], result: Proven) -> None:
    """An expired signature, one from the future, and one that expires before it begins prove nothing."""
    base = int(NOW.timestamp())
    raw = DO.sign(MAIL, tags={name: _moment(text, base) for name, text in tags.items()})
    assert proof_of(raw).result is result


def _moment(text: str, base: int) -> str:
    return str(base + int(text.strip("{now}") or 0)) if "now" in text else text


def test_expiry_is_compared_with_the_date_of_the_mail_where_now_is_not_given() -> None:
    """A mail dated after its signature expired is not proven even without a clock."""
    expired = DO.sign(MAIL, tags={"x": str(int(NOW.timestamp()) - 3600)})
    assert proof_of(expired, now=None).result is Proven.NO
    queued = DO.sign(MAIL, tags={"t": str(int(NOW.timestamp()) + 3600)})
    assert proof_of(queued, now=None).result is Proven.YES


@pytest.mark.parametrize(
    "date", [b"Sat, 01 Jan 0001 00:00:00 +0000", b"Fri, 31 Dec 9999 23:59:59 +0000", b"x"]
)
def test_date_at_the_end_of_time_breaks_nothing(date: bytes) -> None:
    """Comparing with `x=` must not leave the calendar."""
    raw = DO.sign(changed(MAIL, b"Sun, 29 Nov 2026 12:00:00 +0000", date), tags={"x": "999999999999"})
    assert proof_of(raw, now=None).result is Proven.YES


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({"v": "2"}, "v= is not 1"),
        ({"q": "dns/a"}, "q= is not dns/txt"),
        ({"c": "relaxed/none"}, "c= is neither"),
        ({"a": "md5"}, "a= is no algorithm"),
        ({"a": "none-sha256"}, "can be forged, or is not known"),
        ({"d": "digitalocean.com."}, "is no domain"),
        ({"d": "-.com"}, "is no domain"),
        ({"d": "a" * 64 + ".digitalocean.com"}, "is no domain"),
        ({"s": "a." * 120 + "a"}, "is no domain"),
        ({"s": "a b"}, "is no domain"),
        ({"s": ""}, "s= is missing"),
        ({"h": ""}, "h= is missing"),
        ({"bh": "####"}, "bh= is no base64"),
        ({"bh": "YWJj"}, "the body is not the one"),
        ({"i": "@evil.com"}, "is not within"),
        ({"i": "@notdigitalocean.com"}, "is not within"),
        ({"i": "digitalocean.com"}, "is not within"),
        ({"t": "-1"}, "t= is no time"),
        ({"t": "1" * 13}, "t= is no time"),
        ({"x": "soon"}, "x= is no time"),
        ({"z": "a" * 5000}, "longer than 4096 bytes"),
        ({"z": "a" + " " * 100 + "b"}, "too many blanks"),
        ({"0": "a"}, "is no tag"),
        ({"z": "caf\u00e9"}, "is no tag"),
        ({"z": "a; d=evil.com"}, "d= is there twice"),
        ({"z": "a; nothing"}, "is no tag"),
    ],
)
def test_signature_that_is_badly_written_is_not_proven(tags: dict[str, str], says: str) -> None:
    """It is told what is wrong, and nothing is raised."""
    proof = proof_of(DO.sign(MAIL, tags=tags))
    assert proof.result is Proven.NO
    assert says in proof.findings[0]


@pytest.mark.parametrize(
    "value", [b"", b";", b"b", b"=", b"v=1", b"\xff\xfe", b"v=1; a=rsa-sha256; b=" + b"A" * 200]
)
def test_signature_that_is_none_is_not_proven(value: bytes) -> None:
    """A header of that name may hold anything."""
    proof = proof_of(b"DKIM-Signature: " + value + b"\r\n" + MAIL)
    assert proof.result is Proven.NO
    assert proof.findings[0].startswith("signature 1: ")


def test_identity_below_the_domain_is_fine() -> None:
    """`i=` may name a part of the signing domain."""
    assert proof_of(DO.sign(MAIL, tags={"i": "billing@mail.digitalocean.com"})).result is Proven.YES
