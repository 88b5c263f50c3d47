# SPDX-License-Identifier: Apache-2.0
"""Limits and headers of a mail: what is read of them, and what is not guessed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spotwatch.errors import Malformed
from spotwatch.mail.dkim import prove
from spotwatch.mail.model import MAX_MAIL_BYTES, Proven
from spotwatch.mail.reading import MAX_HEADER_BYTES, MAX_HEADERS, read_mail, read_top
from tests.mail.making import SIGNER, plain

_SENDER = "From: DigitalOcean <support@digitalocean.com>"


def _mail(*headers: str, body: str = "Hello.") -> bytes:
    return "\r\n".join([*headers, "", body]).encode()


def test_a_plain_mail_is_read() -> None:
    """Every value of a mail as most are."""
    mail = read_mail(
        _mail(
            "From: DigitalOcean <Support@DigitalOcean.com>",
            'To: "Doe, Jane" <Jane@Example.org>, other@example.org',
            "Subject: Your Spot Droplet\r\n will be reclaimed",
            "Date: Sun, 29 Nov 2026 16:12:43 +0100",
            "Message-ID: <abc@digitalocean.com>",
            body="Affected Droplets:\r\n  * spot-1\r\n\r\n\r\n\r\nTeam",
        )
    )
    assert mail.sender == "support@digitalocean.com"
    assert mail.recipients == ("jane@example.org", "other@example.org")
    assert mail.subject == "Your Spot Droplet will be reclaimed"
    assert mail.date == datetime(2026, 11, 29, 15, 12, 43, tzinfo=UTC)
    assert mail.message_id == "<abc@digitalocean.com>"
    assert mail.text == "Affected Droplets:\nspot-1\n\nTeam"
    assert (mail.quoted, mail.is_automatic, mail.is_forwarded, mail.problems) == ("", False, False, ())
    assert mail.header_counts == {"from": 1, "to": 1, "subject": 1, "date": 1, "message-id": 1}


@pytest.mark.hostile(32)
@pytest.mark.parametrize(
    "raw",
    [
        _mail(_SENDER, "Subject: " + "=?utf-8?b?YWFh?= " * 25_000),
        _mail(_SENDER, "To: " + "a@example.org, " * 20_000),
        _mail(_SENDER, "X: " + "x" * MAX_HEADER_BYTES),
        _mail(_SENDER, *["A: b"] * MAX_HEADERS),
    ],
    ids=["subject", "to", "header", "headers"],
)
def test_a_mail_beyond_the_limits_is_refused(raw: bytes) -> None:
    """Before anything is parsed, with the size and the limit in the message."""
    with pytest.raises(Malformed, match=r"\d+ (bytes|headers).*at most \d+ are read"):
        read_mail(raw)


def test_a_mail_beyond_256_kib_is_cut_off_and_says_so() -> None:
    """Its words count for a flush; the problem keeps it from more."""
    words = "Your Spot Droplet will be reclaimed.\r\n"
    mail = read_mail(_mail(_SENDER, body=words + "x" * MAX_MAIL_BYTES))
    assert mail.text.startswith(words.strip())
    assert len(mail.raw) == MAX_MAIL_BYTES
    assert f"of a mail of more than {MAX_MAIL_BYTES} bytes the rest is cut off" in mail.problems


def test_the_top_of_a_mail_is_what_all_of_it_says_of_its_headers() -> None:
    """A signature that is checked with it is checked in the same way."""
    raw = _mail(_SENDER, "Subject: Fwd: x", "Date: Sun, 29 Nov 2026 12:00:00 +0000", body="words")
    whole = read_mail(raw)
    assert replace(whole, text="", quoted="", digest="") == read_top(raw)


@pytest.mark.parametrize(
    "raw", [b"", b"\r\n\r\n", b'{"event": "reclaim"}', b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 99]
)
def test_what_is_no_mail_is_refused(raw: bytes) -> None:
    """Some header that only mails have must be there."""
    with pytest.raises(Malformed, match="no mail"):
        read_mail(raw)


@pytest.mark.hostile(33, 39)
@pytest.mark.parametrize(
    "value",
    [
        "a@",
        "@b.c",
        "(" * 3000,
        "(" * 8000,
        "support@digitalocean.com <x@evil.com>",
        "support@digitalocean.com, x@evil.com",
        "<support@digitalocean.com> <x@evil.com>",
        "support@digitalocean.com (x@evil.com)",
        "support@digitalocean.com@evil.com",
        "a: support@digitalocean.com;",
        "DigitalOcean",
        "=?utf-8?q?support=40digitalocean.com?=",
        "support@digital\u043ecean.com",
        '"support@digitalocean.com',
        "<@evil.com:support@digitalocean.com>",
        "support@[192.0.2.1]",
        "sup port@digitalocean.com",
        "",
    ],
)
def test_a_sender_that_is_not_exactly_one_plain_address_is_none(value: str) -> None:
    """Readers disagree about such values, so nobody is taken for the sender, and the mail is weak."""
    mail = read_mail(_mail(f"From: {value}", "Subject: x"))
    assert mail.sender == ""
    assert "From holds not exactly one plain address" in mail.problems


@pytest.mark.hostile(39)
@pytest.mark.parametrize(
    ("value", "sender"),
    [
        ('"support@digitalocean.com" <x@evil.com>', "x@evil.com"),
        ('"a\\"<support@digitalocean.com>" <x@evil.com>', "x@evil.com"),
        ("=?utf-8?q?support=40digitalocean.com?= <x@evil.com>", "x@evil.com"),
        ("DigitalOcean Support <support@digitalocean.com.evil.com>", "support@digitalocean.com.evil.com"),
        ("support@DigitalOcean.com", "support@digitalocean.com"),
        (" <support@digitalocean.com> ", "support@digitalocean.com"),
    ],
)
def test_a_display_name_is_never_the_sender(value: str, sender: str) -> None:
    """Whatever it says, only the address counts."""
    assert read_mail(_mail(f"From: {value}")).sender == sender


def test_a_list_of_recipients_keeps_what_is_understood() -> None:
    """An entry that is no plain address is left out, and makes the mail weak."""
    mail = read_mail(_mail(_SENDER, 'To: "x, y@z" <a@b.c>, bad@@b, , d@e.f'))
    assert mail.recipients == ("a@b.c", "d@e.f")
    assert mail.problems == ("To holds what is no plain address",)
    assert read_mail(_mail(_SENDER, "To: undisclosed-recipients:;")).problems == ()


@pytest.mark.hostile(53)
@pytest.mark.parametrize(
    ("value", "at"),
    [
        ("Sun, 29 Nov 2026 16:12:43 -0000", "2026-11-29T16:12:43"),
        ("29 Nov 2026 16:12 GMT", "2026-11-29T16:12:00"),
        ("Sun, 29 Nov 2026 11:12:43 -0500 (EST)", "2026-11-29T16:12:43"),
        ("Sat, 31 Dec 2016 23:59:60 +0000", "2016-12-31T23:59:59"),
    ],
)
def test_a_date_with_a_zone_is_aware_utc(value: str, at: str) -> None:
    """Also the one that says nothing of where it was written."""
    mail = read_mail(_mail(_SENDER, f"Date: {value}"))
    assert mail.date == datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert mail.problems == ()


@pytest.mark.hostile(53)
@pytest.mark.parametrize(
    "value",
    [
        "Sun, 29 Nov 2026 16:12:43",
        "Sun, 29 Nov 2026 16:12:43 IST",
        "Mon, 30 Feb 2026 16:12:43 +0000",
        "Sun, 29 Nov 2026 24:00:00 +0000",
        "Fri, 31 Dec 9999 23:59:59 -1200",
        "Sat, 01 Jan 0001 00:00:00 +1200",
        "Sun, 29 Nov 2026 16:12:43 +9900",
        "29/11/2026 16:12 UTC",
        "Sun, 29 Nov \u0662\u0660\u0662\u0666 16:12:43 +0000",
        "tomorrow",
    ],
)
def test_a_date_that_could_be_another_moment_is_none(value: str) -> None:
    """Without a zone, or without meaning, it is named and not guessed."""
    mail = read_mail(_mail(_SENDER, f"Date: {value}"))
    assert mail.date is None
    assert mail.problems == ("Date is unreadable, or has no zone",)


@pytest.mark.hostile(33)
@pytest.mark.parametrize(
    ("value", "message_id"),
    [
        ("<a@b>", "<a@b>"),
        ("< a@\r\n b >", "<a@b>"),
        ("a@b", "<a@b>"),
        ("<[", ""),
        ("<" * 4000, ""),
        ("<a@b> <c@d>", ""),
        ("<\u00e4@b>", ""),
    ],
)
def test_a_message_id_has_one_form_or_is_unreadable(value: str, message_id: str) -> None:
    """However it is broken over lines, one mail has one."""
    mail = read_mail(_mail(_SENDER, f"Message-ID: {value}"))
    assert mail.message_id == message_id
    assert bool(mail.problems) == (message_id == "")


@pytest.mark.hostile(46)
def test_a_mail_without_message_id_is_known_by_what_it_says() -> None:
    """Line ends, folding and transport headers do not matter; Subject, Date and text do."""
    head = "From: a@b.c\nSubject: Spot {}\nDate: Sun, 29 Nov 2026 16:{}:00 +0000\n{}\nText of {}\n"
    first = read_mail(head.format("one", 12, "", "it").encode())
    again = read_mail(head.format("\n one", 12, "Received: by x\n", "\r\nit").encode())
    assert first.digest == again.digest
    assert len(first.digest) == 64
    others = [
        head.format("two", 12, "", "it"),
        head.format("one", 13, "", "it"),
        head.format("one", 12, "", "x"),
    ]
    assert len({first.digest, *(read_mail(other.encode()).digest for other in others)}) == 4


@pytest.mark.hostile(32)
def test_encoded_words_are_decoded_within_a_line() -> None:
    """The first 998 characters; adjacent words join, unknown sets and broken base64 raise nothing."""
    words = "=?utf-8?q?spot=2D?= =?iso-8859-1*en?b?MQ==?= =?rot13?q?z?= =?utf-8?b?!!!?= =?x"
    assert read_mail(_mail(_SENDER, f"Subject: {words}")).subject == "spot-1z =?x"
    long = read_mail(_mail(_SENDER, "Subject: " + "=?utf-8?b?YWFh?= " * 200))
    assert len(long.subject) < 998
    assert long.problems == ("the subject is cut off",)
    endless = read_mail(_mail(_SENDER, "Subject: " + "x" * 5000))
    assert endless.subject == ""
    assert endless.problems == ("Subject of more than 4096 bytes is not read",)


@pytest.mark.hostile(56)
def test_a_subject_has_one_harmless_line() -> None:
    """Encoded line ends, escapes and bidi overrides do not come through."""
    mail = read_mail(_mail(_SENDER, "Subject: =?utf-8?q?a=0D=0Ab=1B[31m=E2=80=AEc=00?="))
    assert mail.subject == "a b[31mc"


@pytest.mark.hostile(37)
@pytest.mark.parametrize("name", ["From", "Subject", "Date", "To", "Message-ID", "Content-Type"])
def test_a_header_that_may_be_there_once_is_a_problem_twice(name: str) -> None:
    """The last is read, which a signature covers first; but the mail is weak."""
    values = {
        "From": "a@b.c",
        "Date": "29 Nov 2026 16:12 GMT",
        "To": "a@b.c",
        "Message-ID": "<a@b>",
        "Content-Type": "text/plain",
    }
    headers = {"From": "a@b.c", name: values.get(name, "last")}
    mail = read_mail(_mail(f"{name}: x", *(f"{key}: {value}" for key, value in headers.items())))
    assert mail.problems == (f"2 headers {name.title()}; one may be there",)
    assert mail.header_counts[name.lower()] == 2
    if name == "Subject":
        assert mail.subject == "last"


def test_line_ends_become_those_that_are_signed() -> None:
    """LF becomes CRLF; a CR alone stays where other line ends are, for it was signed so."""
    lines = (b"From: a@b.c", b"Subject: x", b"", b"one", b"two", b"")
    signed = b"\r\n".join(lines)
    for end in (b"\r\n", b"\n", b"\r"):
        assert read_mail(end.join(lines)).raw == signed
    assert read_mail(b"From a@b.c  Sun Nov 29 16:12:43 2026\n" + b"\n".join(lines)).raw == signed
    odd = read_mail(b"From: a@b.c\nSubject: x\n\none\rtwo\n")
    assert odd.raw == b"From: a@b.c\r\nSubject: x\r\n\r\none\rtwo\r\n"
    assert odd.text == "one\ntwo"
    assert odd.problems == ()


@pytest.mark.parametrize("canonicalization", ["relaxed/relaxed", "simple/simple"])
def test_a_signature_holds_whatever_the_line_ends_became(canonicalization: str) -> None:
    """Also when a line of the signed body holds a carriage return, and a pipe put a line above the mail."""
    raw = plain(sent_at=datetime(2026, 11, 29, 16, 12, tzinfo=UTC), text="one\rtwo \r\n")
    signed = SIGNER.sign(raw, canonicalization=canonicalization)
    piped = signed.replace(b"\r\n", b"\n")
    for form in (signed, piped, b"\r\n" + signed, b"From a@b.c  Sun Nov 29 16:12:43 2026\n" + piped):
        proof = prove(read_mail(form), SIGNER.answers, trusted_domains=("digitalocean.com",))
        assert proof.result is Proven.YES, proof.findings
    forged = prove(read_mail(piped + b"x"), SIGNER.answers, trusted_domains=("digitalocean.com",))
    assert forged.result is Proven.NO


def test_what_readers_take_differently_in_headers_is_a_problem() -> None:
    """A carriage return alone, and a line that is no header."""
    assert read_mail(b"From: a@b.c\r\nSubject: x\rTo: y@z\r\n\r\n").problems == (
        "a carriage return in a header",
    )
    broken = read_mail(b"From: a@b.c\r\nno header\r\nSubject: x\r\n\r\n")
    assert broken.subject == "x"
    assert broken.problems == ("1 lines in the headers are none",)
