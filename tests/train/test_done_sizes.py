# SPDX-License-Identifier: Apache-2.0
"""Large outputs, many at once: what is stored can be read back, in pieces that every reader takes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from spotwatch.train.done import keeper, log, reading
from spotwatch.train.orders import Mark

from .done_help import New, do, outputs, segments
from .done_world import Deaf
from .faulty import FaultyStore
from .lease_world import until

pytestmark = [pytest.mark.usefixtures("handlers_come_back"), pytest.mark.timeout(120)]

_PIECE = 1000
_READABLE = 4 * _PIECE
_OUTPUT = "x" * 300


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sizes be in the proportion that they have, and all of them small."""
    monkeypatch.setattr(keeper, "_MOST_BYTES", _PIECE)
    for module in (log, reading):
        monkeypatch.setattr(module, "MOST_SEGMENT_BYTES", _READABLE)


@pytest.fixture(params=["a thread", "no thread"])
def _a_thread_or_none(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system give the keeper a thread, or refuse it."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "spotwatch-done":
            raise RuntimeError("can't start new thread")
        start(self)

    if request.param == "no thread":
        monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.usefixtures("_a_thread_or_none")
def test_a_large_list_of_items_is_stored_in_pieces(
    store: FaultyStore, new: New, environ: dict[str, str]
) -> None:
    """Finished means readable: 32 outputs come at once, and are more than one segment may hold."""
    done = new(every_items=100, every_seconds=1000)
    with done:
        for batch in done.batches(range(64), 32):
            done.add_many((item, _OUTPUT) for item in batch)
    assert done.exit_code == 0
    assert outputs(store, environ) == dict.fromkeys(range(64), _OUTPUT)
    assert max(len(store.objects[key]) for key in segments(store)) < _PIECE + 200
    assert do(new(), range(64)) == []


def test_an_output_larger_than_a_piece_has_one_of_its_own(
    store: FaultyStore, new: New, environ: dict[str, str]
) -> None:
    """It is not held back for ever, and neither is what comes after it."""
    done = new(every_items=100, every_seconds=1000)
    with done:
        for batch in done.batches(range(3), 3):
            done.add_many((item, "x" * (_PIECE + 1)) for item in batch)
    assert done.exit_code == 0
    assert sorted(outputs(store, environ)) == [0, 1, 2]
    assert len(segments(store)) == 3


class _Asking(Deaf):
    """Asks for one save, and notes how many outputs were stored when it is answered."""

    def __init__(self) -> None:
        self.is_asked = False
        self.stored = 0
        self.stored_at_answer: list[int] = []

    def answer(self, mark: Mark) -> None:
        """Note it."""
        self.stored_at_answer.append(self.stored)
        self.is_asked = False


def test_a_flush_is_answered_when_the_last_piece_is_durable() -> None:
    """Not after the first of several."""
    ear = _Asking()
    kept = keeper.Keeper(keeper.Bounds(100, 1000.0, None), ear, lambda: 0.0, lambda seconds: None)

    def append(lines: Sequence[bytes]) -> log.Stored:
        ear.stored += len(lines)
        return log.Stored("", 0, "")

    tenure = kept.renew()
    kept.begin(append)
    for _ in range(20):
        assert kept.add(_OUTPUT.encode(), tenure)
    ear.is_asked = True
    until(lambda: bool(ear.stored_at_answer))
    assert ear.stored_at_answer[0] == 20
    kept.end()


def test_what_no_reader_takes_is_done_again(
    store: FaultyStore, new: New, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind an index, which says that all is well: earlier versions have written such segments."""
    monkeypatch.setattr(log, "GROUP", 4)
    done = new(every_items=1)
    with done:
        for item in done.todo(range(4)):
            done.add(item, _OUTPUT * (9 if item == 1 else 1))
    assert any("index" in key for key in store.objects)
    for module in (log, reading):
        monkeypatch.setattr(module, "MOST_SEGMENT_BYTES", 2 * _PIECE)
    assert do(new(), range(4)) == [1]
    assert sorted(outputs(store, environ)) == [0, 1, 2, 3]
