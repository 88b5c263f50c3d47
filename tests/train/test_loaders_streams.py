# SPDX-License-Identifier: Apache-2.0
"""Streams in torchdata's loader, stopped again and again in one epoch: no batch is lost or comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spotwatch.errors import StoreError
from spotwatch.train.parts import Held
from spotwatch.train.state.state import State

torch = pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11, torch 2.13
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


class Numbers(torch.utils.data.IterableDataset):  # type: ignore[name-defined,misc]  # skipped where it is not
    """A stream that cannot say where it is; each worker has its share."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        yield from range(worker.id if worker else 0, self.length, worker.num_workers if worker else 1)


class Known(Numbers):
    """A stream that says where it is."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.read, self.length):
            self.read = number + 1
            yield number
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        """Return where it is."""
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Be there."""
        self.read = state["read"]


class Life:
    """A program that tracks such a loader, and reads batches of one epoch after the other."""

    def __init__(self, loader: Any, saved: tuple[bytearray, Any] | None = None) -> None:
        self.state = State()
        self.state.track({"loader": loader})
        self.state.capture()  # as Checkpointer.resume does, to learn early what cannot be saved
        if saved is not None:
            self.state.restore(*saved)
        self.batches = (batch.tolist() for _ in range(9) for batch in loader)

    def read(self, count: int) -> tuple[list[Any], tuple[bytearray, Any]]:
        """Return so many batches, and what is saved after them."""
        batches = [next(self.batches) for _ in range(count)]
        snapshot = self.state.capture()
        assert isinstance(snapshot.body, Held)
        return batches, (bytearray(snapshot.body.view), snapshot.state)


# An epoch has ten batches.
@pytest.mark.parametrize("counts", [(3, 2, 1, 9), (3, 0, 4, 8), (3, 7, 4, 3, 6)], ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Numbers, {}),
        (Numbers, {"num_workers": 1}),
        (Numbers, {"num_workers": 2, "snapshot_every_n_steps": 3}),
        (Known, {}),
        (Known, {"num_workers": 1}),
    ],
    ids=["stream", "worker", "workers", "known", "known worker"],
)
def test_a_stream_goes_on_after_each_stop_in_one_epoch(
    kind: type[Numbers], options: dict[str, Any], counts: tuple[int, ...]
) -> None:
    """What torchdata 0.11 reads again, it counts twice, and left batches out at the second resume."""
    whole, _ = Life(stateful.StatefulDataLoader(kind(20), batch_size=2, **options)).read(sum(counts))
    had, saved = [], None
    for count in counts:
        batches, saved = Life(stateful.StatefulDataLoader(kind(20), batch_size=2, **options), saved).read(
            count
        )
        had += batches
    assert had == whole


@pytest.mark.parametrize("workers", [0, 1])
def test_how_often_a_loader_looks_at_its_workers_may_change(workers: int) -> None:
    """That is how far apart the places are from which torchdata counts on."""
    had, saved = [], None
    for every, count in ((1, 3), (4, 2), (1, 1), (3, 4)):
        options = {"num_workers": workers, "snapshot_every_n_steps": every}
        loader = stateful.StatefulDataLoader(Numbers(20), batch_size=2, **options)
        batches, saved = Life(loader, saved).read(count)
        had += batches
    assert had == [[number, number + 1] for number in range(0, 20, 2)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_has_become_shorter_says_so(workers: int) -> None:
    """What was taken is not there any more."""

    def make(length: int) -> Any:
        return stateful.StatefulDataLoader(Numbers(length), batch_size=2, num_workers=workers)

    _, saved = Life(make(20)).read(5)
    with pytest.raises(StoreError, match=r"loader does not fit .*ended after 3 batches, and 5 were taken"):
        Life(make(6), saved)


def shuffled(epoch: int = 0) -> Any:
    """Return a stream of `datasets` of twenty samples in a buffer of five."""
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"n": list(range(20))}).to_iterable_dataset(num_shards=2)
    stream = stream.shuffle(seed=3, buffer_size=5).map(_same).with_format("torch")
    stream.set_epoch(epoch)
    return stream


def _same(row: Any) -> Any:
    return row


def _numbers(rows: list[Any]) -> Any:
    return torch.stack([row["n"] for row in rows])


# An epoch has ten batches.
@pytest.mark.parametrize("counts", [(3, 2, 1, 4), (10, 4), (1, 9, 7)], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_stream_goes_on_with_what_its_buffer_held(workers: int, counts: tuple[int, ...]) -> None:
    """Its state leaves that out: going by it, these samples never came. The epoch is that of the save."""

    def make(stream: Any) -> Any:
        return stateful.StatefulDataLoader(stream, 2, num_workers=workers, collate_fn=_numbers)

    whole, _ = Life(make(shuffled(1))).read(sum(counts))
    had, saved = [], None
    for count in counts:
        # As in a program that tells the epoch only when it begins one.
        batches, saved = Life(make(shuffled(0 if saved else 1)), saved).read(count)
        had += batches
    assert had == whole
    assert sorted(number for batch in had[:10] for number in batch) == list(range(20))


class Around(Known):
    """A stream with a state of its own around a shuffled one."""

    def __init__(self) -> None:
        super().__init__(20)
        self.dataset = shuffled()


def test_a_state_around_a_shuffled_stream_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """What that holds is the program's own; nothing is read again behind its back."""
    _, saved = Life(stateful.StatefulDataLoader(Around(), 2)).read(3)
    assert not caplog.records
    batches, _ = Life(stateful.StatefulDataLoader(Around(), 2), saved).read(1)
    assert batches == [[6, 7]]
    (told,) = [record for record in caplog.records if "shuffle buffer" in record.message]
    assert (told.levelname, told.message.partition(" a")[0]) == ("WARNING", "a Around")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("count", "is_empty"), [(4, False), (5, True), (6, False)])
def test_a_first_pass_that_is_empty_is_told(
    count: int, is_empty: bool, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that counts epochs by the step would take it for the next epoch, and lose one."""

    def make() -> Any:
        return stateful.StatefulDataLoader(list(range(10)), 2, num_workers=workers)

    _, saved = Life(make()).read(count)
    again = make()
    Life(again, saved)
    assert ("first pass over this StatefulDataLoader is empty" in caplog.text) == is_empty
    assert (list(again) == []) == is_empty
