# SPDX-License-Identifier: Apache-2.0
"""The texts in the body of a mail, whatever its unsigned outer headers say of it.

A signature covers the body, and with it the headers of every part, but the outer Content-Type and transfer
encoding only where the signer chose to. Who changes those two could hide "cancelled" in a part that is no
longer one. So the body itself is asked what it is: where it looks like something else than is declared, both
are read, and a problem makes the mail weak. What is left without a problem reads the same for everybody; only
a text with tags that begins with words is read both ways and stays strong. Where the two are known to be
signed, the body is what they say.

The standard library's parser is not used: 250 KB in ten nested parts take it 0.15 s, one Content-Type of
60 KB 2 s (Python 3.11.7). Here every part is looked at once a level, and levels and parts are few.
It does not read HTML, and knows no quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from spotwatch.mail.decoding import Look, from_transfer, look_of, other_encodings, to_text
from spotwatch.mail.headers import MAX_VALUE_BYTES, Headers, read_headers, read_parameters, read_words

MAX_PARTS = 50
MAX_DEPTH = 10
_MAX_PART_HEADER_BYTES = 16 * 1024
_MAX_BOUNDARY_CHARACTERS = 200
"""RFC 2046 allows 70."""

# The first line that begins a part: a delimiter, and a header under it.
_BEGIN_OF_PART = re.compile(
    rb"\r\n--([^\r\n]{1,200}+)\r\n(?:content-[a-z-]++|mime-version|x-[a-z0-9-]++):", re.IGNORECASE
)


class Shown(NamedTuple):
    """One text of a mail."""

    text: str
    is_html: bool
    is_attached: bool
    """Whether it belongs to a mail that is attached to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a body holds for people."""

    shown: tuple[Shown, ...]
    has_attached_mail: bool
    is_report: bool
    """A delivery report or a receipt (RFC 6522)."""
    problems: tuple[str, ...]


def read_body(headers: Headers, body: bytes, *, is_form_signed: bool = False) -> Body:
    """Return the texts of a mail.

    Args:
        headers: of the mail.
        body: what follows them, with CRLF line ends.
        is_form_signed: Content-Type and Content-Transfer-Encoding are the signer's own.
    """
    walk = _Walk(is_form_signed=is_form_signed)
    walk.mail(headers, body)
    return Body(
        shown=tuple(walk.shown),
        has_attached_mail=walk.has_attached_mail,
        is_report=read_parameters(headers.text("content-type"))[0] == "multipart/report",
        problems=tuple(walk.problems),
    )


class _Walk:
    def __init__(self, *, is_form_signed: bool) -> None:
        self._is_form_signed = is_form_signed
        self.shown: list[Shown] = []
        self.problems: list[str] = []
        self.has_attached_mail = False
        self._parts_left = MAX_PARTS
        self._is_attached = False

    def mail(self, headers: Headers, body: bytes) -> None:
        """Read the body as declared, and as it looks where that is something else."""
        if headers.is_too_long("content-type"):
            self._problem(f"a Content-Type of more than {MAX_VALUE_BYTES} bytes")
        kind, parameters = read_parameters(headers.text("content-type"))
        declared = _boundary_of(parameters) if kind.startswith("multipart/") else b""
        begin = _BEGIN_OF_PART.search(b"\r\n" + body)
        # The headers of an attached mail are part of the body, and signed with it.
        looks = begin[1].rstrip(b" \t") if begin and not self._is_form_signed else b""
        is_as_declared = declared == looks or self._is_form_signed
        if declared and is_as_declared and self._multipart(body, declared, 1, is_outermost=True):
            return
        if kind.startswith("multipart/"):
            self._problem("the outer Content-Type names a boundary at which no part begins")
            is_read = (
                not is_as_declared and declared and self._multipart(body, declared, 1, is_outermost=True)
            )
            if not is_read and not looks:
                self._whole_body(headers, kind, parameters, body)
        elif kind == "message/rfc822":
            self._attached_mail(body)
        else:
            self._whole_body(headers, kind, parameters, body)
        if looks:
            self._problem("there are parts that the outer Content-Type does not announce")
            self._multipart(body, looks, 1, is_outermost=True)

    def _whole_body(self, headers: Headers, kind: str, parameters: dict[str, str], body: bytes) -> None:
        if kind not in ("text/plain", "text/html") and headers.counts.get("content-type"):
            self._problem("the outer Content-Type is neither text nor parts")
        encoding, is_html = headers.text("content-transfer-encoding"), kind == "text/html"
        others = () if self._is_form_signed else other_encodings(body, encoding)
        for other in others:
            self._problem(f"the body looks like {other}, which is not declared")
        for each in (encoding, *others):
            data, problem = from_transfer(body, each)
            self._problem(problem)
            text, problem = to_text(data, parameters.get("charset", ""))
            self._problem(problem)
            look = look_of(text)
            is_other = text.strip() and look is not Look.EITHER and (look is Look.PAGE) != is_html
            if is_other and not self._is_form_signed:
                self._problem(f"the body looks like {look.value}, which is not declared")
                self._show(text, is_html=not is_html)
            if look is Look.EITHER:
                self._show(text, is_html=True)
                self._show(text, is_html=False)
            else:
                self._show(text, is_html=is_html)

    def _multipart(self, body: bytes, boundary: bytes, depth: int, *, is_outermost: bool = False) -> bool:
        """Read the parts between the delimiters; return whether there are any."""
        if depth > MAX_DEPTH:
            self._problem(f"parts more than {MAX_DEPTH} deep are not read")
            return True
        delimiter = re.compile(rb"\r\n--" + re.escape(boundary) + rb"(--)?+[ \t]*+(?=\r\n|\Z)")
        framed = b"\r\n" + body
        begin, is_closed = -1, False
        for found in delimiter.finditer(framed):
            if begin >= 0:
                if self._parts_left <= 0:
                    self._problem(f"parts beyond {MAX_PARTS} are not read")
                    return True
                self._part(framed[begin : found.start()], depth)
            elif is_outermost:
                self._around(framed[: found.start()])
            begin = found.end() + len(b"\r\n")
            if found[1]:
                is_closed = True
                break
        if is_closed:
            if is_outermost:
                self._around(framed[begin:])
        elif begin >= 0:
            self._problem("the last part has no end")
            self._part(framed[begin:], depth)
        return begin >= 0

    def _around(self, text: bytes) -> None:
        """Show what stands before or after all parts: under another boundary it would be part of the text."""
        if text.strip():
            self._show(to_text(text, "").text, is_html=False)

    def _part(self, part: bytes, depth: int) -> None:
        self._parts_left -= 1
        if part.startswith(b"\r\n"):
            block, body = b"", part[2:]
        else:
            block, _, body = part.partition(b"\r\n\r\n")
        if len(block) > _MAX_PART_HEADER_BYTES:
            self._problem(f"a part with more than {_MAX_PART_HEADER_BYTES} bytes of headers is not read")
            return
        headers = read_headers(block)
        kind, parameters = read_parameters(headers.text("content-type"))
        encoding = headers.text("content-transfer-encoding")
        is_attachment = headers.text("content-disposition").lower().startswith("attachment")
        if kind.startswith("multipart/"):
            inner = _boundary_of(parameters)
            if not inner or not self._multipart(body, inner, depth + 1):
                self._problem("a multipart without parts")
        elif kind == "message/rfc822":
            data, problem = from_transfer(body, encoding)
            self._problem(problem)
            self._attached_mail(data)
        elif not is_attachment and (kind in ("text/plain", "text/html") or not kind):
            data, problem = from_transfer(body, encoding)
            self._problem(problem)
            text, problem = to_text(data, parameters.get("charset", ""))
            self._problem(problem)
            self._show(text, is_html=kind == "text/html")

    def _attached_mail(self, raw: bytes) -> None:
        if self._is_attached:
            self._problem("a mail that is attached to an attached mail is not read")
            return
        self.has_attached_mail = self._is_attached = True
        block, _, body = raw.partition(b"\r\n\r\n")
        if len(block) > _MAX_PART_HEADER_BYTES:
            self._problem(f"an attached mail with more than {_MAX_PART_HEADER_BYTES} bytes of headers")
        else:
            headers = read_headers(block)
            self._show(read_words(headers.text("subject")), is_html=False)
            self.mail(headers, body)
        self._is_attached = False

    def _show(self, text: str, *, is_html: bool) -> None:
        self.shown.append(Shown(text, is_html, self._is_attached))

    def _problem(self, problem: str) -> None:
        if problem and problem not in self.problems:
            self.problems.append(problem)


def _boundary_of(parameters: dict[str, str]) -> bytes:
    boundary = parameters.get("boundary", "").rstrip()
    return boundary.encode("utf-8", "replace") if len(boundary) <= _MAX_BOUNDARY_CHARACTERS else b""
