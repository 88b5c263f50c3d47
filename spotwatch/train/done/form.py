# SPDX-License-Identifier: Apache-2.0
"""What `LIST` says: that below this root there is a done-list, and in how many shares it is worked on.

Found or, on a root that holds nothing else, made. It reads no output.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreConflict, StoreError, StoreMissing
from spotwatch.train.done.shelf import LIST, MOST_SHARES, is_share
from spotwatch.train.registry.manifest import LATEST, order_of
from spotwatch.train.store import Entry, Store

FORMAT = "spotwatch-done-list"
VERSION = 1
_MOST_BYTES = 4096


def find(store: Store) -> int | None:
    """Return in how many shares the list below `store` is worked on; None when there is no list.

    Raises:
        CheckpointCorrupt: what lies there cannot be used.
        StoreError: the store cannot be read.
    """
    try:
        body = store.get(LIST, most_bytes=_MOST_BYTES)
    except StoreMissing:
        return None
    try:
        row = json.loads(body)
        shares = row["shares"]
        if (row["format"], row["version"]) != (FORMAT, VERSION):
            raise ValueError(f"{row['format']!r:.40} version {row['version']!r:.40}")
        if type(shares) is not int or not 0 < shares <= MOST_SHARES:
            raise ValueError(f"shares is no whole number from 1 to {MOST_SHARES}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointCorrupt(f"{store.url}/{LIST} is no list of version {VERSION}: {error!r}") from error
    return shares


def find_or_make(store: Store, wanted: int | None, writer: str, entries: Sequence[Entry]) -> int:
    """Return in how many shares the list below `store` is worked on; where there is none, begin it.

    Args:
        store: opened at the root of the list.
        wanted: in how many shares; None: as many as it has, and 1 for a new one.
        writer: this worker.
        entries: all that a listing showed below the root before.

    Raises:
        ConfigError: there is something else, or a list in another number of shares.
        StoreError: the store refuses.
    """
    shares = find(store)
    if shares is None:
        shares = _make(store, wanted or 1, writer, entries)
    if wanted not in (None, shares):
        raise ConfigError(
            f"shares={wanted}: the list {store.url} is worked on in {shares}, and that stays; leave shares= "
            "out, or take another run_id"
        )
    return shares


def _make(store: Store, shares: int, writer: str, entries: Sequence[Entry]) -> int:
    for entry in entries:
        place = entry.key.partition("/")[0]
        if entry.key == LATEST or order_of(place) is not None:
            raise ConfigError(
                f"{store.url} holds checkpoints of a training: give the list a run_id of its own"
            )
        if is_share(place):
            count = int(place.rpartition("-")[2])
            raise StoreError(
                f"{store.url}/{LIST} is gone, but there is {entry.key}: all would be done again; put back: "
                + to_bytes(count, "by hand").decode().strip()
            )
    body = to_bytes(shares, writer)
    if store.is_conditional:
        with contextlib.suppress(StoreConflict):  # another worker was quicker
            store.put_if(LIST, body, None)
    else:
        store.put(LIST, body)
    found = find(store)
    if found is None:
        raise StoreError(f"{store.url}/{LIST} is not there after it was written")
    return found


def to_bytes(shares: int, writer: str) -> bytes:
    """Return the object."""
    row = {"format": FORMAT, "version": VERSION, "shares": shares, "made_by": writer}
    return json.dumps(row).encode() + b"\n"
