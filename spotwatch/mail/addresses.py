# SPDX-License-Identifier: Apache-2.0
"""Addresses in the headers of a mail, as RFC 5322 lets them be written and mail programs do write them.

A value in which two readers could find two addresses has none here. The standard library's reader is not
used: `From: a@` is an IndexError, and a display name may become an address (Python 3.11.7). It knows no
accounts; every value is read in one pass.
"""

from __future__ import annotations

import re

_ADDRESS = r"""[^\s"(),:;<>@\[\]\\]++@[a-zA-Z0-9.-]++"""
# RFC 5322 wants ":", "[" and "]" in quotes; senders leave them out, and no reader sees an address in them.
_NAME = r"""(?:"(?:[^"\\]|\\.)*+"|[^"(),;<>@\\])*+"""
_MAILBOX = re.compile(rf"\s*+(?:({_ADDRESS})|{_NAME}<({_ADDRESS})>)\s*+", re.DOTALL)
# Programs that have no name put the address where the name goes; another address there is a trick.
_ADDRESS_AS_NAME = re.compile(rf"\s*+('?+)({_ADDRESS})\1\s*+<({_ADDRESS})>\s*+")
_SIGNS_OF_COMMENTS = re.compile(r'\\.|["()]', re.DOTALL)
_SIGNS_OF_LISTS = re.compile(r'\\.|[",:;]', re.DOTALL)
_SIGNS_OF_ADDRESSES = re.compile(r"[@<>]")


def read_mailbox(value: str) -> str:
    """Return the one address of a value, lower case; empty unless it is exactly one.

    A display name is never an address: `support@digitalocean.com <x@evil.com>` gives neither.
    """
    text = without_comments(value)
    return "" if text is None else _read_one(text)


def read_mailboxes(value: str) -> tuple[tuple[str, ...], bool]:
    """Return the addresses of a list, groups included, lower case, and whether every entry was understood."""
    text = without_comments(value)
    entries = None if text is None else _split(text)
    if entries is None:
        return (), False
    # An empty entry is one comma too many (RFC 5322, section 4.4), or a group of nobody.
    addresses = [_read_one(entry) for entry in entries if entry.strip()]
    return tuple(a for a in addresses if a), all(addresses)


def without_comments(value: str) -> str | None:
    """Return a structured value without its `(comments)`; None where they do not end, or hold an address."""
    kept: list[str] = []
    depth, begin, is_quoted = 0, 0, False
    for sign in _SIGNS_OF_COMMENTS.finditer(value):
        if sign[0] == '"' and depth == 0:
            is_quoted = not is_quoted
        elif sign[0] == "(" and not is_quoted:
            if depth == 0:
                kept.append(value[begin : sign.start()])
                begin = sign.end()
            depth += 1
        elif sign[0] == ")" and not is_quoted:
            depth -= 1
            if depth < 0:
                return None
            if depth == 0:
                if _SIGNS_OF_ADDRESSES.search(value, begin, sign.start()):
                    return None
                begin = sign.end()
    if depth or is_quoted:
        return None
    return " ".join([*kept, value[begin:]])


def _read_one(text: str) -> str:
    if found := _MAILBOX.fullmatch(text):
        return (found[1] or found[2]).lower()
    named = _ADDRESS_AS_NAME.fullmatch(text)
    if named is None or named[2].lower() != named[3].lower():
        return ""
    return named[3].lower()


def _split(text: str) -> list[str] | None:
    """Return the entries of a list, those of groups among them; None where a group ends amid an entry."""
    entries: list[str] = []
    begin, is_quoted, is_in_group, is_after_group = 0, False, False, False
    last_end_of_group = text.rfind(";")
    for sign in _SIGNS_OF_LISTS.finditer(text):
        entry = text[begin : sign.start()]
        if sign[0] == '"':
            is_quoted = not is_quoted
        elif is_quoted or sign[0][0] == "\\":
            continue
        elif sign[0] == ":":
            # Without an end it is no group, and the colon belongs to a name.
            is_group = sign.start() < last_end_of_group and not _SIGNS_OF_ADDRESSES.search(entry)
            if is_group and not is_in_group and not is_after_group:
                is_in_group, begin = True, sign.end()
        elif sign[0] == "," or is_in_group:
            if is_after_group and entry.strip():
                return None
            entries.append(entry)
            begin, is_after_group = sign.end(), sign[0] == ";"
            is_in_group = is_in_group and not is_after_group
    if is_after_group and text[begin:].strip():
        return None
    return [*entries, text[begin:]]
