# SPDX-License-Identifier: Apache-2.0
"""What ranks agree on in a round, from the greatest of what each says; and how often there is one."""

from __future__ import annotations

import pytest

from spotwatch.errors import ConfigError
from spotwatch.train.ranks.agreement import WIDTH, Agreed, agreed, row, stride_after
from spotwatch.train.world import Wish


def reduce(*rows: list[int]) -> Agreed:
    """Return what is agreed on, as the reduction over all ranks would have it."""
    return agreed([max(values) for values in zip(*rows, strict=True)])


def say(wish: Wish, rank: int = 0, *, step: int = 5, seconds: float = 0.0, left: bool = False) -> list[int]:
    """Return what a rank says."""
    return row(wish, is_first=rank == 0, step=step, step_seconds=seconds, left=left)


@pytest.mark.parametrize("flag", ["stop", "flush", "busy", "fatal"])
@pytest.mark.parametrize("rank", [0, 1])
def test_any_rank_is_heard(flag: str, rank: int) -> None:
    """What one rank wishes, all do, whichever it is."""
    rows = [say(Wish(**{flag: one == rank}), one) for one in range(2)]
    assert reduce(*rows).wish == Wish(**{flag: True})


@pytest.mark.parametrize(("rank", "is_due"), [(0, True), (1, False)])
def test_only_the_first_ranks_clock_counts(rank: int, *, is_due: bool) -> None:
    """A periodic save is due when the first rank says so, and only then."""
    rows = [say(Wish(due=one == rank), one) for one in range(2)]
    assert reduce(*rows).wish.due is is_due


def test_the_slowest_step_counts() -> None:
    """The longest step of any rank is what all reckon with."""
    assert reduce(say(Wish(), seconds=0.25), say(Wish(), 1, seconds=1.5)).step_seconds == 1.5


def test_a_row_has_its_width_and_fits_into_64_bits() -> None:
    """Every integer of a row can be sent, also for a year-long step at the highest step number."""
    for left in (False, True):
        said = say(Wish(), step=10**15 - 1, seconds=3e7, left=left)
        assert len(said) == WIDTH
        assert all(-(2**63) <= value < 2**63 for value in said)


def test_ranks_at_different_steps_are_told_so() -> None:
    """A program whose ranks count differently is wrong, and each rank says in the same way how."""
    with pytest.raises(ConfigError, match=r"different steps, from 5 to 7"):
        reduce(say(Wish()), say(Wish(), 1, step=7), say(Wish(), 2, step=6))


def test_the_step_of_a_rank_that_has_left_is_not_compared() -> None:
    """With uneven data a rank ends at an earlier step than the others, which is no mistake."""
    result = reduce(say(Wish(), step=7), say(Wish(stop=True), 1, step=5, left=True))
    assert result.wish.stop
    assert not result.all_left


def test_all_have_left_only_when_the_last_has() -> None:
    """The round that ends the waiting is the one in which no rank is in its loop."""
    assert reduce(say(Wish(), left=True), say(Wish(), 1, left=True)).all_left


@pytest.mark.parametrize(
    ("wish", "acts", "ends"),
    [
        (Wish(), False, False),
        (Wish(busy=True), False, False),
        (Wish(flush=True), True, False),
        (Wish(due=True), True, False),
        (Wish(stop=True), True, True),
        (Wish(fatal=True), True, True),
    ],
)
def test_what_ranks_do_something_about(wish: Wish, *, acts: bool, ends: bool) -> None:
    """Saves and exits are done together; a rank that is busy changes nothing by itself."""
    assert (Agreed(wish=wish).acts, Agreed(wish=wish).ends) == (acts, ends)


@pytest.mark.parametrize(
    ("seconds", "strides"),
    [
        (0.0, [1, 1, 1]),  # not known yet
        (3.0, [1, 1, 1]),
        (0.02, [1, 1, 1]),
        (0.01, [2, 4, 8, 10, 10]),
        (0.001, [2, 4, 8, 16, 32, 32]),
        (0.00001, [2, 4, 8, 16, 32, 32]),
    ],
)
def test_short_steps_share_a_round(seconds: float, strides: list[int]) -> None:
    """The stride grows by doubling to about a tenth of a second, and never beyond 32 steps."""
    stride, found = 1, []
    for _ in strides:
        stride = stride_after(stride, seconds)
        found.append(stride)
    assert found == strides


def test_a_step_that_takes_long_ends_a_stride_at_once() -> None:
    """After one long step each step has its round again, so that an order never waits for many."""
    assert stride_after(32, 0.5) == 1
