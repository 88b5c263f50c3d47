# SPDX-License-Identifier: Apache-2.0
"""Bytes of a mail to text: transfer encodings, character sets, and which encoding bytes look like.

Character sets are few, and in each of them ASCII means ASCII: who changes a declaration cannot make other
words of a text. It knows no headers but by their values.
"""

from __future__ import annotations

import binascii
import re
from enum import Enum
from typing import NamedTuple

from spotwatch.masking import escape

# Every codec here has a no-break space at 0xA0, or none: between words it may not become a letter.
_SINGLE_BYTE = re.compile(r"iso[-_]?8859[-_]([2-9]|1[01345])|(?:windows-|cp)(125[0-8])")
_LATIN_1 = frozenset({"iso-8859-1", "iso8859-1", "iso_8859-1", "latin-1", "latin1"})
# In these more than one byte may be a letter, so they are not read; but their ASCII is ours.
_WITH_ASCII = re.compile(r"gb2312|gbk|gb18030|big5|euc-(?:jp|kr|tw)|koi8-[ru]|tis-620")
_UTF_8 = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii", "ansi_x3.4-1968"})

_IDENTITY = frozenset({"", "7bit", "8bit", "binary"})

# A soft line break (not a line of =====), an escaped "=" or no-break space, or two escaped bytes that are
# no ASCII.
_QUOTED_PRINTABLE = re.compile(rb"[^=\r\n]=\r\n|=3D|=A0|=[89A-F][0-9A-F]=[89A-F][0-9A-F]")
# In quoted-printable nothing else stands behind a "=": of a link, "?id=x" or "?id=" and a word, is none.
_NO_ESCAPE = re.compile(rb"=(?![0-9A-Fa-f]{2}|[ \t]*+(?:\r\n|\Z))")
# No encoder escapes letters and digits, but for the F of a line that begins with "From ".
_ESCAPED_WITHOUT_NEED = re.compile(rb"=(?:3[0-9]|4[1-57-9A-F]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9Aa])")
_BASE64 = re.compile(rb"\s*+(?:(?:[A-Za-z0-9+/]{40,}+\r\n)++[A-Za-z0-9+/]*+|[A-Za-z0-9+/]{20,}+)={0,2}\s*+")
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_PAGE_BEGIN = re.compile(r"[\s\ufeff]*+<(?:!doctype|!--|\?xml|[a-z][a-z0-9]*+[\s>/])", re.IGNORECASE)
_PAGE_TAG = re.compile(r"<br ?/?>|</[a-z][a-z0-9]*+>", re.IGNORECASE)


class Decoded(NamedTuple):
    """Bytes as text."""

    text: str
    problem: str
    """Empty: every byte was understood."""


def to_text(data: bytes, charset: str) -> Decoded:
    """Return `data` as text, whatever it is.

    Valid UTF-8 is read as UTF-8 whatever is declared: no text in a single-byte set looks like it, and a
    declaration may be unsigned. Other sets than the allowed are not looked up: `rot13` and `zlib` are
    codecs too.

    Args:
        data: any bytes.
        charset: as declared; empty without declaration.
    """
    name = charset.strip().strip('"').lower()
    single = _SINGLE_BYTE.fullmatch(name)
    is_known = name in _UTF_8 or name in _LATIN_1 or single is not None
    is_known = is_known or (data.isascii() and _WITH_ASCII.fullmatch(name) is not None)
    problem = "" if is_known else f"character set '{escape(name, limit=40)}' is not read"
    try:
        return Decoded(data.decode("utf-8"), problem)
    except UnicodeDecodeError:
        if single:
            codec = f"iso8859-{single[1]}" if single[1] else f"cp{single[2]}"
        else:
            # As browsers do: who says Latin-1 may mean its superset.
            codec = "cp1252" if name in _LATIN_1 else "utf-8"
    text = data.decode(codec, errors="replace")
    if not problem and "\ufffd" in text:
        problem = f"bytes that are no {codec}"
    return Decoded(text, problem)


def from_transfer(data: bytes, encoding: str) -> tuple[bytes, str]:
    """Undo a Content-Transfer-Encoding; return the bytes, and what was wrong or an empty text."""
    name = encoding.strip().lower()
    if name == "quoted-printable":
        return binascii.a2b_qp(data), ""
    if name == "base64":
        return from_base64(data)
    return data, "" if name in _IDENTITY else f"transfer encoding '{escape(name, limit=40)}' is not read"


def from_base64(data: bytes) -> tuple[bytes, str]:
    """Return what can be read of base64, and what was wrong or an empty text."""
    digits = b"".join(data.split())
    bare = digits.rstrip(b"=")
    if len(digits) % 4 == 0 and not digits.endswith(b"===") and not _NOT_BASE64.search(bare):
        return binascii.a2b_base64(digits), ""
    kept = _NOT_BASE64.sub(b"", bare)
    whole = kept[: len(kept) - 1] if len(kept) % 4 == 1 else kept
    return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4)), "base64 that is broken"


def other_encodings(data: bytes, encoding: str) -> tuple[str, ...]:
    """Return the transfer encodings that `data` looks like, other than the declared one.

    What a sender's own encoder wrote looks like one encoding only; so whoever changes an unsigned
    declaration is found by this.
    """
    name = encoding.strip().lower()
    if name == "base64":
        return ("8bit",) if from_base64(data)[1] else ()
    if _BASE64.fullmatch(data):
        return ("base64",)
    is_none = _NO_ESCAPE.search(data) is not None
    if name == "quoted-printable":
        return ("8bit",) if is_none or _ESCAPED_WITHOUT_NEED.search(data) else ()
    return ("quoted-printable",) if not is_none and _QUOTED_PRINTABLE.search(data) else ()


class Look(Enum):
    """What a text looks like, whatever is declared."""

    PLAIN = "plain text"
    PAGE = "HTML"
    """It begins as a page does: with an element, a comment or a doctype."""
    EITHER = "plain text or HTML"
    """It begins like plain text, and holds tags."""


def look_of(text: str) -> Look:
    """Return what `text` looks like."""
    if _PAGE_BEGIN.match(text):
        return Look.PAGE
    return Look.EITHER if _PAGE_TAG.search(text) else Look.PLAIN
