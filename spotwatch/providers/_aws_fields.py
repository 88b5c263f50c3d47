# SPDX-License-Identifier: Apache-2.0
"""How single values of EC2's metadata are read: times, texts and JSON from a source that may lie.

It does not know which path a value came from.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spotwatch.errors import Malformed
from spotwatch.model import Notice

MAX_TEXT = 200
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What one body says: the notices in force, and what in it was not as documented."""

    notices: tuple[Notice, ...] = ()
    problem: Malformed | None = None
    """The signal counts as failed, and cannot withdraw; the notices beside it hold all the same."""


def as_json(body: bytes) -> Any:
    """Return the JSON value in `body`.

    Raises:
        Malformed: there is none.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"body is not JSON: {str(error)[:80]}", body=body) from error


def as_text(body: bytes) -> str:
    """Return `body` as stripped text.

    Raises:
        Malformed: it is not UTF-8.
    """
    try:
        return body.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise Malformed("body is not UTF-8", body=body) from error


def moment(value: object) -> datetime | None:
    """Return an RFC 3339 time as aware UTC, a time without a zone being UTC; None when it is no time."""
    if not isinstance(value, str) or _MOMENT.match(value.strip()) is None:
        return None
    try:
        found = datetime.fromisoformat(value.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def words(value: object) -> str:
    """Return a text stripped, printable and at most 200 characters; empty for what is no text."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in value.strip()[:MAX_TEXT])


def short(value: object) -> str:
    """Return any value for people, on one line."""
    return repr(value)[:80]
