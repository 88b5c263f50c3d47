# SPDX-License-Identifier: Apache-2.0
"""A mail put together again from the fields that a service took it apart into.

It has no signature that could hold, and whoever hands it over says so. It does not judge a field: what is no
address or no date is left to the reader, as in a mail that came by itself.
"""

from __future__ import annotations

import base64
from email.utils import format_datetime

from spotwatch.model import from_rfc3339

# No line of base64 can be one, for it begins with dashes.
_BOUNDARY = "=_spotwatch"
# RFC 2047, section 2: 75 characters a word; ten characters are at most 40 bytes of UTF-8.
_WORD_CHARACTERS = 10
_LINE_BYTES = 57


def compose(
    *,
    subject: str = "",
    sender: str = "",
    recipients: str = "",
    date: str = "",
    message_id: str = "",
    text: str = "",
    html: str = "",
) -> bytes:
    """Return the mail, RFC 5322, ASCII, CRLF.

    Args:
        subject: decoded.
        sender: `Name <address>` or an address.
        recipients: the same, several with commas.
        date: RFC 5322 or RFC 3339; with a zone, or it is worth nothing.
        message_id: with its angle brackets.
        text: the plain text.
        html: the same in HTML; either may be empty.
    """
    fields = {
        "From": _address(sender),
        "To": _address(recipients),
        "Subject": _words(subject),
        "Date": _ascii(_date(date)),
        "Message-ID": _ascii(message_id),
    }
    head = [f"{name}: {value}" for name, value in fields.items() if value]
    bodies = [("plain", text)] if text or not html else []
    bodies += [("html", html)] if html else []
    parts = [_part(subtype, content) for subtype, content in bodies]
    if len(parts) == 1:
        lines = [*head, "MIME-Version: 1.0", *parts[0]]
    else:
        kind = f'Content-Type: multipart/alternative; boundary="{_BOUNDARY}"'
        lines = [*head, "MIME-Version: 1.0", kind, ""]
        for part in parts:
            lines += [f"--{_BOUNDARY}", *part]
        lines.append(f"--{_BOUNDARY}--")
    return "\r\n".join([*lines, ""]).encode("ascii")


def _part(subtype: str, content: str) -> list[str]:
    body = content.encode("utf-8", "replace")
    return [
        f"Content-Type: text/{subtype}; charset=utf-8",
        "Content-Transfer-Encoding: base64",
        "",
        *(base64.b64encode(body[at : at + _LINE_BYTES]).decode() for at in range(0, len(body), _LINE_BYTES)),
    ]


def _one_line(text: str) -> str:
    """Return `text` without a line end, which would begin another header."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _ascii(text: str) -> str:
    return _one_line(text).encode("ascii", "replace").decode()


def _words(text: str) -> str:
    """Return `text` as it may stand in a header: in encoded words where it is not plain."""
    line = _one_line(text)
    if line.isascii() and "=?" not in line:
        return line
    pieces = (line[at : at + _WORD_CHARACTERS] for at in range(0, len(line), _WORD_CHARACTERS))
    return "\r\n ".join(f"=?utf-8?b?{base64.b64encode(piece.encode()).decode()}?=" for piece in pieces)


def _address(text: str) -> str:
    """Return an address header; a letter of another script within an address itself becomes `?`."""
    name, bracket, address = _one_line(text).rpartition("<")
    if not bracket or name.isascii():
        return _ascii(text)
    return f"{_words(name.strip())} <{_ascii(address)}"


def _date(text: str) -> str:
    try:
        return format_datetime(from_rfc3339(text.strip()))
    except (ValueError, OverflowError):
        return text
