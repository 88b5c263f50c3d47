# SPDX-License-Identifier: Apache-2.0
"""JSON and texts written by strangers, read strictly and shown safely.

It does not know what the fields mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from spotwatch.errors import Malformed
from spotwatch.model import from_rfc3339


def read_object(body: bytes) -> dict[str, Any]:
    """Return the one JSON object in `body`, UTF-8 with or without a byte order mark.

    Stricter than `json`: a key given twice, NaN, a number beyond all bounds, half a surrogate pair and
    nesting beyond the parser's reach are refused, each of which two readers could take differently.

    Raises:
        Malformed: it is not that.
    """
    try:
        row = json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=_without_repeats, parse_constant=_refuse_constant
        )
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {printable(str(error), 80)}", body=body) from error
    if not isinstance(row, dict):
        raise Malformed(f"expected an object, found {type(row).__name__}", body=body)
    return row


def read_text(row: Mapping[str, Any], key: str) -> str:
    """Return a text of `row`; empty when it is missing or null.

    Raises:
        Malformed: it is no text.
    """
    value = row.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(f"{key!r} is no text")
    return value


def read_moment(row: Mapping[str, Any], key: str) -> datetime | None:
    """Return the RFC 3339 moment of `row`, aware UTC; None when it is missing or null.

    Raises:
        Malformed: it is no time, or has no zone.
    """
    text = read_text(row, key)
    if row.get(key) is None:
        return None
    try:
        return from_rfc3339(text)
    except (ValueError, OverflowError) as error:
        raise Malformed(
            f"{key!r} is {printable(text, 40)!r}; write a time with a zone, as in 2026-11-29T16:12:43Z"
        ) from error


def printable(text: str, limit: int) -> str:
    """Return at most `limit` characters of `text`, with all that could steer a terminal or a log escaped."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:limit])
    return shown[:limit]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key is given twice")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
