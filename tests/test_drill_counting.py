# SPDX-License-Identifier: Apache-2.0
"""Lost, repeated and skipped steps, counted over traces of every kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.drill.counting import Steps, count_steps, read_trace


@pytest.mark.parametrize(
    ("first", "second", "lost", "twice", "skipped", "resumed_from"),
    [
        ((1, 2, 3), (4, 5, 6), 0, 0, 0, 3),
        ((1, 2, 3, 4), (3, 4, 5, 6), 2, 2, 0, 2),
        ((1, 2, 3), (1, 2, 3, 4, 5, 6), 3, 3, 0, 0),
        ((1, 2), (4, 5, 6), 0, 0, 1, 3),
        ((1, 2, 2, 3), (4, 5, 6), 0, 1, 0, 3),
        ((1, 2, 3), (4, 5), 0, 0, 1, 3),
    ],
    ids=["nothing", "gone back", "begun anew", "jumped", "repeated on one machine", "not finished"],
)
def test_what_became_of_the_steps(
    first: tuple[int, ...], second: tuple[int, ...], lost: int, twice: int, skipped: int, resumed_from: int
) -> None:
    """Each way of losing work has its own count, and only it."""
    wanted = Steps(lost=lost, twice=twice, skipped=skipped, resumed_from=resumed_from)
    assert count_steps(first, second, total_steps=6) == wanted


@pytest.mark.parametrize(("first", "second"), [((), (1, 2)), ((1, 2), ()), ((), ())])
def test_without_a_trace_nothing_is_guessed(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """A machine that executed nothing makes the counts unknown, not zero."""
    assert count_steps(first, second, total_steps=2) is None


@given(total=st.integers(2, 60), data=st.data())
def test_going_back_loses_and_repeats_the_same_steps(total: int, data: st.DataObject) -> None:
    """Resuming from an older checkpoint repeats exactly what it lost, and skips nothing."""
    last = data.draw(st.integers(1, total - 1))
    resumed = data.draw(st.integers(0, last))
    steps = count_steps(range(1, last + 1), range(resumed + 1, total + 1), total)
    assert steps == Steps(lost=last - resumed, twice=last - resumed, skipped=0, resumed_from=resumed)


def test_a_line_cut_off_by_a_kill_does_not_count() -> None:
    """Only whole lines are steps; what is no number is an error, not a step."""
    assert read_trace(["1 7\n", "2 7\n", "3"]) == (1, 2)
    with pytest.raises(ValueError, match="invalid literal"):
        read_trace(["one 7\n"])
