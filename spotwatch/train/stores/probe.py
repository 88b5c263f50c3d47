# SPDX-License-Identifier: Apache-2.0
"""Whether a store means it when it takes a conditional write: some ignore the condition and say nothing.

It asks any store by its own `put_if`, and keeps no answer.
"""

from __future__ import annotations

import logging
import secrets

from spotwatch.errors import StoreConflict, StoreError
from spotwatch.train import attendance
from spotwatch.train.store import PROBE, Store

log = logging.getLogger("spotwatch.train")


class NotConditional(StoreError):
    """The store, asked for a conditional write, says that it knows none."""


def probe(store: Store) -> bool:
    """Tell whether `store` enforces `put_if`, by four writes of one small object that is removed again.

    An object that is there must not be created, and a version that was replaced must not be replaced again.

    Raises:
        StoreError: the store could not be asked; that says nothing about what it enforces.
    """
    key = f"{PROBE}{secrets.token_hex(8)}"
    try:
        try:
            first = store.put_if(key, _body(), None)
            if not _is_refused(store, key, None):
                return False
            store.put_if(key, _body(), first)
            return _is_refused(store, key, first)
        except (NotConditional, StoreConflict):
            return False
    finally:
        _remove(store, key)


def _is_refused(store: Store, key: str, version: str | None) -> bool:
    attendance.moved()  # the write before this one was answered
    try:
        store.put_if(key, _body(), version)
    except StoreConflict:
        return True
    return False


def _body() -> bytes:
    # Never twice the same: a store takes a conflict over its very own bytes for a write that succeeded.
    return secrets.token_hex(16).encode()


def _remove(store: Store, key: str) -> None:
    try:
        store.delete(key)
    except StoreError as error:
        # Some may write but not delete; their probe stays, and is a few bytes.
        log.warning("%s stays behind: %s", key, error)
