# SPDX-License-Identifier: Apache-2.0
"""How torchdata's StatefulDataLoader is put back where it was: by its own state, or by reading again.

Of a stream without a state, its state says only how many batches were taken. torchdata 0.11 reads so many
again, but counts them twice: the next resume within that epoch left batches out. So they are read and counted
here. So are those of a stream of `datasets` with a shuffle buffer: its state leaves out what the buffer
holds, which would never come. It saves nothing. Importing it does not import torch.
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


def has_shuffle_buffer(dataset: Any) -> bool:
    """Tell whether a stream of `datasets` is shuffled somewhere on its way: its state is not all it needs."""
    return any(type(one).__name__ == "BufferShuffledExamplesIterable" for one in _inside(dataset))


def load_tracked(loader: Any, state: Any) -> None:
    """Do as `load` for a program that counts epochs itself: say where nothing is left of one.

    Raises:
        ValueError: as `load`.
    """
    from torch.utils.data import IterableDataset  # noqa: PLC0415 - trainers bring it, not this package

    load(loader, state)
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return  # what is asked of its length is held against it, by a warning of torch's
    try:
        whole = len(loader)
    except TypeError:  # it has none
        return
    if 0 < whole <= _begun(state)[0] and not state.get("_iterator_finished"):
        log.warning(
            "the first pass over this StatefulDataLoader is empty: all %d batches of its epoch were taken "
            "when the run was saved. Count epochs so that this pass is of that epoch: "
            "`for epoch in range(max(step - 1, 0) // len(loader), epochs)`",
            whole,
        )


def load(loader: Any, state: Any) -> None:
    """Let a StatefulDataLoader go on where `state` was taken.

    Its pass is begun here, with what that draws from the global random state.

    Raises:
        ValueError: its stream ends before that place.
    """
    taken, begun = _begun(state)
    if taken and _is_shuffled(loader):
        begun, epochs = _from_the_first(begun)
        if epochs:
            loader.dataset.set_epoch(max(epochs))  # a worker that has given nothing yet does not know it
    elif not only_counts(state):
        taken, begun = 0, state
    loader.load_state_dict(begun)
    loader.state_dict()  # makes the iterator, which the next `for` is given
    if not taken:
        return
    log.info("a stream without state_dict, or shuffled: reads %d batches again, to go on after them", taken)
    batches: Iterator[Any] = loader._iterator  # noqa: SLF001 - the next `for` would not be given what `iter` is
    for number in range(taken):
        if next(batches, batches) is batches:
            raise ValueError(
                f"its stream has ended after {number} batches, and {taken} were taken before: give it what "
                f"it had, to the end of this epoch"
            )


def _begun(state: Any) -> tuple[int, Any]:
    """Return how many batches were taken, and the state with which that pass began."""
    if not isinstance(state, dict):
        return 0, state
    if "_num_yielded" in state:
        return state["_num_yielded"], state | {"_num_yielded": 0}
    if "_snapshot" not in state:
        return 0, state  # a program's own form, with torchdata's somewhere inside
    snapshot = state["_snapshot"]
    last = len(snapshot["_worker_snapshots"]) - 1  # as if it had given the last batch: the first comes next
    first = snapshot | {"_snapshot_step": 0, "_last_yielded_worker_id": last}
    taken = snapshot["_snapshot_step"] + state["_steps_since_snapshot"]
    return taken, state | {"_snapshot": first, "_steps_since_snapshot": 0}


def _is_shuffled(loader: Any) -> bool:
    """Tell whether to read again because of a shuffle buffer; warn of one that is inside something."""
    dataset = getattr(loader, "dataset", None)
    if not has_shuffle_buffer(dataset):
        return False
    if type(dataset).__module__.partition(".")[0] == "datasets":
        return True
    if hasattr(dataset, "state_dict"):
        log.warning(
            "a %s around a shuffled stream: what lay in the shuffle buffer is passed over, for no state "
            "holds it; without a state_dict of its own, it is read again up to there",
            type(dataset).__qualname__,
        )
    return False


def _from_the_first(state: Any) -> tuple[Any, list[int]]:
    """Return a state without where the stream was, and the epochs that its parts were in."""
    if not isinstance(state, dict):
        return state, []
    fetcher = state.get("fetcher_state")
    if isinstance(fetcher, dict):
        place = state.get("dataset_state") or {}  # of an older `datasets`
        fetcher = fetcher | {"dataset_iter_state": None, "fetcher_ended": False}
        begun = state | {"dataset_state": None, "fetcher_state": fetcher}
        return begun, [place["epoch"]] if "epoch" in place else []
    parts = {name: _from_the_first(value) for name, value in state.items()}
    epochs = [epoch for _, found in parts.values() for epoch in found]
    return {name: part for name, (part, _) in parts.items()}, epochs


def _inside(dataset: Any) -> Iterator[Any]:
    """Yield what a stream of `datasets` reads from, and what that reads from."""
    waiting = [dataset]
    while waiting:
        one = waiting.pop()
        yield one
        for name in ("dataset", "_ex_iterable", "ex_iterable", "ex_iterables"):
            inner = vars(one).get(name) if hasattr(one, "__dict__") else None
            waiting += inner if isinstance(inner, list) else [] if inner is None else [inner]
