# SPDX-License-Identifier: Apache-2.0
"""What one rank met decides for all, so that none goes on alone and none is waited for in vain."""

from __future__ import annotations

import itertools

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, RunTaken, StoreError
from spotwatch.train.consensus import Consensus, StoppedElsewhere
from spotwatch.train.world import Alone

from .seats import Seat, play


class _LeaveError(Exception):
    """How the caller's `between` leaves."""


MET: dict[str, Exception | None] = {
    "fine": None,
    "corrupt": CheckpointCorrupt("a bit has turned over"),
    "unreadable": StoreError("403 Forbidden"),
    "broken": RuntimeError("size mismatch"),
    "stopped": _LeaveError("a stop was ordered"),
    "taken": RunTaken("another machine has the run"),
}
ELSEWHERE = {
    "corrupt": CheckpointCorrupt,
    "unreadable": StoreError,
    "broken": StoreError,
    "stopped": StoppedElsewhere,
    "taken": RunTaken,
}
_NAMES = list(MET)


def _reach(seat: Seat, met: str) -> str:
    def between() -> None:
        if met == "stopped":
            raise _LeaveError("still in force")

    def act() -> str:
        error = MET[met]
        if error is not None:
            raise error
        return f"value of rank {seat.rank}"

    return Consensus(seat, between).reach(act)


@pytest.mark.parametrize(("one", "other"), list(itertools.product(MET, MET)))
def test_the_worst_decides(one: str, other: str) -> None:
    """Two of three ranks meet something, the third nothing: what each of them raises, pair by pair."""
    results = play(3, lambda seat: _reach(seat, {0: "fine", 1: one, 2: other}[seat.rank]))
    worst = max(one, other, key=_NAMES.index)
    if worst == "fine":
        assert results == [f"value of rank {rank}" for rank in range(3)]
        return
    assert type(results[0]) is ELSEWHERE[worst]
    assert str(MET[worst]) in str(results[0])
    for rank, met in ((1, one), (2, other)):
        own = MET[met]
        if own is not None and (met == worst or met != "corrupt"):
            assert results[rank] is own
        else:
            assert type(results[rank]) is ELSEWHERE[worst]
            assert f"rank {3 - rank}" in str(results[rank])


def test_a_corrupt_checkpoint_is_passed_over_by_all_or_by_none() -> None:
    """All raise the kind that means `the next one`, or none does: after no other does a rank go on."""
    for one, other in itertools.product(MET, MET):
        results = play(2, lambda seat, pair=(one, other): _reach(seat, pair[seat.rank]))  # type: ignore[misc]
        goes_on = {isinstance(result, CheckpointCorrupt) for result in results}
        assert len(goes_on) == 1


def test_the_first_rank_tells() -> None:
    """What only the first rank may ask, all hear, and the others do not ask."""
    asked: list[int] = []

    def act(seat: Seat) -> object:
        def ask() -> dict[str, int]:
            asked.append(seat.rank)
            return {"generation": 7}

        return Consensus(seat, lambda: None).tell(ask)

    assert play(3, act) == [{"generation": 7}] * 3
    assert asked == [0]


def test_the_first_rank_fails_for_all() -> None:
    """What it raises reaches the others as the kind of thing it was, and names it."""

    def act(seat: Seat) -> object:
        def ask() -> None:
            raise RunTaken("generation 9")

        return Consensus(seat, lambda: None).tell(ask)

    results = play(3, act)
    assert [type(result) for result in results] == [RunTaken] * 3
    assert [str(result) for result in results] == ["generation 9"] + ["rank 0: generation 9"] * 2


def test_a_stop_of_a_rank_that_only_listens_is_heard() -> None:
    """While the first rank asks the store, a stop on another one is not left lying."""

    def act(seat: Seat) -> object:
        def between() -> None:
            if seat.rank == 1:
                raise _LeaveError

        return Consensus(seat, between).tell(lambda: 5)

    results = play(3, act)
    assert [type(result) for result in results] == [StoppedElsewhere, _LeaveError, StoppedElsewhere]


def test_an_error_while_a_stop_is_in_force_is_an_error() -> None:
    """A stop does not make a refusal of the model a stop: the rank that met it raises it."""

    def act(seat: Seat) -> object:
        def between() -> None:
            raise _LeaveError

        def fail() -> None:
            raise (ConfigError("no safe form") if seat.rank else _LeaveError)

        return Consensus(seat, between).reach(fail)

    first, second = play(2, act)
    assert type(first) is _LeaveError
    assert type(second) is ConfigError


def test_a_rank_that_has_gone_is_trouble_for_the_rest() -> None:
    """A peer that was killed ends it with an error; what was met before that is not lost over it."""

    def act(seat: Seat) -> object:
        if seat.rank == 2:
            seat.rounds += 1
            seat.leave()
            return None
        return _reach(seat, "corrupt" if seat.rank else "fine")

    results = play(3, act)
    assert str(results[0]) == "a rank has gone"
    assert results[1] is MET["corrupt"]
    assert isinstance(results[1], Exception)
    assert str(results[1].__cause__) == "a rank has gone"


def test_alone_everything_is_as_it_was() -> None:
    """One process hears its own errors, unchanged."""
    for error in MET.values():
        if error is not None:
            with pytest.raises(type(error)) as caught:
                Consensus(Alone(), lambda: None).reach(lambda e=error: _throw(e))  # type: ignore[misc]
            assert caught.value is error


def _throw(error: Exception) -> None:
    raise error
