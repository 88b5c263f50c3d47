# SPDX-License-Identifier: Apache-2.0
"""What a mail that was made to be expensive costs, measured against a plain mail of that size."""

from __future__ import annotations

import contextlib
import time

import pytest

from spotwatch.errors import Malformed
from spotwatch.mail.model import MAX_MAIL_BYTES
from spotwatch.mail.reading import read_mail

_SIZE = MAX_MAIL_BYTES - 2_000
_HEAD = b"From: a@b.c\r\nSubject: x\r\n"
_PLAIN = _HEAD + b"Content-Type: text/plain; charset=utf-8\r\n\r\n"
_PAGE = _HEAD + b"Content-Type: text/html\r\n\r\n"
_PARTS = _HEAD + b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n'
_DEEP = b"".join(
    b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n' % (n, n) for n in range(1500)
)
_BOUND = 50
"""How many times a plain mail's cost; seen here: at most 6."""


def _full(unit: bytes, size: int = _SIZE) -> bytes:
    return (unit * (size // len(unit) + 1))[:size]


_MONSTERS = {
    "line feeds": _PLAIN + _full(b"\n"),
    "carriage returns": _PLAIN + b"\n" + _full(b"\r"),
    "encoded words": _HEAD + b"Subject: " + b"=?utf-8?b?YWFh?= " * 25_000 + b"\r\n\r\n",
    "encoded words within the limits": b"From: a@b.c\r\nSubject: " + b"=?u?b?YQ==?= " * 4_000 + b"\r\n\r\n",
    "recipients": b"From: a@b.c\r\nTo: " + b"a@example.org, " * 20_000 + b"\r\n\r\n",
    "quotes in To": b"From: a@b.c\r\nTo: " + b'"\\' * 2_000 + b"\r\n\r\n",
    "comments in From": b"From: " + b"(" * 8_000 + b"\r\n\r\n",
    "short comments in From": b"From: " + b"(" * 4_000 + b"\r\n\r\n",
    "quotes in From": b"From: " + b'"\\""a ' * 680 + b"\r\n\r\n",
    "brackets in Message-ID": b"From: a@b.c\r\nMessage-ID: " + b"<[" * 1_900 + b"\r\n\r\n",
    "parameters": _HEAD + b'Content-Type: multipart/mixed; a="' + b";" * 60_000 + b"\r\n\r\nx",
    "parameters within the limits": _HEAD + b"Content-Type: a/b; " + b'a=";' * 1_000 + b"\r\n\r\nx",
    "parameters of a part": _PARTS + b'--b\r\nContent-Type: multipart/a; b="' + _full(b";", 240_000),
    "nested parts": _HEAD + _DEEP,
    "lines in nested parts": _HEAD + _DEEP[:480] + b"\r\n" + _full(b"\r\n", 250_000),
    "delimiters in nested parts": _HEAD + _DEEP[:480] + b"\r\n" + _full(b"--b\r\n", 250_000),
    "delimiters": _PARTS + _full(b"--b\r\n\r\nx\r\n"),
    "almost delimiters": _PARTS + _full(b"--b" + b" " * 5_000 + b"x\r\n"),
    "almost parts": _PLAIN + _full(b"--" + b" " * 200 + b"\r\n"),
    "headers of parts": _PARTS + _full(b"--b\r\n" + b"a:b\r\n" * 3_000 + b"\r\nx\r\n"),
    "pages in parts": _PARTS + _full(b"--b\r\nContent-Type: text/html\r\n\r\n" + b"<b>x" * 1_200 + b"\r\n"),
    "attached mails": _HEAD + b"Content-Type: message/rfc822\r\n\r\n" * 100,
    "tags": _PAGE + _full(b"<b>"),
    "angle brackets": _PAGE + _full(b"<"),
    "comments without end": _PAGE + b"<p>" + _full(b"<!--"),
    "tags without end": _PAGE + _full(b"<a "),
    "quotes without end": _PAGE + _full(b"<a b='"),
    "attributes": _PAGE + _full(b"<p style=a:b " + b"a " * 500 + b">"),
    "equals signs": _PAGE + _full(b"<p style" + b"=" * 100 + b">"),
    "styles": _PAGE + _full(b"<p style='" + b"a:b;" * 1_000 + b"'>"),
    "end tags of nothing": _PAGE + _full(b"<i>", 60_000) + _full(b"</u></b>", 180_000),
    "scripts": _PAGE + _full(b"<script></scrip"),
    "entities": _PAGE + _full(b"&a"),
    "long entities": _PAGE + _full(b"&" + b"a" * 31),
    "digits of an entity": _PAGE + b"&#" + _full(b"9"),
    "blanks": _PAGE + _full(b"a "),
    "combining marks": _PLAIN + b"a" + _full("\u0301\u0316".encode()),
    "ligatures of 18 letters": _PLAIN + _full("\ufdfa".encode()),
    "distinct letters": _PLAIN + "".join(map(chr, range(0x3400, 0xD800))).encode(),
    "no utf-8": _PLAIN + _full(b"\xff"),
    "tables of headers": _PLAIN + _full(b"From:\r\nTo:\r\n"),
    "who wrote": _PLAIN + _full(b"wrote:\r\n"),
    "quoted who wrote": _PLAIN + _full(b"On a wrote:\r\n>\r\n"),
    "signs of quotes": _PLAIN + _full(b">"),
    "quoted-printable": _HEAD + b"Content-Transfer-Encoding: quoted-printable\r\n\r\n" + _full(b"=41"),
    "broken base64": _HEAD + b"Content-Transfer-Encoding: base64\r\n\r\n" + _full(b"QUF?"),
    "almost base64": _PLAIN + _full(b"A" * 45 + b"\r\n") + b"!",
    "everything that is not declared": _PAGE
    + b"--b\r\nContent-Type: text/html\r\n\r\n"
    + _full(b"<b>a=41=\r\n", 250_000),
}


def _seconds(raw: bytes) -> float:
    begin = time.process_time()
    with contextlib.suppress(Malformed):
        read_mail(raw)
    return time.process_time() - begin


@pytest.fixture(scope="module")
def plain_seconds() -> float:
    """What a plain mail of the greatest size costs."""
    return min(_seconds(_PLAIN + _full(b"word " * 14 + b"\r\n")) for _ in range(3))


@pytest.mark.hostile(32, 33, 35, 36)
@pytest.mark.parametrize("name", _MONSTERS)
def test_no_mail_costs_much_more_than_a_plain_one(name: str, plain_seconds: float) -> None:
    """Each of these takes some reader quadratic time, up to half a minute."""
    assert len(_MONSTERS[name]) > 1_000
    assert min(_seconds(_MONSTERS[name]) for _ in range(2)) < _BOUND * plain_seconds


@pytest.mark.hostile(32)
@pytest.mark.parametrize("name", ["encoded words", "recipients"])
def test_a_mail_over_the_limits_costs_less_than_a_plain_one(name: str, plain_seconds: float) -> None:
    """It is refused by its size, before anything is parsed."""
    assert min(_seconds(_MONSTERS[name]) for _ in range(3)) < plain_seconds
