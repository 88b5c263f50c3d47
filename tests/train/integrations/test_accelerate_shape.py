# SPDX-License-Identifier: Apache-2.0
"""Loaders of another shape in the middle of an epoch, and streams that count themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError

for needed in ("torch", "accelerate", "torchdata"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate_shape import taken_up  # noqa: E402 - after the skip

from .accelerate_loops import Counting, Loop, Numbers, Told, lived  # noqa: E402 - after the skip

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("handlers_come_back", "only_accelerator"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
]


def shape(world_size: int, a_batch: int | None, length: int | None = 10, samples: int = 40) -> dict[str, Any]:
    """Return the shape of a loader."""
    return {"world_size": world_size, "a_batch": a_batch, "length": length, "samples": samples}


@pytest.mark.parametrize(
    ("before", "now", "batches"),
    [
        (shape(1, 4), shape(1, 4), 3),
        (shape(2, 8, 5), shape(1, 4), 6),
        (shape(1, 12, 4), shape(3, 12, 4), 3),
        (shape(1, 8, None), shape(1, 4, None), 6),
        (shape(2, None, 5), shape(2, None, 5), 3),
    ],
)
def test_batches_are_counted_by_samples(before: dict[str, Any], now: dict[str, Any], batches: int) -> None:
    """Three batches are as many samples, however many take them."""
    assert taken_up(before, now, 3, converts=True) == batches


@pytest.mark.parametrize(
    ("before", "now", "converts", "words"),
    [
        (shape(1, 4), shape(1, 2, 20), True, "had 10 batches, and this loader has 20"),
        (shape(1, 4), shape(1, 4, samples=38), True, "had 40 samples, and this one has 38"),
        (shape(1, 36, 2), shape(1, 20, 2), True, "had 36 samples on all processes together"),
        (shape(1, 4), shape(2, 8, 5), True, "2 with 8 samples together cannot"),
        (shape(2, 8, 5), shape(1, 4), False, "resume on 2 processes"),
        (shape(2, None, None), shape(1, 4, None), True, "resume on 2 processes"),
    ],
)
def test_what_cannot_be_taken_up_is_refused(
    before: dict[str, Any], now: dict[str, Any], converts: bool, words: str
) -> None:
    """The message says what differs."""
    with pytest.raises(ValueError, match=words):
        taken_up(before, now, 3, converts=converts)


def test_a_grown_dataset_is_refused_within_an_epoch(tmp_path: Path, environ: dict[str, str]) -> None:
    """It has as many batches, but another order."""

    def make(life: int) -> Iterator[DataLoader[torch.Tensor]]:
        yield DataLoader(Numbers(18 + life), batch_size=4, shuffle=True)

    with pytest.raises(StoreError, match="had 18 samples, and this one has 19"):
        lived(tmp_path / "within", environ, make, Loop.epochs, (2,))
    assert len(lived(tmp_path / "between", environ, make, Loop.epochs, (5,))) == 15


def test_a_stream_goes_on_in_batches_of_another_size(tmp_path: Path, environ: dict[str, str]) -> None:
    """Every sample of the epoch is taken once; where the sizes do not divide, it is refused."""

    def make(life: int) -> Iterator[DataLoader[torch.Tensor]]:
        yield DataLoader(Told(20), batch_size=4 - 2 * life)

    trained = lived(tmp_path / "smaller", environ, make, lambda life: life.epochs(1), (3,))
    assert [len(batch) for batch in trained] == [4] * 3 + [2] * 4
    assert sorted(number for batch in trained for number in batch) == list(range(20))

    def odd(life: int) -> Iterator[DataLoader[torch.Tensor]]:
        yield DataLoader(Told(20), batch_size=4 + life)

    with pytest.raises(StoreError, match="had taken 3 batches each, of 4 samples"):
        lived(tmp_path / "odd", environ, odd, Loop.epochs, (3,))


class Untold(IterableDataset[torch.Tensor]):
    """A stream that does not say how long it is."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(float(self.length)).reshape(-1, 1)


@pytest.mark.parametrize("length", [8, 12])
def test_a_stream_that_has_become_shorter_says_so(
    tmp_path: Path, environ: dict[str, str], length: int
) -> None:
    """What was taken is not there any more, or nothing after it."""

    def make(life: int) -> Iterator[DataLoader[torch.Tensor]]:
        yield DataLoader(Untold(length if life else 20), batch_size=4)

    with pytest.raises(ConfigError, match=f"ended after {length // 4} batches, and 3 were taken before"):
        lived(tmp_path, environ, make, Loop.epochs, (3,))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_without_a_state_goes_on_after_each_stop_in_one_epoch(
    tmp_path: Path, environ: dict[str, str], workers: int
) -> None:
    """What torchdata 0.11 reads again, it counts twice, and left batches out at the second resume."""

    def make(_: int) -> Iterator[DataLoader[torch.Tensor]]:
        yield DataLoader(Untold(40), batch_size=4, num_workers=workers)

    def run(name: str, stops: tuple[int, ...]) -> list[list[float]]:
        loop, options = (lambda life: life.epochs(2)), {"use_stateful_dataloader": True}
        return lived(tmp_path / name, environ, make, loop, stops, **options)

    assert run("stopped", (3, 2, 1)) == run("straight", ())


@pytest.mark.parametrize("is_stateful", [True, False])
@pytest.mark.parametrize("stops", [(5,), (7,), (5, 5), (3, 4)], ids=str)
def test_a_stream_that_counts_epochs_goes_on_counting(
    tmp_path: Path, environ: dict[str, str], is_stateful: bool, stops: tuple[int, ...]
) -> None:
    """Told at an epoch's last batch or within it, the next one has its own order."""

    def run(name: str, stops: tuple[int, ...]) -> list[list[float]]:
        base, options = tmp_path / name, {"use_stateful_dataloader": is_stateful}
        return lived(
            base, environ, lambda _: [DataLoader(Counting(18), batch_size=4)], Loop.epochs, stops, **options
        )

    assert run("stopped", stops) == run("straight", ())


def test_a_shuffled_stream_of_datasets_goes_on_exactly(tmp_path: Path, environ: dict[str, str]) -> None:
    """Its state does not hold what its buffer does, so it is read again."""
    datasets = pytest.importorskip("datasets", reason="needs datasets")

    def make(_: int) -> Iterator[DataLoader[torch.Tensor]]:
        numbers = datasets.Dataset.from_dict({"number": [float(number) for number in range(40)]})
        stream = numbers.to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=10)
        yield DataLoader(
            stream, batch_size=4, collate_fn=lambda rows: torch.tensor([[r["number"]] for r in rows])
        )

    def run(name: str, stops: tuple[int, ...]) -> list[list[float]]:
        return lived(
            tmp_path / name, environ, make, lambda life: life.epochs(2), stops, use_stateful_dataloader=True
        )

    assert run("stopped", (3, 9)) == run("straight", ())


def test_persistent_workers_of_a_stream_are_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """They may count what no save holds."""
    life = Loop(tmp_path, environ, DataLoader(Told(8), num_workers=1, persistent_workers=True))
    with pytest.raises(ConfigError, match="leave persistent_workers out"), life.run:
        pass


def test_persistent_workers_are_switched_off_and_said(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each loader, as it costs time in each epoch."""
    life = Loop(tmp_path, environ, DataLoader(Numbers(8), num_workers=1, persistent_workers=True))
    with caplog.at_level(logging.WARNING), life.run:
        assert not life.loaders[0].persistent_workers
    assert caplog.text.count("persistent_workers is switched off") == 1
