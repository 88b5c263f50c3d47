# SPDX-License-Identifier: Apache-2.0
"""Outer headers that nobody signed, changed: no word is hidden, and none comes to the body, unnoticed."""

from __future__ import annotations

import base64
import binascii
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.mail.model import Mail
from spotwatch.mail.reading import read_mail

_TEXT = (
    "Your Spot Droplet spot-1 will\u00a0not be reclaimed: "
    "it was cancelled \u2013 at 19:00 UTC, id=3512345678."
)
_PLAIN = f"Hello,\r\n\r\n{_TEXT}\r\n\r\n> quoted <style> line\r\n"
_PAGE = f"<html><body><p>Hello,</p><p>{_TEXT.replace('not', 'n<b>ot</b>')}</p><!-- no --></body></html>\r\n"


def _read(body: str | bytes, *headers: str) -> Mail:
    head = "\r\n".join(["From: a@b.c", *headers, "", ""]).encode()
    return read_mail(head + (body if isinstance(body, bytes) else body.encode()))


def _quoted_printable(text: str) -> str:
    return binascii.b2a_qp(text.replace("\r\n", "\n").encode()).decode().replace("\n", "\r\n")


def _base64(text: str) -> str:
    return base64.encodebytes(text.encode()).decode().replace("\n", "\r\n")


def _part(kind: str, body: str, *headers: str) -> str:
    return "\r\n".join([f"Content-Type: {kind}", *headers, "", body])


def _parts(boundary: str, *parts: str) -> str:
    return "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}--\r\n"


_KINDS = [
    "text/plain",
    "text/html",
    "text/calendar",
    "application/octet-stream",
    "image/png",
    "message/rfc822",
    "nonsense",
    "multipart/mixed",
    "multipart/alternative",
    "multipart/digest",
    "multipart/signed",
]
_ENCODINGS = ["7bit", "8bit", "quoted-printable", "base64", "x-uuencode"]
_CHARSETS = [
    "utf-8",
    "iso-8859-1",
    "iso-8859-5",
    "windows-1256",
    "koi8-r",
    "utf-7",
    "utf-16",
    "gb18030",
    "cp037",
]
_BOUNDARIES = ["outer", "inner", "none", "", "-outer", "outer--"]
_NESTED = _parts(
    "inner",
    _part(
        "text/plain; charset=utf-8", _quoted_printable(_PLAIN), "Content-Transfer-Encoding: quoted-printable"
    ),
    _part("text/html; charset=utf-8", _base64(_PAGE), "Content-Transfer-Encoding: base64"),
)
_HONEST: dict[str, tuple[str | bytes, str, str]] = {
    "plain": (_PLAIN, "text/plain", "8bit"),
    "quoted-printable": (_quoted_printable(_PLAIN), "text/plain", "quoted-printable"),
    "base64": (_base64(_PLAIN), "text/plain", "base64"),
    "page": (_PAGE, "text/html", "8bit"),
    "page, quoted-printable": (_quoted_printable(_PAGE), "text/html", "quoted-printable"),
    "page, base64": (_base64(_PAGE), "text/html", "base64"),
    "parts": (
        _parts(
            "outer", _part('multipart/alternative; boundary="inner"', _NESTED), _part("text/plain", "foot")
        ),
        "multipart/mixed; boundary=outer",
        "7bit",
    ),
    "text with tags": (f"Hello,<br>{_TEXT} <!-- no -->\r\n> quoted\r\n", "text/plain", "8bit"),
    "page without head": (f"Hello,<br>{_TEXT.replace('not', 'n<b>ot</b>')}\r\n", "text/html", "8bit"),
    "latin-1": (_PLAIN.replace("\u2013", "-").encode("iso-8859-1"), "text/plain; charset=iso-8859-1", "8bit"),
}


def _said(mail: Mail) -> tuple[list[str], list[str]]:
    return mail.text.split(), mail.quoted.split()


@pytest.mark.hostile(38)
@pytest.mark.parametrize("name", _HONEST)
def test_a_changed_outer_header_hides_and_adds_nothing_unnoticed(name: str) -> None:
    """A body reads the same under every outer Content-Type and encoding that leaves the mail strong."""
    body, kind, encoding = _HONEST[name]
    honest = _read(body, f"Content-Type: {kind}", f"Content-Transfer-Encoding: {encoding}")
    assert honest.problems == ()
    assert "will not be reclaimed: it was cancelled" in honest.text
    charsets = [f"; charset={charset}" for charset in _CHARSETS]
    boundaries = [f'; boundary="{boundary}"' for boundary in _BOUNDARIES]
    noticed = 0
    for other, rest, its_encoding in itertools.product(_KINDS, ["", *charsets, *boundaries], _ENCODINGS):
        changed = _read(body, f"Content-Type: {other}{rest}", f"Content-Transfer-Encoding: {its_encoding}")
        is_weak = bool(changed.problems) or changed.is_forwarded
        noticed += is_weak
        assert is_weak or _said(changed) == _said(honest), (other, rest, its_encoding)
    assert noticed > 300


@pytest.mark.hostile(38)
def test_without_outer_headers_a_body_reads_the_same_or_weak() -> None:
    """Who takes them away gains no more than who changes them."""
    for body, kind, encoding in _HONEST.values():
        honest = _read(body, f"Content-Type: {kind}", f"Content-Transfer-Encoding: {encoding}")
        changed = _read(body)
        assert changed.problems or _said(changed) == _said(honest)


@pytest.mark.parametrize("name", [name for name in _HONEST if name != "latin-1"])
def test_what_is_read_beside_the_declaration_still_speaks_of_a_reclaim(name: str) -> None:
    """A changed header makes the mail weak, not silent: the flush comes all the same."""
    body, _, _ = _HONEST[name]
    for other in ("text/plain", "text/html", "multipart/mixed; boundary=x", "application/pdf"):
        changed = _read(body, f"Content-Type: {other}")
        assert "spot-1 will not be reclaimed" in f"{changed.text} {changed.quoted}"


@given(
    st.sampled_from(sorted(_HONEST)),
    st.sampled_from(_KINDS),
    st.text(st.sampled_from('abcionuter0-"= ;\t'), max_size=12),
    st.sampled_from(_ENCODINGS),
)
def test_no_outer_header_of_any_form_hides_a_word(
    name: str, kind: str, parameters: str, encoding: str
) -> None:
    """The same for parameters that nobody thought of."""
    body, honest_kind, honest_encoding = _HONEST[name]
    honest = _read(body, f"Content-Type: {honest_kind}", f"Content-Transfer-Encoding: {honest_encoding}")
    changed = _read(
        body, f"Content-Type: {kind}; boundary={parameters}", f"Content-Transfer-Encoding: {encoding}"
    )
    assert changed.problems or changed.is_forwarded or _said(changed) == _said(honest)


@pytest.mark.hostile(38)
def test_text_around_the_parts_cannot_be_hidden_by_a_boundary() -> None:
    """A plain mail that holds another's parts is weak; announced as parts, it still says all that it says."""
    inner = _parts("b", _part("text/plain", "Spot reclaim of spot-1"))
    body = f"We have cancelled this:\r\n\r\n{inner}\r\nIt will not happen.\r\n"
    assert _read(body).problems
    changed = _read(body, "Content-Type: multipart/mixed; boundary=b")
    assert changed.problems == ()
    assert changed.text == "We have cancelled this:\n\nSpot reclaim of spot-1\n\nIt will not happen."
