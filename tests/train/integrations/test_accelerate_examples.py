# SPDX-License-Identifier: Apache-2.0
"""Loops that count epochs and leave out batches in the way of Accelerate's own examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spotwatch.errors import ConfigError

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from torch.utils.data import DataLoader  # noqa: E402 - after the skip

from .accelerate_loops import Loop, Numbers, Told, lived  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("handlers_come_back", "only_accelerator")]


def shuffled(_: int) -> list[DataLoader[torch.Tensor]]:
    """Make a loader whose order is drawn for each epoch."""
    return [DataLoader(Numbers(20), batch_size=4, shuffle=True)]


def streamed(_: int) -> list[DataLoader[torch.Tensor]]:
    """Make a loader of a stream."""
    return [DataLoader(Told(20), batch_size=4)]


def counted(life: Loop) -> None:
    """Count epochs by steps."""
    with life.run as run:
        for _ in range(run.steps // 5, 3):
            for batch in life.loaders[0]:
                life.train(batch)


def skipping(life: Loop) -> None:
    """Leave out what was trained on, as complete_nlp_example does."""
    (loader,) = life.loaders
    with life.run as run:
        start, taken = divmod(run.steps, 5)
        for epoch in range(start, 3):
            is_first = epoch == start and taken
            for batch in life.accelerator.skip_first_batches(loader, taken) if is_first else loader:
                life.train(batch)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return them, but for that of the stop, which a slow machine has time to log."""
    texts = [row.getMessage() for row in caplog.records if row.levelname == "WARNING"]
    return [text for text in texts if not text.startswith("told to ")]


def test_an_epoch_that_a_program_may_lose_is_said(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The epoch that a count of steps begins with was over: it is told before it is, and when it is empty."""
    trained = lived(tmp_path, environ, shuffled, counted, (5,))
    assert len(trained) == 10
    said = warnings(caplog)
    assert [text.partition(":")[0] for text in said] == [
        "the program has not asked which epoch it is in",
        "loader",
        "the program has not asked which epoch it is in",
    ]
    assert "this pass is empty, for its epoch 0 was over" in said[1]


def test_a_program_that_counts_as_the_page_says_is_not_warned(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its epoch that was over is empty too, as it is to be."""
    trained = lived(tmp_path, environ, shuffled, Loop.epochs, (5, 2))
    assert len(trained) == 15
    assert warnings(caplog) == []


def limited(life: Loop) -> None:
    """Train on three batches of each epoch."""
    (loader,) = life.loaders
    with life.run as run:
        for _ in range(max(run.steps - 1, 0) // 3, 3):
            for number, batch in enumerate(loader, start=run.taken(loader)):
                if number >= 3:
                    break
                life.train(batch)


@pytest.mark.parametrize("stops", [(2,), (3,), (4, 2), (6, 3)], ids=str)
def test_epochs_with_a_limit_of_batches_are_counted_by_it(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture, stops: tuple[int, ...]
) -> None:
    """The loader counts none of them, so the program is not told to ask it."""
    straight = lived(tmp_path / "straight", environ, shuffled, limited)
    assert len(straight) == 9
    assert lived(tmp_path / "stopped", environ, shuffled, limited, stops) == straight
    assert warnings(caplog) == []


@pytest.mark.parametrize("make", [shuffled, streamed])
def test_leaving_out_batches_by_skip_first_batches_is_refused(
    tmp_path: Path, environ: dict[str, str], make: Callable[[int], list[DataLoader[torch.Tensor]]]
) -> None:
    """Nothing is saved of that life, so that one without it goes on where the first was."""
    straight = lived(tmp_path / "straight", environ, make, Loop.epochs)
    base = tmp_path / "stopped"
    first = Loop(base, environ, *make(0), life=0, stop_at=7)
    with pytest.raises(SystemExit):
        skipping(first)
    second = Loop(base, environ, *make(1), life=1)
    with pytest.raises(ConfigError, match="take out skip_first_batches"):
        skipping(second)
    trained = first.trained + lived(base, environ, make, Loop.epochs)
    assert trained == straight


def test_the_rest_of_an_epoch_that_the_loop_passes_by_is_said(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It would come later, as if it were another epoch's."""

    def live(life: Loop) -> None:
        with life.run:
            for batch in DataLoader(Numbers(4), batch_size=4) if life.number else life.loaders[0]:
                life.train(batch)

    lived(tmp_path, environ, shuffled, live, (2,))
    assert "loader: the run was saved within its epoch, and the loop trains on something else" in caplog.text
