# SPDX-License-Identifier: Apache-2.0
"""A run that another process has taken is 77, however this one learns it."""

from __future__ import annotations

import pytest

from spotwatch.errors import RunTaken
from spotwatch.train import Checkpointer

from .conftest import Make, train
from .faulty import FaultyStore
from .searching import dir_of, point


def _overtaken(make: Make) -> Checkpointer:
    """Return one that has resumed, and whose run has had two lives since."""
    ck, _ = make(every_steps=5)
    ck.resume()
    for step in (5, 10):
        train(*make(every_steps=5), step)
    return ck


def test_noticed_in_a_save_of_ones_own(make: Make) -> None:
    """It is raised, and the code is the documented one."""
    ck = _overtaken(make)

    def save() -> None:
        with ck:
            ck.save(3)

    with pytest.raises(RunTaken):
        save()
    assert ck.exit_code == 77


def test_noticed_before_another_failure(make: Make) -> None:
    """A loop that then breaks for a reason of its own must not be started again by its code."""
    ck = _overtaken(make)

    def fail() -> None:
        with ck:
            ck.step(5)  # the save of this step fails, for the run is another's
            raise ValueError("not finite")

    with pytest.raises(ValueError, match="not finite"):
        fail()
    assert ck.exit_code == 77


def test_another_failure_alone_is_76(make: Make) -> None:
    """Nobody has taken anything."""
    ck, _ = make(every_steps=5)
    ck.resume()

    def fail() -> None:
        with ck:
            raise ValueError("not finite")

    with pytest.raises(ValueError, match="not finite"):
        fail()
    assert ck.exit_code == 76


def test_noticed_while_resuming(make: Make) -> None:
    """Another has claimed LATEST between our look and our claim; a later resume has its own verdict."""
    store = FaultyStore()
    train(*make(store, every_steps=5), 5)
    ck, _ = make(store)
    store.deeds.clear()

    def before(deed: str) -> None:
        if deed == "read LATEST" and store.deeds.count(deed) == 2:
            point(store, dir_of(store, 5), generation=99)

    store.before = before
    with pytest.raises(RunTaken, match="generation 99"):
        ck.resume()
    assert ck.exit_code == 77
    assert ck.resume() == 5
    assert ck.exit_code == 76
