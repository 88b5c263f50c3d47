# SPDX-License-Identifier: Apache-2.0
"""Lists in the test's own process: how they are made on one store, gone through and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwatch.testing import MemoryStore
from spotwatch.train import DoneList

New = Callable[..., DoneList]


def maker(store: MemoryStore, environ: dict[str, str]) -> New:
    """Return a maker of lists on one store, as after a restart."""

    def new(**options: Any) -> DoneList:
        return DoneList(
            options.pop("url", store),
            run_id="batch",
            environ=environ,
            **{"patience_seconds": 0.0, "every_items": 4, **options},
        )

    return new


def do(done: DoneList, items: Any, most: int = 10**9, **options: Any) -> list[Any]:
    """Run the loop of the documentation for at most so many items, and return these."""
    taken: list[Any] = []
    with done:
        for item in done.todo(items, **options):
            taken.append(item)
            done.add(options["key"](item) if "key" in options else item, {"of": item})
            if len(taken) == most:
                break
    return taken


def outputs(store: Any, environ: dict[str, str]) -> dict[Any, Any]:
    """Return what a reader finds."""
    rows = list(DoneList.outputs(store, "batch", environ=environ))
    assert len(rows) == len(dict(rows))
    return dict(rows)


def segments(store: MemoryStore) -> list[str]:
    """Return the segments that hold outputs, in order."""
    return sorted(
        key
        for key, body in store.objects.items()
        if key.endswith(".jsonl") and "index" not in key and b'"rows":0' not in body
    )
