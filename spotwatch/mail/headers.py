# SPDX-License-Identifier: Apache-2.0
"""Header fields of a mail or a part, and the few values that are used: words, dates, parameters.

The standard library's readers are not used: an encoded Subject of 420 KB takes them 25 s, a Content-Type of
60 KB 2 s (Python 3.11.7). Here a value is read by one pass of an expression that knows no way back, and what
it does not match is unread, not guessed. Addresses are read elsewhere.
"""

from __future__ import annotations

import binascii
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone

from spotwatch.mail.addresses import without_comments
from spotwatch.mail.decoding import from_base64, to_text

MAX_VALUE_BYTES = 4 * 1024
"""Of one header that is used."""
_MAX_WORDS_CHARACTERS = 998
"""What RFC 5322 allows for a line, section 2.1.1."""

_NAME = re.compile(rb"[!-9;-~]+")
_FOLD = re.compile(rb"\r\n(?=[ \t])")

_ENCODED_WORD = re.compile(r"=\?([^?\s]{1,60})\?([bBqQ])\?([^?\s]*)\?=")
_BETWEEN_ENCODED_WORDS = re.compile(r"(\?=)\s+(?==\?[^?\s]{1,60}\?[bBqQ]\?)")

_MESSAGE_ID = re.compile(r"<([!-;=?-~]{1,900})>|([!-;=?-~]{1,900})")

_DATE = re.compile(
    r"\s*+(?:[A-Za-z]{3,9}(?:\s*+,\s*+|\s++))?(\d{1,2})[\s-]\s*+([A-Za-z]{3})[\s-]\s*+(\d{4}|\d\d)"
    r"\s++(\d{1,2}):(\d\d)(?::(\d\d)(?:\.\d{1,9})?)?\s++(?:([+-])(\d\d)(\d\d)|([A-Za-z]{1,3}))\s*+",
    re.ASCII,
)
# RFC 5322, section 4.3: names of zones that must be understood, and years of two digits.
_ZONE_HOURS = {"ut": 0, "utc": 0, "gmt": 0, "z": 0, "edt": -4, "est": -5, "cdt": -5, "cst": -6}
_ZONE_HOURS |= {"mdt": -6, "mst": -7, "pdt": -7, "pst": -8}
_LAST_SHORT_YEAR_OF_THIS_CENTURY = 49
_LEAP_SECOND = 60
_MAX_DATE_CHARACTERS = 200
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_TYPE = re.compile(r"\s*+([A-Za-z0-9.+-]+)/([A-Za-z0-9.+-]+)\s*+(?=;|$)")
_PARAMETER = re.compile(r""";\s*+(?:([^\s=;"]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^;\s"]*+))\s*+)?""")


@dataclass(frozen=True, slots=True)
class Headers:
    """The header fields of a mail or a part, unfolded."""

    fields: tuple[tuple[str, bytes], ...]
    """Lower-case names."""
    bad_lines: int
    """How many lines are neither a field nor the continuation of one."""
    counts: Mapping[str, int] = field(repr=False)
    """How often each name is there."""

    def raw(self, name: str) -> bytes:
        """Return the last value of that name, the one that a signature covers; empty without."""
        return next((value for known, value in reversed(self.fields) if known == name), b"")

    def is_too_long(self, name: str) -> bool:
        """Tell whether the value is longer than is read."""
        return len(self.raw(name)) > MAX_VALUE_BYTES

    def text(self, name: str) -> str:
        """Return the last value of that name as it stands; empty without, and when it is too long."""
        return "" if self.is_too_long(name) else to_text(self.raw(name), "").text.strip()


def read_headers(block: bytes) -> Headers:
    """Return the fields of a header block with CRLF line ends; lines that are none are counted."""
    fields: list[tuple[str, bytes]] = []
    bad_lines = 0
    for line in _FOLD.sub(b"", block).split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.rstrip(b" \t")
        if colon and _NAME.fullmatch(name):
            fields.append((name.decode("ascii").lower(), value))
        elif line:
            bad_lines += 1
    return Headers(tuple(fields), bad_lines, Counter(name for name, _ in fields))


def read_words(value: str) -> str:
    """Return what a person reads of an unstructured value, encoded words decoded (RFC 2047).

    Only the first 998 characters are looked at.
    """
    value = _BETWEEN_ENCODED_WORDS.sub(r"\1", value[:_MAX_WORDS_CHARACTERS])
    return _ENCODED_WORD.sub(lambda word: _decode_word(word[1], word[2], word[3]), value)


def is_cut_as_words(value: str) -> bool:
    """Tell whether `read_words` leaves out some of the value."""
    return len(value) > _MAX_WORDS_CHARACTERS


def read_message_id(value: str) -> str:
    """Return a Message-ID in angle brackets and without blanks; empty when it is none."""
    found = _MESSAGE_ID.fullmatch("".join(value.split()))
    return f"<{found[1] or found[2]}>" if found else ""


def read_date(value: str) -> datetime | None:
    """Return the moment of a Date header, aware UTC; None when it is none, or has no zone.

    `-0000` is UTC too; it only says nothing of where it was written (RFC 5322, section 3.3). Names of zones
    are read where that standard gives them one meaning.
    """
    text = without_comments(value[:_MAX_DATE_CHARACTERS])
    found = None if text is None else _DATE.fullmatch(text)
    if found is None or found[2].lower() not in _MONTHS:
        return None
    month = _MONTHS.index(found[2].lower()) + 1
    year, day, hour, minute, second = (int(found[group] or 0) for group in (3, 1, 4, 5, 6))
    if len(found[3]) == 2:  # noqa: PLR2004 - two digits
        year += 2000 if year <= _LAST_SHORT_YEAR_OF_THIS_CENTURY else 1900
    if second == _LEAP_SECOND:
        second -= 1
    try:
        zone = _zone(found[7], found[8], found[9]) if found[7] else _named_zone(found[10])
        return datetime(year, month, day, hour, minute, second, tzinfo=zone).astimezone(UTC)
    except (KeyError, ValueError, OverflowError):
        return None


def read_parameters(value: str) -> tuple[str, dict[str, str]]:
    """Return type/subtype in lower case and the parameters of a Content-Type.

    Empty type: it is none. Of two parameters of a name the first counts; what follows a broken one is unread.
    """
    found = _TYPE.match(value)
    if found is None:
        return "", {}
    parameters: dict[str, str] = {}
    at = found.end()
    while part := _PARAMETER.match(value, at):
        at = part.end()
        if part[1]:
            text = part[3] if part[2] is None else re.sub(r"\\(.)", r"\1", part[2], flags=re.DOTALL)
            parameters.setdefault(part[1].lower(), text)
    return f"{found[1]}/{found[2]}".lower(), parameters


def _zone(sign: str, hours: str, minutes: str) -> timezone:
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if sign == "-" else offset)


def _named_zone(name: str) -> timezone:
    return timezone(timedelta(hours=_ZONE_HOURS[name.lower()]))


def _decode_word(charset: str, encoding: str, text: str) -> str:
    data = text.encode("utf-8", "replace")
    if encoding in "bB":
        data, _ = from_base64(data)
    else:
        data = binascii.a2b_qp(data, header=True)
    # RFC 2231 adds a language to the set: `utf-8*en`.
    return to_text(data, charset.partition("*")[0]).text
