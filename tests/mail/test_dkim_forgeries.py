# SPDX-License-Identifier: Apache-2.0
"""A signature that covers less than all that is read, or is another's, proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwatch.mail.dkim import prove
from spotwatch.mail.dkim_rules import ONCE
from spotwatch.mail.model import Proven
from spotwatch.mail.reading import read_mail
from tests.mail.proving import (
    DO,
    MAIL,
    NOW,
    THIEF,
    TRUSTED,
    changed,
    is_right_for_dkimpy,
    names_asked,
    proof_of,
)
from tests.mail.signing import HEADERS, Signer


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
    proof = proof_of(changed(DO.sign(MAIL), old, new))
    assert proof.result is Proven.NO
    assert says in proof.findings[0]


def test_changing_any_byte_changes_nothing_that_is_read() -> None:
    """Whatever single byte a stranger changes, adds or takes: the proof falls, or the mail says the same."""
    raw = DO.sign(MAIL)
    mail = read_mail(raw)
    start = raw.index(b"From: ")
    still_proven = 0
    for at in range(start, len(raw)):
        for other_raw in (
            raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],
            raw[:at] + raw[at + 1 :],
            raw[:at] + b" " + raw[at:],
            raw[:at] + b"\r" + raw[at:],
        ):
            if proof_of(other_raw).result is Proven.YES:
                still_proven += 1
                other = read_mail(other_raw)
                assert (other.text, other.subject, other.sender, other.recipients, other.date) == (
                    (mail.text, mail.subject, mail.sender, mail.recipients, mail.date)
                )
    assert still_proven > 10, "a relaxed signature allows other blanks; none seems to have been tried"


@pytest.mark.hostile(37)
@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("place", ["above", "below"])
def test_second_header_refuses_the_whole_mail(name: str, place: str) -> None:
    """A signature covers the lower of two headers, and readers show the upper; no key is asked for."""
    raw = DO.sign(MAIL)
    added = name.title().encode() + b": text/plain; x@evil.com\r\n"
    raw = added + raw if place == "above" else changed(raw, b"\r\n\r\nHello", b"\r\n" + added + b"\r\nHello")
    proof = proof_of(raw)
    assert proof.result is Proven.NO
    assert f"2 {name.title()} headers" in proof.findings[0]
    assert names_asked(raw) == ()


@pytest.mark.hostile(37)
def test_second_subject_deceives_dkimpy_but_not_us() -> None:
    """The first bypass that was measured: dkimpy says that this mail is right."""
    raw = b"Subject: forged\r\n" + DO.sign(MAIL)
    assert is_right_for_dkimpy(raw, DO)
    assert proof_of(raw).result is Proven.NO


@pytest.mark.hostile(38)
def test_text_added_after_a_signed_length_is_not_proven() -> None:
    """The second bypass: with `l=` anybody may go on writing."""
    raw = DO.sign(MAIL, length=20) + b"Your Droplet spot-2 will be reclaimed.\r\n"
    assert is_right_for_dkimpy(raw, DO)
    proof = proof_of(raw)
    assert proof.result is Proven.NO
    assert "(l=)" in proof.findings[0]
    assert names_asked(raw) == ()


@pytest.mark.hostile(39)
def test_signature_of_a_stranger_is_not_proven() -> None:
    """The third bypass: evil.com signs rightly for itself what pretends to come from DigitalOcean."""
    raw = THIEF.sign(MAIL)
    assert is_right_for_dkimpy(raw, THIEF)
    proof = proof_of(raw, THIEF.answers)
    assert proof.result is Proven.NO
    assert proof.findings == ("evil.com (s1, rsa-sha256): not a trusted domain",)
    assert names_asked(raw) == ()


@pytest.mark.hostile(39)
@pytest.mark.parametrize(
    "domain",
    ["digitalocean.com.evil.com", "notdigitalocean.com", "com", "digitalocean.co", "xn--digitalcean-jcj.com"],
)
def test_domain_that_looks_like_a_trusted_one_is_not(domain: str) -> None:
    """Only whole labels from the right count."""
    signer = Signer(domain, "s1", owner="thief")
    assert proof_of(signer.sign(MAIL), signer.answers).result is Proven.NO


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
    raw = DO.sign(changed(MAIL, b"DigitalOcean <support@digitalocean.com>", sender.encode()))
    assert proof_of(raw).result is Proven.NO


def test_mail_of_two_senders_asks_for_no_key() -> None:
    """It is said what is wrong with it."""
    raw = DO.sign(changed(MAIL, b"From: ", b"From: x@evil.com, "))
    assert proof_of(raw).findings == ("its From is not one plain address",)
    assert names_asked(raw) == ()


@pytest.mark.parametrize("counts", [{}, {"subject": 2}, {"subject": 0}])
def test_header_that_was_counted_otherwise_is_not_proven(counts: dict[str, int]) -> None:
    """Where reading and verifying do not see the same headers, what was read is not what was signed."""
    mail = read_mail(DO.sign(MAIL))
    other = replace(mail, header_counts=dict(mail.header_counts) | counts if counts else {})
    proof = prove(other, DO.answers, trusted_domains=TRUSTED, now=NOW)
    assert proof.result is Proven.NO
    assert "can be read in two ways" in proof.findings[0]


def test_headers_without_an_end_are_not_proven() -> None:
    """Nobody can tell what was to follow."""
    assert proof_of(DO.sign(MAIL).partition(b"\r\n\r\n")[0]).findings == ("its headers do not end",)


def test_sender_of_another_trusted_domain_is_not_proven() -> None:
    """Two trusted domains do not sign for each other."""
    signer = Signer("example.net", "s1")
    proof = proof_of(signer.sign(MAIL), signer.answers, trusted=("digitalocean.com", "example.net"))
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
    raw = changed(DO.sign(MAIL, headers=_LOOSE), old, new)
    assert is_right_for_dkimpy(raw, DO)
    proof = proof_of(raw)
    assert proof.result is Proven.NO
    assert "does not sign Content-Type, Content-Transfer-Encoding" in proof.findings[0]
    assert proof_of(changed(DO.sign(MAIL), old, new)).result is Proven.NO


def test_unsigned_type_that_hides_parts_is_not_proven() -> None:
    """Parts that the outer type no longer announces could be read as one text, their headers with it."""
    parts = changed(MAIL, b"text/plain; charset=utf-8", b"multipart/alternative; boundary=b")
    parts = changed(parts, b"Content-Transfer-Encoding: 7bit\n", b"").partition(b"Hello")[0]
    parts += b"--b\nContent-Type: text/plain\n\nspot-1 goes\n"
    parts += b"--b\nContent-Type: text/html\n\n<p>spot-1 goes\n--b--\n"
    raw = DO.sign(parts, headers=_LOOSE)
    assert proof_of(raw).result is Proven.YES
    for new in (b"text/plain", b"text/html", b"multipart/mixed; boundary=c"):
        assert proof_of(changed(raw, b"multipart/alternative; boundary=b", new)).result is Proven.NO
    assert (
        proof_of(changed(raw, b"Content-Type: multipart/alternative; boundary=b\r\n", b"")).result
        is Proven.NO
    )


def test_unsigned_type_of_a_plain_mail_is_proven() -> None:
    """Signers may leave Content-Type out; what reads the same whatever its type says can be proven still."""
    proof = proof_of(DO.sign(MAIL, headers=_LOOSE))
    assert proof.result is Proven.YES
    assert "content-type" not in proof.signed_headers


@pytest.mark.parametrize("name", ["from", "subject", "date", "to"])
def test_header_that_matters_must_be_signed(name: str) -> None:
    """Without one of them the mail could be another's, old, for somebody else, or about something else."""
    raw = DO.sign(MAIL, headers=[signed for signed in HEADERS if signed != name])
    proof = proof_of(raw)
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
    raw = changed(DO.sign(MAIL), b"\r\n\r\nHello", b"\r\n" + line + b"\r\n\r\nHello")
    proof = proof_of(raw)
    assert proof.result is Proven.NO
    assert "two ways" in proof.findings[0]


def test_line_for_mailboxes_among_the_headers_deceives_dkimpy_but_not_us() -> None:
    """A line that begins with `From ` is no header to dkimpy, and the first of the text to others."""
    raw = changed(DO.sign(MAIL), b"\r\n\r\nHello", b"\r\nFrom spot-2, which will be reclaimed\r\n\r\nHello")
    assert is_right_for_dkimpy(raw, DO)
    assert proof_of(raw).result is Proven.NO


def test_blanks_that_split_a_name_are_not_proven() -> None:
    """Blanks after the mark of a soft line break, which relaxed forms allow, make `spot-10` `spot-1=`."""
    mail = changed(MAIL, b"7bit", b"quoted-printable").replace(b"spot-1 ", b"spot-1=\n0 ")
    raw = DO.sign(mail)
    assert proof_of(raw).result is Proven.YES
    raw = changed(raw, b"spot-1=\r\n", b"spot-1= \r\n")
    assert is_right_for_dkimpy(raw, DO)
    assert proof_of(raw).result is Proven.NO
    assert proof_of(DO.sign(changed(MAIL, b"Hello,", b"x = \ny"))).result is Proven.YES
    kept = mail.replace(b"spot-1=\n", b"spot-1= \n")
    assert proof_of(DO.sign(kept, canonicalization="simple/simple")).result is Proven.YES


def test_mail_without_a_signature_is_not_proven() -> None:
    """It asks nothing of DNS either."""
    proof = proof_of(MAIL)
    assert (proof.result, proof.findings) == (Proven.NO, ("it has no DKIM signature",))
    assert names_asked(MAIL) == ()


@pytest.mark.hostile(43)
def test_mail_to_another_account_is_proven_for_that_account() -> None:
    """DKIM cannot tell accounts apart; it tells that To is signed, and judging compares it."""
    proof = proof_of(DO.sign(changed(MAIL, b"me@example.org", b"attacker@example.net")))
    assert proof.result is Proven.YES
    assert "to" in proof.signed_headers
