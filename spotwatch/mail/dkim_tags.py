# SPDX-License-Identifier: Apache-2.0
"""Lists of tags (`v=1; d=example.org`), in which DKIM writes signatures and keys: RFC 6376, section 3.2.

It does not know what a tag means.
"""

from __future__ import annotations

import base64
import binascii
import re

from spotwatch.masking import escape

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Tab and line ends only in folds; nothing that two readers could see differently.
_VALUE = re.compile(r"[\t\r\n\x20-\x7e]*")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_NAME_CHARACTERS = 253


class BadTags(ValueError):
    """A list of tags, or a value in one, that is not as RFC 6376 has it; says what is wrong with it."""


def read_tags(text: str) -> dict[str, str]:
    """Return the values by tag, without blanks around them.

    Raises:
        BadTags: it is no such list, or a tag is there twice.
    """
    tags: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name and not equals:
            continue
        if not equals or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadTags(f"{escape(part.strip(), limit=40)!r} is no tag")
        if name in tags:
            raise BadTags(f"{name}= is there twice")
        tags[name] = value
    return tags


def read_words(value: str) -> tuple[str, ...]:
    """Return the words of a value that are divided by colons, lower case."""
    return tuple(word.strip().lower() for word in value.split(":"))


def read_base64(name: str, value: str) -> str:
    """Return the base64 of a tag without the blanks in it.

    Raises:
        BadTags: it is empty, or no base64.
    """
    digits = "".join(value.split())
    try:
        is_there = base64.b64decode(digits, validate=True)
    except (binascii.Error, ValueError):
        is_there = b""
    if not is_there:
        raise BadTags(f"{name}= is no base64")
    return digits


def read_domain(name: str, value: str) -> str:
    """Return the domain name of a tag, lower case; an international one only as DNS writes it (`xn--`).

    Raises:
        BadTags: it is none.
    """
    domain = value.lower()
    if len(domain) > _MAX_NAME_CHARACTERS or not all(map(_LABEL.fullmatch, domain.split("."))):
        raise BadTags(f"{name}={escape(value, limit=80)} is no domain")
    return domain


def is_within(domain: str, parent: str) -> bool:
    """Tell whether `domain` is `parent` or below it, both in lower case."""
    return domain == parent or domain.endswith(f".{parent}")
