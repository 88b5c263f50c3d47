# SPDX-License-Identifier: Apache-2.0
"""A rank that stays behind when another has gone: it leaves by the book where it was to leave anyway."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from spotwatch.errors import RankGone
from spotwatch.model import JSON
from spotwatch.train import Checkpointer
from spotwatch.train.world import Alone, Wish

from .conftest import Counter, Make

pytestmark = pytest.mark.usefixtures("handlers_come_back")


class Deserted(Alone):
    """The world of a rank whose neighbour was killed."""

    size = 2

    def decide(self, step: int, wish: Wish, *, now: bool = False) -> Wish:
        """Find nobody."""
        raise RankGone("a rank of this run has gone")

    def settle(self, step: int, wish: Wish, *, again: Callable[[], Wish] | None = None) -> Wish:
        """Find nobody."""
        raise RankGone("a rank of this run has gone")

    def everyone(self, value: JSON) -> list[JSON]:
        """Find nobody."""
        raise RankGone("a rank of this run has gone")

    def greatest(self, values: list[int]) -> list[int]:
        """Find nobody."""
        raise RankGone("a rank of this run has gone")


@pytest.fixture
def begun(make: Make) -> tuple[Checkpointer, Counter]:
    """Return a run that has begun, and is alone all at once."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    ck._life.world = ck._saver._world = Deserted()
    return ck, counter


def test_the_end_of_the_loop_is_76(
    begun: tuple[Checkpointer, Counter], caplog: pytest.LogCaptureFixture
) -> None:
    """No traceback comes out of `with`, and the log says why nothing is durable."""
    ck, counter = begun
    with ck:
        counter.train(0)
    assert ck.exit_code == 76
    assert "is not saved: a rank of this run has gone" in caplog.text


def test_a_stop_is_obeyed(begun: tuple[Checkpointer, Counter]) -> None:
    """Whoever was told to leave leaves, with 76, by `step` saying so."""
    ck, counter = begun
    with ck:
        counter.train(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ck.step(1)
    assert ck.exit_code == 76


def test_training_does_not_go_on_alone(begun: tuple[Checkpointer, Counter]) -> None:
    """Told nothing, the step says what has happened, as every other collective would."""
    ck, counter = begun

    def train() -> None:
        with ck:
            counter.train(0)
            ck.step(1)

    with pytest.raises(RankGone):
        train()
    assert ck.exit_code == 76
