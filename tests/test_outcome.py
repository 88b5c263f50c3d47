# SPDX-License-Identifier: Apache-2.0
"""How `exec` ends: by what the trainer says, else by the record of the stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spotwatch.outcome import exit_code


def ended(
    answer: str | None,
    child: int | None,
    *,
    finished: bool = False,
    left: frozenset[int | None] = frozenset(),
) -> int:
    """Return the exit code after a stop with this answer; None: there was no stop."""
    stop = None if answer is None else SimpleNamespace(answer=answer)
    parts: Any = SimpleNamespace(
        runner=SimpleNamespace(last_stop=lambda: stop),
        trainers=SimpleNamespace(have_finished=lambda: finished, left_with=lambda: left),
    )
    return exit_code(parts, child)


@pytest.mark.parametrize("answer", [None, "", "acknowledged", "durable"])
@pytest.mark.parametrize("code", [75, 76, 77])
def test_the_library_says_it_itself(answer: str | None, code: int) -> None:
    """Its own codes are passed on whatever the record says."""
    assert ended(answer, code) == code


@pytest.mark.parametrize("code", [0, 1, 3, 137, 143, None])
def test_no_stop(code: int | None) -> None:
    """The trainer's own code; 0 when it was not our child."""
    assert ended(None, code) == (code or 0)


@pytest.mark.parametrize("code", [0, 1, 137, 143, None])
def test_durable(code: int | None) -> None:
    """Launchers turn all into 1, and may be killed after the save: the record counts."""
    assert ended("durable", code) == 75


@pytest.mark.parametrize("code", [0, None, 1, 137, 143])
def test_acknowledged(code: int | None) -> None:
    """That it left, or took the flag away, shows no save: one that saved says 75 itself."""
    assert ended("acknowledged", code) == 76


@pytest.mark.parametrize("answer", [None, "", "acknowledged", "durable"])
@pytest.mark.parametrize("code", [0, None, 1, 137])
def test_finished(answer: str | None, code: int | None) -> None:
    """A run that ended by itself as the stop came is finished; what it does afterwards has its own code."""
    assert ended(answer, code, finished=True) == (code or 0)


@pytest.mark.parametrize("code", [0, 1, 143, None])
def test_unanswered(code: int | None) -> None:
    """Nothing shows that anything was saved."""
    assert ended("", code) == 76


@pytest.mark.parametrize("answer", [None, "", "acknowledged"])
@pytest.mark.parametrize(
    ("left", "code"),
    [
        ({75}, 75),
        ({0, 75}, 75),
        ({75, 77}, 77),
        ({77}, 77),
    ],
)
def test_what_a_launcher_hides(answer: str | None, left: set[int | None], code: int) -> None:
    """A notice to another node, or a signal before any order: torchrun says 1, and the status says more."""
    assert ended(answer, 1, left=frozenset(left)) == code


@pytest.mark.parametrize("left", [{75, None}, {75, 76}, {76}, {None}])
def test_one_that_did_not_leave_with_a_save(left: set[int | None]) -> None:
    """A crash beside a saved trainer is a crash, and what was ordered and not saved is 76."""
    assert ended(None, 1, left=frozenset(left)) == 1
    assert ended("", 1, left=frozenset(left)) == 76
