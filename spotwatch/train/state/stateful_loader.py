# SPDX-License-Identifier: Apache-2.0
"""How torchdata's StatefulDataLoader is put back where it was: by its own state, or by reading again.

Of a stream without a state, its state says only how many batches were taken. torchdata 0.11 reads so many
again, but counts them twice: the next resume within that epoch left batches out. So they are read and counted
here. It saves nothing. Importing it does not import torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

log = logging.getLogger("spotwatch.train")


def is_stateful_loader(thing: object) -> bool:
    """Tell whether it is a StatefulDataLoader, or made after one."""
    return any(kind.__name__ == "StatefulDataLoader" for kind in type(thing).__mro__)


def only_counts(state: object) -> bool:
    """Tell whether a state of torchdata's is of a stream that has none: it says how many, not where."""
    if not isinstance(state, dict):
        return False
    fetcher = state.get("fetcher_state")
    if isinstance(fetcher, dict) and state.get("dataset_state") is None:
        return fetcher.get("dataset_iter_state") is None
    return any(only_counts(one) for one in state.values())


def load(loader: Any, state: Any) -> None:
    """Let a StatefulDataLoader go on where `state` was taken.

    Its pass is begun here, with what that draws from the global random state.

    Raises:
        ValueError: its stream ends before that place.
    """
    taken, state = _begun(state) if only_counts(state) else (0, state)
    loader.load_state_dict(state)
    loader.state_dict()  # makes the iterator, which the next `for` is given
    if not taken:
        return
    log.info("a stream without state_dict: reads %d batches again, to go on after them", taken)
    batches: Iterator[Any] = loader._iterator  # noqa: SLF001 - the next `for` would not be given what `iter` is
    for number in range(taken):
        if next(batches, batches) is batches:
            raise ValueError(
                f"its stream has ended after {number} batches, and {taken} were taken before: give it what "
                f"it had, to the end of this epoch"
            )


def _begun(state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return how many batches were taken, and the state with which that pass began."""
    if "_num_yielded" in state:
        return state["_num_yielded"], state | {"_num_yielded": 0}
    if "_snapshot" not in state:
        return 0, state  # a program's own form, with torchdata's somewhere inside
    snapshot = state["_snapshot"]
    last = len(snapshot["_worker_snapshots"]) - 1  # as if it had given the last batch: the first comes next
    first = snapshot | {"_snapshot_step": 0, "_last_yielded_worker_id": last}
    taken = snapshot["_snapshot_step"] + state["_steps_since_snapshot"]
    return taken, state | {"_snapshot": first, "_steps_since_snapshot": 0}
