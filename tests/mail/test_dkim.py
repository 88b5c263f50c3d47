# SPDX-License-Identifier: Apache-2.0
"""A signature proves a mail only if it is a trusted domain's, for its sender, and covers all that is read."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import dkim
import pytest

from spotwatch.mail.dkim import key_names, prove, signatures
from spotwatch.mail.dkim_rules import ONCE
from spotwatch.mail.keys import KeyAnswer, KeyCache, KeyState
from spotwatch.mail.model import Proof, Proven
from spotwatch.mail.reading import read_mail
from spotwatch.testing import FakeClock, run_virtual
from tests.mail.signing import HEADERS, Signer, StubResolver, public_key

_TRUSTED = ("digitalocean.com",)
_DO = Signer("digitalocean.com", "s1")
_THIEF = Signer("evil.com", "s1", owner="thief")
_NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

_MAIL = b"""\
From: DigitalOcean <support@digitalocean.com>
To: Me <me@example.org>
Subject: Your Spot Droplet will be reclaimed
Date: Sun, 29 Nov 2026 12:00:00 +0000
Message-ID: <1@digitalocean.com>
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 7bit

Hello,

your Droplet  spot-1  will be reclaimed at 2026-11-29 14:00 UTC.

Team DigitalOcean
"""


def _prove(
    raw: bytes,
    keys: Mapping[str, KeyAnswer] = _DO.answers,
    *,
    trusted: Sequence[str] = _TRUSTED,
    now: datetime | None = _NOW,
) -> Proof:
    return prove(read_mail(raw), keys, trusted_domains=trusted, now=now)


def _names(raw: bytes) -> tuple[str, ...]:
    return key_names(read_mail(raw), trusted_domains=_TRUSTED, now=_NOW)


def _is_right_for_dkimpy(raw: bytes, *signers: Signer) -> bool:
    """Tell what a verifier without rules of its own says."""
    records = {name: text for signer in signers for name, text in signer.records.items()}
    return bool(
        dkim.verify(
            raw, dnsfunc=lambda name, timeout: records[name.decode().rstrip(".")].encode(), minkey=512
        )
    )


def _with(raw: bytes, old: bytes, new: bytes) -> bytes:
    assert raw.count(old) == 1
    return raw.replace(old, new)


# --- what proves a mail ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", ["relaxed/relaxed", "simple/simple", "relaxed/simple", "simple/relaxed", "relaxed", "simple"]
)
def test_mail_signed_by_a_trusted_domain_is_proven(form: str) -> None:
    """Every way of bringing headers and body into shape is understood."""
    proof = _prove(_DO.sign(_MAIL, canonicalization=form))
    assert (proof.result, proof.domain) == (Proven.YES, "digitalocean.com")
    assert proof.signed_headers == set(HEADERS)
    assert proof.findings == ("digitalocean.com (s1, rsa-sha256): holds",)


def test_mail_stored_with_other_line_ends_is_proven() -> None:
    """Pipes and files make LF of the CRLF that was signed."""
    assert _prove(_DO.sign(_MAIL).replace(b"\r\n", b"\n")).result is Proven.YES


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n", b" \n \n", b"a"])
@pytest.mark.parametrize("form", ["relaxed/relaxed", "simple/simple"])
def test_mail_of_few_words_is_proven(body: bytes, form: str) -> None:
    """Empty bodies, blank ones and those without a last line end are where verifiers differ."""
    assert _prove(_DO.sign(_MAIL.partition(b"Hello")[0] + body, canonicalization=form)).result is Proven.YES


@pytest.mark.parametrize(
    ("domain", "sender"),
    [
        ("em.digitalocean.com", "no-reply@digitalocean.com"),
        ("digitalocean.com", "support@support.digitalocean.com"),
        ("em.digitalocean.com", "support@info.digitalocean.com"),
        ("DigitalOcean.com", "Support@DigitalOcean.COM"),
    ],
)
def test_signer_and_sender_may_be_below_the_trusted_domain(domain: str, sender: str) -> None:
    """Services sign with a name of their own below a customer's domain."""
    signer = Signer(domain, "s1")
    raw = signer.sign(_with(_MAIL, b"support@digitalocean.com", sender.encode()))
    assert _prove(raw, signer.answers).result is Proven.YES


def test_every_signature_is_tried() -> None:
    """Relays sign what they pass on, above the signature that counts."""
    relay = Signer("forwardemail.net", "s2", owner="relay")
    raw = relay.sign(_DO.sign(_MAIL))
    proof = _prove(raw, _DO.answers | relay.answers)
    assert (proof.result, proof.domain) == (Proven.YES, "digitalocean.com")
    assert [found.domain for found in signatures(read_mail(raw))] == ["forwardemail.net", "digitalocean.com"]
    assert _names(raw) == (_DO.key_name,)


def test_right_signature_counts_beside_a_broken_one_of_the_same_domain() -> None:
    """A domain signs twice, with an old key and a new one, and one of them is enough."""
    old = Signer("digitalocean.com", "old", owner="old")
    raw = old.sign(_DO.sign(_MAIL))
    proof = _prove(raw, _DO.answers | {old.key_name: KeyAnswer(state=KeyState.MISSING, why="gone")})
    assert proof.result is Proven.YES
    assert "no key old._domainkey.digitalocean.com" in proof.findings[0]


def test_header_that_is_there_more_often_than_signed_is_not_covered() -> None:
    """Whoever uses a header can tell whether all of it is proven."""
    raw = _with(
        _DO.sign(_MAIL, headers=(*HEADERS, "list-id")), b"From: ", b"List-Id: a\r\nList-Id: b\r\nFrom: "
    )
    signed = _DO.sign(
        _with(_MAIL, b"MIME", b"Auto-Submitted: no\nAuto-Submitted: no\nMIME"),
        headers=(*HEADERS, "auto-submitted"),
    )
    assert _prove(raw).result is Proven.NO
    proof = _prove(signed)
    assert proof.result is Proven.YES
    assert "auto-submitted" not in proof.signed_headers


def test_header_signed_though_it_was_missing_cannot_be_added() -> None:
    """Naming a header once more than it is there forbids another."""
    raw = _DO.sign(_MAIL, headers=(*HEADERS, "reply-to", *HEADERS))
    assert _prove(raw).result is Proven.YES
    assert _prove(_with(raw, b"MIME-V", b"Reply-To: x@evil.com\r\nMIME-V")).result is Proven.NO


# --- what does not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"spot-1", b"spot-2", "the body is not the one that was signed"),
        (b"14:00 UTC", b"13:00 UTC", "the body is not the one that was signed"),
        (b"Team DigitalOcean", b"Team DigitalOcean\r\nspot-2", "the body is not the one that was signed"),
        (b"Your Spot Droplet", b"Your other Droplet", "the headers are not those that were signed"),
        (b"me@example.org", b"you@example.org", "the headers are not those that were signed"),
        (b"12:00:00", b"12:30:00", "the headers are not those that were signed"),
    ],
)
def test_changed_mail_is_not_proven(old: bytes, new: bytes, says: str) -> None:
    """Each word that matters is covered."""
    proof = _prove(_with(_DO.sign(_MAIL), old, new))
    assert proof.result is Proven.NO
    assert says in proof.findings[0]


def test_changing_any_byte_changes_nothing_that_is_read() -> None:
    """Whatever single byte a stranger changes, adds or takes: the proof falls, or the mail says the same."""
    raw = _DO.sign(_MAIL)
    mail = read_mail(raw)
    start = raw.index(b"From: ")
    still_proven = 0
    for at in range(start, len(raw)):
        for changed in (
            raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],
            raw[:at] + raw[at + 1 :],
            raw[:at] + b" " + raw[at:],
            raw[:at] + b"\r" + raw[at:],
        ):
            if _prove(changed).result is Proven.YES:
                still_proven += 1
                other = read_mail(changed)
                assert (other.text, other.subject, other.sender, other.recipients, other.date) == (
                    (mail.text, mail.subject, mail.sender, mail.recipients, mail.date)
                )
    assert still_proven > 10, "a relaxed signature allows other blanks; none seems to have been tried"


@pytest.mark.hostile(37)
@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("place", ["above", "below"])
def test_second_header_refuses_the_whole_mail(name: str, place: str) -> None:
    """A signature covers the lower of two headers, and readers show the upper; no key is asked for."""
    raw = _DO.sign(_MAIL)
    added = name.title().encode() + b": text/plain; x@evil.com\r\n"
    raw = added + raw if place == "above" else _with(raw, b"\r\n\r\nHello", b"\r\n" + added + b"\r\nHello")
    proof = _prove(raw)
    assert proof.result is Proven.NO
    assert f"2 {name.title()} headers" in proof.findings[0]
    assert _names(raw) == ()


@pytest.mark.hostile(37)
def test_second_subject_deceives_dkimpy_but_not_us() -> None:
    """The first bypass that was measured: dkimpy says that this mail is right."""
    raw = b"Subject: forged\r\n" + _DO.sign(_MAIL)
    assert _is_right_for_dkimpy(raw, _DO)
    assert _prove(raw).result is Proven.NO


@pytest.mark.hostile(38)
def test_text_added_after_a_signed_length_is_not_proven() -> None:
    """The second bypass: with `l=` anybody may go on writing."""
    raw = _DO.sign(_MAIL, length=20) + b"Your Droplet spot-2 will be reclaimed.\r\n"
    assert _is_right_for_dkimpy(raw, _DO)
    proof = _prove(raw)
    assert proof.result is Proven.NO
    assert "(l=)" in proof.findings[0]
    assert _names(raw) == ()


@pytest.mark.hostile(39)
def test_signature_of_a_stranger_is_not_proven() -> None:
    """The third bypass: evil.com signs rightly for itself what pretends to come from DigitalOcean."""
    raw = _THIEF.sign(_MAIL)
    assert _is_right_for_dkimpy(raw, _THIEF)
    proof = _prove(raw, _THIEF.answers)
    assert proof.result is Proven.NO
    assert proof.findings == ("evil.com (s1, rsa-sha256): not a trusted domain",)
    assert _names(raw) == ()


@pytest.mark.hostile(39)
@pytest.mark.parametrize(
    "domain",
    ["digitalocean.com.evil.com", "notdigitalocean.com", "com", "digitalocean.co", "xn--digitalcean-jcj.com"],
)
def test_domain_that_looks_like_a_trusted_one_is_not(domain: str) -> None:
    """Only whole labels from the right count."""
    signer = Signer(domain, "s1", owner="thief")
    assert _prove(signer.sign(_MAIL), signer.answers).result is Proven.NO


@pytest.mark.hostile(39)
@pytest.mark.parametrize(
    "sender",
    [
        "x@evil.com",
        "support@digitalocean.com <x@evil.com>",
        '"support@digitalocean.com" <x@evil.com>',
        "DigitalOcean <x@digitalocean.com.evil.com>",
        "DigitalOcean <support@digital\u043ecean.com>",
        "support@notdigitalocean.com",
        "support@digitalocean.com, x@evil.com",
        "DigitalOcean <support@digitalocean.com@evil.com>",
        "support@digitalocean.com (comment) x",
        "=?utf-8?q?support=40digitalocean.com?=",
        "digitalocean.com",
        "<>",
        "",
    ],
)
def test_sender_who_is_not_of_the_signer_is_not_proven(sender: str) -> None:
    """DigitalOcean's signature under another's address, or under several, says nothing."""
    raw = _DO.sign(_with(_MAIL, b"DigitalOcean <support@digitalocean.com>", sender.encode()))
    assert _prove(raw).result is Proven.NO


def test_mail_of_two_senders_asks_for_no_key() -> None:
    """It is said what is wrong with it."""
    raw = _DO.sign(_with(_MAIL, b"From: ", b"From: x@evil.com, "))
    assert _prove(raw).findings == ("its From is not one plain address",)
    assert _names(raw) == ()


@pytest.mark.parametrize("counts", [{}, {"subject": 2}, {"subject": 0}])
def test_header_that_was_counted_otherwise_is_not_proven(counts: dict[str, int]) -> None:
    """Where reading and verifying do not see the same headers, what was read is not what was signed."""
    mail = read_mail(_DO.sign(_MAIL))
    other = replace(mail, header_counts=dict(mail.header_counts) | counts if counts else {})
    proof = prove(other, _DO.answers, trusted_domains=_TRUSTED, now=_NOW)
    assert proof.result is Proven.NO
    assert "can be read in two ways" in proof.findings[0]


def test_headers_without_an_end_are_not_proven() -> None:
    """Nobody can tell what was to follow."""
    assert _prove(_DO.sign(_MAIL).partition(b"\r\n\r\n")[0]).findings == ("its headers do not end",)


def test_sender_of_another_trusted_domain_is_not_proven() -> None:
    """Two trusted domains do not sign for each other."""
    signer = Signer("example.net", "s1")
    proof = _prove(signer.sign(_MAIL), signer.answers, trusted=("digitalocean.com", "example.net"))
    assert proof.result is Proven.NO
    assert "does not sign for its sender" in proof.findings[0]


_LOOSE = [name for name in HEADERS if not name.startswith("content")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"text/plain; charset=utf-8", b"multipart/mixed; boundary=x"),
        (b"text/plain; charset=utf-8", b"text/html"),
        (b"text/plain; charset=utf-8", b"message/rfc822"),
        (b"text/plain; charset=utf-8", b"application/octet-stream"),
        (b"Content-Transfer-Encoding: 7bit", b"Content-Transfer-Encoding: base64"),
        (b"Content-Transfer-Encoding: 7bit", b"Content-Transfer-Encoding: x-uuencode"),
    ],
)
def test_unsigned_type_that_does_not_fit_is_not_proven(old: bytes, new: bytes) -> None:
    """The fourth bypass: who may change how a body is read chooses what of it is seen."""
    raw = _with(_DO.sign(_MAIL, headers=_LOOSE), old, new)
    assert _is_right_for_dkimpy(raw, _DO)
    proof = _prove(raw)
    assert proof.result is Proven.NO
    assert "does not sign Content-Type, Content-Transfer-Encoding" in proof.findings[0]
    assert _prove(_with(_DO.sign(_MAIL), old, new)).result is Proven.NO


def test_unsigned_type_that_hides_parts_is_not_proven() -> None:
    """Parts that the outer type no longer announces could be read as one text, their headers with it."""
    parts = _with(_MAIL, b"text/plain; charset=utf-8", b"multipart/alternative; boundary=b")
    parts = _with(parts, b"Content-Transfer-Encoding: 7bit\n", b"").partition(b"Hello")[0]
    parts += b"--b\nContent-Type: text/plain\n\nspot-1 goes\n"
    parts += b"--b\nContent-Type: text/html\n\n<p>spot-1 goes\n--b--\n"
    raw = _DO.sign(parts, headers=_LOOSE)
    assert _prove(raw).result is Proven.YES
    for new in (b"text/plain", b"text/html", b"multipart/mixed; boundary=c"):
        assert _prove(_with(raw, b"multipart/alternative; boundary=b", new)).result is Proven.NO
    assert _prove(_with(raw, b"Content-Type: multipart/alternative; boundary=b\r\n", b"")).result is Proven.NO


def test_unsigned_type_of_a_plain_mail_is_proven() -> None:
    """Google signs no Content-Type; what reads the same whatever its type says may be proven all the same."""
    proof = _prove(_DO.sign(_MAIL, headers=_LOOSE))
    assert proof.result is Proven.YES
    assert "content-type" not in proof.signed_headers


@pytest.mark.parametrize("name", ["from", "subject", "date", "to"])
def test_header_that_matters_must_be_signed(name: str) -> None:
    """Without one of them the mail could be another's, old, for somebody else, or about something else."""
    raw = _DO.sign(_MAIL, headers=[signed for signed in HEADERS if signed != name])
    proof = _prove(raw)
    assert proof.result is Proven.NO
    assert f"does not sign {name.title()}" in proof.findings[0]


@pytest.mark.parametrize(
    "line",
    [
        b"From your Droplet spot-2 will be reclaimed",
        b"no header at all",
        b"X-Name: a\rSubject: forged",
        b"X-Name: a\r",
        b"X-Name: a\x0b",
        b"X-Name: a\x00b",
        b"Subject : forged",
        b": nameless",
        b"X N: a",
    ],
)
def test_headers_that_readers_take_differently_are_not_proven(line: bytes) -> None:
    """A line that one reader passes over is a header, or the end of the headers, to another."""
    raw = _with(_DO.sign(_MAIL), b"\r\n\r\nHello", b"\r\n" + line + b"\r\n\r\nHello")
    proof = _prove(raw)
    assert proof.result is Proven.NO
    assert "two ways" in proof.findings[0]


def test_line_for_mailboxes_among_the_headers_deceives_dkimpy_but_not_us() -> None:
    """A line that begins with `From ` is no header to dkimpy, and the first of the text to others."""
    raw = _with(_DO.sign(_MAIL), b"\r\n\r\nHello", b"\r\nFrom spot-2, which will be reclaimed\r\n\r\nHello")
    assert _is_right_for_dkimpy(raw, _DO)
    assert _prove(raw).result is Proven.NO


def test_blanks_that_split_a_name_are_not_proven() -> None:
    """Blanks after the mark of a soft line break, which relaxed forms allow, make `spot-10` `spot-1=`."""
    mail = _with(_MAIL, b"7bit", b"quoted-printable").replace(b"spot-1 ", b"spot-1=\n0 ")
    raw = _DO.sign(mail)
    assert _prove(raw).result is Proven.YES
    raw = _with(raw, b"spot-1=\r\n", b"spot-1= \r\n")
    assert _is_right_for_dkimpy(raw, _DO)
    assert _prove(raw).result is Proven.NO
    assert _prove(_DO.sign(_with(_MAIL, b"Hello,", b"x = \ny"))).result is Proven.YES
    kept = mail.replace(b"spot-1=\n", b"spot-1= \n")
    assert _prove(_DO.sign(kept, canonicalization="simple/simple")).result is Proven.YES


def test_mail_without_a_signature_is_not_proven() -> None:
    """It asks nothing of DNS either."""
    proof = _prove(_MAIL)
    assert (proof.result, proof.findings) == (Proven.NO, ("it has no DKIM signature",))
    assert _names(_MAIL) == ()


@pytest.mark.hostile(43)
def test_mail_to_another_account_is_proven_for_that_account() -> None:
    """DKIM cannot tell accounts apart; it tells that To is signed, and judging compares it."""
    proof = _prove(_DO.sign(_with(_MAIL, b"me@example.org", b"attacker@example.net")))
    assert proof.result is Proven.YES
    assert "to" in proof.signed_headers


# --- algorithms, times, tags -------------------------------------------------------------------------------


def test_sha1_is_not_proven() -> None:
    """SHA-1 collides (RFC 8301), though dkimpy still takes it."""
    raw = _DO.sign(_MAIL, algorithm="rsa-sha1")
    assert _is_right_for_dkimpy(raw, _DO)
    assert "rsa-sha1 can be forged" in _prove(raw).findings[0]


def test_short_key_is_not_proven() -> None:
    """A key of 768 bits is broken at home (RFC 8301); 1024 are still in use."""
    short, usual = Signer(bits=768), Signer(bits=1024)
    raw = short.sign(_MAIL)
    assert _is_right_for_dkimpy(raw, short)
    proof = _prove(raw, short.answers)
    assert proof.result is Proven.NO
    assert "the key has 768 bits" in proof.findings[0]
    assert _prove(usual.sign(_MAIL), usual.answers).result is Proven.YES


def test_ed25519_is_proven_where_it_can_be_checked() -> None:
    """Checking it takes pynacl; without, the mail is unproven and says why, and DNS is not asked."""
    signer = Signer(record="v=DKIM1; k=ed25519; p={p}")
    raw = signer.sign(_MAIL, algorithm="ed25519-sha256")
    proof = _prove(raw, signer.answers)
    if importlib.util.find_spec("nacl") is None:
        assert proof.result is Proven.NO
        assert "this installation cannot check ed25519" in proof.findings[0]
        assert _names(raw) == ()
    else:
        assert proof.result is Proven.YES
        assert _prove(_with(raw, b"spot-1", b"spot-2"), signer.answers).result is Proven.NO
        short = raw[: raw.index(b"b=", raw.index(b"bh=") + 3)] + b"b=YWJj\r\n" + raw[raw.index(b"From: ") :]
        assert "cannot be checked" in _prove(short, signer.answers).findings[0]


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
    base = int(_NOW.timestamp())
    raw = _DO.sign(_MAIL, tags={name: _moment(text, base) for name, text in tags.items()})
    assert _prove(raw).result is result


def _moment(text: str, base: int) -> str:
    return str(base + int(text.strip("{now}") or 0)) if "now" in text else text


def test_expiry_is_compared_with_the_date_of_the_mail_where_now_is_not_given() -> None:
    """A mail dated after its signature expired is not proven even without a clock."""
    expired = _DO.sign(_MAIL, tags={"x": str(int(_NOW.timestamp()) - 3600)})
    assert _prove(expired, now=None).result is Proven.NO
    queued = _DO.sign(_MAIL, tags={"t": str(int(_NOW.timestamp()) + 3600)})
    assert _prove(queued, now=None).result is Proven.YES


@pytest.mark.parametrize(
    "date", [b"Sat, 01 Jan 0001 00:00:00 +0000", b"Fri, 31 Dec 9999 23:59:59 +0000", b"x"]
)
def test_date_at_the_end_of_time_breaks_nothing(date: bytes) -> None:
    """Comparing with `x=` must not leave the calendar."""
    raw = _DO.sign(_with(_MAIL, b"Sun, 29 Nov 2026 12:00:00 +0000", date), tags={"x": "999999999999"})
    assert _prove(raw, now=None).result is Proven.YES


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
    proof = _prove(_DO.sign(_MAIL, tags=tags))
    assert proof.result is Proven.NO
    assert says in proof.findings[0]


@pytest.mark.parametrize(
    "value", [b"", b";", b"b", b"=", b"v=1", b"\xff\xfe", b"v=1; a=rsa-sha256; b=" + b"A" * 200]
)
def test_signature_that_is_none_is_not_proven(value: bytes) -> None:
    """A header of that name may hold anything."""
    proof = _prove(b"DKIM-Signature: " + value + b"\r\n" + _MAIL)
    assert proof.result is Proven.NO
    assert proof.findings[0].startswith("signature 1: ")


def test_identity_below_the_domain_is_fine() -> None:
    """`i=` may name a part of the signing domain."""
    assert _prove(_DO.sign(_MAIL, tags={"i": "billing@mail.digitalocean.com"})).result is Proven.YES


# --- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        "v=DKIM1; k=rsa; p={p}",
        "p={p}",
        "v=DKIM1;p={p};",
        "v=DKIM1; t=s; p={p}",
        "v=DKIM1; h=sha1:sha256; s=email:other; p={p};; n=a note",
        "v=DKIM1; s=*; g=*; x_new=1; p={p}",
    ],
)
def test_key_record_may_be_written_in_many_ways(record: str) -> None:
    """What RFC 6376 allows is taken, also what dkimpy by itself would not."""
    signer = Signer(record=record)
    assert _prove(signer.sign(_MAIL), signer.answers).result is Proven.YES


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("v=DKIM1; p=", "the key was revoked"),
        ("v=DKIM1; k=rsa", "has no p="),
        ("v=DKIM2; p={p}", "no key of DKIM"),
        ("k=rsa; v=DKIM1; p={p}", "no key of DKIM"),
        ("v=spf1 -all", "no key of DKIM"),
        ("v=DKIM1; t=y; p={p}", "only for tests"),
        ("v=DKIM1; t=s:y; p={p}", "only for tests"),
        ("v=DKIM1; h=sha1; p={p}", "does not allow sha256"),
        ("v=DKIM1; s=tlsrpt; p={p}", "not for mail"),
        ("v=DKIM1; k=ed25519; p={p}", "for another algorithm"),
        ("v=DKIM1; k=dsa; p={p}", "for another algorithm"),
        ("v=DKIM1; p=AAAA", "no RSA key"),
        ("v=DKIM1; p=MAAFAA==", "no RSA key"),
        ("v=DKIM1; p=!!!!", "p= is no base64"),
        ("v=DKIM1; p={p}; p={p}", "p= is there twice"),
        ("nothing", "is no tag"),
        ("", "has no p="),
        ("v=DKIM1; p=MAkwBwYBKgUBAAA=", "no RSA key"),
        # With an exponent of 1 everybody can sign; the others would take minutes.
        (f"v=DKIM1; p={public_key(2**1024 + 1, 1)}", "the exponent"),
        (f"v=DKIM1; p={public_key(2**1024 + 1, 2**1023 + 1)}", "the exponent"),
        (f"v=DKIM1; p={public_key(2**9000 + 1, 3)}", "the key has 9001 bits"),
        (f"v=DKIM1; p={public_key(0, 3)}", "the key has 0 bits"),
    ],
)
def test_key_that_may_not_be_used_is_not_proven(record: str, says: str) -> None:
    """Each rule for keys is kept; dkimpy leaves out most of them."""
    signer = Signer(record=record)
    proof = _prove(signer.sign(_MAIL), signer.answers)
    assert proof.result is Proven.NO
    assert says in proof.findings[0]


def test_strict_key_is_not_for_names_below() -> None:
    """With `t=s` the identity must be the domain itself."""
    signer = Signer(record="v=DKIM1; t=s; p={p}")
    proof = _prove(signer.sign(_MAIL, tags={"i": "@mail.digitalocean.com"}), signer.answers)
    assert proof.result is Proven.NO
    assert "(t=s)" in proof.findings[0]


def test_key_of_another_is_not_proven() -> None:
    """A signature in DigitalOcean's name with a thief's key does not fit the published one."""
    forger = Signer("digitalocean.com", "s1", owner="thief")
    assert _prove(forger.sign(_MAIL)).result is Proven.NO


@pytest.mark.hostile(41)
def test_silence_of_dns_leaves_the_proof_open() -> None:
    """Without an answer nothing is known; with the answer that there is no key, the mail is unproven."""
    raw = _DO.sign(_MAIL)
    silent = KeyAnswer(state=KeyState.NO_ANSWER, why="SERVFAIL")
    assert _prove(raw, {_DO.key_name: silent}).result is Proven.UNKNOWN
    assert _prove(raw, {}).result is Proven.UNKNOWN
    missing = KeyAnswer(state=KeyState.MISSING, why="DNS has no such key")
    assert _prove(raw, {_DO.key_name: missing}).result is Proven.NO


@pytest.mark.hostile(41)
def test_silence_about_a_signature_that_cannot_count_leaves_nothing_open() -> None:
    """A stranger cannot make a mail wait for his name server."""
    silent = KeyAnswer(state=KeyState.NO_ANSWER, why="time-out")
    assert _prove(_THIEF.sign(_MAIL), {_THIEF.key_name: silent}).result is Proven.NO
    assert _prove(_DO.sign(_MAIL, length=5), {_DO.key_name: silent}).result is Proven.NO
    other = Signer("digitalocean.com", "other")
    raw = other.sign(_DO.sign(_MAIL))
    assert _prove(raw, _DO.answers | {other.key_name: silent}).result is Proven.YES


def test_remembered_key_is_told() -> None:
    """Whoever reads the finding learns that DNS did not answer now."""
    found = KeyAnswer(state=KeyState.FOUND, text=_DO.records[_DO.key_name], why="remembered")
    proof = _prove(_DO.sign(_MAIL), {_DO.key_name: found})
    assert proof.findings == ("digitalocean.com (s1, rsa-sha256): holds (remembered)",)


@pytest.mark.hostile(40)
def test_fifty_signatures_cost_five_questions_at_most() -> None:
    """Fifty of a trusted domain: five names. One below fifty strangers': one name, and it counts."""

    async def asked(raw: bytes) -> tuple[Proof, list[str]]:
        resolver = StubResolver(_DO.records)
        keys = await KeyCache(resolver, FakeClock()).fetch(_names(raw))
        return _prove(raw, keys), resolver.asked

    many, genuine = _MAIL, _DO.sign(_MAIL)
    for i in range(50):
        many = Signer("digitalocean.com", f"x{i}", bits=1024, owner="thief").sign(many)
        genuine = Signer(f"evil{i}.com", "s1", bits=1024, owner="thief").sign(genuine)
    proof, questions = run_virtual(asked(many))
    assert (proof.result, len(questions)) == (Proven.NO, 5)
    assert "45 more signatures were not looked at" in proof.findings
    proof, questions = run_virtual(asked(genuine))
    assert (proof.result, questions) == (Proven.YES, [_DO.key_name])


# --- costs and traces --------------------------------------------------------------------------------------


_LONG = 200 * 1024


@pytest.mark.parametrize("form", ["relaxed/relaxed", "simple/simple"])
@pytest.mark.parametrize(
    "body",
    [
        b" " * _LONG + b"x",
        b"\t \t" * (_LONG // 3) + b"x",
        b"\r\n" * (_LONG // 2),
        b" \r\n" * (_LONG // 3),
        b"=\r" * 99,
        b"= " * (_LONG // 2) + b"x",
    ],
    ids=["blanks", "tabs", "lines", "blank lines", "lone CRs", "equals"],
)
def test_body_made_to_be_slow_is_not(body: bytes, form: str) -> None:
    """Of the first dkimpy alone makes a minute; five signatures take a seventh of a second at worst."""
    signers = [Signer("digitalocean.com", f"x{i}", bits=1024) for i in range(5)]
    raw = _MAIL.partition(b"Hello")[0] + body
    for signer in signers:
        raw = signer.sign(raw, canonicalization=form)
    mail = read_mail(_with(raw, b"Subject: Your", b"Subject: Another"))
    keys = {name: answer for signer in signers for name, answer in signer.answers.items()}
    began = time.process_time()
    proof = prove(mail, keys, trusted_domains=_TRUSTED)
    assert time.process_time() - began < 5.0
    assert [finding.rpartition(": ")[2] for finding in proof.findings] == [
        "the headers are not those that were signed, or not with this key"
    ] * 5


@pytest.mark.parametrize(
    "value",
    [
        b"b=" + b"\r\n " * 1300 + b"!",
        b" b" * 2000,
        b";" * 4000,
        b"b" + b"\r\n\t" * 20 + b"A",
        (b"b=" + b"\r\n " * 20 + b"A") * 40,
    ],
)
def test_signature_made_to_be_slow_is_not(value: bytes) -> None:
    """The search for `b=` takes a square of the blanks in a row; so many are refused before."""
    raw = _DO.sign(_MAIL)
    raw = _with(raw, b"DKIM-Signature: v=1;", b"DKIM-Signature: v=1; z=" + value + b";")
    mail = read_mail(raw)
    began = time.process_time()
    prove(mail, _DO.answers, trusted_domains=_TRUSTED)
    assert time.process_time() - began < 2.0


def test_nothing_of_a_mail_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What dkimpy does not like it logs, with the stranger's words; here it is silent."""
    caplog.set_level(0)
    for raw in (
        _DO.sign(_MAIL),
        _with(_DO.sign(_MAIL), b"spot-1", b"spot-2"),
        _DO.sign(_MAIL, tags={"i": "@x"}),
    ):
        _prove(raw)
    assert caplog.records == []


def test_findings_show_nothing_that_steers_a_terminal() -> None:
    """What is foreign in them is escaped and short."""
    raw = _DO.sign(_MAIL, tags={"i": "\x1b[2J\u202e@evil.com", "z": "x" * 900})
    raw += b"" if raw.endswith(b"\r\n") else b"\r\n"
    finding = _prove(_with(raw, b"Subject: ", b"X\x1b[2J: " + b"a" * 900 + b"\r\nSubject: ")).findings[0]
    for text in (finding, *_prove(raw).findings):
        assert text.isprintable()
        assert len(text) < 200
