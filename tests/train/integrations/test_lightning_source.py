# SPDX-License-Identifier: Apache-2.0
"""A source of batches alone: what it takes from checkpoints and programs of any kind."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader, Dataset

from spotwatch.train.integrations.lightning_loader import Source


class Settings(dict[str, Any]):
    """A configuration whose items are its attributes, and that knows no others."""

    __getattr__ = dict.__getitem__


class Configured(Dataset[Any]):
    """Samples of a program that holds its configuration."""

    def __init__(self) -> None:
        self.settings: Any = Settings(scale=2)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, n: int) -> Any:
        return n * self.settings.scale


def test_a_dataset_may_hold_what_raises_any_error_where_it_lacks_an_attribute() -> None:
    """Nobody asks it whether it has an epoch to be told."""
    source = Source(DataLoader(Configured(), batch_size=4), None)
    assert source.state(0)["now"]["epochs"] == {}


def test_a_checkpoint_of_a_build_that_looked_at_no_rows_is_taken() -> None:
    """Nothing tells that they are others."""
    rows: Any = list(range(8))
    source = Source(DataLoader(rows, batch_size=4), None)
    state = source.state(0)
    assert state.pop("rows")
    source.begin_epoch(state)
    source.resume(state, may_have_other_rows=False)
