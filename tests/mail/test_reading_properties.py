# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes come as a mail: they are refused in one way, or read within bounds and without harm."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC

from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import Malformed
from spotwatch.mail.html import visible_text
from spotwatch.mail.normalising import MAX_CHARACTERS
from spotwatch.mail.reading import read_mail

_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_NAMED = re.compile(rb"(?:from|to|subject|date|message-id):", re.IGNORECASE)

# Pieces of mails, so that random mails reach every branch.
_PIECES = st.sampled_from(
    [
        b"From: a@b.c\r\n",
        b"From: a@\r\n",
        b'To: a@b.c, "x\r\n',
        b"Subject: =?utf-8?b?YQ?= =?x?q?=E9?=\r\n",
        b"Date: Sun, 29 Nov 2026 16:12:00 -0000\r\n",
        b"Message-ID: <[\r\n",
        b"Auto-Submitted: auto-replied\r\n",
        b"Content-Type: multipart/mixed; boundary=b\r\n",
        b'Content-Type: multipart/report; boundary="c\r\n',
        b"Content-Type: text/html; charset=zlib\r\n",
        b"Content-Type: message/rfc822\r\n",
        b"Content-Type:\r\n",
        b"Content-Transfer-Encoding: base64\r\n",
        b"Content-Transfer-Encoding: quoted-printable\r\n",
        b"Content-Disposition: attachment\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"--b\r\n",
        b"--b--\r\n",
        b"--c\r\n",
        b"<p style='display:none'>",
        b"<blockquote>",
        b"</p>",
        b"<!--",
        b"&#9;",
        b"&#",
        b"<td hidden",
        b"=\r\n",
        b"=3D",
        b"On x wrote:\r\n",
        b"> ",
        b"Begin forwarded message:\r\n",
        b"From: x\r\nSent: y\r\nTo: z\r\nSubject: s\r\n",
        "\u202e\u200b\u0301\ufdfa\u3164".encode(),
        b"\xff\x00\x1b",
        b"spot-1 reclaim ",
    ]
)
_MAILS = st.one_of(
    st.binary(max_size=300),
    st.lists(_PIECES, max_size=40).map(b"".join),
    st.lists(st.one_of(_PIECES, st.binary(max_size=8)), max_size=30).map(
        lambda p: b"From: a@b.c\r\n" + b"".join(p)
    ),
)


@given(_MAILS)
def test_a_mail_is_refused_or_read_within_bounds(raw: bytes) -> None:
    """No other exception, no invisible characters, no naive date; and twice the same."""
    try:
        mail = read_mail(raw)
    except Malformed:
        assert not _NAMED.match(raw)
        return
    for text in (mail.subject, mail.text, mail.quoted):
        assert len(text) <= MAX_CHARACTERS + 100
        assert all(c == "\n" or unicodedata.category(c) not in _HARMFUL for c in text)
        text.encode()
    assert "\n" not in mail.subject
    for single in (mail.sender, mail.message_id, *mail.recipients, *mail.problems):
        assert not set(single) & set("\r\n\x00")
    assert mail.date is None or mail.date.tzinfo is UTC
    assert read_mail(raw) == mail


@given(_MAILS)
def test_line_ends_are_normal_once_and_for_all(raw: bytes) -> None:
    """A mail that was read once reads the same again: DKIM and reading look at the same bytes."""
    try:
        mail = read_mail(raw)
    except Malformed:
        return
    assert b"\n" not in mail.raw.replace(b"\r\n", b"")
    assert read_mail(mail.raw).text == mail.text


@given(
    st.lists(st.one_of(_PIECES.map(lambda p: p.decode("latin-1")), st.text(max_size=5)), max_size=30).map(
        "".join
    )
)
def test_any_page_has_a_text(page: str) -> None:
    """Whatever is opened and never closed."""
    seen = visible_text(page)
    assert len(seen) <= MAX_CHARACTERS
    assert all(c == "\n" or unicodedata.category(c) not in _HARMFUL for c in seen)
