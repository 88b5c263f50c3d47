# SPDX-License-Identifier: Apache-2.0
"""The mark of a checkpoint that did not verify: `quarantine.json` in its directory.

What it means for a resume is in `listing`, and for pruning in `pruning`. Failing to write one is only logged:
a resume must not fail over it.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from spotwatch.errors import StoreError, StoreMissing
from spotwatch.model import JSON, to_rfc3339
from spotwatch.train.registry.listing import QUARANTINE
from spotwatch.train.store import Store

log = logging.getLogger("spotwatch.train")

_MOST_BYTES = 64 * 1024
_MOST_REASON = 1_000


def mark(store: Store, directory: str, writer: str, reason: str) -> None:
    """Put a directory into quarantine, unless it is there already: the first reason stays."""
    key = f"{directory}/{QUARANTINE}"
    row: dict[str, JSON] = {
        "at": to_rfc3339(datetime.now(UTC)),
        "by": writer,
        "reason": reason[:_MOST_REASON],
    }
    try:
        try:
            store.get(key, most_bytes=_MOST_BYTES)
        except StoreMissing:
            store.put(key, json.dumps(row).encode() + b"\n")
    except StoreError as error:
        log.warning("%s could not be put into quarantine: %s", directory, error)


def lift(store: Store, directory: str) -> None:
    """Take the mark away."""
    try:
        store.delete(f"{directory}/{QUARANTINE}")
    except StoreError as error:
        log.warning("%s could not be taken out of quarantine: %s", directory, error)


def reason(store: Store, directory: str) -> str:
    """Return why a directory is in quarantine, "" when that cannot be told.

    Raises:
        StoreError: the store refuses.
    """
    try:
        row = json.loads(store.get(f"{directory}/{QUARANTINE}", most_bytes=_MOST_BYTES))
    except (ValueError, RecursionError, StoreMissing):
        return ""
    found = row.get("reason") if isinstance(row, dict) else None
    return found[:_MOST_REASON] if isinstance(found, str) else ""
