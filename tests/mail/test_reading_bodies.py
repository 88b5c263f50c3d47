# SPDX-License-Identifier: Apache-2.0
"""The texts of a mail's body: parts, encodings, character sets and limits."""

from __future__ import annotations

import pytest

from spotwatch.mail.mime import MAX_DEPTH, MAX_PARTS
from spotwatch.mail.model import Mail
from spotwatch.mail.normalising import MAX_CHARACTERS
from spotwatch.mail.reading import read_mail


def _read(body: str | bytes, *headers: str) -> Mail:
    head = "\r\n".join(["From: a@b.c", *headers, "", ""]).encode()
    return read_mail(head + (body if isinstance(body, bytes) else body.encode()))


def _part(kind: str, body: str, *headers: str) -> str:
    return "\r\n".join([f"Content-Type: {kind}", *headers, "", body])


def _parts(boundary: str, *parts: str) -> str:
    return "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}--\r\n"


def test_both_texts_of_an_alternative_are_read() -> None:
    """What one of them hides the other shows; an attachment shows nothing."""
    mail = _read(
        _parts(
            "b 1",
            _part("text/plain; charset=utf-8", "plain words\r\n"),
            _part("text/html", "<p>page words", "Content-Transfer-Encoding: 7bit"),
            _part("text/plain", "attached", "Content-Disposition: ATTACHMENT; filename=x"),
            _part("text/calendar", "calendar"),
            _part("image/png", "image"),
            "\r\nno headers",
        ),
        'Content-Type: multipart/alternative; boundary="b 1"',
    )
    assert mail.text == "plain words\n\npage words\n\nno headers"
    assert mail.problems == ()


@pytest.mark.hostile(25, 34)
@pytest.mark.parametrize(
    ("headers", "body", "text", "problem"),
    [
        ("charset=iso-8859-1", b"caf\xe9 \x96", "caf\u00e9 \u2013", ""),
        ("charset=windows-1252", b"caf\xe9", "caf\u00e9", ""),
        ("charset=iso-8859-15", b"\xa4", "\u20ac", ""),
        ("charset=iso-8859-1", "caf\u00e9".encode(), "caf\u00e9", ""),
        ("charset=us-ascii", "caf\u00e9".encode(), "caf\u00e9", ""),
        ('charset="UTF-8"', b"caf\xe9", "caf\ufffd", "bytes that are no utf-8"),
        ("charset=rot13", b"reclaim", "reclaim", "character set 'rot13' is not read"),
        ("charset=zlib", b"reclaim", "reclaim", "character set 'zlib' is not read"),
        ("charset=utf-7", b"+AHI-eclaim", "+AHI-eclaim", "character set 'utf-7' is not read"),
        ("charset=utf-16", b"reclaim", "reclaim", "character set 'utf-16' is not read"),
        ('charset="a\0b"', b"reclaim", "reclaim", "character set 'a\\x00b' is not read"),
    ],
)
def test_character_sets_are_few_and_harmless(headers: str, body: bytes, text: str, problem: str) -> None:
    """Each keeps ASCII as it is; valid UTF-8 is UTF-8 whatever is declared."""
    mail = _read(body, f"Content-Type: text/plain; {headers}")
    assert mail.text == text
    assert mail.problems == ((problem,) if problem else ())


@pytest.mark.hostile(34)
@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("base64", "c3BvdC0x", "spot-1"),
        ("base64", "c3Bv\r\ndC0x\r\n", "spot-1"),
        ("Quoted-Printable", "spot=2D1=\r\n0 =2D=2D", "spot-10 --"),
        ("8bit", "spot-1", "spot-1"),
    ],
)
def test_transfer_encodings_are_undone(encoding: str, body: str, text: str) -> None:
    """In any case of letters."""
    mail = _read(body, f"Content-Transfer-Encoding: {encoding}")
    assert mail.text == text
    assert mail.problems == ()


@pytest.mark.hostile(34)
@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("base64", "c3BvdC0xx", "spot-1"),
        ("base64", "c3Bv*dC0x", "spot-1"),
        ("base64", "c3BvdC0", "spot-"),
        ("uuencode", "spot-1", "spot-1"),
    ],
)
def test_a_broken_encoding_is_read_as_far_as_it_goes(encoding: str, body: str, text: str) -> None:
    """And makes the mail weak."""
    mail = _read(body, f"Content-Transfer-Encoding: {encoding}")
    assert text in mail.text
    assert mail.problems


@pytest.mark.hostile(35)
def test_deep_and_many_parts_are_read_up_to_a_limit() -> None:
    """What lies beyond is not read, and makes the mail weak."""
    deep = "".join(f'Content-Type: multipart/mixed; boundary="b{n}"\r\n\r\n--b{n}\r\n' for n in range(1500))
    mail = read_mail(f"From: a@b.c\r\n{deep}\r\nreclaim".encode())
    assert f"parts more than {MAX_DEPTH} deep are not read" in mail.problems
    assert mail.text == ""
    many = _read(_parts("b", *[_part("text/plain", "x")] * 99), "Content-Type: multipart/mixed; boundary=b")
    assert many.text.split() == ["x"] * MAX_PARTS
    assert many.problems == (f"parts beyond {MAX_PARTS} are not read",)


@pytest.mark.hostile(35)
@pytest.mark.parametrize(
    "kind", ["multipart/alternative", "multipart/mixed; boundary=b", "multipart/x; boundary="]
)
def test_a_multipart_without_parts_is_read_as_it_stands(kind: str) -> None:
    """Its lines may speak of a reclaim, which is worth a flush; a stop it is not."""
    mail = _read("Spot reclaim of spot-1", f"Content-Type: {kind}")
    assert mail.text == "Spot reclaim of spot-1"
    assert mail.problems


@pytest.mark.hostile(35)
def test_attached_mails_are_opened_once() -> None:
    """A mail in a mail in a mail is not read, and makes this one weak."""
    mail = read_mail(b"From: a@b.c\r\n" + b"Content-Type: message/rfc822\r\n\r\nSubject: x\r\n" * 100)
    assert mail.is_forwarded
    assert "a mail that is attached to an attached mail is not read" in mail.problems


@pytest.mark.hostile(44)
def test_an_attached_mail_is_quoted() -> None:
    """Its subject and its words are not this mail's own."""
    inner = "From: support@digitalocean.com\r\nSubject: Spot =?utf-8?q?recl=61im?=\r\n\r\nspot-1\r\n"
    mail = _read(
        _parts(
            "b",
            _part("text/plain", "see this"),
            _part("message/rfc822", inner, "Content-Disposition: attachment"),
            _part("text/plain", "bye"),
        ),
        "Content-Type: multipart/mixed; boundary=b",
    )
    assert mail.text == "see this\n\nbye"
    assert mail.quoted == "Spot reclaim\n\nspot-1"
    assert mail.is_forwarded
    assert mail.problems == ()


@pytest.mark.hostile(45)
@pytest.mark.parametrize(
    "headers",
    [
        ("Auto-Submitted: auto-replied (vacation)",),
        ("X-Autoreply: yes",),
        ("Precedence: auto_reply",),
        ("Content-Type: multipart/report; report-type=delivery-status; boundary=b",),
        ("X-Failed-Recipients: a@b.c",),
    ],
)
def test_answers_of_machines_are_told_from_notices(headers: tuple[str, ...]) -> None:
    """An answer, a bounce and a receipt; a notice that a machine wrote is none of them."""
    body = _parts("b", _part("text/plain", "x"), _part("message/rfc822", "Subject: Spot reclaim\r\n\r\nx"))
    mail = _read(body, *headers)
    assert mail.is_automatic
    for notice in ("Auto-Submitted: auto-generated", "Precedence: bulk", "X-Auto-Response-Suppress: All"):
        assert not _read("Spot reclaim", notice).is_automatic


@pytest.mark.hostile(45)
def test_a_bounce_is_known_by_its_sender() -> None:
    """Old mail servers mark it in no other way."""
    assert read_mail(b"From: MAILER-DAEMON@mx.example.org\r\n\r\nYour message").is_automatic


def test_a_cut_mail_says_so() -> None:
    """Text beyond the limit, a page beyond it, and parts without an end."""
    cut = (f"text beyond {MAX_CHARACTERS} characters is cut off",)
    long = _read("word " * 30_000)
    assert long.problems == cut
    assert len(long.text) <= MAX_CHARACTERS
    assert _read("<p>" + "word " * 30_000, "Content-Type: text/html").problems == cut
    open_end = _read("--b\r\nContent-Type: text/plain\r\n\r\nx", "Content-Type: multipart/mixed; boundary=b")
    assert open_end.text == "x"
    assert open_end.problems == ("the last part has no end",)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (
            "text/plain",
            "Notice\r\n======\r\n\r\nhttps://cloud.digitalocean.com/x?a=12&b=c=\u00e9\r\n-- \r\nTeam\r\n",
        ),
        ("text/plain", "--\r\nName: spot-1\r\n--foo\r\nContent of it\r\n"),
        ("text/plain", "<https://cloud.digitalocean.com/droplets/5>\r\n<support@digitalocean.com>\r\n1 < 2"),
        ("text/plain", "reclaimed\r\n"),
        ("text/plain", ""),
        ("text/html", ""),
        ("text/html", "Hello<br>spot-1"),
        ("text/html", "\r\n \ufeff<!DOCTYPE html><html>spot-1"),
        (
            "multipart/mixed; boundary=b",
            "For old readers.\r\n--b\r\nMIME-Version: 1.0\r\n\r\nx\r\n--b--\r\nEnd.\r\n",
        ),
        ("multipart/mixed; boundary=b;", "--b \r\ncontent-type: text/plain\r\n\r\n--b--"),
        ('multipart/mixed; x="y;z"; BOUNDARY="b\\"c"', '--b"c\r\nX-Y: z\r\n\r\nx\r\n--b"c--'),
    ],
)
def test_honest_mail_is_not_made_weak(kind: str, body: str) -> None:
    """Rules under a title, addresses in brackets, text around the parts, pages without a head."""
    assert _read(body, f"Content-Type: {kind}").problems == ()
