# SPDX-License-Identifier: Apache-2.0
"""The outputs of a list, each key once, as every reader finds them: also while workers are at work on it.

The first segment that counts and has a key decides, in order of share and number. Nothing is written.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from spotwatch.errors import CheckpointCorrupt, StoreMissing
from spotwatch.train import options
from spotwatch.train.done import form
from spotwatch.train.done.fetching import Answer, fetch_all
from spotwatch.train.done.rows import Key, Output, from_line
from spotwatch.train.done.segment import MOST_SEGMENT_BYTES, Segment
from spotwatch.train.done.shelf import LIST, Shelf, folder, segment_name, shelves
from spotwatch.train.store import Store

log = logging.getLogger("spotwatch.train")

_PATIENCE_SECONDS = 60.0


def outputs(
    url: str | os.PathLike[str] | Store | None = None,
    run_id: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Iterator[tuple[Key, Output]]:
    """Yield key and output of every item that is done and durable, each key once, in no order of the input.

    Arrays of JSON come as lists, bytes as bytes.

    Args:
        url: as `DoneList` takes it.
        run_id: as above.
        environ: instead of `os.environ`.

    Raises:
        StoreMissing: there is no list.
        CheckpointCorrupt: at the end, when all that can be read was given: something could not.
        StoreError: the store cannot be read.
    """
    store, _ = options.resolve(url, run_id, os.environ if environ is None else environ)
    try:
        yield from _outputs(store)
    finally:
        if store is not url:
            store.close()


def _outputs(store: Store) -> Iterator[tuple[Key, Output]]:
    shares = form.find(store)
    if shares is None:
        raise StoreMissing(f"there is no {store.url}/{LIST}: no list was begun there")
    found = shelves(list(store.list()))
    seen: set[Key] = set()
    damaged: list[str] = []
    for share in range(shares):
        place = folder(share, shares)
        for key, answer in _segments(store, place, found.get(place, Shelf())):
            try:
                if not isinstance(answer, bytes):
                    raise answer
                rows = [from_line(line) for line in Segment.from_bytes(answer).lines]
            except (CheckpointCorrupt, StoreMissing) as error:
                log.error("%s/%s: %s", store.url, key, error)  # noqa: TRY400 - a trace adds nothing
                damaged.append(key)
                continue
            for name, output in rows:
                if name not in seen:
                    seen.add(name)
                    yield name, output
    if damaged:
        raise CheckpointCorrupt(
            f"{store.url}: {len(damaged)} segments cannot be read, among them {damaged[0]}; start the batch "
            "once more with verify=True: it does their items again"
        )


def _segments(store: Store, place: str, shelf: Shelf) -> Iterator[tuple[str, Answer]]:
    keys = [f"{place}/{name}" for name in _names(shelf)]
    yield from _fetch(store, keys)
    # A listing may lag behind; the store itself does not.
    for number in itertools.count(shelf.last + 1):
        for key, answer in _fetch(store, [f"{place}/{segment_name(number, is_exclusive=True)}"]):
            if isinstance(answer, StoreMissing):
                return
            yield key, answer


def _fetch(store: Store, keys: Sequence[str]) -> Iterator[tuple[str, Answer]]:
    return fetch_all(
        store, keys, most_bytes=MOST_SEGMENT_BYTES, patience_seconds=_PATIENCE_SECONDS, look=_do_nothing
    )


def _names(shelf: Shelf) -> list[str]:
    names: list[str] = []
    for number in range(1, shelf.last + 1):
        there = shelf.segments.get(number) or [segment_name(number, is_exclusive=True)]
        names += sorted(name for name in there if name not in shelf.bad)
    return names


def _do_nothing() -> None:
    pass
